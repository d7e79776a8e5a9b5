"""`python -m nvfp4kern`: check, info, explain."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

import nvfp4kern
from nvfp4kern import __main__ as main
from nvfp4kern import machine
from nvfp4kern.verify import shapes
from nvfp4kern.verify.cases import OPERATORS, cases, groups_in_short


def run(*arguments, **variables):
    command = [sys.executable, "-m", "nvfp4kern", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | variables)


def test_one_operator_is_checked_and_tabulated_in_80_columns():
    done = run("--op", "gemv", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^gemv .* cpu .* GB/s .* ok *$", done.stdout, flags=re.M)) == 9
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and "…" not in done.stdout
    assert lines[-2] == "9 of 9 cases right against the float64 oracle"
    assert lines[-1].startswith("now: ") and "bench" in lines[-1]


def test_the_machine_is_named(tmp_path, monkeypatch):
    """Its GPUs by nvidia-smi, of which there is a stand-in."""
    cpu = machine.cpu_in_use(np.zeros((1, 1), np.uint8))
    assert cpu["cpu"] and not cpu["instructions"].startswith("CPU tensors")
    asked = 'test "$*" = "--query-gpu=name,driver_version --format=csv,noheader" && echo '
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{asked}'NVIDIA H200, 580.95.05'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("NVFP4KERN_NUM_THREADS", "3")
    _, processor, gpu = main.heading()
    assert processor == f"CPU: {cpu['cpu']}, {cpu['instructions']}, 3 threads"
    assert gpu == "GPU: NVIDIA H200, driver 580.95.05; not checked here"
    monkeypatch.setenv("PATH", "")
    assert [line.partition(" by")[0] for line in main.heading()][2:] == ["GPU: none"]


@pytest.mark.parametrize("there", [True, False])
def test_the_next_step_is_a_line_and_fits(there, monkeypatch):
    monkeypatch.setattr(main.importlib.util, "find_spec", lambda name: there)
    monkeypatch.setattr(main, "NAME", "python -m nvfp4kern")
    assert ("pip install torch" in main.next_step([])) == (not there)
    assert "bug" in main.next_step(["gemm"])
    lines = [f"now: {main.next_step(failures)}" for failures in ([], ["gemm"])]
    assert max(len(line) for line in (*lines, *list(main.heading())[2:])) <= 80


def test_the_widest_row_fits_80_columns():
    names = map(groups_in_short, shapes.GROUP_GEMM_TESTS + shapes.GROUP_GEMM_BENCHMARKS)
    table, console = main.table(), Console(width=80)
    widest = max(names, key=len)
    table.add_row("grouped_gemm", widest, "cpu", "1234.567 ms", "9999 GFLOP/s", "1.0000", "WRONG")
    with console.capture() as printed:
        console.print(table)
    assert widest == "8 groups, m=64..248"
    assert f"{widest} cpu     1234.567 ms 9999 GFLOP/s 1.0000 WRONG" in printed.get()


def test_the_version_is_printed():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"nvfp4kern {nvfp4kern.__version__}\n")


def test_a_wrong_result_fails_the_run(monkeypatch, capsys):
    right = nvfp4kern.route

    def wrong(*arguments, **options):
        weights, ids = right(*arguments, **options)
        weights[-1, 0] += 0.1
        return weights, ids

    monkeypatch.setattr(nvfp4kern, "route", wrong)
    monkeypatch.setattr("nvfp4kern.verify.shapes.ROUTE_BENCHMARKS", [(512, 8, 128)])
    assert main.check(["route"], everything=False) == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_has_cases(operator):
    case = next(cases(operator, everything=False))
    assert case.judge(case.run(), c=1).ok


def test_info():
    done = run("info")
    assert done.returncode == 0
    assert nvfp4kern.__version__ in done.stdout
    rows = nvfp4kern.backends()
    assert all(row["name"] in done.stdout for row in rows)
    assert all(row["code"] in done.stdout for row in rows if row["code"])
    assert ("for 10.0 on 10.3" in done.stdout) == any(row["code"] for row in rows)


@pytest.mark.parametrize("arguments", [["info"], ["--op", "gemv"], ["explain", "gemv", "4x32"]])
def test_a_variable_that_is_refused(arguments):
    done = run(*arguments, NVFP4KERN_BATCH_INVARIANT="maybe")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "NVFP4KERN_BATCH_INVARIANT: 'maybe', expected 1, true, yes, on, 0, false, no or off"
    ]


OTHER_SHAPES = [
    ("gemm", "128x7168x16384"),
    ("gemv", "128x256x3"),
    ("grouped_gemm", "3x5x32,0x7x48"),
]
SIZES = dict(M="3", N="5", K="32", G="2", H="64")


@pytest.mark.parametrize(
    "operator, shape",
    [(op, "x".join(SIZES[size] for size in words.partition("[")[0].split("x")))
     for op, words in main.SHAPES.items()] + OTHER_SHAPES,
)  # fmt: skip
def test_explain(operator, shape, capsys, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_BACKEND", "cpu")
    assert main.explain(operator, shape) == 0
    kernel = "cpu_gemm" if operator == "gemv" else f"cpu_{operator}"
    assert kernel in capsys.readouterr().out.split()


@pytest.mark.parametrize(
    "operator, shape",
    [
        ("gemm", "12"),
        ("gemm", "1x2x3x4x5"),
        ("gemm", "1x2x17"),
        ("gemm", "axb"),
        ("gemm", "1x2x32,3x4x32"),
        ("gemm", "-1x2x32"),
        ("grouped_gemm", "1x2x32,3x4"),
        ("grouped_dual_gemm", "1x2x32"),
        ("route", "1x2x3x4"),
        ("combine", "1x2"),
    ],
)
def test_explain_refuses_other_shapes(operator, shape, capsys):
    assert main.explain(operator, shape) == 2
    assert repr(shape) in capsys.readouterr().err


def test_unknown_operator():
    done = run("--op", "conv")
    assert done.returncode == 2
    assert "conv" in done.stderr and "dual_gemm" in done.stderr
