"""`python -m nvfp4kern selftest`: what it takes for right, what it writes and what that settles."""

import copy
import fnmatch
import functools
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rows import TABLE, need

import nvfp4kern
from nvfp4kern import __main__ as main
from nvfp4kern import selftest
from nvfp4kern.selftest import (
    assumptions,
    bits,
    calls,
    report,
    sections,
    speed,
    torch_nvfp4,
    trees,
)
from nvfp4kern.selftest.known import simulated, tiles_of
from nvfp4kern.verify.cases import OPERATORS as CHECKED

ROOT = Path(__file__).parents[1]


def rows_of(section, device="cpu"):
    """What a section's process writes, made in this one."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as file:
        assert sections.work(section, device, "quick", 0, writing) == 0
        os.close(writing)
        lines = [json.loads(line) for line in file]
    assert [("begin" in line) for line in lines] == [True, False] * (len(lines) // 2)
    return [line for line in lines[1::2] if line]


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command; (exit status, what it printed)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["nvfp4kern", "selftest", *map(str, arguments)])
        status = main.main()
        return status, capsys.readouterr().out

    return run


def test_sections_have_the_command_s_names():
    assert tuple(sections.SECTIONS) == selftest.SECTIONS


def test_a_cpu_writes_a_file_that_is_shown_again(tmp_path, command):
    path = tmp_path / "found.json"
    status, first = command("--device", "cpu", "--quick", "--section", "probes", "--json", path)
    result = json.loads(path.read_text())
    assert status == 0 and result["environment"]["extent"] == "quick"
    rows = result["sections"]["probes"]["rows"]
    assert len(rows) == 6 and sum(row["ok"] is True for row in rows) == 4
    status, again = command("--from", path)
    assert status == 0 and again == first.replace(first.splitlines(keepends=True)[-1], "")
    assert "kernels for Blackwell" not in again


def test_a_file_of_something_else_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "x.json").write_text('{"rows": []}')
    monkeypatch.setattr(sys, "argv", ["nvfp4kern", "selftest", "--from", str(tmp_path / "x.json")])
    assert main.main() == 2
    assert "expected what selftest wrote" in capsys.readouterr().err


def test_what_is_missing_is_named(monkeypatch, capsys):
    def missing(_):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(selftest, "run", missing)
    monkeypatch.setattr(sys, "argv", ["nvfp4kern", "selftest"])
    assert main.main() == 2
    assert "selftest needs NumPy, PyTorch and rich" in capsys.readouterr().err


# --- What is right ---


def test_every_call_has_the_bytes_of_portable_code():
    rows = rows_of("bits")
    assert [row["name"] for row in rows] == [f"{name} deep" for name in calls.OPERATORS]
    assert [row for row in rows if not row["ok"]] == []


@pytest.mark.parametrize("section, count", [("harness", 8), ("operators", len(CHECKED))])
def test_a_section_is_right(section, count):
    rows = rows_of(section)
    assert len(rows) == count and all(row["ok"] for row in rows)


def test_wrong_results_are_wrong(monkeypatch):
    """Of gemm on the device, not of the CPU's portable code that it is compared with."""
    right = nvfp4kern.gemm

    @functools.wraps(right)
    def wrong(*arguments, out=None, **options):
        result = (
            right(*arguments, **options) if out is None else right(*arguments, out=out, **options)
        )
        if os.environ.get("NVFP4KERN_CPU") != "scalar":
            (out if out is not None else result)[..., 0, 0] += 1
        return result

    monkeypatch.setattr(nvfp4kern, "gemm", wrong)
    found = {name: bits._call(name, "deep", "cpu", 2, "") for name in ("gemm", "dual_gemm")}
    assert found["gemm"]["wrong"] == "1 of 1330 differ, first at 0" and not found["gemm"]["ok"]
    assert found["dual_gemm"]["ok"]


def test_another_result_of_the_same_call_is_wrong():
    call = bits._made("gemm", "small", "cpu")
    first, run = call.run, iter(range(3))

    def moody():
        first()
        if next(run) == 2:
            call.outs[0][0, 0] += 1

    call.run = moody
    row = bits._compared(call, "cpu", 3)
    assert row["wrong"] == "another result of the same call" and not row["ok"]


