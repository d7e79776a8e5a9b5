"""What every tile of Blackwell's GEMMs with 16-bit tokens computes, for test_tiles.py."""

import numpy as np
import torch
from dense_calls import expect_dual, run_dual, run_gemm
from dense_tiles import check_list
from expert_tiles import (
    check_16_bit_experts,
    check_activated_experts,
    check_experts,
    check_gated_experts,
)
from generators import (
    ORDERS,
    SCALE_FORMS,
    Halves,
    assert_ok,
    assert_right,
    codes,
    elements,
    floats,
    halves_like,
    integers,
    rng_of,
)

from nvfp4kern.verify import data, reference

DTYPES = ("float16", "bfloat16")


def operands(rng, dtype, full, lead, m, n, k, matrices=1):
    """Tokens, and so many matrices of weights."""
    make = data.full_range if full else data.exact_family
    tokens = halves_like(make, rng, dtype, *lead, m, k)
    return [tokens, *(make(rng, *lead, n, k) for _ in range(matrices))]


def in_rows_of(row_bytes):
    """What places codes with so many bytes from row to row, 0xFF between them."""

    def place(operand, device):
        if isinstance(operand, Halves) or not row_bytes:
            return elements(operand, device)
        given = codes(operand, device, native=False)
        shape = (*given.shape[:-1], row_bytes)
        wide = torch.full(shape, 0xFF, dtype=torch.uint8, device=device)[..., : given.shape[-1]]
        return wide.copy_(given).view(torch.float4_e2m1fn_x2)

    return place


def vectors(rng, device, names, n):
    """Numbers of which products with exact sums are exact, and what a call takes."""
    made = {name: rng.integers(1, 4, n).astype(np.float32) for name in names}
    return made, {name: floats(value, "float32", device) for name, value in made.items()}


def check_gemm(
    device, c, dtype, m, n, k, form, *, lead=(), full=False, out="float32", row_bytes=0, order="row"
):
    rng = rng_of(m, n, k)
    a, b = operands(rng, dtype, full, lead, m, n, k)
    made, given = vectors(rng, device, ("alpha", "bias"), n)
    how = {"forms": (form, form), "byte": 0x7F, "place": in_rows_of(row_bytes), "order": order}
    got = run_gemm(a, b, device, dtype=out, **how, **given)
    expected = reference.gemm(a.values, b.values, c=c, nvfp4=False, **made)
    assert_right(got, expected, out, not full)


def check_dual(device, c, dtype, m, n, k, form, *, lead=(), full=False, out="float32", **how):
    rng = rng_of(m, n, k)
    ops = operands(rng, dtype, full, lead, m, n, k, matrices=2)
    made, given = vectors(rng, device, ("alpha1", "alpha2"), n)
    got = run_dual(ops, device, forms=(form, form), byte=0x7F, dtype=out, **given, **how)
    activation = {key: how[key] for key in how if key == "activation"}
    expected = expect_dual(ops, c=c, nvfp4=False, **made, **activation)
    assert_ok(reference.check(got, expected, out))


def check_poison(device, dtype, m, n, k):
    """A NaN scale factor makes its row's outputs NaN, whatever bit 7 is; a token's NaN its own."""
    rng = rng_of(m, n, k)
    b = data.exact_family(rng, n, k)
    b.codes[3] = 0
    b.scales[3, -1], b.scales[n - 1, 0] = 0xFF, 0x7F
    b.scales[4] |= 0x80
    a = integers(rng, dtype, m, k)
    a.values[m - 1, k - 1] = np.nan
    got = run_gemm(a, b, device)
    nans = np.zeros((m, n), bool)
    nans[:, [3, n - 1]] = nans[m - 1] = True
    np.testing.assert_array_equal(np.isnan(got), nans)


