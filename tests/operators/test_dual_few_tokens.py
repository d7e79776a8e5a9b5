"""dual_gemm of one to eight tokens, which Hopper's gemv takes: D = act(alpha1 * A B1^T) * (alpha2 *
A B2^T)."""

import numpy as np
import pytest
import torch
from dense_calls import NO_WEIGHTS_AT, dual_operands, expect_dual, explain, run_dual, uneven
from generators import Halves, assert_ok, codes, floats, halves_like, rng_of

from nvfp4kern.verify import data, reference

TOKENS = ("NVFP4", "float16", "bfloat16")


def tokens_like(make, rng, dtype, *shape):
    return make(rng, *shape) if dtype == "NVFP4" else halves_like(make, rng, dtype, *shape)


def served_by_gemv(plan):
    """By Hopper's gemv, which explains itself as such, or not."""
    assert plan["kernel"].startswith("sm90_gemv_") == plan["why"].startswith("few tokens")
    return plan["kernel"].startswith("sm90_gemv_")


FEW_TOKENS = [
    (1, None, 8, 64),
    (1, None, 40, 576),
    (1, None, 44, 512),
    (1, 2, 304, 1088),
    (1, None, 24, 16384),
    (1, 3, 8, 80),
    (1, None, 128, 16384),
    (2, None, 128, 1088),
    (3, 2, 384, 576),
    (5, None, 72, 320),
    (8, None, 128, 8192),
    (8, 2, 136, 448),
]


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("form", ("linear", "strided", "blocked"))
@pytest.mark.parametrize("m, batch, n, k", FEW_TOKENS)
def test_few_tokens(gpu, m, batch, n, k, form, tokens):
    """Hopper reads both matrices once, where N % 8 = 0."""
    rng, lead = rng_of(m, n, k), () if batch is None else (batch,)
    weights = (data.full_range(rng, *lead, n, k) for _ in range(2))
    ops = tokens_like(data.full_range, rng, tokens, *lead, m, k), *weights
    alphas = {name: rng.standard_normal(n).astype(np.float32) for name in ("alpha1", "alpha2")}
    given = {name: floats(alpha, "float32", gpu.device) for name, alpha in alphas.items()}
    activation = "silu" if n % 16 else "gelu_tanh"
    options = {"forms": (form, form), "byte": 0x7F, "activation": activation}
    got = run_dual(ops, gpu.device, dtype="float32", **given, **options)
    nvfp4 = tokens == "NVFP4"
    expected = expect_dual(ops, activation=activation, c=gpu.c, nvfp4=nvfp4, **alphas)
    assert_ok(reference.check(got, expected, "float32"))
    if gpu.name == "sm90":
        plan = explain("dual_gemm", ops, gpu.device, **options)
        assert served_by_gemv(plan) == (form != "strided" and n % 8 == k % 64 == 0)
        assert n > 8 or plan["grid"] < 8


