"""A list of thousands of groups: outputs in any order in memory, Ctrl-C while they are compared."""

import signal

import numpy as np
import pytest

import nvfp4kern as nk

GROUPS = 5000
ONES = np.full((1, 8), 0x22, np.uint8)  # sixteen times 1.0
SCALE = np.full((1, 1), 0x38, np.uint8)  # 1.0
ORDERS = {
    "ascending": np.arange(GROUPS),
    "descending": np.arange(GROUPS)[::-1],
    "shuffled": np.random.default_rng(3).permutation(GROUPS),
}


def multiply(outs, alphas=None, rows=1):
    a, sfa = np.repeat(ONES, rows, 0), np.repeat(SCALE, rows, 0)
    n = len(outs)
    return nk.grouped_gemm([a] * n, [ONES] * n, [sfa] * n, [SCALE] * n, alpha=alphas, out=outs)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_every_group_writes_its_own(order):
    memory = np.zeros((GROUPS, 1, 1), np.float32)
    multiply([memory[i] for i in order], [float(i) for i in order])
    np.testing.assert_array_equal(memory.ravel(), 16.0 * np.arange(GROUPS))


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("other", [1, 2500, 4999])
def test_two_outputs_that_are_one(order, other):
    memory = np.zeros((GROUPS, 1, 1), np.float32)
    outs = [memory[i] for i in order]
    outs[0] = outs[other]
    with pytest.raises(ValueError, match=r"^out\[\d+\]: shares memory with out\b"):
        multiply(outs)
    assert not memory.any()


def test_control_c_while_outputs_are_compared():
    """Columns of one matrix: each lies between all others."""
    memory = np.zeros((2, 20000), np.float32)

    def stop(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            multiply(np.split(memory, memory.shape[1], axis=1), rows=2)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not memory.any()