def check_sm100_kind_f16(tile, device, c):
    """Each share of a split K has a step: `more` is those of the other shares."""
    mma_n, split_k, operators = tile["tile_m"], tile["split_k"], tile["operators"]
    more = tile["tile_k"] * (split_k - 1)
    for i, form in enumerate(SCALE_FORMS):
        dtypes = DTYPES if form in ("linear", "blocked") else DTYPES[i % 2 : i % 2 + 1]
        for dtype in dtypes:
            check_gemm(device, c, dtype, mma_n + 3, 133, 288 + more, form, full=True)
    depth = 2624 if mma_n == 16 else 1696 * split_k  # longer than the pipeline
    check_gemm(device, c, "bfloat16", 5, 140, depth, "blocked")
    for dtype in DTYPES:
        check_gemm(device, c, dtype, 2, 1, 32 + more, "blocked", out=dtype)
        check_gemm(device, c, dtype, 9, 260, 48 + more, "linear", row_bytes=32 + more // 2)
    check_gemm(device, c, "float16", 2 * mma_n + 1, 129, 352 + more, "linear", lead=(3,))
    check_gemm(device, c, "bfloat16", 7, 5, 16 + more, "flat", row_bytes=16 + more // 2)
    for order, out in zip(ORDERS, ("float16", "bfloat16", "float16", "float32"), strict=True):
        check_gemm(device, c, "bfloat16", 37, 264, 96 + more, "blocked", order=order, out=out)
    for dtype in DTYPES:
        check_poison(device, dtype, 9, 130, 192 + more)
    if "dual_gemm" in operators:
        check_dual(device, c, "float16", mma_n + 3, 133, 288 + more, "blocked", full=True)
        check_dual(device, c, "bfloat16", 5, 140, 1312 * split_k, "linear", full=True)
        for form in SCALE_FORMS:
            identity = {"activation": "identity", "full": True}
            check_dual(device, c, "bfloat16", 9, 70, 160 + more, form, **identity)
        gelu = {"activation": "gelu", "order": "column", "out": "bfloat16"}
        check_dual(device, c, "float16", 2 * mma_n + 1, 129, 96 + more, "flat", lead=(2,), **gelu)
    if "list_gemm" in operators:
        for dtype in DTYPES:
            sizes = [(mma_n + 3, 133, 288), (0, 64, 32), (1, 1, 1408), (2 * mma_n + 5, 260, 96)]
            full = {"make": data.full_range, "out": dtype}
            check_list(device, c, sizes, ("linear", "linear"), dtype=dtype, **full)
            more_groups = [*sizes, (9, 70, 160)] * 7
            check_list(device, c, more_groups, ("linear", "blocked"), dtype=dtype)
    if "activated_grouped_gemm" in operators:
        for dtype in DTYPES:
            of = {"dtype": dtype, "tokens": 47 if dtype == "float16" else None}
            check_activated_experts(device, c, (mma_n + 3, 0, 1, 70), 140, 320, **of)
    if "grouped_gemm" in operators:
        sizes = (mma_n + 3, 0, 1, 130, 0)
        for dtype in DTYPES:
            check_experts(device, c, sizes, 140, 320, ("linear", "blocked"), dtype)
            check_experts(device, c, sizes, 33, 288, dtype=dtype, full=True, out=dtype)
        sizes = (0,) * 40 + (5, 0, 7) + (1,) * 20
        check_experts(device, c, sizes, 130, 64, ("linear", "permuted"), "float16")
        check_experts(device, c, (0, 0), 130, 64, dtype="float16")
        for dtype in DTYPES:
            how = {"dtype": dtype, "out": dtype}
            check_16_bit_experts(device, c, (mma_n + 3, 0, 1, 64), 136, 208, **how)
            check_16_bit_experts(device, c, (3, 9), 72, 1104, full=True, dtype=dtype)
        check_16_bit_experts(device, c, (2 * mma_n + 5, 2), 260, 96)
        check_16_bit_experts(device, c, (0, 7, 0), 133, 48)
        check_16_bit_experts(device, c, (1,), 1, 16)
        check_indexed_and_gated(device, c, mma_n)


def check_indexed_and_gated(device, c, mma_n):
    """Experts' last rows are any number behind a whole four; ups begin anywhere in an atom."""
    sizes = (mma_n + 3, 0, 1, 130, 6, 0)
    many = sum(sizes) // 2
    for dtype in DTYPES:
        full = {"full": True, "tokens": many, "out": dtype}
        check_experts(device, c, sizes, 140, 320, ("linear", "blocked"), dtype, tokens=many)
        check_experts(device, c, sizes, 33, 288, dtype=dtype, **full)
        check_16_bit_experts(device, c, (5, 3 * mma_n), 72, 208, dtype, full=True, tokens=mma_n)
    check_experts(device, c, (300,), 1, 1408, ("linear", "flat"), "float16", tokens=150)
    check_experts(device, c, (0, 0), 130, 64, dtype="bfloat16", tokens=1)
    check_16_bit_experts(device, c, (2, 9), 133, 48, "bfloat16", tokens=6)
    for form, n in (("linear", 133), ("blocked", 128), ("flat", 40), ("permuted", 200)):
        how = {"full": True, "tokens": many}
        check_gated_experts(device, c, sizes, n, 288, ("linear", form), "bfloat16", **how)
    blocked = ("linear", "blocked")
    sizes = (0, 2 * mma_n + 1, 0)
    check_gated_experts(device, c, sizes, 1, 1408, blocked, "float16", tokens=mma_n)
    check_gated_experts(device, c, (7,), 70, 160, blocked, "float16", "gelu", full=True, tokens=4)