EXACT = [
    (m, n, k)
    for n, k in ((128, 1024), (128, 8192), (384, 448), (16, 4096), (35072, 64))
    for m in (1, 2, 7, 8)
    if n < 4096 or m in (1, 7)  # these have several tiles for each warp, on any GPU
]


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("form", ("linear", "blocked"))
@pytest.mark.parametrize("m, n, k", EXACT)
def test_few_exact_tokens_are_the_cpus_to_the_bit(gpu, m, n, k, form, tokens):
    """K is split over clusters, whose CTAs may convert different parts of a token."""
    rng = rng_of(m, n, k)
    weights = [data.exact_family(rng, n, k, low=-1, high=0) for _ in range(2)]
    for b in weights:
        b.codes[:, NO_WEIGHTS_AT] = 0
        b.scales[: n // 2, 1::2] |= 0x80  # signs do not count
    a = data.exact_family(rng, m, k) if tokens == "NVFP4" else uneven(rng, tokens, m, k)
    ops, options = (a, *weights), {"forms": (form, form), "activation": "relu"}
    got = run_dual(ops, gpu.device, dtype="float32", **options)
    on_cpu = run_dual(ops, "cpu", dtype="float32", **options)
    np.testing.assert_array_equal(got.view(np.uint32), on_cpu.view(np.uint32))
    sums = []
    for b in weights:
        total, most = reference.matmul(a.values, b.values)
        assert data.is_exact(np.where(np.abs(a.values) < 2.0**-50, 0, a.values), b.values, most)
        sums.append(np.float32(total))
    np.testing.assert_array_equal(got, np.maximum(sums[0], 0) * sums[1])
    if gpu.name == "sm90":
        assert served_by_gemv(explain("dual_gemm", ops, gpu.device, **options))


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("form", ("linear", "blocked"))
@pytest.mark.parametrize("m", (1, 3))
def test_nan_scale_factors_of_few_tokens(device, m, form, tokens):
    """They poison a feature, also where codes are 0; of a token they poison the token."""
    rng, (n, k) = rng_of(m), (256, 576)
    ops = [tokens_like(data.exact_family, rng, tokens, m, k)]
    ops += [data.exact_family(rng, n, k) for _ in range(2)]
    ops[1].scales[130, 35], ops[2].scales[77, 0] = 0x7F, 0xFF
    ops[1].codes[130], ops[2].codes[77] = 0, 0
    bad = np.zeros((m, n), bool)
    bad[:, [130, 77]] = True
    if tokens == "NVFP4":
        ops[0].scales[-1, 17] = 0xFF
        bad[-1] = True
    got = run_dual(ops, device, forms=(form, form), byte=0x7F, activation="identity")
    np.testing.assert_array_equal(np.isnan(got), bad)


@pytest.mark.parametrize("value", (np.inf, 2.0**120, 2.0**-133, np.nan))
@pytest.mark.parametrize("form", ("linear", "blocked"))
def test_a_token_that_fp16_cannot_hold(backend, form, value):
    """Some of its elements: these sums round, or are no numbers."""
    rng, (n, k) = rng_of(3), (128, 4096)
    x = data.small_integers(rng, 1, k).astype(np.float64)
    x[0, [0, 5, k - 1]] = reference.round_to(np.float64([value] * 3), "bfloat16")
    ops = Halves(x, "bfloat16"), *(data.exact_family(rng, n, k) for _ in range(2))
    options = {"activation": "identity", "alpha1": 2.0**-60, "alpha2": 2.0**-60}
    got = run_dual(ops, backend.device, forms=(form, form), dtype="float32", **options)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = expect_dual(ops, c=backend.c, nvfp4=False, **options)
    assert_ok(reference.check(got, expected, "float32"))


@pytest.mark.parametrize("apart", (16, 144))
def test_rows_of_weights_lie_anywhere(gpu, apart):
    """Gates and ups as columns of wider tensors, the rows of each so many bytes further apart."""
    rng, (m, n, k) = rng_of(apart), (4, 256, 512)
    ops = dual_operands(rng, data.exact_family, m, n, k)

    def place(operand, device):
        given = codes(operand, device, native=False)
        gap = apart * (operand is ops[2]) + 16
        wide = torch.full((given.shape[0], k // 2 + gap), 0xFF, dtype=torch.uint8, device=device)
        wide[:, : k // 2] = given
        return wide[:, : k // 2]

    for form in ("linear", "blocked"):
        options = {"forms": (form, form), "place": place, "activation": "identity"}
        got = run_dual(ops, gpu.device, dtype="float32", **options)
        sums = [reference.matmul(ops[0].values, b.values)[0] for b in ops[1:]]
        np.testing.assert_array_equal(got, np.float32(sums[0]) * np.float32(sums[1]))
        if gpu.name == "sm90":
            assert served_by_gemv(explain("dual_gemm", ops, gpu.device, **options))