def test_differences_are_told():
    x = torch.arange(6, dtype=torch.float32)
    y = x.clone()
    assert trees.difference("gemm", x, y) == ""
    y[2] = torch.nextafter(y[2], torch.tensor(9.0))
    assert trees.difference("gemm", x, y) == "1 of 6 differ, first at 2"
    assert trees.difference("route", x, y) == ""
    assert "expected" in trees.difference("gemm", x, y[1:])
    assert trees.digest([x]) != trees.digest([y]) != trees.digest([y.reshape(2, 3)])


def test_torch_s_product_is_compared(monkeypatch):
    """With the oracle in torch's place: no CPU of torch multiplies NVFP4."""

    def scaled_mm(a, b, scale_a, scale_b, out_dtype):
        return nvfp4kern.gemm(
            a, b.t(), scale_a, scale_b, scale_layout="blocked", out_dtype="bfloat16"
        )

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    assert all(row["ok"] and row["other_bits"] == 0 for row in rows_of("torch"))
    monkeypatch.setattr(torch, "_scaled_mm", lambda *a, **o: scaled_mm(*a, **o) * 1.01)
    rows = rows_of("torch")
    assert [row["ok"] for row in rows] == [False, True] * len(torch_nvfp4.SHAPES)
    assert not any(row["torch_within_bound"] for row in rows)


def test_launches_last_and_their_results_are_looked_at():
    call = bits._made("gemm", "small", "cpu")
    launches, wrong = bits.lasted(call, "cpu", 0.05)
    assert launches % bits.BURST == 0 < launches and wrong == ""
    write, count = call.write, iter(range(3 * bits.BURST))

    def moody(outs, arguments, options):
        write(outs, arguments, options)
        outs[0].view(torch.uint8)[0, 0] ^= next(count) >= bits.BURST + 9

    call.write = moody
    assert bits.lasted(call, "cpu", 60)[1] == f"another result within {2 * bits.BURST} launches"


def test_a_step_is_the_difference_of_two_products():
    assert speed.per_step({16: 10.0, 80: 26.0}) == 250
    tiles = nvfp4kern._C._tiles()
    found = {n: speed.mma_cycles("sm100", t) for n, t in tiles.items() if n[:11] == "sm100/gemm:"}
    want = {"n64": 128, "n128": 256, "p128": 256, "p256": 512, "p192m2": 384}
    assert {tile: found.get(f"sm100/gemm:{tile}") for tile in want if found} in (want, {})
    sys.path.append(str(ROOT / "benchmarks"))
    import blackwell_model

    assert speed.MULTIPLY_ADDS["sm100"] == blackwell_model.GIVEN["multiply_adds"][0]


# --- What a file of a Blackwell GPU settles ---


def row(name, ok=True, **more):
    return {"name": name, "ok": ok} | more


def full_file():
    """As of a B200 on which all is as assumed."""
    kept = simulated()["10.0"]["kept"]
    rows = {
        "operators": [row("gemm 1x1x1", backend="sm100")],
        "bits": [row("gemm deep", backend="sm100"), row("gemv deep", backend="sm80")],
        "harness": [row("gemm 1x1x1")],
        "torch": [row("128x128x128, exact")],
        "probes": [row(probe) for probe in ("nan_scale_factors", "sign_of_scale_factors")],
        "digests": [row("sm100/gemm:p64", same=True)],
        "bench": [],
        "costs": [row("a", None, chosen="sm100 p64", us={"sm100/gemm:p64": 2.0, "x": 2.1})],
        "sanitizer": [row(tool) for tool in ("memcheck", "racecheck", "synccheck")],
    }
    tiles = ("n64", "p64", "n64k4", "p128k2", "p256m2")
    rows["bits"] += [row(f"tile sm100/gemm:{tile}") for tile in tiles]
    rows["probes"] += [row("minus_zero"), row("overlapping_kernels")]
    rows["probes"] += [row(name, None, kept=number) for name, number in kept.items()]
    environment = {"nvfp4kern": "0", "torch": "2", "date": "now"}
    environment["rows"] = [{"name": "sm100", "available": True}]
    parts = {name: {"rows": found, "seconds": 1.0} for name, found in rows.items()}
    return {"selftest": 1, "environment": environment, "sections": parts}


def states(result):
    return {a.name: a.settled(result)[0] for a in assumptions.ASSUMPTIONS}


def test_all_may_hold():
    assert set(states(full_file()).values()) == {"holds"}


