"""grouped_gemm: a list of problems of any shapes, or experts as row ranges of one operand."""

import numpy as np
import pytest
import torch
from expert_calls import OFFSETS, blocked_by_expert, check_rows, group_operands, int32, run_list
from generators import (
    DTYPES,
    ORDERS,
    SCALE_FORMS,
    Guarded,
    assert_ok,
    codes,
    floats,
    rng_of,
    run,
    scale_bytes,
    scales,
    unchanged,
    values,
)

import nvfp4kern
from nvfp4kern.verify import data, reference

GROUPS = [(1, 1, 16), (17, 33, 48), (0, 5, 32), (130, 7, 80), (3, 0, 16), (4, 9, 0), (40, 129, 256)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("forms", [(a, b) for a in SCALE_FORMS for b in ("linear", "permuted")])
def test_list_exact(device, forms, dtype):
    pairs = group_operands(rng_of(1), data.exact_family, GROUPS)
    for got, (a, b) in zip(run_list(pairs, device, forms=forms, dtype=dtype), pairs, strict=True):
        want = reference.gemm(a.values, b.values).rounded(dtype)
        assert_ok(reference.check_bits(got, want), got.shape)


@pytest.mark.parametrize("order", ORDERS)
def test_list_output_orders(device, order):
    pairs = group_operands(rng_of(2), data.exact_family, GROUPS)
    for got, (a, b) in zip(run_list(pairs, device, order=order), pairs, strict=True):
        want = reference.gemm(a.values, b.values).rounded("float16")
        assert_ok(reference.check_bits(got, want), got.shape)


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
    for g, (got, (a, b)) in enumerate(zip(run_list(pairs, device), pairs, strict=True)):
        want = reference.gemm(a.values, b.values).rounded("float16")
        assert_ok(reference.check_bits(got, want), g)


@pytest.mark.parametrize("dtype", (None, *DTYPES))
def test_list_new_outputs(device, dtype):
    pairs = group_operands(rng_of(6), data.exact_family, GROUPS[:2])
    args = [[codes(o, device) for o in side] for side in zip(*pairs, strict=True)]
    args += [[scale_bytes(o.scales, device) for o in side] for side in zip(*pairs, strict=True)]
    outs = nvfp4kern.grouped_gemm(*args, **({"out_dtype": dtype} if dtype else {}))
    assert isinstance(outs, list)
    for got, (a, b) in zip(outs, pairs, strict=True):
        assert got.dtype == getattr(torch, dtype or "float16")
        want = reference.gemm(a.values, b.values).rounded(dtype or "float16")
        assert_ok(reference.check_bits(values(got), want))


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


# ---------------------------------------------------------------------------------------------
# The contiguous form
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", OFFSETS)
@pytest.mark.parametrize("form_b", ("linear", "blocked"))
@pytest.mark.parametrize("form_a", ("linear", "blocked"))
@pytest.mark.parametrize("order", ("row", "padded columns"))
def test_contiguous_exact(device, case, form_a, form_b, order):
    rng, offsets = rng_of(8), OFFSETS[case]
    rows, n, k = max(offsets) + 5, 19, 48
    a, b = data.exact_family(rng, rows, k), data.exact_family(rng, len(offsets) - 1, n, k)
    sfa = scale_bytes(a.scales, device)
    if form_a == "blocked":
        sfa = blocked_by_expert(a, offsets, device, rng)
    got = run(
        nvfp4kern.grouped_gemm,
        codes(a, device),
        codes(b, device),
        sfa,
        scales(b, form_b, rng, device),
        shape=(rows, n),
        device=device,
        order=order,
        offsets=int32(offsets, device),
        scale_layout=(form_a, form_b),
    )
    av, bv = a.values, b.values
    check_rows(got, offsets, lambda g, r: reference.gemm(av[r], bv[g]), "float16", exact=True)


def test_contiguous_with_one_output(device):
    rng = rng_of(24)
    a, b = data.exact_family(rng, 1, 48), data.exact_family(rng, 1, 1, 48)
    got = run(
        nvfp4kern.grouped_gemm,
        codes(a, device),
        codes(b, device),
        scale_bytes(a.scales, device),
        scale_bytes(b.scales, device),
        shape=(1, 1),
        device=device,
        offsets=int32([0, 1], device),
    )
    want = reference.gemm(a.values, b.values[0]).rounded("float16")
    assert_ok(reference.check_bits(got, want))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha_shape", (None, (), (1,), (3,), (3, 19)))
def test_contiguous_full_range_alpha_and_bias(backend, alpha_shape, dtype):
    rng, device, offsets = rng_of(9), backend.device, OFFSETS["rows of nobody"]
    a, b = data.full_range(rng, 50, 80), data.full_range(rng, 3, 19, 80)
    alpha, alpha_values = None, np.ones((3, 1))
    if alpha_shape is not None:
        drawn = rng.standard_normal(alpha_shape or 1).astype(np.float32)
        alpha = floats(drawn, "float32", device) if alpha_shape else float(drawn[0])
        alpha_values = np.broadcast_to(drawn.reshape(3, -1) if drawn.size > 1 else drawn, (3, 19))
    bias_values = data.halves(rng, dtype, 3, 19, scale=1e4)
    got = run(
        nvfp4kern.grouped_gemm,
        codes(a, device),
        codes(b, device),
        scale_bytes(a.scales, device),
        scale_bytes(b.scales, device),
        shape=(50, 19),
        device=device,
        dtype=dtype,
        offsets=int32(offsets, device),
        alpha=alpha,
        bias=floats(bias_values, dtype, device),
    )

    def expected(g, rows):
        return reference.gemm(
            a.values[rows], b.values[g], alpha=alpha_values[g], bias=bias_values[g], c=backend.c
        )

    check_rows(got, offsets, expected, dtype)


@pytest.mark.parametrize("kind", ("W4A16", "16-bit", "16-bit transposed"))
@pytest.mark.parametrize("a_dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_contiguous_16_bit(backend, a_dtype, kind, dtype):
    rng, device, offsets = rng_of(10), backend.device, OFFSETS["rows of nobody"]
    n, k = 21, 96
    x = data.halves(rng, a_dtype, 44, k)
    sfb = None
    if kind == "W4A16":
        operand = data.full_range(rng, 3, n, k)
        w, b = operand.values, codes(operand, device)
        sfb = scale_bytes(operand.scales, device)
    else:
        w = data.halves(rng, a_dtype, 3, n, k).astype(np.float64)
        b = floats(w, a_dtype, device)
        if "transposed" in kind:
            b = b.transpose(1, 2).contiguous().transpose(1, 2)
    got = run(
        nvfp4kern.grouped_gemm,
        floats(x, a_dtype, device),
        b,
        None,
        sfb,
        shape=(44, n),
        device=device,
        dtype=dtype,
        offsets=int32(offsets, device),
    )

    def expected(g, rows):
        return reference.gemm(x[rows].astype(np.float64), w[g], c=backend.c, nvfp4=False)

    check_rows(got, offsets, expected, dtype)


def test_contiguous_is_what_torch_grouped_mm_computes(backend):
    rng = rng_of(11)
    x, w = data.small_integers(rng, 40, 64), data.small_integers(rng, 3, 24, 64)
    offsets = [0, 8, 24, 40]
    a, b = (floats(v, "bfloat16", backend.device) for v in (x, w))
    got = nvfp4kern.grouped_gemm(a, b, offsets=int32(offsets, backend.device), out_dtype="bfloat16")
    experts = [
        a[first:end] @ b[g].t() for g, (first, end) in enumerate([(0, 8), (8, 24), (24, 40)])
    ]
    assert torch.equal(got, torch.cat(experts))


def test_contiguous_quantize_writes_what_grouped_gemm_reads(device):
    rng, offsets = rng_of(12), [0, 100, 100, 259]
    x = data.exact_family(rng, 259, 64).values.astype(np.float32)
    b = data.exact_family(rng, 3, 9, 64)
    where = int32(offsets, device)
    q = nvfp4kern.quantize(floats(x, "float32", device), scale_layout="blocked", offsets=where)
    got = nvfp4kern.grouped_gemm(
        q.data,
        codes(b, device),
        q.scales,
        scale_bytes(b.scales, device),
        offsets=where,
        scale_layout=("blocked", "linear"),
        out_dtype="float32",
    )
    model = reference.quantize(x)
    values_of_x, bv = reference.dequantize(model[0], model[1]), b.values
    expected = [
        reference.gemm(values_of_x[r], bv[g])
        for g, r in enumerate((slice(0, 100), slice(100, 100), slice(100, 259)))
    ]
    want = np.concatenate([e.rounded("float32") for e in expected])
    assert_ok(reference.check_bits(values(got), want))


def test_contiguous_nan_stays_with_its_expert(device):
    rng, offsets = rng_of(13), [0, 10, 20]
    a, b = data.exact_family(rng, 20, 32), data.exact_family(rng, 2, 6, 32)
    b.scales[1, 3, 0] = 0x7F
    a.scales[4, 1] = 0xFF
    got = run(
        nvfp4kern.grouped_gemm,
        codes(a, device),
        codes(b, device),
        scale_bytes(a.scales, device),
        scale_bytes(b.scales, device),
        shape=(20, 6),
        device=device,
        offsets=int32(offsets, device),
    )
    nan = np.zeros((20, 6), bool)
    nan[10:, 3] = nan[4] = True
    np.testing.assert_array_equal(np.isnan(got), nan)


@pytest.mark.parametrize("rows, groups, n, k", [(0, 3, 4, 32), (5, 0, 4, 32), (5, 2, 0, 32)])
def test_contiguous_empty(device, rows, groups, n, k):
    a = torch.zeros((rows, k // 2), dtype=torch.uint8, device=device)
    b = torch.zeros((groups, n, k // 2), dtype=torch.uint8, device=device)
    sfa = torch.zeros((rows, k // 16), dtype=torch.uint8, device=device)
    sfb = torch.zeros((groups, n, k // 16), dtype=torch.uint8, device=device)
    offsets = int32([0] * groups + [rows if groups else 0], device)
    out = Guarded((rows, n), "float16", device)
    nvfp4kern.grouped_gemm(a, b, sfa, sfb, offsets=offsets, out=out.tensor)
    assert out.untouched()
