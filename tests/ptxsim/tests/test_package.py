"""The package on the simulated GPU: its own tests, as they are, in processes that have no other."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda_calls import OPERATORS
from ptxsim import build, gpu
from ptxsim.campaigns import package
from ptxsim.marks import COMPILES
from ptxsim.one_array import PLACE, SHARED
from rows import TABLE, need

TESTS = Path(__file__).parents[2]
pytestmark = COMPILES

DENSE = ("operators/test_dense.py",)
SELECTED = {  # the arguments of pytest; rows.py says which row runs what
    "every operator, every size": ["cuda/test_cuda.py", "-k", "writes_what or inputs_are_left"],
    "any workspace": ["cuda/test_cuda.py", "-k", "may_hold_anything and 255 and not 255-0"],
    "every tile": ["operators/test_tiles.py"],
    "every tile, NaN times zero is zero": ["operators/test_tiles.py", "-k", "every_tile"],
    "tiles without room": ["operators/test_tiles.py", "-k", "room or every_tile and (t8 or w8)"],
    "gemv": [*DENSE, "operators/test_gemv.py", "-k", "test_gemv or of_gemv"],
    "gemv of few matrices": [
        *DENSE,
        "operators/test_gemv.py",
        "-k",
        "of_gemv or test_gemv and not more_matrices and not 4096",
    ],
    "gemv by tensor maps": ["operators/test_gemv.py", "-k", "whole_tiles"],
    "gemm": [
        *DENSE,
        "operators/test_gemm.py",
        "-k",
        "of_gemm or test_gemm and not full_range and not 4096 and not few_tokens and not 9001"
        " and not 70000 and not 14336",
    ],
    "gemm of NVFP4": [
        *DENSE,
        "operators/test_gemm.py",
        "-k",
        "of_gemm or test_gemm and not full_range and not 4096 and not few",
    ],
    "plans by cost": ["operators/test_hopper_plans.py", "operators/test_consumer_plans.py"],
    "K among CTAs": ["operators/test_divided_k.py"],
    "few tokens": [
        "operators/test_gemm.py",
        "-k",
        "test_few and (300 or 3584 or (4300 and 1-4300))",
    ],
    "few tokens, clusters of any size": [
        "operators/test_gemm.py",
        "-k",
        "test_few and (2304 or 300 or 7168)",
    ],
    "few tokens, few rows": ["operators/test_gemm.py", "-k", "few and (2304 or 3584 or 17-4160)"],
    "dual_gemm": [*DENSE, "operators/test_dual_gemm.py", "-k", "of_dual or test_dual"],
    "dual_gemm of NVFP4": [
        *DENSE,
        "operators/test_dual_gemm.py",
        "-k",
        "of_dual or test_dual and not full_range and not 16_bit and not largest_tile",
    ],
    "dual_gemm of few tokens": ["operators/test_dual_few_tokens.py"],
    "dual_gemm, the largest tile": ["operators/test_dual_gemm.py", "-k", "largest_tile"],
    "grouped_gemm": [
        "operators/test_grouped_gemm.py",
        "operators/test_grouped_experts.py",
        "-k",
        "grouped_gemm and not test_rows and not gathered",
    ],
    "grouped_dual_gemm": [
        "operators/test_grouped_dual_gemm.py",
        "operators/test_grouped_quantized.py",
        "operators/test_grouped_encoded.py",
        "operators/test_grouped_experts.py",
        "-k",
        "(grouped_dual or encoded or quantized) and not 1024",
    ],
    "rows alone": ["cuda/test_cuda.py", "-k", "promised"],
    "experts": [
        "operators/test_grouped_gemm.py",
        "operators/test_grouped_experts.py",
        "operators/test_blackwell_plans.py",
        "-k",
        "contiguous or blackwell or clamped or bad_offsets or grouped_gemm and (scale_factors or"
        " in_turn or several_types or test_output_orders or poisons or"
        " gathered and 1024 and not W4A16)",
    ],
    "gated experts of NVFP4": [
        "operators/test_grouped_dual_gemm.py",
        "operators/test_grouped_experts.py",
        "-k",
        "grouped_dual and (alphas or orders or sorted or nan or infinities or grouped_gemm_of)",
    ],
    "changing offsets": ["operators/test_changing_offsets.py"],
    "expected rows": ["operators/test_expected_rows.py"],
    "row_scale": ["operators/test_row_scale_tiles.py"],
    "row_scale, few SMs": ["operators/test_row_scale_tiles.py"],
    "quantize": ["operators/test_quantize.py", "-k", "not gated"],
    "quantize with up": [
        "operators/test_quantize.py",
        "operators/test_quantize_up.py",
        "-k",
        "gated or up",
    ],
    "shapes": [
        "operators/test_shapes.py",
        "-k",
        "lead3 and not 128 and not strided and not flat and not permuted or any_stride or alone",
    ],
    "route": [f"operators/test_route{name}.py" for name in ("", "_operands", "_map")],
    "route by warps": [
        "operators/test_route.py",
        "-k",
        "exact_logits and bfloat16 or permutation or outputs or strides or alpha or groups1-sig",
    ],
    "route by threads": [
        "operators/test_route.py",
        "-k",
        "not 1024 and not no_k and not 0-5-2 and not (given and 35)"
        " and not 600 and not 300-32 and not any_logit",
    ],
    "route without tensor cores": [
        "operators/test_route_operands.py",
        "-k",
        "extents and float32 or whole_range and 6-float32 or given and 8 and float16 or"
        " any_size and float32 or any_k and (515 or 9-dtypes2)",
    ],
    "combine": ["operators/test_combine.py"],
    "combine of any alignment": ["operators/test_combine.py", "-k", "alignment or order or 2048"],
    "sort_by_expert": ["operators/test_sort_by_expert.py"],
}
SMS = {
    "K among CTAs": 24,
    "few tokens, clusters of any size": 16,
    "few tokens, few rows": 16,
    "dual_gemm of few tokens": 16,
    "gemv by tensor maps": 16,
    "plans by cost": 78,
    "row_scale": 78,
}
LIMITS = {
    "every tile, NaN times zero is zero": {"PTXSIM_NAN_TIMES_ZERO": "0"},
    "dual_gemm, the largest tile": {"NVFP4KERN_SM_LIMIT": "3"},
    "tiles without room": {"NVFP4KERN_SMEM_LIMIT": "101376"},
    "route by threads": {"NVFP4KERN_TILE": "sm100/route:l128"},
}
CC = {("sm80", "every tile"): "9.0"}  # its largest tiles are for more shared memory


@pytest.mark.slow
@pytest.mark.parametrize(
    "row, name", [(row, name) for row in TABLE for name in TABLE[row].simulated]
)
def test_the_packages_tests_pass_without_an_error_or_a_warning(row, name, tmp_path):
    need(row)
    report = tmp_path / "report.json"
    settings = {"cc": CC.get((row, name), TABLE[row].cc), "sms": SMS.get(name, TABLE[row].sms)}
    settings |= {"seed": len(name), "report": report}
    path = os.pathsep.join([str(TESTS), *(os.path.abspath(p) for p in sys.path if p)])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "ptxsim.fake_cuda"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *SELECTED[name]],
        cwd=TESTS,
        env=os.environ
        | build.environment(**settings)
        | {"PYTHONPATH": path, "NVFP4KERN_BACKEND": row, "NVFP4KERN_TESTED": row}
        | LIMITS.get(name, {}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    found = json.loads(report.read_text())
    if name != "plans by cost":  # they launch little
        assert found["launches"] > 10 and found["lane_instructions"] > 10**6
    if name == "any workspace" and float(TABLE[row].cc) >= 9:
        assert found["overlapping_launches"] > 0
    assert [f for f in found["findings"] if f["severity"] in "EW"] == []


def test_the_command_line(tmp_path):
    """A clean kernel, and one with a race: its exit status and its report."""
    clean = PLACE + "ld.global.u32 %r3, [%rd5]; add.s32 %r3, %r3, 5; st.global.u32 [%rd5], %r3;"
    racing = clean + "st.shared.u32 [%r2], %r0;"
    description = {"kernel": "f", "block": [64], "arguments": [{"file": "in.npy"}]}
    (tmp_path / "launch.json").write_text(json.dumps(description))
    np.save(tmp_path / "in.npy", np.arange(64, dtype=np.uint32))
    for body, status in [(clean, 0), (racing, 1)]:
        (tmp_path / "k.ptx").write_text(gpu.kernel(body, ["p"], SHARED))
        command = [sys.executable, "-m", "tests.ptxsim", "run", tmp_path / "k.ptx"]
        command += [tmp_path / "launch.json", "--seeds", "3", "--save", tmp_path]
        done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        report = json.loads(done.stdout)
        assert report["launches"] == 3 and report["failed_seeds"] == {}
        assert {f["code"] for f in report["findings"]} == ({"race"} if status else set())
        assert (np.load(tmp_path / "array0.npy") == np.arange(64) + 5).all()


BYTES = """
import json, sys
from ptxsim import fake_cuda
import torch
fake_cuda.CudaOnHost().__enter__()
import nvfp4kern
batches, n, k, layout = json.loads(sys.argv[1])
def bytes_of(*shape):
    return torch.randint(0, 120, shape, dtype=torch.uint8).cuda()
