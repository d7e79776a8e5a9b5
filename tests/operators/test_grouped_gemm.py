"""grouped_gemm: a list of problems of any shapes, or experts as row ranges of one operand."""

from itertools import permutations

import numpy as np
import pytest
import torch
from expert_calls import (
    OFFSETS,
    Matrices,
    Tokens,
    check_rows,
    drawn,
    group_operands,
    int32,
    list_of,
    run_list,
)
from generators import (
    DTYPES,
    INFINITE,
    ORDERS,
    SCALE_FORMS,
    Guarded,
    assert_ok,
    codes,
    floats,
    from_numpy,
    raw,
    rng_of,
    scale_bytes,
    unchanged,
    values,
)

import nvfp4kern
from nvfp4kern.verify import data, reference

NOBODYS = OFFSETS["rows of nobody"]
GROUPS = [(1, 1, 16), (17, 33, 48), (0, 5, 32), (130, 7, 80), (3, 0, 16), (4, 9, 0), (40, 129, 256)]


def check_exact(outs, pairs, dtype="float16"):
    for g, (got, (a, b)) in enumerate(zip(outs, pairs, strict=True)):
        assert_ok(reference.check_bits(got, reference.gemm(a.values, b.values).rounded(dtype)), g)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("forms", [(a, b) for a in SCALE_FORMS for b in ("linear", "permuted")])
def test_list_exact(device, forms, dtype):
    pairs = group_operands(rng_of(1), data.exact_family, GROUPS)
    check_exact(run_list(pairs, device, forms=forms, dtype=dtype), pairs, dtype)


@pytest.mark.parametrize("order", ORDERS)
def test_list_output_orders(device, order):
    pairs = group_operands(rng_of(2), data.exact_family, GROUPS)
    check_exact(run_list(pairs, device, order=order), pairs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ("none", "float", "list"))
def test_list_full_range_alpha_and_bias(backend, kind, dtype):
    rng, device = rng_of(3), backend.device
    pairs = group_operands(rng, data.full_range, GROUPS)
    alpha_values = [1.0 if kind == "none" else 0.3] * len(pairs)
    alpha = {"none": None, "float": 0.3}.get(kind)
    if kind == "list":
        alpha_values = [
            rng.standard_normal(len(b.codes) if g % 2 else 1).astype(np.float32)
            for g, (_, b) in enumerate(pairs)
        ]
        alpha_values[0] = 0.7
        alpha = [0.7] + [floats(v, "float32", device) for v in alpha_values[1:]]
    bias_values = [data.halves(rng, dtype, len(b.codes), scale=1e3) for _, b in pairs]
    bias = [floats(v, dtype, device) for v in bias_values]
    results = run_list(pairs, device, dtype=dtype, alpha=alpha, bias=bias)
    for g, (a, b) in enumerate(pairs):
        expected = reference.gemm(
            a.values, b.values, alpha=alpha_values[g], bias=bias_values[g], c=backend.c
        )
        assert_ok(reference.check(results[g], expected, dtype), g)


def test_list_nan_stays_in_its_group(device):
    pairs = group_operands(rng_of(4), data.exact_family, [(9, 8, 32), (7, 6, 32)])
    pairs[0][0].scales[2, 1] = 0x7F
    first, second = run_list(pairs, device, forms=("blocked", "blocked"))
    assert np.isnan(first[2]).all() and np.isnan(first).sum() == 8 and np.isfinite(second).all()


def test_list_without_groups():
    """Without a tensor that says otherwise, on the CPU."""
    assert nvfp4kern.grouped_gemm([], [], [], []) == []


def test_list_with_many_groups(device):
    rng = rng_of(5)
    groups = [tuple(int(v) for v in (g % 5, g % 7 + 1, 16 * (g % 3 + 1))) for g in range(300)]
    pairs = group_operands(rng, data.exact_family, groups)
    check_exact(run_list(pairs, device), pairs)


@pytest.mark.parametrize("dtype", (None, *DTYPES))
def test_list_new_outputs(device, dtype):
    pairs = group_operands(rng_of(6), data.exact_family, GROUPS[:2])
    outs = nvfp4kern.grouped_gemm(
        *list_of(pairs, device), **({"out_dtype": dtype} if dtype else {})
    )
    dtype = dtype or "float16"
    assert isinstance(outs, list) and {got.dtype for got in outs} == {getattr(torch, dtype)}
    check_exact(map(values, outs), pairs, dtype)


