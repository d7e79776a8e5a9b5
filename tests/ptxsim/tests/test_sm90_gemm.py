"""The Hopper GEMM of the simulator's own, a rehearsal of the product's: right and clean."""

import re

import pytest
from ptxsim import build, gpu, sm90_gemm

missing = [
    name for name, path in [("cc", build.find_cc()), ("nvcc", build.find_nvcc())] if not path
]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"no {' and no '.join(missing)}")

EXACT = [name for name, case in sm90_gemm.CASES.items() if case.exact]


@pytest.fixture(scope="module")
def ptx():
    return build.own_kernel("sm90_gemm", sm90_gemm.ARCH)


@pytest.mark.parametrize("name", EXACT)
def test_every_seed_is_right_and_clean(name, ptx, seeds):
    gpu.configure(sms=8)
    gpu.clear()
    module, case = gpu.Module(ptx.read_text()), sm90_gemm.CASES[name]
    for seed in seeds:
        gpu.seed(seed)
        case.check(case.run(module))
    assert [f for f in gpu.report()["findings"] if f["severity"] in "EW"] == []


def test_the_ring_turns_and_is_not_filled():
    """Long cases go around it three times at least, short ones do not fill it."""
    for name, case in sm90_gemm.CASES.items():
        m, n, k = case.shape
        steps = -(-k // sm90_gemm.TILE_K) // case.split
        tiles = -(-m // (sm90_gemm.TILE_M * case.multicast)) * -(-n // sm90_gemm.TILE_N)
        turns = steps * tiles // case.grid
        assert turns >= 9 if name.endswith("/long") else turns == 0 or not name.endswith("/short")


def test_ptxas_takes_it_without_a_spill(ptx):
    _, said = build.assembled(ptx, sm90_gemm.ARCH)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    assert len(spills) == len({case.kernel for case in sm90_gemm.CASES.values()})
    assert set(spills) == {("0", "0")} and "serializ" not in said
    assert set(re.findall(r"Used (\d+) registers", said)) == {"128", "168"}  # setmaxnreg's shares
