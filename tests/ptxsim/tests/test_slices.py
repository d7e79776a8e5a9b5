"""What is launched for each slice of a call whose tokens want more workspace than there is."""

import os
import subprocess
import sys

import pytest
from ptxsim import build
from ptxsim.marks import COMPILES
from rows import need

pytestmark = [COMPILES, pytest.mark.slow]

BEGIN = """
from ptxsim import fake_cuda
import torch
fake_cuda.CudaOnHost().__enter__()
import nvfp4kern
"""
DENSE = """
m, n, k = 257, 16, 1 << 18
a, b, sfa, sfb = (
    torch.zeros(rows, bytes, dtype=torch.uint8).cuda()
    for bytes in (k // 2, k // 16)
    for rows in (m, n)
)
nvfp4kern.gemm(a, b, sfa, sfb)
"""
EXPERTS = """
a, sfa = (torch.zeros(50, bytes, dtype=torch.uint8).cuda() for bytes in (64, 8))
b, sfb = (torch.zeros(2, 64, bytes, dtype=torch.uint8).cuda() for bytes in (64, 8))
offsets = torch.tensor([0, 9, 30], dtype=torch.int32).cuda()
nvfp4kern.grouped_gemm(a, b, sfa, sfb, offsets=offsets)
"""


def kernels_of(program, tmp_path, tile, **settings):
    """(name, CTAs) of each launch."""
    need("sm90")
    launches = tmp_path / "launches"
    path = os.pathsep.join([str(build.HERE.parent), *(os.path.abspath(p) for p in sys.path if p)])
    settings |= {"PYTHONPATH": path, "NVFP4KERN_TILE": f"sm90/gemm:{tile}"}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        env=os.environ | build.environment(cc="9.0", launches_to=launches) | settings,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [line.split()[:2] for line in launches.read_text().splitlines()]


def test_a_smaller_slice_has_the_clusters_of_its_own_tiles(tmp_path):
    """K of 2^18 leaves workspace for 256 rows. A cluster of split K without a tile would store."""
    gemm, prologue = "sm90_gemm_t128_fp16", "sm90_prepare_a_codes_many"
    assert kernels_of(DENSE, tmp_path, "t128") == [
        [prologue, "64"],  # CTAs of four rows
        [gemm, "4"],
        [prologue, "32"],
        [gemm, "2"],
    ]


def test_slices_of_experts(tmp_path):
    """Of 17, 17 and 16 rows; the last has none that is an expert's."""
    gemm, prologue = "sm90_grouped_gemm_w8_fp16", "sm90_prepare_a_codes"
    found = kernels_of(EXPERTS, tmp_path, "w8", NVFP4KERN_ROW_LIMIT="20")
    assert [name for name, _ in found] == [prologue, gemm] * 3
    assert [ctas for _, ctas in found[::2]] == ["25", "25", "24"]
