"""gemm: D[m,n] = alpha[n] * sum_k A[m,k] B[n,k] + bias[n]."""

import numpy as np
import pytest
import torch
from dense_calls import NO_WEIGHTS_AT, gemm_operands, run_gemm, uneven
from generators import (
    DTYPES,
    ODD_SHAPES,
    Halves,
    assert_ok,
    codes,
    floats,
    halves,
    integers,
    rng_of,
    run,
    scale_bytes,
)

import nvfp4kern
from nvfp4kern.verify import data, reference

BATCHES = (None, 1, 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("m, n, k", ODD_SHAPES)
def test_exact_family_is_the_oracle_to_the_bit(device, m, n, k, batch, dtype):
    a, b = gemm_operands(rng_of(m, n, k), data.exact_family, m, n, k, batch)
    x, total = reference.matmul(a.values, b.values)
    assert data.is_exact(a.values, b.values, total)
    got = run_gemm(a, b, device, dtype=dtype)
    assert_ok(reference.check_bits(got, reference.round_to(x, dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_overflow_goes_to_infinity(device, dtype):
    a, b = gemm_operands(rng_of(3), data.exact_family, 20, 30, 512, low=6, high=8)
    want = reference.gemm(a.values, b.values).rounded(dtype)
    assert np.isinf(want).any() == (dtype == "float16")
    assert_ok(reference.check_bits(run_gemm(a, b, device, dtype=dtype), want))


def test_subnormal_outputs(device):
    a, b = gemm_operands(rng_of(4), data.exact_family, 20, 30, 16, low=-9, high=-7)
    want = reference.gemm(a.values, b.values).rounded("float16")
    assert ((want != 0) & (np.abs(want) < 2.0**-14)).any()
    assert_ok(reference.check_bits(run_gemm(a, b, device), want))


def test_long_k(device):
    a, b = gemm_operands(rng_of(5), data.exact_family, 3, 5, 7168)
    x, total = reference.matmul(a.values, b.values)
    assert data.is_exact(a.values, b.values, total)
    got = run_gemm(a, b, device, dtype="float32")
    assert_ok(reference.check_bits(got, x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("forms", [("linear", "blocked"), ("permuted", "strided")])
@pytest.mark.parametrize("m, n, k", [*ODD_SHAPES, (20, 24, 4096)])
def test_full_range_is_within_the_bound(backend, m, n, k, forms, dtype):
    a, b = gemm_operands(rng_of(m, n, k, 7), data.full_range, m, n, k)
    got = run_gemm(a, b, backend.device, forms=forms, dtype=dtype)
    expected = reference.gemm(a.values, b.values, c=backend.c)
    assert_ok(reference.check(got, expected, dtype))


@pytest.mark.parametrize("form", ("linear", "blocked"))
def test_every_code_pair_and_every_scale_pair(backend, form):
    """K = 16 and one non-zero element: D is one product, exact in float32."""
    rows = np.arange(16 * 127)
    packed = np.zeros((rows.size, 8), np.uint8)
    packed[:, 0] = rows % 16
    operand = data.Operand(packed, (rows // 16).astype(np.uint8)[:, None])
    left = data.Operand(packed[::7], operand.scales[::7])
    got = run_gemm(left, operand, backend.device, forms=(form, form), dtype="float32")
    want = reference.matmul(left.values, operand.values)[0]
    assert_ok(reference.check_bits(got, want))


def alphas(rng, n, device):
    column = rng.standard_normal(n).astype(np.float32)
    wide = torch.from_numpy(np.repeat(column, 2)).to(device)
    return {
        "float": (0.3, 0.3),
        "int": (-2, -2),
        "zero": (0.0, 0.0),
        "one element": (floats([-1.7], "float32", device), np.float32(-1.7)),
        "0-d": (floats(0.11, "float32", device), np.float32(0.11)),
        "per column": (floats(column, "float32", device), column),
        "per column, strided": (wide[::2], column),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", alphas(rng_of(0), 1, "cpu"))
@pytest.mark.parametrize("bias_dtype", (None, *DTYPES))
def test_alpha_and_bias(backend, kind, bias_dtype, dtype):
    rng = rng_of(13)
    a, b = gemm_operands(rng, data.full_range, 9, 27, 96, 2)
    alpha, alpha_value = alphas(rng, 27, backend.device)[kind]
    bias_value, bias = 0.0, None
    if bias_dtype:
        bias_value = data.halves(rng, bias_dtype, 27, scale=1e4)
        bias = floats(bias_value, bias_dtype, backend.device)
    got = run_gemm(a, b, backend.device, alpha=alpha, bias=bias, dtype=dtype)
    expected = reference.gemm(a.values, b.values, alpha=alpha_value, bias=bias_value, c=backend.c)
    assert_ok(reference.check(got, expected, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("a_dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("m, n, k", ODD_SHAPES)
def test_16_bit_activations(backend, m, n, k, a_dtype, dtype):
    rng = rng_of(m, n, k)
    x, b = halves(rng, a_dtype, 2, m, k), data.full_range(rng, 2, n, k)
    for form in ("linear", "blocked"):
        got = run_gemm(x, b, backend.device, forms=(form, form), dtype=dtype)
        expected = reference.gemm(x.values, b.values, c=backend.c, nvfp4=False)
        assert_ok(reference.check(got, expected, dtype), form)


@pytest.mark.parametrize("a_dtype", ("float16", "bfloat16"))
def test_16_bit_activations_exact(device, a_dtype):
    rng = rng_of(14)
    x, b = integers(rng, a_dtype, 17, 208, most=4), data.exact_family(rng, 33, 208)
    total, magnitude = reference.matmul(x.values, b.values)
    assert data.is_exact(x.values, b.values, magnitude)
    assert_ok(reference.check_bits(run_gemm(x, b, device, dtype="float32"), total))


def test_bfloat16_activations_keep_their_range(backend):
    rng = rng_of(15)
    x, b = halves(rng, "bfloat16", 5, 64, scale=1e30), data.full_range(rng, 9, 64)
    for dtype in ("float32", "bfloat16"):
        got = run_gemm(x, b, backend.device, dtype=dtype)
        expected = reference.gemm(x.values, b.values, c=backend.c, nvfp4=False)
        assert np.abs(expected.exact).max() > 1e32
        assert_ok(reference.check(got, expected, dtype))


@pytest.mark.parametrize("k", (16, 320))
@pytest.mark.parametrize("a_dtype", ("float16", "bfloat16"))
def test_16_bit_specials(device, a_dtype, k):
    nan, inf = np.nan, np.inf
    x = np.ones((5, k), np.float32)
    x[1, 3], x[2, 0], x[2, 1], x[3, 0], x[4, k - 1] = nan, inf, -inf, inf, nan
    b = data.Operand(np.full((2, k // 2), 0x22, np.uint8), np.full((2, k // 16), 0x38, np.uint8))
    b.codes[1, 0] = 0  # inf * 0
    got = run_gemm(Halves(x, a_dtype), b, device)
    want = [[k, k - 2], [nan, nan], [nan, nan], [inf, nan], [nan, nan]]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_k_gives_bias(device, dtype):
    a, b = gemm_operands(rng_of(16), data.full_range, 5, 7, 0, 2)
    bias = np.arange(7, dtype=np.float32) - 3
    got = run_gemm(a, b, device, dtype=dtype, bias=floats(bias, "float32", device), alpha=2.0)
    np.testing.assert_array_equal(got, np.broadcast_to(bias, (2, 5, 7)))


@pytest.mark.parametrize("which", range(5))
def test_strides_of_empty_tensors_do_not_matter(device, which):
    """torch.from_numpy(np.zeros((0, 16))) has strides of 0."""
    a, b = gemm_operands(rng_of(17), data.full_range, 0, 5, 32)
    out = torch.zeros((0, 5), dtype=torch.float16, device=device)
    args = [codes(a, device, native=False), codes(b, device, native=False)]
    args += [scale_bytes(o.scales, device, native=False) for o in (a, b)]
    args.append(out)
    strange = torch.as_strided(args[which], (0, *args[which].shape[1:]), (0, 0))
    args[which] = strange
    if which in (1, 3):  # an empty b, then
        args[1], args[3], args[4] = args[1][:0], args[3][:0], out[:, :0]
        args[which] = strange
    result = nvfp4kern.gemm(*args[:4], out=args[4])
    assert result is args[4]


def test_views_with_other_strides(device):
    """Rows of a wider buffer, a batch inside out, one operand for every batch."""
    rng = rng_of(18)
    batch, m, n, k = 3, 10, 12, 64
    wide = data.exact_family(rng, m, batch, 2 * k)
    b = data.exact_family(rng, 1, n, k)
    a = data.Operand(
        wide.codes[..., : k // 2].swapaxes(0, 1), wide.scales[..., : k // 16].swapaxes(0, 1)
    )
    a_codes = torch.from_numpy(wide.codes).to(device)[..., : k // 2].transpose(0, 1)
    a_scales = torch.from_numpy(wide.scales).to(device)[..., : k // 16].transpose(0, 1)
    b_codes = codes(b, device, native=False).expand(batch, n, k // 2)
    b_scales = scale_bytes(b.scales, device, native=False).expand(batch, n, k // 16)
    args = a_codes, b_codes, a_scales, b_scales
    got = run(nvfp4kern.gemm, *args, shape=(batch, m, n), device=device)
    want = reference.gemm(a.values, np.repeat(b.values, batch, 0)).rounded("float16")
    assert_ok(reference.check_bits(got, want))


def test_addresses_without_alignment(device):
    a, b = gemm_operands(rng_of(19), data.exact_family, 6, 7, 48)
    moved = []
    for array in (a.codes, b.codes, a.scales, b.scales):
        flat = torch.zeros(array.size + 3, dtype=torch.uint8, device=device)
        flat[3:] = torch.from_numpy(array.ravel())
        moved.append(flat[3:].view(array.shape))
    got = run(nvfp4kern.gemm, *moved, shape=(6, 7), device=device)
    want = reference.gemm(a.values, b.values).rounded("float16")
    assert_ok(reference.check_bits(got, want))


def test_rows_do_not_depend_on_the_batch(device):
    """What explain calls batch_invariant is."""
    a, b = gemm_operands(rng_of(22), data.full_range, 40, 30, 512)
    args = codes(a, device), codes(b, device), scale_bytes(a.scales, device)
    sfb = scale_bytes(b.scales, device)
    if not nvfp4kern.explain("gemm", *args, sfb)["batch_invariant"]:
        pytest.skip("explain does not promise it")
    whole = run_gemm(a, b, device, dtype="float32")
    for first, end in ((0, 1), (7, 10), (33, 40)):
        part = run_gemm(
            data.Operand(a.codes[first:end], a.scales[first:end]), b, device, dtype="float32"
        )
        np.testing.assert_array_equal(part, whole[first:end])


# Few tokens have kernels of their own: many rows fill their tiles, a long K is shared by CTAs, of
# which the last may have less of it (4160, 16448) or nothing: with 132 SMs (17 rows, 40 rows), with
# 16 (2304), with 3 (3584).
FEW_TOKENS = [
    (m, n, k)
    for n, k in ((4300, 528), (9001, 1024), (9001, 1040), (70000, 64), (300, 16384))
    for m in (1, 2, 8)
] + [
    (1, 40, 65536),
    (8, 40, 12560),
    (5, 17, 4160),
    (3, 300, 16448),
    (8, 512, 7168),
    (1, 1024, 14336),
    (1, 17, 7168),
    (8, 40, 12544),
    (8, 17, 2304),
    (8, 90, 2304),
    (1, 40, 3584),
]


@pytest.mark.parametrize("forms", [("linear", "linear"), ("permuted", "blocked")])
@pytest.mark.parametrize("m, n, k", FEW_TOKENS)
def test_few_tokens(gpu, m, n, k, forms):
    a, b = gemm_operands(rng_of(m, n, k), data.exact_family, m, n, k)
    x, total = reference.matmul(a.values, b.values)
    assert data.is_exact(a.values, b.values, total)
    got = run_gemm(a, b, gpu.device, forms=forms, dtype="float32")
    assert_ok(reference.check_bits(got, x))


@pytest.mark.parametrize("overlap", ("", "0", "weights"))
@pytest.mark.parametrize("wide", (False, True))
@pytest.mark.parametrize("m, n, k", [(1, 300, 528), (1, 300, 16384), (3, 90, 2304), (8, 512, 7168)])
def test_few_tokens_with_alpha_and_bias(gpu, monkeypatch, m, n, k, wide, overlap):
    """Kernels of their own, which find both before they have a sum, and may read weights early."""
    monkeypatch.setenv("NVFP4KERN_PDL", overlap)
    rng = rng_of(m, n, k, wide)
    a, b = gemm_operands(rng, data.full_range, m, n, k)
    a = halves(rng, "float16", m, k) if wide else a
    alpha, bias = (rng.standard_normal(n).astype(np.float32) * scale for scale in (1, 100))
    given = {"alpha": floats(alpha, "float32", gpu.device)}
    given["bias"] = floats(bias, "float32", gpu.device)
    got = run_gemm(a, b, gpu.device, dtype="float32", **given)
    expected = reference.gemm(a.values, b.values, alpha=alpha, bias=bias, c=gpu.c)
    assert_ok(reference.check(got, expected, "float32"))


@pytest.mark.parametrize("form", ("linear", "blocked"))
@pytest.mark.parametrize("m, n, k", [(1, 300, 1088), (1, 40, 3584), (1, 17, 7168), (3, 90, 2304)])
def test_parts_of_a_bf16_token(gpu, m, n, k, form):
    """CTAs that have them may multiply by different powers of two, or by none."""
    b, x = data.exact_family(rng_of(n, k), n, k), uneven(rng_of(m, k), "bfloat16", m, k)
    b.codes[:, NO_WEIGHTS_AT] = 0
    got = run_gemm(x, b, gpu.device, forms=(form, form), dtype="float32")
    assert_ok(reference.check_bits(got, reference.matmul(x.values, b.values)[0]))


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("form", ("linear", "blocked"))
@pytest.mark.parametrize("m, n, k", FEW_TOKENS)
def test_few_16_bit_tokens(gpu, m, n, k, form, dtype):
    b = data.exact_family(rng_of(n, k), n, k)
    x = Halves(rng_of(m, k).integers(-8, 9, (m, k)) / 4, dtype)
    want, _ = reference.matmul(x.values, b.values)
    got = run_gemm(x, b, gpu.device, forms=(form, form), dtype="float32")
    assert_ok(reference.check_bits(got, want))