@pytest.mark.parametrize(
    "section, number, change, failing",
    [
        ("operators", 0, {"ok": False}, {"bound"}),
        ("harness", 0, {"ok": False}, {"bound"}),
        ("bits", 0, {"ok": False}, {"exact"}),
        ("bits", 1, {"ok": False}, {"portable"}),
        ("bits", 2, {"ok": False, "died": True}, {"loads", "ends"}),
        ("bits", 3, {"ok": False}, {"loads", "pairs"}),
        ("bits", 4, {"ok": False}, {"loads", "parts"}),
        ("bits", 5, {"ok": False}, {"loads", "parts", "pairs"}),
        ("torch", 0, {"ok": False}, {"torch"}),
        ("probes", 0, {"ok": False}, {"nan"}),
        ("probes", 1, {"ok": False}, {"sign"}),
        ("probes", 2, {"ok": False}, {"zero"}),
        ("probes", 3, {"ok": False}, {"overlap"}),
        ("probes", 4, {"kept": 3}, {"rounding"}),
        ("digests", 0, {"same": False}, {"rounding"}),
        ("costs", 0, {"us": {"sm100/gemm:p64": 2.0, "x": 1.0}}, {"costs"}),
        ("sanitizer", 0, {"ok": False}, {"memory"}),
        ("sanitizer", 1, {"ok": False}, {"races"}),
        ("sanitizer", 2, {"ok": False}, {"races"}),
    ],
)
def test_each_may_fail(section, number, change, failing):
    result = copy.deepcopy(full_file())
    result["sections"][section]["rows"][number] |= change
    assert {name for name, state in states(result).items() if state == "fails"} == failing


def test_what_was_not_run_is_open():
    result = full_file()
    for part in result["sections"].values():
        part["rows"] = []
    found = states(result)
    assert found.pop("ends") == "holds" and set(found.values()) == {"open"}


def test_what_a_blackwell_s_file_settles_is_printed(tmp_path, command):
    result = full_file()
    result["sections"]["probes"]["rows"][0] |= {"ok": False, "wrong": "no NaN"}
    (tmp_path / "b200.json").write_text(json.dumps(result))
    status, printed = command("--from", tmp_path / "b200.json")
    assert status == 2 and "probes, nan_scale_factors: no NaN" in printed
    for assumption in assumptions.ASSUMPTIONS:
        state = "fails" if assumption.name == "nan" else "holds"
        assert re.search(rf"^  {state} +{assumption.name} ", printed, flags=re.M)


def test_a_summary_is_short_and_names_no_folders():
    result = full_file()
    tiles = [f"sm100/gemm:tile{i}" for i in range(60)]
    died = {"ok": False, "died": True, "wrong": "OSError: /home/someone/x/torch.py"}
    result["sections"]["triage"] = {"rows": [row(f"tile {t}", **died) for t in tiles], "seconds": 1}
    result["sections"]["steps"] = {"rows": [row(t, None, ns=250.4, cycles=465) for t in tiles]}
    result["sections"]["steps"] |= {"seconds": 2.0, "stopped": "its share of 9 s was used"}
    result["sections"]["harness"]["rows"] *= 50
    result["sections"]["harness"]["rows"][0] |= died
    result["left_out"] = dict.fromkeys(tiles, "triage: no answer for 30 s")
    result["clocks"] = [[1.0, "bench", 1200.0, 3000.0, 400.0, 50.0]]
    lines = [line for line, _ in report.summary(result)]
    assert len(lines) < 60 and max(map(len, lines)) <= report.WIDEST
    text = "\n".join(lines)
    assert "home" not in text and "someone" not in text and "OSError: torch.py" in text
    assert "left out: sm100/gemm:tile0, triage: no answer for 30 s" in lines
    assert "steps: 0 right, 0 wrong, 60 not judged, 2 s; its share of 9 s was used" in lines
    assert "bench: 0 right, 0 wrong, 0 not judged, 1 s; 1200 to 1200 MHz, 400 W" in lines
    assert "tile3 250 ns = 465 cycles" in text


def test_the_checklist_has_every_assumption():
    text = (ROOT / "docs" / "blackwell-checklist.md").read_text()
    text = text.partition("## What kernels assume")[2]
    listed = re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", text, flags=re.M)
    assert listed == [(a.name, a.says) for a in assumptions.ASSUMPTIONS]


# --- The simulated B200 ---


