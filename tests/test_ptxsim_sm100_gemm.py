"""The tcgen05 GEMM of ptxsim/kernels on the simulated GPU: right, and without a finding."""

import shutil
import subprocess

import pytest
from ptxsim import build, gpu, sm100_gemm

missing = [name for name in ("cc", "nvcc") if not shutil.which(name)]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"no {' and no '.join(missing)}")

# Variant, M, N, K, clusters: more tiles than accumulators for some cluster, three rounds of its
# ring of stages, ragged at every end.
PERSISTENT = [
    ("one", 300, 130, 576, 2),
    ("one_wide", 129, 257, 320, 1),
    ("one_share_b", 500, 189, 320, 1),
    ("pair", 257, 190, 320, 1),
    ("pair_wide", 130, 500, 576, 1),
    ("pair_share_a", 201, 515, 576, 1),
    ("pair_share_b", 300, 257, 576, 1),
    ("pair_clc", 300, 257, 576, 1),
]
SMALL = [("one", 1, 1, 64, 1), ("pair", 255, 3, 192, 1), ("pair_share_b", 513, 65, 64, 2)]


@pytest.fixture(scope="module")
def module():
    gpu.configure(cc="10.0")
    return gpu.Module(sm100_gemm.ptx())


def run(module, variant, m, n, k, clusters, seeds):
    gpu.configure(cc="10.0")
    gpu.clear()
    for seed in seeds:
        problem = sm100_gemm.Problem(seed, m, n, k)
        gpu.seed(seed)
        problem.launch(module, variant, clusters)
        problem.check()
    assert [f for f in gpu.report()["findings"] if f["severity"] in "EW"] == []


def test_ptxas_takes_it_and_spills_nothing(tmp_path):
    done = subprocess.run(
        ["ptxas", "-arch=sm_100a", "-v", build.own_kernel("sm100_gemm", "sm100"), "-o",
         tmp_path / "image"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kernels = len(sm100_gemm.table()) - 1
    assert done.stderr.count("0 bytes spill stores, 0 bytes spill loads") == kernels
    assert "warning" not in done.stderr


@pytest.mark.parametrize("variant, m, n, k, clusters", PERSISTENT)
def test_persistent(module, seeds, variant, m, n, k, clusters):
    facts, steps = sm100_gemm.table()["facts"], -(-k // sm100_gemm.table()["facts"].tile_k)
    tiles = -(-sm100_gemm.tiles(variant, m, n) // clusters)
    assert tiles > facts.accumulators and tiles * steps >= 3 * facts.stages
    run(module, variant, m, n, k, clusters, seeds)


@pytest.mark.parametrize("variant, m, n, k, clusters", SMALL)
def test_less_than_the_ring(module, seeds, variant, m, n, k, clusters):
    run(module, variant, m, n, k, clusters, seeds)
