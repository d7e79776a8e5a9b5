"""mutate_host.py: the checks that it finds, what it makes of them, and that a test notices one."""

import json
import subprocess
import sys
from dataclasses import asdict

import mutate_host
import pytest
from mutate_host import ROOT, changes, checks, earlier_rows, mask, others, removals, summary


def removed(source):
    spans = sorted(set(removals(mask(source))))
    return [source[:begin] + new.replace("{}", source[begin:end]) + source[end:]
            for begin, end, new in spans]  # fmt: skip


@pytest.mark.parametrize(
    "source, without",
    [
        ("NK_CHECK(a(1, 2) && b, E, m);", "NK_CHECK(((void)(a(1, 2) && b), 1), E, m);"),
        ("NK_CHECK_AT(x > 0, E, t, m);", "NK_CHECK_AT(((void)(x > 0), 1), E, t, m);"),
        ("NK_TRY(f(a, b));", "NK_TRY(((void)(f(a, b)), NK_OK));"),
        ("if (x) return py_fail_at(E, m);", "if (((void)(x), 0)) return py_fail_at(E, m);"),
        ("if (x) { py_wrong_type(o);", "if (((void)(x), 0)) { py_wrong_type(o);"),
        ("return x ? 0 : py_fail_at(E, g(m));", "return x ? 0 : 0;"),
        ("return nk_fail(E, m);", "return 0;"),
        ("if (py_f(a, g(b)) < 0) return -1;", "if (((void)(py_f(a, g(b)) < 0), 0)) return -1;"),
        ("q = py_items(a); if (!q) return -1;", "q = py_items(a); if (((void)(!q), 0)) return -1;"),
    ],
)
def test_a_check_is_removed(source, without):
    assert removed(source) == [without]


@pytest.mark.parametrize(
    "source",
    ["/* NK_TRY(f(x)); */", '"NK_TRY(f(x))"', "#define X NK_TRY(f(x))",
     "nk_status nk_fail(nk_status s);", "d = PyDict_New(); if (!d) return NULL;"],
)  # fmt: skip
def test_no_check(source):
    assert removed(source) == []


def test_other_changes():
    source = "if (x < 10 && y == n - 1) /* 2 + 1 */ return -1;"
    assert {source[:b] + new + source[e:] for _, b, e, new in changes(mask(source))} == {
        "if (x <= 10 && y == n - 1) /* 2 + 1 */ return -1;",
        "if (x < 11 && y == n - 1) /* 2 + 1 */ return -1;",
        "if (x < 10 || y == n - 1) /* 2 + 1 */ return -1;",
        "if (x < 10 && y != n - 1) /* 2 + 1 */ return -1;",
        "if (x < 10 && y == n + 1) /* 2 + 1 */ return -1;",
        "if (x < 10 && y == n - 2) /* 2 + 1 */ return -1;",
    }


def test_every_check_of_the_operators_is_found():
    for path in sorted((ROOT / "csrc/op").glob("*.c")):
        text = mask(path.read_text())
        macros = sum(text.count(f"NK_{name}(") for name in ("CHECK", "CHECK_AT", "TRY"))
        assert len(checks(path.name)) >= macros, path


def test_a_seed_draws_the_same_mutants():
    assert others(5, "op_route.c") == others(5, "op_route.c") != others(6, "op_route.c")


def test_rows_of_an_earlier_run_are_known_by_their_mutants(tmp_path):
    file, (first, second) = tmp_path / "rows.json", others(5, "op_route.c")[:2]
    assert earlier_rows(file) == {}
    row = asdict(first) | {"result": "a test", "why": ""}
    file.write_text(json.dumps([row]))
    assert earlier_rows(file) == {first: row} and second not in earlier_rows(file)


def test_the_own_tests_of_a_file_come_first():
    first, everything = mutate_host.tests_for("csrc/op/op_route.c")
    routes = {f"tests/operators/test_route{end}.py" for end in ("", "_map", "_operands")}
    assert {"tests/binding/test_bad_route.py", *routes} <= set(first)
    assert everything == ["tests/binding", "tests/operators"]


def test_known_survivors_are_mutants():
    known = mutate_host.SURVIVORS.keys() | mutate_host.UNSEEN.keys()
    assert known <= {m.key for m in checks() + others(0)}


@pytest.mark.parametrize(
    "results, status",
    [(["a test"] * 3, 0), (["a test", "SURVIVED"], 1), (["none: the same machine code"], 0)],
)
def test_the_exit_status(results, status, capsys):
    assert summary([{"kind": "check", "result": r, "why": ""} for r in results]) == status


@pytest.mark.slow
def test_removed_checks_are_noticed():
    command = [sys.executable, "tests/mutate_host.py", "--only", "op_dequantize.c", "--quick"]
    done = subprocess.run([*command, "--sample", "0"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "check: 6 mutants, 0 survive" in done.stdout
