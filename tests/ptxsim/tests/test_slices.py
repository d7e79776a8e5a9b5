"""What is launched for each slice of a call whose tokens want more workspace than there is."""

import os
import subprocess
import sys

import pytest
from ptxsim import build
from ptxsim.marks import COMPILES
from rows import need

pytestmark = [COMPILES, pytest.mark.slow]

PROGRAM = """
from ptxsim import fake_cuda
import torch
fake_cuda.CudaOnHost().__enter__()
import nvfp4kern
m, n, k = 257, 16, 1 << 18
a, b, sfa, sfb = (
    torch.zeros(rows, bytes, dtype=torch.uint8).cuda()
    for bytes in (k // 2, k // 16)
    for rows in (m, n)
)
nvfp4kern.gemm(a, b, sfa, sfb)
"""


def test_a_smaller_slice_has_the_clusters_of_its_own_tiles(tmp_path):
    """K of 2^18 leaves workspace for 256 rows. A cluster of split K without a tile would store."""
    need("sm90")
    launches = tmp_path / "launches"
    path = os.pathsep.join([str(build.HERE.parent), *(os.path.abspath(p) for p in sys.path if p)])
    settings = {"PYTHONPATH": path, "NVFP4KERN_TILE": "sm90/gemm:t128"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | build.environment(cc="9.0", launches_to=launches) | settings,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    kernels = [line.split()[:2] for line in launches.read_text().splitlines()]
    gemm, prologue = "sm90_gemm_t128_fp16", "sm90_prepare_a_codes"
    assert kernels == [[prologue, "256"], [gemm, "4"], [prologue, "128"], [gemm, "2"]]