@pytest.mark.parametrize("kinds", list(permutations((None, "float16", "bfloat16"), 2)))
def test_list_of_several_types(device, kinds):
    """Tokens need not be of the first group's type."""
    rng, sizes = rng_of(5), [(3, 40, 64), (4, 33, 96), (0, 9, 32)]
    pairs = []
    for size, dtype in zip(sizes, (*kinds, kinds[0]), strict=True):
        pairs += group_operands(rng, data.exact_family, [size], dtype)
    outs = run_list(pairs, device, dtype="float32")
    for got, (a, b), dtype in zip(outs, pairs, (*kinds, kinds[0]), strict=True):
        expected = reference.gemm(a.values, b.values, nvfp4=dtype is None)
        assert_ok(reference.check_bits(got, expected.rounded("float32")), dtype)


@pytest.mark.parametrize("kind", ("W4A16", "16-bit", "16-bit transposed"))
@pytest.mark.parametrize("a_dtype", ("float16", "bfloat16"))
def test_list_16_bit(backend, a_dtype, kind):
    rng, device = rng_of(7), backend.device
    sizes = [(5, 7, 32), (0, 3, 16), (33, 18, 208)]
    xs = [data.halves(rng, a_dtype, m, k) for m, _, k in sizes]
    a = [floats(x, a_dtype, device) for x in xs]
    sfb = None
    if kind == "W4A16":
        operands = [data.full_range(rng, n, k) for _, n, k in sizes]
        ws = [o.values for o in operands]
        b = [codes(o, device) for o in operands]
        sfb = [scale_bytes(o.scales, device) for o in operands]
    else:
        ws = [data.halves(rng, a_dtype, n, k) for _, n, k in sizes]
        b = [floats(w, a_dtype, device) for w in ws]
        if "transposed" in kind:
            b = [t.t().contiguous().t() for t in b]
    outs = [Guarded((m, n), "float32", device) for m, n, _ in sizes]
    with unchanged(a, b, sfb or []):
        nvfp4kern.grouped_gemm(a, b, None, sfb, out=[o.tensor for o in outs])
    for out, x, w in zip(outs, xs, ws, strict=True):
        assert out.guards_intact()
        expected = reference.gemm(
            x.astype(np.float64), w.astype(np.float64), c=backend.c, nvfp4=False
        )
        assert_ok(reference.check(values(out.tensor), expected, "float32"))


# --- Activations, of both forms ---