@pytest.mark.slow
def test_a_simulated_b200_is_green_and_has_the_shipped_bits(tmp_path):
    """`python -m tests.ptxsim shipped` writes them anew where kernels or plans have changed."""
    from faulty_tiles import on_simulated_gpu
    from ptxsim import build

    if not build.find_cc() or not build.find_nvcc():
        pytest.skip("no cc or no nvcc")
    need("sm100", "sm80")
    given = ["--quick", "--patience", "600", "--minutes", "600", "--json", tmp_path / "b200.json"]
    given += ["--section", "triage", "bits", "probes", "digests"]
    done = on_simulated_gpu(tmp_path, given, "10.0")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "b200.json").read_text())
    rows = {name: part["rows"] for name, part in result["sections"].items()}
    tiles = [tile for tile in nvfp4kern._C._tiles() if tile.startswith("sm100/")]
    for tile in tiles:
        (found,) = [row for row in rows["triage"] if row["name"] == f"tile {tile}"]
        assert found["ok"]
    compared = [row["name"] for row in rows["digests"] if row.get("same")]
    assert compared == [tile for tile in tiles if tile in simulated()["10.0"]["tiles"]] and compared
    assert [row for row in rows["digests"] if not row.get("same")] == []
    found = states(result)
    assert {found[name] for name in ("loads", "ends", "pairs", "parts", "rounding")} == {"holds"}
    assert "fails" not in found.values()


TIMES_OF_TILES = """
import json
from ptxsim import fake_cuda
from nvfp4kern.bench import timing
from nvfp4kern.bench.shapes import chosen
from nvfp4kern.selftest import bits, speed

def captured(calls):
    calls[0]()
    return len(calls)

timing.captured = captured
timing.in_turns = lambda found: {name: timing.Time(n, n, n) for name, n in found.items()}
tiles = [tile for tile in bits.tiles() if "/gemm:" in tile[0] and tile[1] == "sm100"]
shapes = [shape for shape in chosen(["quick"], speed.TILED) if not shape.sizes.get("wide")]
print(json.dumps({shape.op: speed._each_tile(shape, tiles) for shape in shapes[:2]}))
"""


@pytest.mark.slow
def test_every_tile_of_a_shape_is_timed():
    """On the simulated B200, with a stand-in for graphs."""
    from cuda_calls import run_python
    from ptxsim import build

    if not build.find_cc() or not build.find_nvcc():
        pytest.skip("no cc or no nvcc")
    need("sm100", "sm80")
    settings = build.environment(cc="10.0", sms=148) | {"NVFP4KERN_BACKEND": ""}
    found = json.loads(run_python(TIMES_OF_TILES, **settings))
    tiles = {n: tile for n, tile in nvfp4kern._C._tiles().items() if n.startswith("sm100/gemm:")}
    assert set(found["gemm"]["us"]) <= set(tiles) and len(found["gemm"]["us"]) > 4
    row, tile = found["gemm"]["chosen"].split()
    assert f"{row}/gemm:{tile}" in found["gemm"]["us"]
    assert set(found["dual_gemm"]["us"]) == {
        tile
        for tile, traits in tiles.items()
        if traits["split_k"] == 1 and "dual_gemm" in traits["operators"]  # K is one step
    }


def test_names_of_tiles_say_what_assumptions_are_about():
    """A file from elsewhere has tiles by name alone, also of a process that died."""
    for tile in (tile for tile in nvfp4kern._C._tiles().values() if tile["row"] == "sm100"):
        for pattern, trait in (
            ("p*", "ctas_per_mma"),
            ("*k[0-9]", "split_k"),
            ("*m[0-9]", "multicast"),
        ):
            assert fnmatch.fnmatch(tile["tile"], pattern) == (tile.get(trait, 1) > 1), tile


def test_a_newer_gpu_has_the_bits_of_its_machine_code():
    assert tiles_of("10.3") == tiles_of("10.0") == simulated()["10.0"]["tiles"]
    assert tiles_of("9.0") != tiles_of("8.9") == tiles_of("8.0") and tiles_of("99.0") == {}


def test_shipped_bits_are_of_data_that_rounds():
    assert set(simulated()) == {row.cc for row in TABLE.values()}
    known = {tile for gpu in simulated().values() for tile in gpu["tiles"]}
    assert {name for name, tile in nvfp4kern._C._tiles().items() if "operators" in tile} <= known
    call = bits.rounding_call("cpu")("gemm")
    assert call.inputs == simulated()["10.0"]["tiles"]["sm100/gemm:n64"]["inputs"]
    exact = call.want[0].double()
    assert not np.array_equal(exact.numpy(), np.rint(exact.numpy()))
