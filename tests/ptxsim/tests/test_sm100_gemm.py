"""The tcgen05 GEMM of ptxsim/kernels on the simulated GPU: right, and without a finding."""

import re
from dataclasses import replace

import pytest
from ptxsim import build, gpu, sm100_gemm

missing = [
    name for name, path in [("cc", build.find_cc()), ("nvcc", build.find_nvcc())] if not path
]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"no {' and no '.join(missing)}")


@pytest.fixture(scope="module")
def ptx():
    return build.own_kernel("sm100_gemm", sm100_gemm.ARCH)


@pytest.mark.parametrize("name", sm100_gemm.CASES)
def test_every_seed_is_right_and_clean(name, ptx, seeds):
    gpu.configure(cc="10.0")
    gpu.clear()
    module = gpu.Module(ptx.read_text())
    for seed in seeds:
        case = replace(sm100_gemm.CASES[name], data=seed % 4)
        gpu.seed(seed)
        case.check(case.run(module))
    assert [f for f in gpu.report()["findings"] if f["severity"] in "EW"] == []


def test_rings_turn():
    """What mutants are made of goes around the stages three times, the accumulators twice."""
    facts = sm100_gemm.table()["facts"]
    tried = [case for case in sm100_gemm.CASES.values() if case.exact]
    assert {case.variant for case in tried} == set(sm100_gemm.table()) - {"facts"}
    for case in tried:
        assert case.tiles > 2 * facts.accumulators
        assert case.tiles * -(-case.k // facts.tile_k) >= 3 * facts.stages


def test_ptxas_takes_it_without_a_spill(ptx):
    _, said = build.assembled(ptx, sm100_gemm.ARCH)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    assert len(spills) == len(sm100_gemm.table()) - 1
    assert set(spills) == {("0", "0")} and "warning" not in said
