"""benchmarks/compare_builds.py: what it takes for worse, wrong and failed, and its exit status."""

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import nvfp4kern
from nvfp4kern import _C
from nvfp4kern.bench import exact

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import compare_builds  # noqa: E402

SAME = "from nvfp4kern._C import *\n"
RAISES = SAME + "def dequantize(*_, **__):\n    raise ValueError('no such tile')\n"
WRONG = SAME + "def dequantize(*_, out, **__):\n    out.fill_(1)\n"
LACKS = SAME + "del dequantize\n"
RAISES_FIRST = SAME + "def gemv(*_, **__):\n    raise OSError('lost\\nlines of advice')\n"


@pytest.fixture
def compare(monkeypatch, tmp_path, capsys):
    """The command on small shapes, with an old build of this text: status, last line, rows."""
    monkeypatch.setattr(compare_builds, "ROUNDS", 1)
    monkeypatch.setattr(compare_builds, "CALLS", 1)
    times = dict.fromkeys(("old", "new", "again"), 2.0)
    monkeypatch.setattr(compare_builds, "medians", lambda contenders, device: times)
    monkeypatch.setattr(compare_builds, "wall", lambda call, idle: (call(), 3.0)[1])

    def run(text, *operators):
        old, rows = tmp_path / "old.py", tmp_path / "rows.json"
        old.write_text(text)
        command = ["compare_builds.py", old, "--device", "cpu", "--json", rows, "--op", *operators]
        monkeypatch.setattr(sys, "argv", list(map(str, command)))
        status = compare_builds.main()
        printed = capsys.readouterr().out.splitlines()
        return status, printed[-1], {row["row"]: row for row in json.loads(rows.read_text())}

    return run


def case_of(value, wanted=(3,)):
    """A result that must be one of those everywhere; ours writes `value`."""
    out = torch.empty(4)
    right = {"right": lambda got, i: any((got == one).all() for one in wanted)}
    right["has_one_result"] = len(wanted) == 1
    return SimpleNamespace(calls={"": [partial(out.fill_, value)]}, outs={"": [out]}, **right)


@pytest.mark.parametrize(
    "new, again, worse",
    [(100, 100, False), (103, 100, False), (104, 100, True), (104, 105, False), (106, 105, True)],
)
def test_a_row_is_worse_beyond_the_limit_and_the_spread(new, again, worse):
    row = compare_builds.row("name", {"old": 100.0, "again": float(again), "new": float(new)})
    assert row["worse"] is worse
    assert row["ratio"] == new / 100 and row["spread"] == pytest.approx(again / 100 - 1)


def test_medians_are_of_rounds_in_turns(monkeypatch):
    taken = {"old": iter((5.0, 1.0, 3.0)), "new": iter((2.0, 9.0, 4.0))}

    def in_turns(contenders):
        return {name: SimpleNamespace(median=next(taken[name])) for name in contenders}

    monkeypatch.setattr(compare_builds, "ROUNDS", 3)
    monkeypatch.setattr(compare_builds.timing, "host_in_turns", in_turns)
    assert compare_builds.medians(dict.fromkeys(taken), "cpu") == {"old": 3.0, "new": 4.0}


@pytest.mark.parametrize("ours, theirs, same", [(3, 3, True), (3, 2, False), (2, 3, False)])
def test_a_wrong_result_of_either_build_is_noticed(ours, theirs, same):
    case = case_of(ours)
    calls = [partial(case.outs[""][0].fill_, theirs)]
    assert compare_builds.same(case, "", calls) is same


@pytest.mark.parametrize(
    "ours, theirs, same", [(3, 4, True), (4, 3, True), (2, 3, False), (3, 2, False)]
)
def test_where_several_results_are_right_builds_may_differ(ours, theirs, same):
    case = case_of(ours, wanted=(3, 4))
    calls = [partial(case.outs[""][0].fill_, theirs)]
    assert compare_builds.same(case, "", calls) is same


