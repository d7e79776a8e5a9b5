"""The lint: what it counts, compares, warns of and calls an error; the command."""

import math
import os
import subprocess
import sys

import pytest
import torch
from damage import E4M3, EXPERTS, Q, changed
from safetensors.torch import load_file, save_file

from nvfp4kern import __main__ as main
from nvfp4kern.checkpoint import CheckpointError, Files, inspect, read_plan


def number(value):
    return torch.tensor(value, dtype=torch.float32)


def test_layers_bytes_and_exclusions(checkpoint):
    directory = checkpoint("qwen3_moe", "modelopt-mixed", shards=3)
    report, files = inspect(directory), Files(directory)
    assert {kind: count.number for kind, count in report.layers.items()} == {
        "NVFP4, static activations": 24,
        "NVFP4, 16-bit activations": 6,
        "FP8, to be dequantised": 2,
    }
    counts = [*report.layers.values(), *report.tensors.values()]
    assert sum(count.nbytes for count in counts) == report.nbytes
    assert report.nbytes == sum(info.nbytes for info in files.tensors.values())
    assert (report.files, report.format, report.errors, report.warnings) == (
        3, "MIXED_PRECISION", [], []
    )  # fmt: skip
    assert report.tensors["ignored"].number == 2
    excluding = inspect(checkpoint("qwen3_moe", "modelopt-nvfp4"))
    assert len(excluding.excluded) == 3
    assert "excluded: lm_head, model.layers.*.mlp.gate (2)" in str(excluding)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 2), (3, 32)])
def test_global_scales_of_stacks(tmp_path, shape):
    """Of each expert, of its halves, and of each row: all are looked at, halves compared."""
    scales = torch.arange(1, 1 + math.prod(shape)).float().reshape(shape) / 1024
    name, file = "m.experts.gate_up_proj", tmp_path / "model.safetensors"
    stack = {
        name: torch.zeros(3, 32, 8, dtype=torch.uint8),
        f"{name}_weight_scale": torch.ones(3, 32, 1).to(E4M3),
        f"{name}_weight_scale_2": scales,
    }
    save_file(stack, file)
    found = inspect(file)
    assert found.errors == []
    assert {n: d.groups for n, d in found.differing.items()} == (
        {"gate_up_proj's halves": 3} if shape == (3, 2) else {}
    )
    scales.view(-1)[-1] = math.nan
    save_file(stack, file)
    assert inspect(file).errors == [f"{name}_weight_scale_2: nan, expected a finite number above 0"]


@pytest.mark.parametrize("form", ["modelopt-nvfp4", "ct-w4a4"])
def test_globals_of_shards_that_differ(checkpoint, form):
    """vLLM #47515, ModelOpt #1411: an engine that keeps one of them computes wrong numbers."""
    same = inspect(checkpoint("qwen3_moe", form))
    assert {name: (d.groups, d.differ, d.ratio) for name, d in same.differing.items()} == {
        "q_proj, k_proj, v_proj": (2, 0, 1.0),
        "gate_proj, up_proj": (8, 0, 1.0),
    }
    directory = checkpoint("qwen3_moe", form, spread=True)
    report, tensors, ratios = inspect(directory), load_file(directory / "model.safetensors"), []
    part = "weight_global_scale" if form == "ct-w4a4" else "weight_scale_2"
    for layer in (0, 1):
        for e in range(4):
            name = f"model.layers.{layer}.mlp.experts.{e}"
            pair = [float(tensors[f"{name}.{p}_proj.{part}"]) for p in ("gate", "up")]
            ratios.append(max(pair) / min(pair))
    found = report.differing["gate_proj, up_proj"]
    assert (found.groups, found.differ) == (8, 8) and math.isclose(found.ratio, max(ratios))
    assert report.errors == report.warnings == []
    assert f"globals of gate_proj, up_proj differ: 8 of 8, up to {found.ratio:.4g}x" in str(report)


def test_halves_of_stacked_experts(checkpoint):
    report = inspect(checkpoint("qwen3_moe", "modelopt-nvfp4", stacked="E2", spread=True))
    assert report.differing["gate_up_proj's halves"].differ == 8


GLOBALS = [
    ("modelopt-nvfp4", "weight_scale_2", math.nan, "nan, expected a finite number above 0"),
    ("modelopt-nvfp4", "weight_scale_2", math.inf, "inf, expected a finite number above 0"),
    ("modelopt-nvfp4", "weight_scale_2", 0.0, "0, expected a finite number above 0"),
    ("modelopt-nvfp4", "input_scale", -1.0, "-1, expected a finite number above 0"),
    ("modelopt-nvfp4", "input_scale", math.nan, "nan, expected a finite number above 0"),
    ("ct-w4a4", "weight_global_scale", 1e-40, "9.99995e-41, expected a finite number above 0"),
    ("ct-w4a4", "input_global_scale", 0.0, "0, expected a finite number above 0"),
]