def sf_of(rows):
    padded = 128 if layout == "blocked" and rows == 1 else rows
    return bytes_of(batches, padded, k // 16)
codes = bytes_of(batches, n, k // 2), bytes_of(batches, 1, k // 2)
nvfp4kern.gemv(*codes, sf_of(n), sf_of(1), scale_layout=layout)
print(json.dumps(fake_cuda.report()))
"""


@pytest.mark.parametrize("row", ("sm100", "sm120"))
@pytest.mark.parametrize("layout, most", [("blocked", 1.03), ("linear", 1.13)])
def test_bytes_of_a_gemv_on_blackwell(layout, most, row):
    """Memory gives what must be read, once, and SMs ask L2 for little more: the token, and halves
    of sectors of linear scale factors."""
    need(row)
    batches, n, k = 2, 1024, 4096
    path = os.pathsep.join([str(TESTS), *(os.path.abspath(p) for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-c", BYTES, json.dumps([batches, n, k, layout])],
        cwd=TESTS,
        env=os.environ
        | build.environment("gemv", cc=TABLE[row].cc, sms=16)
        | {"PYTHONPATH": path, "NVFP4KERN_BACKEND": row},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    least = batches * ((n + 1) * (k // 2 + k // 16) + 2 * n)
    assert least <= found["touched_bytes"] <= 1.002 * least
    assert found["l2_read_bytes"] <= most * least


def run_package(folder, *options):
    """(the process, the table's lines, findings and wrong results of each call)"""
    command = [sys.executable, "-m", "tests.ptxsim", "package", "--json", folder / "found.json"]
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path if p)
    done = subprocess.run(
        [*command, *options],
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    table = [line for line in lines if len(line) == len(package.HEAD) and line[3].isdigit()]
    return done, table, json.loads((folder / "found.json").read_text())


def cell_of(name):
    function = OPERATORS[name](np.random.default_rng(0), 5, 33, 48)[0].__name__
    return "relayout" if function in ("to_blocked", "from_blocked") else function


def cells(row):
    paths = f"{row}/{row}_backend.c", "cuda/cuda_shared_cells.h"
    source = "".join((TESTS.parent / "csrc" / path).read_text() for path in paths)
    if "NK_GPU_CELLS" in source:
        source += (TESTS.parent / "csrc/backend.h").read_text()
    return set(re.findall(r"(?:^    \.|CELL\(row, )(\w+)", source, flags=re.M))


@pytest.mark.slow
@pytest.mark.parametrize("row", TABLE)
def test_every_operator_for_several_seeds(row, campaign, tmp_path):
    need(row)
    seeds = str(campaign.times(5))
    shape = TABLE[row].shapes[0]
    options = ["--row", row, "--shapes", shape, "--seed", str(campaign.seed), "--seeds", seeds]
    done, table, found = run_package(tmp_path, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    served = [name for name in OPERATORS if cell_of(name) in cells(row)]
    assert [line[0] for line in table] == list(TABLE[row].operators or served)
    assert list(found) == [f"{line[0]} {shape}" for line in table]
    for line in table:
        assert line[2].startswith(row) and line[3:6] == [seeds, "0", "0"] and line[7] == "0"
    assert all(call["wrong"] == {} for call in found.values())


@pytest.mark.slow
def test_the_package_command_counts_what_is_wrong(tmp_path):
    """With a GPU that is too small for a launch, every seed goes wrong."""
    need()
    options = ["--operators", "to_blocked", "--shapes", "small", "--seeds", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PTXSIM_SPIN_LIMIT", "1")
        done, table, found = run_package(tmp_path, *options)
    assert done.returncode == 2, done.stdout + done.stderr
    assert [line[3:8] for line in table] == [["2", "1", "0", "0", "2"]]
    assert set(found["to_blocked small"]["wrong"]) == {"0", "1"} and "livelock" in done.stdout
