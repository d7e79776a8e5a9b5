"""`python -m nvfp4kern`: check, info, explain."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import nvfp4kern
from nvfp4kern import __main__ as main
from nvfp4kern import explaining, machine
from nvfp4kern.selftest import operators
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


def test_a_case_is_a_line_where_output_is_piped():
    """By default; rows as long as those of experts wrap in 80 columns."""
    piped = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "nvfp4kern", "--op", "grouped_gemm"]
    done = subprocess.run(command, capture_output=True, text=True, env=piped)
    rows = [line for line in done.stdout.splitlines() if line.startswith("grouped_gemm")]
    of = sum(line.rstrip().endswith("ok") for line in rows)
    assert f"{of} of {of} cases right" in done.stdout and len(rows) == of > 0


def test_the_machine_is_named(tmp_path, monkeypatch):
    """Its GPUs by nvidia-smi, of which there is a stand-in."""
    cpu = machine.cpu_in_use(np.zeros((1, 1), np.uint8))
    assert cpu["cpu"] and not cpu["instructions"].startswith("CPU tensors")
    asked = 'test "$*" = "--query-gpu=name,driver_version --format=csv,noheader" && echo '
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{asked}'NVIDIA H200, 580.95.05'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("NVFP4KERN_NUM_THREADS", "3")
    _, processor, gpu, checked = main.heading("torch sees no GPU")
    assert processor == f"CPU: {cpu['cpu']}, {cpu['instructions']}, 3 threads"
    assert gpu == "GPU: NVIDIA H200, driver 580.95.05"
    assert checked == "GPU not checked: torch sees no GPU"
    monkeypatch.setenv("PATH", "")
    assert [line.partition(" by")[0] for line in main.heading("why")][2:] == ["GPU: none"]


@pytest.mark.parametrize("there", [True, False])
def test_the_next_step_is_a_line_and_fits(there, monkeypatch):
    monkeypatch.setattr(main.importlib.util, "find_spec", lambda name: there)
    monkeypatch.setattr(main, "NAME", "python -m nvfp4kern")
    assert ("pip install torch" in main.next_step([])) == (not there)
    assert "bug" in main.next_step(["gemm"])
    lines = [f"now: {main.next_step(failures)}" for failures in ([], ["gemm"])]
    assert max(len(line) for line in (*lines, *list(main.heading("why"))[2:])) <= 80


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


@pytest.fixture
def gpu_of_the_cpu(monkeypatch):
    """The CPU in the place of a GPU, as the main job sees it."""
    items = operators.items
    monkeypatch.setattr(machine, "why_no_gpu", lambda: None)
    name = SimpleNamespace(name="NVIDIA H200")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: name)
    monkeypatch.setattr(operators, "items", lambda device, *more: items("cpu", *more))
    return monkeypatch


def test_a_gpu_is_checked_after_the_cpu(gpu_of_the_cpu, capsys):
    assert main.check(["combine", "route"], everything=False) == 0
    out = capsys.readouterr().out
    assert "checked: the CPU, then NVIDIA H200 on small cases\n" in out
    first = re.findall(r"^combine +64x8x2048 +cpu +.*ok *$", out, flags=re.M)
    assert len(first) == 2 and "GB/s" in first[0] and "GB/s" not in first[1]
    assert re.search(r"(\d+) of \1 cases right .* oracle, \d+ on the CPU, 2 on the GPU\n", out)


def test_a_wrong_result_of_a_gpu_fails_the_run(gpu_of_the_cpu, capsys):
    found = {"ok": False, "worst": 7.0, "wrong": "(3, 4): 1, not 2", "backend": "sm90"}
    items = [("combine 1x2x3", lambda: found)]
    gpu_of_the_cpu.setattr(operators, "items", lambda *_: items)
    assert main.check(["combine"], everything=False) == 1
    out = capsys.readouterr().out
    assert "combine 1x2x3, sm90: (3, 4): 1, not 2\n2 of 3 cases right" in out


def test_a_gpu_that_fails_gets_no_more_calls(gpu_of_the_cpu, capsys):
    calls = []

    def failing():
        calls.append(1)
        raise nvfp4kern.BackendError("cuLaunchKernelEx: an illegal address")

    gpu_of_the_cpu.setattr(operators, "items", lambda *_: [("combine 1x2x3", failing)])
    assert main.check(["combine", "sort_by_expert"], everything=False) == 1
    assert "GPU: failed: cuLaunchKernelEx: an illegal address" in capsys.readouterr().out
    assert len(calls) == 1


@pytest.mark.parametrize("there", [True, False])
def test_why_no_gpu_is_checked(there, monkeypatch):
    monkeypatch.delenv("NVFP4KERN_BACKEND", raising=False)
    row = {"name": "sm80", "available": there, "why_not": "no CUDA driver"}
    monkeypatch.setattr(machine, "backends", lambda: [{"name": "cpu", "available": True}, row])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert machine.why_no_gpu() == ("torch sees no GPU" if there else "no CUDA driver")
    monkeypatch.setenv("NVFP4KERN_BACKEND", "cpu")
    assert machine.why_no_gpu() == "NVFP4KERN_BACKEND=cpu refuses it"


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
    in_a_line = " ".join(done.stdout.split())
    assert all(row["code"] in in_a_line for row in rows if row["code"])
    assert ("for 10.0 on 10.3" in in_a_line) == any(row["code"] for row in rows)


NO_DRIVER = (
    "no CUDA driver: libcuda.so.1: cannot open shared object file: No such file or directory"
)
NEEDS = "a driver of CUDA 13.0 (r580) or newer, or cuda-compat-13-0; found CUDA 12.8"
CODE = "machine code for 8.0, 9.0, 10.0, 12.0; PTX for 8.0"


@pytest.mark.parametrize("why_not", [None, NO_DRIVER])
@pytest.mark.parametrize("forced", ["", "sm100"])
def test_info_fits_80_columns(why_not, forced, monkeypatch, capsys):
    devices = "NVIDIA GPUs of compute capability 8.0 and newer"
    gpu = {"name": "sm100", "devices": devices, "available": why_not is None}
    gpu |= {"why_not": why_not, "code": CODE, "needs": NEEDS}
    cpu = {"name": "cpu", "devices": "any CPU tensor", "available": True, "code": None}
    monkeypatch.setattr(nvfp4kern, "backends", lambda: [cpu, gpu])
    monkeypatch.setenv("NVFP4KERN_BACKEND", forced)
    assert main.info() == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    in_a_line = " ".join(out.split())
    assert all(text in in_a_line for text in (devices, CODE, NEEDS, why_not or "available"))


@pytest.mark.parametrize("arguments", [["info"], ["--op", "gemv"], ["explain", "gemv", "4x32"]])
def test_a_variable_that_is_refused(arguments):
    done = run(*arguments, NVFP4KERN_BATCH_INVARIANT="maybe")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "NVFP4KERN_BATCH_INVARIANT: 'maybe', expected 1, true, yes, on, 0, false, no or off"
    ]


@pytest.fixture
def explain(monkeypatch, capsys):
    """Runs the command on the CPU; (exit status, what it printed, what it complained)."""
    monkeypatch.setenv("NVFP4KERN_BACKEND", "cpu")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["nvfp4kern", "explain", *arguments])
        status = main.main()
        return status, *capsys.readouterr()

    return run


OTHER_SHAPES = [
    ("grouped_gemm", "2x3x5x32"),
    ("gemm", "128x7168x16384"),
    ("gemv", "128x256x3"),
    ("grouped_gemm", "3x5x32,0x7x48"),
]
SIZES = dict(M="3", N="5", K="32", G="2", H="64")


@pytest.mark.parametrize(
    "operator, shape",
    [(op, "x".join(SIZES[size] for size in words.partition("[")[0].split("x")))
     for op, words in explaining.SHAPES.items()] + OTHER_SHAPES,
)  # fmt: skip
def test_explain(operator, shape, explain):
    status, out, _ = explain(operator, shape)
    kernel = "cpu_gemm" if operator == "gemv" else f"cpu_{operator}"
    assert status == 0 and kernel in out.split()


@pytest.mark.parametrize(
    "line",
    [line[2:].split("  ")[0] for line in explaining.EXAMPLES.splitlines() if line[:2] == "  "],
)
@pytest.mark.parametrize("tokens", ["", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["", "linear", "blocked"])
def test_explain_takes_the_examples_of_its_help(line, tokens, layout, explain):
    """With every kind of tokens and layout that the operator has."""
    operator, shape, *_ = line.split()
    if "--" in line and (tokens or layout):
        return
    given = [
        *line.split(),
        *["--tokens", tokens] * bool(tokens),
        *["--layout", layout] * bool(layout),
    ]
    status, out, err = explain(*given)
    lacks = (tokens and operator not in explaining.TOKENS) or (
        layout and operator in ("route", "combine", "sort_by_expert")
    )
    assert (status, err[:2]) == ((2, "--") if lacks else (0, "")), err
    assert lacks or f"cpu_{operator}" in out or operator == "gemv"


def test_what_explain_passes_on(explain, monkeypatch):
    """Dtypes, shapes and options of the call."""
    calls = []
    monkeypatch.setattr(explaining._C, "explain", lambda *a, **o: calls.append((a, o)) or {})

    def found(*arguments):
        assert explain(*arguments)[0] == 0
        (operator, *given), options = calls.pop()
        return [(str(x.dtype), *x.shape) if hasattr(x, "dtype") else x for x in given], options

    blocked = ["--layout", "blocked"]
    given, options = found("gemm", "3x130x80", "--tokens", "bfloat16", *blocked)
    assert given == [
        ("torch.bfloat16", 3, 80), ("uint8", 130, 40), None, ("uint8", 256, 8)]  # fmt: skip
    assert options == {"scale_layout": "blocked"}
    given, options = found("grouped_gemm", "2x130x7x48", *blocked)
    assert given == [
        ("uint8", 130, 24), ("uint8", 2, 7, 24),
        ("uint8", 384, 4), ("uint8", 2, 128, 4)]  # fmt: skip
    assert options.pop("offsets").tolist() == [0, 65, 130] and options == {
        "scale_layout": "blocked"
    }
    given, options = found("grouped_gemm", "2x5x7x48", "--tokens", "float16", "--weights", "16-bit")
    assert given == [("float16", 5, 48), ("float16", 2, 7, 48), None, None]
    given, _ = found("gemv", "7x48x2", "--tokens", "float16")
    assert given == [("uint8", 2, 7, 24), ("float16", 2, 1, 48), ("uint8", 2, 7, 3), None]
    given, _ = found("grouped_dual_gemm", "2x5x7x48")
    assert given[1] == ("uint8", 2, 14, 24) and given[4] == ("int32", 3)
    given, _ = found("quantize", "5x48", "--tokens", "float32")
    assert given == [("float32", 5, 48)]


@pytest.mark.parametrize(
    "arguments, gpu, row",
    [
        (["gemm", "64x4096x7168"], "h200", "sm90"),
        (["gemv", "7168x16384"], "h100", "sm90"),
        (["gemm", "64x4096x7168", "--layout", "blocked"], "b200", "sm100"),
        (["gemm", "64x4096x7168", "--tokens", "bfloat16"], "rtx5090", "sm120"),
        (["grouped_dual_gemm", "128x64x768x2048"], "a100", "sm80"),
        (["combine", "64x8x7168"], "rtx4090", "sm80"),
    ],
)
def test_a_gpu_that_is_not_here_is_planned_for(arguments, gpu, row):
    if any(str(r["why_not"]).startswith("left out") for r in nvfp4kern.backends()):
        pytest.skip("this build left rows out")
    done = run("explain", *arguments, "--gpu", gpu)
    assert done.returncode == 0, done.stderr
    assert re.match(rf"backend +{row}\n", done.stdout) and re.search(r"^grid ", done.stdout, re.M)


def test_an_assumed_gpu_runs_nothing():
    if not any(r["code"] for r in nvfp4kern.backends()):
        pytest.skip("this build has no kernels of GPUs")
    program = "import nvfp4kern as nk; from nvfp4kern.addresses import CUDA, Array\n"
    program += "a, s = (Array(1 << 40, 'uint8', (1, n), (CUDA, 0)) for n in (32, 4))\n"
    program += "d = Array(1 << 41, 'float16', (1, 1), (CUDA, 0))\n"
    program += "print(nk.explain('gemm', a, a, s, s)['backend'])\nnk.gemm(a, a, s, s, out=d)"
    facts = os.environ | {"NVFP4KERN_ASSUMED_GPU": "80:108:166912:167936"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=facts
    )
    assert done.stdout == "sm80\n"
    assert done.stderr.endswith("cuda:0: NVFP4KERN_ASSUMED_GPU is set, so nothing runs\n")
    for text in ("90:132", "90:132:1:2:", "0:1:2:3", "x"):
        done = run("info", NVFP4KERN_ASSUMED_GPU=text)
        assert f"NVFP4KERN_ASSUMED_GPU: '{text}', expected numbers" in " ".join(done.stdout.split())


def test_helps_fit_80_columns():
    for command in ("explain", "info"):
        lines = run(command, "--help", COLUMNS="80").stdout.splitlines()
        assert lines and max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    "operator, shape",
    [
        ("gemm", "12"),
        ("gemm", "1x2x3x4x5"),
        ("gemm", "1x2x17"),
        ("gemm", "axb"),
        ("gemm", "1x2x32,3x4x32"),
        ("gemm", "1x-2x32"),
        ("grouped_gemm", "1x2x32,3x4"),
        ("grouped_gemm", "1x2x3x32,1x2x3x32"),
        ("grouped_dual_gemm", "1x2x32"),
        ("route", "1x2x3x4"),
        ("combine", "1x2"),
    ],
)
def test_explain_refuses_other_shapes(operator, shape, explain):
    status, _, err = explain(operator, shape)
    assert status == 2 and err.startswith(f"shape: {shape!r}, expected ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("route", "1x2x3", "--tokens", "nvfp4"),
        ("gemm", "1x2x32", "--tokens", "float32"),
        ("dequantize", "1x32", "--tokens", "float16"),
        ("gemm", "1x2x32", "--weights", "16-bit"),
        ("grouped_gemm", "1x2x32", "--weights", "16-bit"),
        ("sort_by_expert", "1x2x3", "--layout", "blocked"),
    ],
)
def test_explain_refuses_what_the_operator_has_not(arguments, explain):
    status, _, err = explain(*arguments)
    assert status == 2 and err.startswith(f"{arguments[2]}: {arguments[3]!r}, ")


def test_unknown_operator():
    done = run("--op", "conv")
    assert done.returncode == 2
    assert "conv" in done.stderr and "dual_gemm" in done.stderr
