"""Tiles that take 16-bit tokens as they lie."""

from itertools import product

import torch
from dense_calls import run_gemm
from generators import assert_ok, elements, halves, integers, rng_of

from nvfp4kern.verify import data, reference


def in_longer_rows(operand, device):
    """16-bit elements whose rows end in NaNs; codes as they are."""
    given = elements(operand, device)
    if given.dtype not in (torch.float16, torch.bfloat16):
        return given
    longer = torch.full(
        (*given.shape[:-1], given.shape[-1] + 64), torch.nan, dtype=given.dtype, device=device
    )
    return longer[..., : given.shape[-1]].copy_(given)


def check_sm90_natural_k(tokens, device, c):
    """Rows and columns of two tiles, K of whole steps and of halves, between NaNs: of two batches,
    and of rows that are a part of longer ones."""
    forms = ("linear", "linear"), ("linear", "blocked"), ("linear", "padded")
    for dtype, form in product(("float16", "bfloat16"), forms):
        for m, n, k in ((9, 133, 1088), (tokens + 2, 150, 384), (1, 1, 64)):
            rng = rng_of(m, n, k)
            a, b = integers(rng, dtype, m, k), data.exact_family(rng, n, k)
            got = run_gemm(
                a, b, device, forms=form, byte=0x7F, dtype="float32", place=in_longer_rows
            )
            assert_ok(
                reference.check_bits(got, reference.gemm(a.values, b.values).rounded("float32"))
            )
        rng = rng_of(3)
        a, b = halves(rng, dtype, 2, 137, 320), data.full_range(rng, 2, 70, 320)
        got = run_gemm(a, b, device, forms=form, byte=0x7F, dtype="float32")
        assert_ok(reference.check(got, reference.gemm(a.values, b.values, c=c), "float32"))
