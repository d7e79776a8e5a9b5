"""`python -m nvfp4kern`: check, info, explain."""

import re
import subprocess
import sys

import pytest

import nvfp4kern
from nvfp4kern import __main__ as main
from nvfp4kern.verify.cases import OPERATORS, cases


def run(*arguments):
    command = [sys.executable, "-m", "nvfp4kern", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_one_operator_is_checked_and_tabulated():
    done = run("--op", "gemv")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"gemv .* cpu .* GB/s .* ok", done.stdout)) > 5
    assert "9 of 9 cases right" in done.stdout


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
    assert all(row["name"] in done.stdout for row in nvfp4kern.backends())


@pytest.mark.parametrize(
    "operator, shape, kernel",
    [
        ("gemm", "128x7168x16384", "cpu_gemm"),
        ("gemv", "128x256x3", "cpu_gemm"),
        ("dual_gemm", "3x5x32", "cpu_dual_gemm"),
        ("grouped_gemm", "3x5x32,0x7x48", "cpu_grouped_gemm"),
        ("route", "16x8x64", "cpu_route"),
        ("quantize", "16x32", "cpu_quantize"),
        ("dequantize", "16x32", "cpu_dequantize"),
    ],
)
def test_explain(operator, shape, kernel, capsys, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_BACKEND", "cpu")
    assert main.explain(operator, shape) == 0
    assert kernel in capsys.readouterr().out


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
        ("route", "1x2x3x4"),
    ],
)
def test_explain_refuses_other_shapes(operator, shape, capsys):
    assert main.explain(operator, shape) == 2
    assert repr(shape) in capsys.readouterr().err


def test_unknown_operator():
    done = run("--op", "conv")
    assert done.returncode == 2
    assert "conv" in done.stderr and "dual_gemm" in done.stderr
