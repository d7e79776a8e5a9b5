"""How `python -m nvfp4kern selftest` runs: processes that hang or die, tiles that are left out,
time that is over, and files that a killed run goes on with."""

import contextlib
import copy
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
from rows import need

import nvfp4kern
from nvfp4kern import __main__ as main
from nvfp4kern import selftest
from nvfp4kern.selftest import clocks, left_out, parent, sanitizer
from nvfp4kern.selftest import command as selftest_command
from nvfp4kern.selftest.command import NEW_PART
from nvfp4kern.verify.cases import OPERATORS as CHECKED

ROOT = Path(__file__).parents[1]
QUICK = Namespace(device="cpu", extent="quick", patience=20)


def kept():
    pass


def result_of(section, options, tell=lambda text: None, **more):
    """A section's part of a file, made by processes."""
    part = copy.deepcopy(NEW_PART)
    parent.work_on(section, options, part, tell, kept, **more)
    return part


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command; (exit status, what it printed)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["nvfp4kern", "selftest", *map(str, arguments)])
        status = main.main()
        return status, capsys.readouterr().out

    return run


WORKER = """
import json, os, sys, time
skip, descriptor = map(int, sys.argv[1:3])
section, *without = sys.argv[3:]
def say(line):
    os.write(descriptor, json.dumps(line).encode() + b"\\n")
names = ["tile a", "tile b", "tile c", "tile d", "e", "tile f"]
for number, name in enumerate(name for name in names if name[5:] not in without):
    if number < skip:
        continue
    say({"begin": name})
    if name == "tile b":
        print("about to fail in /home/someone/venv/torch.py", flush=True)
        os.kill(os.getpid(), 9)
    if name == "tile c":
        time.sleep(60)
    row = {"name": name, "ok": name != "tile d"}
    say({} if name == "e" else row if row["ok"] else row | {"wrong": "1 of 9 differ"})
"""


def stand_in(monkeypatch, program):
    def command_of(section, options, skip, without, descriptor):
        given = [skip, descriptor, section, *sorted(without)]
        return [sys.executable, "-c", program, *map(str, given)]

    monkeypatch.setattr(parent, "command_of", command_of)


def test_a_process_that_dies_or_hangs_costs_one_row(monkeypatch):
    stand_in(monkeypatch, WORKER)
    told = []
    options = Namespace(device="cpu", extent="usual", patience=2)
    part = result_of("bits", options, told.append)
    rows = part["rows"]
    assert [row["name"] for row in rows] == [f"tile {name}" for name in "abcdf"]
    assert [row["ok"] for row in rows] == [True, False, False, False, True]
    assert rows[1]["wrong"] == "exit status -9" and rows[1]["said"] == "about to fail in torch.py"
    assert rows[2]["wrong"] == "no answer for 2 s" and all(row["died"] for row in rows[1:3])
    assert told == [f"bits: {name}" for name in [*(f"tile {n}" for n in "abcd"), "e", "tile f"]]
    assert part["ended"] and part["done"] == 6


def test_processes_that_always_die_come_to_an_end(monkeypatch):
    stand_in(monkeypatch, "raise SystemExit(1)")
    rows = result_of("bits", QUICK)["rows"]
    assert len(rows) == parent.FEWER_DEATHS + 1
    assert rows[0]["name"] == "(start)" and rows[-1]["name"] == "(the rest)"


def test_tiles_that_hang_or_are_wrong_are_left_out_of_what_follows(monkeypatch, tmp_path, command):
    stand_in(monkeypatch, WORKER)
    path = tmp_path / "found.json"
    given = ("--device", "cpu", "--patience", "2", "--section", "bits", "triage", "operators")
    status, printed = command(*given, "--json", path)
    result = json.loads(path.read_text())
    names = {
        section: [r["name"][5:] for r in p["rows"]] for section, p in result["sections"].items()
    }
    assert names == {"triage": list("abcdf"), "bits": list("af"), "operators": list("af")}
    assert result["left_out"] == {
        "b": "triage: exit status -9",
        "c": "triage: no answer for 2 s",
        "d": "triage: 1 of 9 differ",
    }
    assert status == 2 and all(part["ended"] for part in result["sections"].values())
    for tile, why in result["left_out"].items():
        assert f"left out: {tile}, {why}" in printed


def test_a_section_stops_where_its_share_is_used(monkeypatch):
    stand_in(monkeypatch, WORKER.replace("time.sleep(60)", "time.sleep(3)"))
    options = Namespace(device="cpu", extent="quick", patience=30)
    begin = time.monotonic()
    part = result_of("bits", options, without=["b"], seconds=2)
    assert time.monotonic() - begin < 3 and [r["name"] for r in part["rows"]] == ["tile a"]
    assert part["stopped"] == "its share of 2 s was used" and not part["ended"]
    parent.work_on("bits", options, part, print, kept, without=["b"])  # the next run
    assert [r["name"][5:] for r in part["rows"]] == list("acdf")
    assert part["ended"] and "stopped" not in part