@pytest.mark.parametrize("activation", reference.ALONE)
@pytest.mark.parametrize("kind", Matrices.kinds)
@pytest.mark.parametrize("by_rows", (False, True))
def test_contiguous_activations(backend, kind, by_rows, activation):
    rng, device = rng_of(30), backend.device
    a = Tokens(rng, device, 46, 96, kind=kind, make=data.full_range)
    b = Matrices(rng, device, 3, 35, 96, kind=kind, make=data.full_range)
    alpha, bias = rng.standard_normal((2, 3, 35)).astype(np.float32)
    of_rows = {"alpha": alpha * 2.0**-8, "bias": bias}
    options, tokens = {"activation": activation}, a.values
    if by_rows:
        rows = drawn(rng, NOBODYS, 46, 46, 2)
        options |= {"rows": from_numpy(rows, device), "rows_per_token": 2}
        tokens = a.of(rows // 2)
    given = {name: floats(value, "float32", device) for name, value in of_rows.items()}
    expected = {"activation": activation, "c": backend.c, "nvfp4": kind == "NVFP4"}
    for dtype, order in zip(DTYPES, ("row", "column", "padded columns"), strict=True):
        got = b.run(a.tensor, a.sf, NOBODYS, dtype=dtype, order=order, **given, **options)
        check_rows(got, NOBODYS, b.expect(tokens, **of_rows, **expected), dtype)


@pytest.mark.parametrize("activation", reference.ALONE)
@pytest.mark.parametrize("a_dtype", (None, "bfloat16"))
def test_list_activations(backend, a_dtype, activation):
    rng = rng_of(31)
    pairs = group_operands(rng, data.full_range, GROUPS, a_dtype)
    bias = [data.halves(rng, "float16", len(b.codes)) for _, b in pairs]
    options = {"alpha": 2.0**-8, "activation": activation}
    given = [floats(v, "float16", backend.device) for v in bias]
    got = run_list(pairs, backend.device, dtype="bfloat16", bias=given, **options)
    for g, (a, b) in enumerate(pairs):
        of = options | {"bias": bias[g], "c": backend.c, "nvfp4": a_dtype is None}
        assert_ok(reference.check(got[g], reference.gemm(a.values, b.values, **of), "bfloat16"), g)


@pytest.mark.parametrize("activation", reference.ALONE)
@pytest.mark.parametrize("kind", ("NVFP4", "W4A16", "16-bit"))
def test_infinite_sums_are_activated(backend, kind, activation):
    rng, device, n, offsets = rng_of(32), backend.device, 48, [0, 1, 1, 20]
    a = Tokens(rng, device, 20, 64, kind=kind)
    b = Matrices(rng, device, 3, n, 64, kind=kind)
    alpha = np.resize(INFINITE, (3, n))
    options = {"alpha": floats(alpha, "float32", device), "activation": activation}
    got = b.run(a.tensor, a.sf, offsets, dtype="float32", **options)
    of = {"alpha": alpha, "activation": activation, "nvfp4": kind == "NVFP4"}
    with np.errstate(invalid="ignore"):
        check_rows(got, offsets, b.expect(a.values, c=backend.c, **of), "float32")


@pytest.mark.parametrize("form", ("contiguous", "list"))
def test_identity_changes_no_bit(device, form):
    """Of sums that round; and the activation comes before the rounding to the output's type."""
    rng = rng_of(33)
    a = Tokens(rng, device, 20, 1040, make=data.full_range)
    b = Matrices(rng, device, 1, 70, 1040, make=data.full_range)
    args, options = b.call(a.tensor, a.sf, [0, 20], alpha=2.0**-10)
    if form == "list":
        args = [a.tensor], [b.codes[0]], [a.sf], [b.sf[0]]
        del options["offsets"]

    def values_of(**more):
        got = nvfp4kern.grouped_gemm(*args, **options, **more)
        return got[0] if form == "list" else got

    plain, same = values_of(), values_of(activation="identity")
    np.testing.assert_array_equal(raw(plain), raw(same))
    squared = values_of(activation="relu2", out_dtype="float32")
    assert torch.equal(values_of(activation="relu2"), squared.to(torch.float16))
    assert not torch.equal(values_of(activation="relu2"), plain.relu().square())


@pytest.mark.parametrize("activation", reference.ALONE)
def test_no_k_activates_the_bias(device, activation):
    rng = rng_of(34)
    a, b = Tokens(rng, device, 5, 0), Matrices(rng, device, 2, 9, 0)
    bias = rng.standard_normal((2, 9)).astype(np.float32)
    options = {"bias": floats(bias, "float32", device), "activation": activation}
    got = b.run(a.tensor, a.sf, [0, 2, 5], dtype="float32", **options)
    check_rows(got, [0, 2, 5], b.expect(a.values, bias=bias, activation=activation), "float32")


def test_which_kernels_activate(gpu):
    """Those of experts' tiles, of NVFP4 weights; else sm80's."""
    rng, device = rng_of(35), gpu.device

    def plan_of(kind, **options):
        a = Tokens(rng, device, 4, 256, kind=kind)
        b = Matrices(rng, device, 2, 128, 256, kind=kind)
        return b.explain(a.tensor, a.sf, [0, 2, 4], activation="relu2", **options)

    for kind in ("NVFP4", "W4A16"):
        plan = plan_of(kind)
        assert plan["backend"] == gpu.name and "activated_grouped_gemm" in plan["kernel"]
    assert plan_of("16-bit")["kernel"] == "sm80_activated_grouped_gemm_t32_plain_bf16"
    a, b = data.exact_family(rng, 4, 256), data.exact_family(rng, 128, 256)
    plan = nvfp4kern.explain("grouped_gemm", *list_of([(a, b)], device), activation="silu")
    assert plan["kernel"] == "sm80_activated_grouped_gemm_t32_nvfp4"
    assert gpu.name == "sm80" or "no kernels of lists with an activation" in plan["declined"]


# --- The contiguous form: what it has beside test_grouped_experts.py ---


def test_contiguous_with_one_output(device):
    rng = rng_of(24)
    a, b = data.exact_family(rng, 1, 48), Matrices(rng, device, 1, 1, 48)
    got = b.run(codes(a, device), scale_bytes(a.scales, device), [0, 1])
    b.check(got, [0, 1], a.values, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by_rows", (False, True))
@pytest.mark.parametrize("alpha_shape", (None, (), (1,), (3,), (3, 19)))
def test_contiguous_full_range_alpha_and_bias(backend, alpha_shape, by_rows, dtype):
    rng, device = rng_of(9), backend.device
    a = Tokens(rng, device, 50, 80, make=data.full_range)
    b = Matrices(rng, device, 3, 19, 80, make=data.full_range)
    options, alpha = {}, 1.0
    if alpha_shape is not None:
        drawn_alpha = rng.standard_normal(alpha_shape or 1).astype(np.float32)
        given = floats(drawn_alpha, "float32", device) if alpha_shape else float(drawn_alpha[0])
        options, alpha = {"alpha": given}, drawn_alpha.reshape(-1, max(alpha_shape[1:], default=1))
    bias = data.halves(rng, dtype, 3, 19, scale=1e4)
    options |= {"bias": floats(bias, dtype, device), "dtype": dtype}
    tokens = a.values
    if by_rows:
        rows = drawn(rng, NOBODYS, 50, 50, 2)
        options |= {"rows": from_numpy(rows, device), "rows_per_token": 2}
        tokens = a.of(rows // 2)
    got = b.run(a.tensor, a.sf, NOBODYS, **options)
    check_rows(got, NOBODYS, b.expect(tokens, alpha=alpha, bias=bias, c=backend.c), dtype)


@pytest.mark.parametrize("kind", ("16-bit", "16-bit transposed"))
@pytest.mark.parametrize("a_dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_contiguous_16_bit_weights(backend, a_dtype, kind, dtype):
    rng, device = rng_of(10), backend.device
    x = data.halves(rng, a_dtype, 44, 96)
    b = Matrices(rng, device, 3, 21, 96, kind=kind, make=data.full_range, dtype=a_dtype)
    got = b.run(floats(x, a_dtype, device), None, NOBODYS, dtype=dtype)
    expected = b.expect(x.astype(np.float64), c=backend.c, nvfp4=False)
    check_rows(got, NOBODYS, expected, dtype)


def test_contiguous_is_what_torch_grouped_mm_computes(backend):
    rng = rng_of(11)
    x, w = data.small_integers(rng, 40, 64), data.small_integers(rng, 3, 24, 64)
    a, b = (floats(v, "bfloat16", backend.device) for v in (x, w))
    offsets = int32([0, 8, 24, 40], backend.device)
    got = nvfp4kern.grouped_gemm(a, b, offsets=offsets, out_dtype="bfloat16")
    parts = zip(a.split([8, 16, 16]), b, strict=True)
    assert torch.equal(got, torch.cat([tokens @ expert.t() for tokens, expert in parts]))


def test_contiguous_quantize_writes_what_grouped_gemm_reads(device):
    rng, offsets = rng_of(12), [0, 100, 100, 259]
    x = data.exact_family(rng, 259, 64).values.astype(np.float32)
    b = Matrices(rng, device, 3, 9, 64)
    given, where = floats(x, "float32", device), int32(offsets, device)
    q = nvfp4kern.quantize(given, scale_layout="blocked", offsets=where)
    got = b.run(q.data, q.scales, offsets, form="blocked", dtype="float32")
    model = reference.quantize(x)
    b.check(got, offsets, reference.dequantize(model[0], model[1]), 1, "float32")


@pytest.mark.parametrize("exponents", ((-5, 5), (-16, 15), (-16, 18), (-126, 100), (-126, -115)))
def test_contiguous_bf16_tokens_of_any_exponents(backend, exponents):
    """Those that lie close are multiplied as halves on Hopper."""
    rng, offsets, device = rng_of(8), [0, 2, 3], backend.device
    b = Matrices(rng, device, 2, 40, 320, make=data.full_range)
    magnitudes = np.ldexp(rng.integers(128, 256, (3, 320)), rng.integers(*exponents, (3, 320)) - 7)
    x = np.where(rng.random((3, 320)) < 0.2, 0.0, magnitudes * rng.choice([-1, 1], (3, 320)))
    got = b.run(floats(x, "bfloat16", device), None, offsets, dtype="float32")
    check_rows(got, offsets, b.expect(x, c=backend.c), "float32")


@pytest.mark.parametrize("apart", (20, 31, 32, 33, 40, 120))
def test_contiguous_small_elements_beside_large_ones_that_weights_of_zero_meet(device, apart):
    """Their sum alone is the result, and it is exact."""
    k, n, small = 128, 24, 129.0 * 2.0 ** (-7 - apart)  # eight significant bits
    x = np.where(np.arange(k) < 32, 1.5, small)[None]
    b = torch.full((1, n, k // 2), 0x22, dtype=torch.uint8)  # ones
    b[:, :, :16] = 0
    ones = torch.full((1, n, k // 16), 0x38, dtype=torch.uint8)
    got = nvfp4kern.grouped_gemm(
        floats(x, "bfloat16", device), b.to(device), None, ones.to(device),
        offsets=int32([0, 1], device), out_dtype="float32",
    )  # fmt: skip
    np.testing.assert_array_equal(values(got), np.full((1, n), np.float32(96 * small)))
