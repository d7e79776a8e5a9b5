"""tcgen05 and tensor memory on the simulated GPU: what the instructions compute."""

import re
import shutil

import numpy as np
import pytest
from ptxsim import gpu, sm100

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

SEEDS = range(6)


@pytest.fixture(autouse=True)
def fresh():
    gpu.configure(cc="10.0")
    gpu.clear()


def findings(severities="EWN"):
    return {f["code"] for f in gpu.report()["findings"] if f["severity"] in severities}


def launch(body, arrays, variables, seed=0, parameters=sm100.PARAMETERS, **options):
    """The last array after the kernel."""
    gpu.seed(seed)
    module = gpu.Module(gpu.kernel(body, parameters[: len(arrays)], variables))
    memory = [gpu.Memory(array) for array in arrays]
    module.launch("f", *memory, **({"block": 128} | options))
    return memory[-1].array.copy()


# ---------------------------------------------------------------------------------------------
# mma, cp, commit, ld: a product of block-scaled e2m1
# ---------------------------------------------------------------------------------------------


def run_product(group, n, seed, operands=None, body=None, columns=128):
    operands = operands or sm100.product_operands(group, n, seed)
    d = np.zeros((128 * group, n), np.float32)
    got = launch(
        body or sm100.product(group, n, columns),
        [*sm100.product_memory(*operands), d],
        sm100.product_variables(group, n),
        seed,
        grid=group,
        cluster=group,
    )
    return got, sm100.exact_product(*operands)


def assert_close(got, want):
    """The accumulator is f32, rounded towards zero after each of four instructions."""
    np.testing.assert_allclose(got, want, rtol=0, atol=4 * np.abs(want).max() * 2.0**-23)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", (8, 64, 104))
def test_block_scaled_product(n, seed):
    columns = 256 if n > 96 else 128
    assert_close(*run_product(1, n, seed, columns=columns))
    assert findings() == set()
    assert gpu.report()["mmas"] == 4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", (32, 128))
def test_block_scaled_product_of_a_pair(n, seed):
    assert_close(*run_product(2, n, seed, columns=256))
    assert findings() == set()
    assert gpu.report()["mmas"] == 4


def test_small_integers_are_exact():
    operands = sm100.product_operands(1, 64, 3, scales=(0x38, 0x39))  # all ones
    got, want = run_product(1, 64, 3, operands)
    np.testing.assert_array_equal(got, want)


def test_signs_and_accumulation_follow_the_descriptor_and_the_predicate():
    """-A B, then once more on top of it: the first instruction adds too, if its predicate says so."""
    bits = sm100.instruction(128, 64, b13=1)
    once, twice = (sm100.multiply(1, 64, bits=bits) for _ in range(2))
    again = twice.replace("setp.ne.u32 %p5, 0, 0;", "setp.eq.u32 %p5, 0, 0;")
    body = sm100.product().replace(sm100.multiply(1, 64), once + again)
    got, want = run_product(1, 64, 5, body=body)
    assert_close(got, -2 * want)


@pytest.mark.parametrize("form", ("scale_vec::4X", "block16.collector::a::discard"))
def test_other_spellings(form):
    assert_close(*run_product(1, 64, 0, body=sm100.product(form=form)))


@pytest.mark.parametrize("predicate, factor", [("1", 2), ("0", 1), ("!%p5", 1)])
def test_the_predicate_may_be_a_number_or_negated(predicate, factor):
    last = sm100.multiply(1, 64).replace("%p5;", f"{predicate};")
    last = re.sub("setp.ne.u32 %p5, ., 0;", "setp.eq.u32 %p5, 0, 0;", last)
    body = sm100.product().replace(sm100.commit(1), last + sm100.commit(1))
    operands = sm100.product_operands(1, 64, 0)
    got, want = run_product(1, 64, 0, operands, body)
    if factor == 2:
        assert_close(got, 2 * want)
    else:  # each of the four replaced the one before it
        a, b, sfa, sfb = operands
        assert_close(got, sm100.exact_product(a[:, 192:], b[:, 192:], sfa[:, 12:], sfb[:, 12:]))


def test_a_nan_scale_poisons_its_row():
    a, b, sfa, sfb = sm100.product_operands(1, 64, 0)
    sfa[5, 3] = 0x7F
    got, _ = run_product(1, 64, 0, (a, b, sfa, sfb))
    assert np.isnan(got[5]).all() and not np.isnan(np.delete(got, 5, 0)).any()