@pytest.mark.parametrize("lacking, failed", [("combine", 2), ("grouped_gemm", 6)])
def test_layers_are_called_step_by_step_in_the_old_build(compare, lacking, failed):
    status, said, rows = compare(f"{SAME}del {lacking}\n", "experts", "layer")
    assert status == 2 and f"{failed} failed, 0 wrong" in said
    layers = [row for name, row in rows.items() if name.startswith("layer")]
    assert len(layers) == 2 and all(lacking in row["failed"] for row in layers)


def test_a_build_that_writes_nothing_is_noticed():
    assert not compare_builds.same(case_of(3), "", [lambda: None])


def test_the_same_build_has_no_failed_row(compare):
    status, last, rows = compare(SAME, "dequantize")
    assert (status, last) == (0, "6 rows, 0 failed, 0 wrong, 0 worse; median 1.000")
    assert list(rows)[:2] == ["call: gemv out=", "call: gemm out="]
    assert [name.rsplit(" ", 1)[1] for name in list(rows)[4:]] == ["linear", "blocked"]


def dequantize(*_, **__):
    raise RuntimeError("lost")


def no_memory(*_, **__):
    raise torch.OutOfMemoryError("no memory")


FIRST, DEQUANTIZED = ["call: gemv out="], ["dequantize"] * 2
FAILING = {  # the old build, what fails in this one, the rows that fail, why
    "the old build raises": (RAISES, (), DEQUANTIZED, "the old build: ValueError: no such tile"),
    "it lacks the operator": (LACKS, (), DEQUANTIZED, "the old build: AttributeError"),
    "a whole call raises": (
        RAISES_FIRST, (), FIRST, "the old build: OSError: lost\nlines of advice"
    ),
    "the new build raises": (
        SAME, (nvfp4kern, "dequantize", dequantize), DEQUANTIZED, "the new build: RuntimeError: l"
    ),
    "no operands": (
        SAME, (exact, "wide", no_memory), ["quantize"] * 4, "OutOfMemoryError: no memory"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAILING)
def test_a_row_that_fails_is_listed_and_the_next_follows(compare, monkeypatch, kind):
    text, patched, wanted, reason = FAILING[kind]
    if patched:
        monkeypatch.setattr(*patched)
    status, last, rows = compare(text, "quantize", "dequantize")
    failed = {name: row["failed"] for name, row in rows.items() if "failed" in row}
    assert len(failed) == len(wanted) and all(map(str.startswith, failed, wanted))
    assert all(why.startswith(reason) for why in failed.values())
    expected = f"{len(rows)} rows, {len(wanted)} failed, 0 wrong, 0 worse; median 1.000"
    assert (status, last) == (2, expected) and len(rows) == (10 if kind == "no operands" else 14)


def test_a_wrong_row_is_not_timed(compare):
    status, last, rows = compare(WRONG, "dequantize")
    assert status == 2 and last == "6 rows, 0 failed, 2 wrong, 0 worse; median 1.000"
    wrong = [row for row in rows.values() if "wrong" in row]
    assert all(row == {"row": row["row"], "wrong": True} for row in wrong)


def test_the_exit_status_says_the_worst():
    worse = {"row": "a", "ratio": 2.0, "worse": True}
    assert compare_builds.summary([worse])[1] == 1
    assert compare_builds.summary([worse, {"row": "b", "failed": "why"}])[1] == 2
    assert compare_builds.summary([{"row": "b", "failed": "why"}])[0] == (
        "1 rows, 1 failed, 0 wrong, 0 worse; nothing was timed"
    )


def test_builds_are_timed(monkeypatch, capsys):
    """Of the extension itself, loaded once more beside the package's own."""
    monkeypatch.setattr(compare_builds, "ROUNDS", 1)
    monkeypatch.setattr(compare_builds, "CALLS", 3)
    old = compare_builds.extension(_C.__file__)
    assert old is not _C and old.gemv is not _C.gemv
    found = list(compare_builds.overhead(old, "cpu"))
    found += compare_builds.rows(old, ["quick"], ["dequantize"], "cpu", exact)
    assert len(found) == 6 and all(min(row[b] for b in ("old", "new")) > 0 for row in found)
    for row in found:
        compare_builds.show(row)
    shown = capsys.readouterr().out.splitlines()
    assert [line.startswith(row["row"]) for line, row in zip(shown, found, strict=True)] == 6 * [
        True
    ]