@pytest.mark.parametrize("form, part, value, expected", GLOBALS)
def test_globals_that_make_loading_fail(checkpoint, tmp_path, form, part, value, expected):
    name = f"{Q}.{part}"
    shape = (1,) if form == "ct-w4a4" else ()
    changes = {name: number(value).reshape(shape)}
    (error,) = inspect(changed(checkpoint("llama", form), tmp_path / "m", **changes)).errors
    assert error.startswith(f"{name}: {expected}")


ODD = [
    ("modelopt-nvfp4", "weight_scale_2", 2688.0, "2688 is odd for a multiplier; is it a divisor?"),
    ("modelopt-nvfp4", "input_scale", 100.0, "100 is odd for a multiplier; is it a divisor?"),
    ("ct-w4a4", "weight_global_scale", 1e-3, "0.001 is odd for a divisor; is it a multiplier?"),
]


@pytest.mark.parametrize("form, part, value, expected", ODD)
def test_globals_that_are_odd(checkpoint, tmp_path, form, part, value, expected):
    changes = {f"{Q}.{part}": number(value)}
    report = inspect(changed(checkpoint("llama", form), tmp_path / "m", **changes))
    assert report.warnings == [f"{Q}.{part}: {expected}"] and report.errors == []
    assert str(report).endswith("can be loaded, 1 warning")


def test_an_fp8_scale_is_looked_at(checkpoint, tmp_path):
    name = "model.layers.0.self_attn.o_proj.weight_scale"
    base = checkpoint("llama", "modelopt-mixed")
    report = inspect(changed(base, tmp_path / "m", **{name: number(0.0)}))
    assert [error.partition(",")[0] for error in report.errors] == [f"{name}: 0"]


def test_problems_that_are_alike_are_one_line(checkpoint):
    report = inspect(checkpoint("qwen3_moe", "ct-w4a4", missing=("*experts.2.*", "*experts.3.*")))
    assert len(report.warnings) == 12
    lines = str(report).splitlines()
    assert sum(line.startswith("warning: ") for line in lines) == 3
    assert "(and 3 more like it)" in str(report) and max(map(len, lines)) <= 80
    report.warn(EXPERTS, "something else")
    assert report.warnings[-1] == f"{EXPERTS}: something else"


def test_a_plan_that_was_made_before(checkpoint):
    files = Files(checkpoint("llama", "modelopt-nvfp4"))
    report = inspect(files, read_plan(files, input_quant="dynamic"))
    assert list(report.layers) == ["NVFP4, dynamic activations"]


def test_nothing_quantised(tmp_path):
    save_file({"a.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    report = inspect(tmp_path)
    assert report.warnings == [f"{tmp_path.name}: no layer is quantised"]


def test_names_stay_within_80_columns(checkpoint, tmp_path):
    long = "model." + "x" * 300
    extra = {f"{long}.weight_scale": torch.zeros(4).to(E4M3)}
    report = inspect(changed(checkpoint("llama", "modelopt-nvfp4"), tmp_path / "m", **extra))
    assert len(report.errors) == 1 and max(map(len, str(report).splitlines())) <= 80


# --- The command ---


def run(path, **variables):
    command = [sys.executable, "-m", "nvfp4kern", "checkpoint", str(path)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | variables)


def test_the_command_prints_the_report(checkpoint):
    directory = checkpoint("llama", "modelopt-nvfp4")
    done = run(directory)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip("\n") == str(inspect(directory))


@pytest.mark.parametrize("rich", [True, False])
def test_the_commands_exit_status(checkpoint, tmp_path, monkeypatch, capsys, rich):
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    base = checkpoint("llama", "modelopt-nvfp4")
    bad = changed(base, tmp_path / "m", **{f"{Q}.weight_scale_2": None})
    for path, status, last in (
        (base, 0, "nothing is wrong"),
        (bad, 1, "cannot be loaded, 1 error"),
        (tmp_path, 2, f"error: {tmp_path.name}: no *.safetensors file in this directory"),
    ):
        monkeypatch.setattr(sys, "argv", ["nvfp4kern", "checkpoint", str(path)])
        assert main.main() == status
        assert capsys.readouterr().out.splitlines()[-1] == last


def test_the_command_says_what_it_needs(checkpoint, monkeypatch, capsys):
    names = [n for n in sys.modules if n.partition(".")[0] == "safetensors"]
    for name in [*names, *(n for n in sys.modules if n.startswith("nvfp4kern.checkpoint"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setattr(sys, "argv", ["nvfp4kern", "checkpoint", "."])
    assert main.main() == 2
    assert capsys.readouterr().err.endswith("pip install torch safetensors google-re2\n")


def test_what_a_file_says_cannot_reach_the_terminal(tmp_path, capsys):
    from nvfp4kern.checkpoint.report import command

    (tmp_path / "model.safetensors").write_bytes(
        b"\x20" + b"\0" * 7 + b'{"a":{"dtype":"\x1b[31mX"}      '
    )
    assert command(str(tmp_path)) == 2
    (tmp_path / "\x1b[2J.safetensors").write_bytes(b"")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot be printed"):
        Files(tmp_path)
    assert command(str(tmp_path)) == 2
    assert "\x1b" not in capsys.readouterr().out
