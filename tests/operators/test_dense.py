"""What gemm, gemv and dual_gemm share: scale layouts, outputs, NaN, padding, nothing to do."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from dense_calls import operands, run_dense
from generators import (
    DTYPES,
    ORDERS,
    SCALE_FORMS,
    assert_ok,
    codes,
    rng_of,
    scale_bytes,
    unchanged,
    values,
)

import nvfp4kern
from nvfp4kern.verify import data, reference


class Operator(NamedTuple):
    name: str

    def draw(self, seed, m, n, k, batch=None, make=data.exact_family):
        rows = {"gemm": (m, n), "gemv": (m, 1), "dual_gemm": (m, n, n)}[self.name]
        return operands(rng_of(seed), make, rows, k, batch)

    def run(self, ops, device, **options):
        return run_dense(getattr(nvfp4kern, self.name), ops, device, **options)

    def check(self, got, ops, dtype, c=1):
        """Of data whose sums are exact."""
        exact = [o.values for o in ops]
        if self.name == "dual_gemm":
            assert_ok(reference.check(got, reference.dual_gemm(*exact, c=c), dtype))
        else:
            want = getattr(reference, self.name)(*exact).rounded(dtype)
            assert_ok(reference.check_bits(got, want))


OPERATORS = GEMM, GEMV, DUAL = [Operator(name) for name in ("gemm", "gemv", "dual_gemm")]
OPERANDS = [(GEMM, 0), (GEMM, 1), (GEMV, 0), (GEMV, 1), (DUAL, 0), (DUAL, 1), (DUAL, 2)]
OF = {"ids": lambda value: f"of_{value.name}" if isinstance(value, Operator) else None}
operators = pytest.mark.parametrize("operator", OPERATORS, **OF)


@operators
@pytest.mark.parametrize("form_b", SCALE_FORMS)
@pytest.mark.parametrize("form_a", SCALE_FORMS)
@pytest.mark.parametrize("batch", (None, 2))
@pytest.mark.parametrize("k", (112, 96))
def test_scale_layouts(backend, operator, form_a, form_b, batch, k):
    ops = operator.draw(1, 131, 40, k, batch)
    got = operator.run(ops, backend.device, forms=(form_a, form_b))
    operator.check(got, ops, "float16", backend.c)


@operators
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("batch", (None, 2))
def test_output_orders(backend, operator, order, batch, dtype):
    ops = operator.draw(2, 33, 18, 64, batch)
    got = operator.run(ops, backend.device, order=order, dtype=dtype)
    operator.check(got, ops, dtype, backend.c)


@pytest.mark.parametrize(
    "operator, which",
    [
        (operator, which)
        for operator in OPERATORS
        for which in range(len(operator.draw(0, 1, 1, 16)))
    ],
    **OF,
)
@pytest.mark.parametrize("batch", (None, 2))
@pytest.mark.parametrize("form", ("linear", "blocked"))
@pytest.mark.parametrize("byte", (0x7F, 0xFF))
def test_a_nan_scale_poisons_exactly_its_outputs(device, operator, which, batch, form, byte):
    """With NaN in the padding. The poisoned block has nothing but zero codes."""
    ops = operator.draw(8, 37, 21, 96, batch)
    options = {"forms": (form, form), "byte": 0x7F, "dtype": "float32"}
    clean = operator.run(ops, device, **options)
    of_batch = () if batch is None else (1,)
    row = min(5, ops[which].codes.shape[-2] - 1)
    ops[which].scales[(*of_batch, row, 2)] = byte
    ops[which].codes[(*of_batch, row, slice(16, 24))] = 0
    got = operator.run(ops, device, **options)
    nan = np.zeros(got.shape, bool)
    nan[(*of_batch, row) if which == 0 else (*of_batch, slice(None), row)] = True
    assert np.isfinite(clean).all()
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got[~nan], clean[~nan])


@operators
@pytest.mark.parametrize("byte", (0x7F, 0xFF, 0x7E))
@pytest.mark.parametrize("k", (48, 96))
def test_padding_and_bit_7_reach_no_output(backend, operator, byte, k):
    ops = operator.draw(10, 33, 7, k)
    ops[0].scales |= rng_of(12).integers(0, 2, ops[0].scales.shape, np.uint8) << 7
    ops[1].scales |= 0x80
    for form in ("linear", "blocked", "flat", "permuted"):
        got = operator.run(ops, backend.device, forms=(form, form), byte=byte)
        operator.check(got, ops, "float16", backend.c)


@operators
@pytest.mark.parametrize("batch, m, n", [(None, 0, 5), (None, 5, 0), (0, 3, 4), (2, 0, 0)])
@pytest.mark.parametrize("form", ("linear", "blocked"))
def test_empty(device, operator, batch, m, n, form):
    if operator is GEMV and m and batch != 0:
        pytest.skip("a gemv has no N")
    ops = operator.draw(17, m, n, 32, batch)
    assert operator.run(ops, device, forms=(form, form)).size == 0


@operators
@pytest.mark.parametrize("form", ("linear", "blocked"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_k_gives_zero(device, operator, form, dtype):
    ops = operator.draw(16, 5, 7, 0, 2)
    got = operator.run(ops, device, forms=(form, form), dtype=dtype)
    assert_ok(reference.check_bits(got, np.zeros(got.shape)))


@operators
@pytest.mark.parametrize("batch", (None, 2))
@pytest.mark.parametrize("dtype", (None, *DTYPES))
def test_new_output(backend, operator, batch, dtype):
    device, ops = backend.device, operator.draw(20, 6, 7, 48, batch)
    args = [codes(o, device) for o in ops] + [scale_bytes(o.scales, device) for o in ops]
    with unchanged(args):
        got = getattr(nvfp4kern, operator.name)(*args, **({"out_dtype": dtype} if dtype else {}))
    dtype = dtype or "float16"
    assert got.dtype == getattr(torch, dtype) and got.is_contiguous()
    assert got.device.type == device
    operator.check(values(got), ops, dtype, backend.c)


@operators
@pytest.mark.parametrize("dtype", ("float16", "float32"))
def test_numpy(device, operator, dtype):
    if device != "cpu":
        pytest.skip("NumPy arrays live on the CPU")
    ops = operator.draw(21, 6, 7, 48)
    args, function = [*(o.codes for o in ops), *(o.scales for o in ops)], operator.name
    with unchanged(args):
        got = getattr(nvfp4kern, function)(*args, out_dtype=dtype)
        out = np.empty(got.shape[::-1], dtype).T
        assert getattr(nvfp4kern, function)(*args, out=out) is out
    assert type(got) is np.ndarray and got.dtype == dtype
    operator.check(got, ops, dtype)
    operator.check(out, ops, dtype)
