"""Benchmarks that are interrupted, or whose calls fail: rows are kept, and --more has the rest."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import nvfp4kern
from nvfp4kern import __main__ as main
from nvfp4kern import results
from nvfp4kern.bench import command, measure, others, report, timing
from nvfp4kern.bench.command import _key
from nvfp4kern.bench.shapes import chosen

QUICK = "--device cpu --shapes quick".split()
SOME = ("combine", "dequantize", "quantize", "sort_by_expert")
PROGRAM = """
import signal, sys, time
from nvfp4kern.__main__ import main
from nvfp4kern.bench import measure, timing

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
timing.HOST_BUDGET_S = 0  # the fewest samples
rows, measured = [], measure.measured


def slow_from_the_third_on(*given):
    rows.append(given)
    return measured(*given) if len(rows) < 3 else time.sleep(600)


measure.measured = slow_from_the_third_on
sys.exit(main())
"""


@pytest.fixture
def bench(monkeypatch):
    """Runs the command in this process; its exit status."""
    monkeypatch.setattr(timing, "HOST_BUDGET_S", 0)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["nvfp4kern", "bench", *map(str, arguments)])
        return main.main()

    return run


def keys(path):
    return list(map(_key, json.loads(path.read_text())["rows"]))


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_was_timed_is_kept_and_the_rest_is_added(stop, bench, tmp_path):
    path = tmp_path / "rows.json"
    program = [sys.executable, "-c", PROGRAM, "bench", *QUICK, "--op", *SOME, "--json", path]
    can_draw = importlib.util.find_spec("matplotlib") is not None
    program += ["--plot", tmp_path / "plots"] * can_draw
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (path.exists() and path.read_text().count('"op"') == 2):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(stop)
    out, err = process.communicate()
    wanted = [_key(shape) for shape in chosen(["quick"], SOME)]
    before = json.loads(path.read_text())
    assert keys(path) == wanted[:2] and len(wanted) == 7
    if stop != signal.SIGKILL:
        assert process.returncode == 128 + stop
        assert "interrupted, 2 rows" in err and "milliseconds" in out and "Traceback" not in err
        assert (tmp_path / "plots" / "quick_floor.png").exists() == can_draw
    assert bench(*QUICK, "--op", *SOME, "--json", path, "--more", "--commit", "abc") == 0
    after = json.loads(path.read_text())
    assert keys(path) == wanted and after["rows"][: len(before["rows"])] == before["rows"]
    assert all("time" in row for row in after["rows"])
    (later,) = after["environment"].pop("later")
    assert after["environment"] == before["environment"]
    assert later["commit"] == "abc" and "gpu" not in later and "seconds" in later


@pytest.mark.parametrize(
    "name", ["environment", "chosen", "show"], ids=["before a row", "at first", "while it is shown"]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_at_another_time_ends_it(name, number, bench, monkeypatch, capsys):
    """Without a traceback."""

    def interrupted(*_):
        os.kill(os.getpid(), number)
        time.sleep(10)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    module = {"environment": measure, "chosen": command, "show": report}[name]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(module, name, interrupted)
    try:
        assert bench(*QUICK, "--op", "dequantize") == 128 + number
    finally:
        signal.signal(signal.SIGINT, before[0])
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1] == "interrupted" and "Traceback" not in printed.err
    assert signal.getsignal(signal.SIGTERM) == before[1]


def test_rows_that_are_added_lie_where_a_whole_run_has_them(bench, tmp_path):
    path = tmp_path / "rows.json"
    assert bench(*QUICK, "--op", "dequantize", "--json", path) == 0
    assert bench(*QUICK, "--op", "combine", "dequantize", "--json", path, "--more") == 0
    of = {"combine", "dequantize"}
    assert keys(path) == [_key(shape) for shape in chosen(["quick"], of)]


def test_a_call_that_fails_costs_its_row(bench, monkeypatch, tmp_path, capsys):
    path, make = tmp_path / "rows.json", others.combine
    with monkeypatch.context() as patch:
        patch.setattr(others, "combine", lambda *_, **__: [][0])
        assert bench(*QUICK, "--op", "combine", "dequantize", "--json", path) == 2
    printed, reason = capsys.readouterr(), "IndexError: list index out of range"
    assert f"combine: smallx8x2x1024 failed: {reason}" in printed.out
    assert "FAILED" in printed.out and "Traceback" in printed.err
    failed, timed = json.loads(path.read_text())["rows"]
    assert failed["failed"] == reason and "time" not in failed and "time" in timed
    assert (
        others.combine is make and bench(*QUICK, "--op", "combine", "--json", path, "--more") == 0
    )
    first, second = json.loads(path.read_text())["rows"]
    assert "failed" not in first and "time" in first and second == timed


def test_rows_of_another_machine_are_not_added_to(bench, tmp_path, capsys):
    path = tmp_path / "rows.json"
    for environment in ({"device": "cuda"}, {"device": "cpu", "cpu": "another"}):
        path.write_text(json.dumps({"environment": environment, "rows": []}))
        assert bench(*QUICK, "--json", path, "--more") == 2
        assert "--more: rows of " in capsys.readouterr().err
    assert bench(*QUICK, "--more") == 2 and "--more: needs --json" in capsys.readouterr().err


def test_results_have_one_row_a_line(tmp_path):
    value = {"environment": {"gpu": "H200", "ceilings": {"read": 1.5}},
             "rows": [{"op": "gemm", "time": {"median": 2}}, {"op": "gemv"}],
             "none": [], "sizes": [1, 2]}  # fmt: skip
    path = tmp_path / "results.json"
    results.write(path, value)
    assert json.loads(path.read_text()) == value and os.listdir(tmp_path) == [path.name]
    assert path.read_text().split("\n")[5:8] == [
        ' "rows": [', '  {"op": "gemm", "time": {"median": 2}},', '  {"op": "gemv"}']  # fmt: skip
    assert len(path.read_text().split("\n")) == 13
    results.write(path, value, depth=0)
    assert path.read_text() == json.dumps(value) + "\n"
    results.write("/dev/null", value)
    assert nvfp4kern.results is results
