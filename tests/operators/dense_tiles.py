"""What tiles compute of gemm, dual_gemm and lists of groups, for test_tiles.py."""

import numpy as np
from dense_calls import LINEAR, dual_operands, expect_dual, gemm_operands, run_dual, run_gemm
from expert_calls import group_operands, run_list
from generators import assert_ok, assert_right, floats, rng_of

from nvfp4kern.verify import data, reference


def check_full_range(device, c, m, n, k, forms):
    """With NaN as the padding of blocked scale factors; alpha and bias for each weight row."""
    rng = rng_of(m, n, k)
    a, b = gemm_operands(rng, data.full_range, m, n, k)
    alpha, bias = rng.normal(size=n).astype(np.float32), rng.normal(size=n).astype(np.float32)
    given = {"alpha": floats(alpha, "float32", device), "bias": floats(bias, "float32", device)}
    got = run_gemm(a, b, device, forms=forms, byte=0x7F, dtype="float32", **given)
    want = reference.gemm(a.values, b.values, alpha=alpha, bias=bias, c=c)
    assert_ok(reference.check(got, want, "float32"))


def check_exact(device, m, n, k, batch=None, forms=LINEAR, **options):
    a, b = gemm_operands(rng_of(m, n, k), data.exact_family, m, n, k, batch)
    want = reference.gemm(a.values, b.values).rounded(options.get("dtype", "float16"))
    assert_ok(reference.check_bits(run_gemm(a, b, device, forms=forms, **options), want))


def check_dual(device, c, m, n, k, batch=None, make=data.exact_family, dtype="float16", **how):
    """`how` has the layouts of scale factors, their padding, the activation and the order. Each
    feature has its alphas."""
    rng = rng_of(m, n, k)
    ops = dual_operands(rng, make, m, n, k, batch)
    alphas = {name: rng.normal(size=n).astype(np.float32) for name in ("alpha1", "alpha2")}
    given = {name: floats(values, "float32", device) for name, values in alphas.items()}
    got = run_dual(ops, device, dtype=dtype, **given, **how)
    want = expect_dual(ops, c=c, activation=how.get("activation", "silu"), **alphas)
    assert_ok(reference.check(got, want, dtype))


def check_list(device, c, sizes, forms, make=data.exact_family, dtype=None, out="float32", **how):
    """Groups of these (m, n, k), of 16-bit tokens if there is a dtype. Each weight row has its
    alpha and bias."""
    rng = rng_of(len(sizes))
    pairs = group_operands(rng, make, sizes, dtype)
    alpha, bias = ([rng.integers(1, 4, n).astype(np.float32) for _, n, _ in sizes] for _ in "ab")
    given = {"alpha": alpha, "bias": bias}
    given = {name: [floats(v, "float32", device) for v in of] for name, of in given.items()}
    outs = run_list(pairs, device, forms=forms, dtype=out, **given, **how)
    for got, (a, b), *options in zip(outs, pairs, alpha, bias, strict=True):
        options = {"alpha": options[0], "bias": options[1], "nvfp4": dtype is None}
        expected = reference.gemm(a.values, b.values, c=c, **options)
        assert_right(got, expected, out, make is data.exact_family, got.shape)