def test_shares_are_of_what_is_left():
    assert set(parent.SHARES) == set(selftest.SECTIONS)
    left, names = 515.0, list(selftest.SECTIONS)
    for name in names:
        seconds = parent.share(name, names, left)
        assert seconds >= parent.SHARES[name] * 515 / sum(parent.SHARES.values()) - 1e-9
        left -= seconds / 2
    assert seconds == pytest.approx(left * 2) and left > 0


def test_a_run_that_was_killed_goes_on_from_its_file(tmp_path):
    path, started = tmp_path / "found.json", 0
    command = [sys.executable, "-m", "nvfp4kern", "selftest", "--device", "cpu", "--quick"]
    command += ["--section", "operators", "probes", "--json", path]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while started < 3 and time.monotonic() < end:
        time.sleep(0.02)
        with contextlib.suppress(OSError, ValueError, KeyError):
            started = len(json.loads(path.read_text())["sections"]["operators"]["rows"])
    process.kill()
    assert process.wait() == -9
    before = json.loads(path.read_text())["sections"]
    rows = before["operators"]["rows"]
    assert 3 <= len(rows) == before["operators"]["done"] and "ended" not in before["operators"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = json.loads(path.read_text())["sections"]
    assert after["operators"]["rows"][: len(rows)] == rows  # their seconds, too
    names = [row["name"] for row in after["operators"]["rows"]]
    assert len(names) == len(set(names)) == len(CHECKED) and len(after["probes"]["rows"]) == 6
    assert all(part["ended"] for part in after.values())


def test_a_file_of_another_build_is_begun_anew(tmp_path):
    now = {"sources": "a", "gpu": {"name": "B200"}, "extent": "quick"}
    old = {"selftest": 1, "environment": now, "sections": {"probes": {"rows": [1], "done": 1}}}
    path = tmp_path / "found.json"

    def begun(now, **change):
        path.write_text(json.dumps(old | change))
        return selftest_command._begun(path, ["probes"], now)["sections"]

    assert begun(now) == old["sections"]
    for change in ({"sources": "b"}, {"gpu": {"name": "H200"}}, {"extent": "all"}):
        assert begun(now | change) == {}
    assert begun(now, sections={"probes": {"rows": [1], "ended": True}}) == {}
    path.write_text('{"rows": []}')
    assert selftest_command._begun(path, ["probes"], now)["sections"] == {}


def test_clocks_are_kept_by_section(monkeypatch):
    answer = {"clocks.sm": "1830 MHz", "clocks.mem": "3201 MHz", "power.draw": "[N/A]", "t": "41"}
    monkeypatch.setattr(clocks.machine, "nvidia_smi", lambda *_: [answer])
    samples = [[7.5, "bits", 1200.0, 3201.0, 300.0, 40.0]]
    with clocks.Clocks(samples, 0.01, "0") as sampled:
        sampled.section = "bench"
        time.sleep(0.2)
    assert len(samples) > 2 and samples[-1][1:] == ["bench", 1830, 3201, None, 41]
    assert samples[-1][0] >= 7.5
    assert clocks.by_section(samples)["bits"] == (1200, 1200, 300)
    assert clocks.by_section(samples)["bench"] == (1830, 1830, 0)


def test_a_tile_that_is_left_out_is_avoided(monkeypatch):
    """By plans that are told: no tile of the CPU can be forced."""
    tiles = {f"sm90/gemm:{n}": {"operators": ["gemm"]} for n in ("a", "b", "c")}
    tiles |= {"sm90/kind_f16:b": {"operators": ["gemm"]}}
    monkeypatch.setattr(nvfp4kern._C, "_tiles", lambda: tiles)

    def explain(name, *arguments, **options):
        forced = os.environ.get("NVFP4KERN_TILE") or "sm90/gemm:a"
        if os.environ.get("NVFP4KERN_BACKEND") == "sm80":
            return {"backend": "sm80", "kernel": "sm80_gemm_t8", "tile": "t8"}
        if forced == "sm90/gemm:b":
            raise nvfp4kern.BackendError("serves no such call")
        return {"backend": "sm90", "kernel": "sm90_gemm", "tile": forced[-1]}

    monkeypatch.setattr(nvfp4kern, "explain", explain)
    for out, tile in (
        ({"sm90/gemm:b"}, "sm90/gemm:a"),
        ({"sm90/gemm:a"}, "sm90/gemm:c"),
        ({"sm90/gemm:a", "sm90/gemm:c"}, "sm80/gemm:t8"),
    ):
        monkeypatch.setattr(left_out, "TILES", out)
        with left_out.avoided("gemm", (), {}):
            assert left_out.tile_of(explain("gemm")) == tile
    monkeypatch.setattr(left_out, "TILES", {"sm90/gemm:a", "sm90/gemm:c", "sm80/gemm:t8"})
    with pytest.raises(left_out.LeftOut, match="sm90/gemm:a and all that could stand in"):
        with left_out.avoided("gemm", (), {}):
            raise AssertionError
    monkeypatch.setattr(left_out, "TILES", {"sm90/gemm:a"})
    with left_out._avoided_by_all():
        assert os.environ["NVFP4KERN_TILE"] == "sm90/gemm:b"


def test_kernels_are_called_after_their_families():
    for kernel, tile in (
        ("sm100_kind_f16_gemm_n64", "sm100/kind_f16:x"),
        ("sm100_dual_gemm_n64", "sm100/gemm:x"),
        ("sm80_gemv_codes", "sm80/gemv:x"),
        ("sm90_route_t8x64", "sm90/route:x"),
    ):
        plan = {"backend": kernel.partition("_")[0], "kernel": kernel, "tile": "x"}
        assert left_out.tile_of(plan) == tile


def test_compute_sanitizer_is_asked(tmp_path, monkeypatch):
    """A stand-in that finds something with racecheck."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        '#!/bin/sh\necho "$@" >> "$0.asked"\necho "========= ERROR SUMMARY: 1 error"\n'
        'case "$*" in *racecheck*) exit 9;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    rows = {name: make() for name, make in sanitizer.items("cuda", "usual")}
    assert {name: row["ok"] for name, row in rows.items()} == {
        "memcheck": True, "racecheck": False, "synccheck": True,
    }  # fmt: skip
    assert rows["racecheck"]["wrong"] == "========= ERROR SUMMARY: 1 error"
    asked = Path(f"{program}.asked").read_text().splitlines()
    assert len(asked) == 3
    assert all(line.endswith("--section triage bits --worker 1") for line in asked)
    program.write_text('#!/bin/sh\necho "========= Error: a race"\nexec sleep 9\n')
    monkeypatch.setitem(sanitizer.SECONDS, "quick", 0.5)
    late = next(sanitizer.items("cuda", "quick"))[1]()
    assert not late["ok"] and late["wrong"] == "========= Error: a race; not done in 0.5 s"
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sanitizer.shutil, "which", lambda *_, **__: None)
    rows = [make() for _, make in sanitizer.items("cuda", "quick")]
    assert all(row["ok"] is None and "not installed" in row["why"] for row in rows)


@pytest.mark.slow
def test_a_simulated_gpu_whose_tiles_fail_is_measured_all_the_same(tmp_path):
    """A tile that hangs, one that is wrong and one that kills its process."""
    from faulty_tiles import on_simulated_gpu
    from ptxsim import build

    if not build.find_cc() or not build.find_nvcc():
        pytest.skip("no cc or no nvcc")
    need("sm80")
    faults = "sm80/gemm:t16=hang,sm80/gemm:t64=wrong,sm80/gemv:w2=kill"
    path = tmp_path / "a100.json"
    given = ["--quick", "--minutes", "60", "--patience", "60", "--json", path]
    given += ["--section", "triage", "probes", "digests"]
    done = on_simulated_gpu(tmp_path, given, "8.0", FAULTY_TILES=faults)
    assert done.returncode == 2, done.stderr
    result = json.loads(path.read_text())
    rows = {
        section: {row["name"]: row for row in part["rows"]}
        for section, part in result["sections"].items()
    }
    assert result["left_out"] == {
        "sm80/gemm:t16": "triage: no answer for 60 s",
        "sm80/gemm:t64": "triage: {'gemm': '1 of 1330 differ, first at 0'}",
        "sm80/gemv:w2": "triage: exit status -9",
    }
    tiles = {tile for tile in nvfp4kern._C._tiles() if tile.startswith("sm80/")}
    assert set(rows["triage"]) == {f"tile {tile}" for tile in tiles}
    bad = {tile for tile in tiles if rows["triage"][f"tile {tile}"]["ok"] is False}
    assert bad == set(result["left_out"])
    assert rows["digests"] and not bad & set(rows["digests"])
    assert [
        row for name in ("probes", "digests") for row in rows[name].values() if row.get("wrong")
    ] == []
    for tile in bad:
        assert f"left out: {tile}" in done.stdout
