"""row_scale of products, and the global scales of quantize and dequantize that each row has."""

import calls
import numpy as np
import pytest
import torch
from dense_calls import dual_operands, gemm_operands, gemv_operands, run_dual, run_gemm, run_gemv
from expert_calls import (
    OFFSETS,
    Matrices,
    Stack,
    Tokens,
    check_rows,
    drawn,
    expert_of,
    group_operands,
    run_list,
)
from generators import (
    DTYPES,
    ODD_SHAPES,
    Guarded,
    assert_ok,
    floats,
    from_numpy,
    halves,
    hostile,
    raw,
    rng_of,
    unchanged,
    values,
)
from row_factors import factors, powers, strided

import nvfp4kern
from nvfp4kern.verify import data, four_six, reference

NOBODYS = OFFSETS["rows of nobody"]


# --- Products ---


@pytest.mark.any_path
@pytest.mark.parametrize("m, n, k", ODD_SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm(device, m, n, k, dtype):
    rng = rng_of(1, m)
    a, b = gemm_operands(rng, data.exact_family, m, n, k)
    scale = powers(rng, m)
    want = reference.gemm(a.values, b.values, row_scale=scale).rounded(dtype)
    for given in (floats(scale, "float32", device), strided(scale, device)):
        got = run_gemm(a, b, device, dtype=dtype, row_scale=given, forms=("blocked", "linear"))
        assert_ok(reference.check_bits(got, want))


def test_the_factor_comes_before_alpha(device):
    """With a rounding of its own, which is seen where it is no power of two."""
    rng = rng_of(2)
    a, b = gemm_operands(rng, data.exact_family, 37, 65, 272)
    scale, alpha, bias = factors(rng, 37), factors(rng, 65), factors(rng, 65)
    scaled = scale[:, None] * reference.gemm(a.values, b.values).rounded("float32")
    given = {"row_scale": floats(scale, "float32", device), "dtype": "float32"}
    assert_ok(reference.check_bits(run_gemm(a, b, device, **given), scaled))
    given["alpha"] = floats(alpha, "float32", device)
    assert_ok(reference.check_bits(run_gemm(a, b, device, **given), scaled * alpha))
    given["bias"] = floats(bias, "float32", device)
    exact = scaled.astype(np.float64) * alpha + bias
    expected = reference.Expected.within(exact, 0.0)
    assert_ok(reference.check(run_gemm(a, b, device, **given), expected, "float32"))


@pytest.mark.any_path
@pytest.mark.parametrize("shared", (True, False))
@pytest.mark.parametrize("m", (1, 5, 40))
def test_batches(device, m, shared):
    rng = rng_of(3, m)
    (a,) = (data.exact_family(rng, 3, m, 96),)
    b = data.exact_family(rng, *(() if shared else (3,)), 33, 96)
    scale = powers(rng, 3, m)
    values_b = np.broadcast_to(b.values, (3, 33, 96))
    want = reference.gemm(a.values, values_b, row_scale=scale).rounded("float16")
    for given in (floats(scale, "float32", device), strided(scale, device)):
        assert_ok(reference.check_bits(run_gemm(a, b, device, row_scale=given), want))


def test_one_row_without_a_dimension(device):
    rng = rng_of(4)
    a, b = gemm_operands(rng, data.exact_family, 1, 17, 64)
    want = 4 * reference.gemm(a.values, b.values).rounded("float32")[0]
    x, w, sfa, sfb = (from_numpy(part, device) for part in (a.codes, b.codes, a.scales, b.scales))
    scale = floats([4.0], "float32", device)
    got = nvfp4kern.gemm(x[0], w, sfa[0], sfb, row_scale=scale, out_dtype="float32")
    assert_ok(reference.check_bits(values(got), want))


@pytest.mark.any_path
@pytest.mark.parametrize("kind", ("NVFP4", "float16", "bfloat16"))
@pytest.mark.parametrize("m", (1, 7, 70))
def test_all_codes_and_scale_factors(backend, m, kind):
    rng, device = rng_of(5, m), backend.device
    b = data.full_range(rng, 65, 208)
    whole = kind == "NVFP4"
    a = data.full_range(rng, m, 208) if whole else halves(rng, kind, m, 208)
    scale, alpha, bias = factors(rng, m), factors(rng, 65), factors(rng, 65)
    given = {"row_scale": scale, "alpha": alpha, "bias": bias}
    expected = reference.gemm(a.values, b.values, c=backend.c, nvfp4=whole, **given)
    tensors = {name: floats(value, "float32", device) for name, value in given.items()}
    got = run_gemm(a, b, device, dtype="float32", **tensors)
    assert_ok(reference.check(got, expected, "float32"))


@pytest.mark.any_path
@pytest.mark.parametrize("batch", (None, 3))
def test_gemv(device, batch):
    rng = rng_of(6)
    a, b = gemv_operands(rng, data.exact_family, 70, 336, batch)
    scale = powers(rng, *([] if batch is None else [batch]), 1)
    alpha = powers(rng, 70)
    want = reference.gemv(a.values, b.values, alpha=alpha, row_scale=scale).rounded("float16")
    given = {"alpha": floats(alpha, "float32", device)}
    got = run_gemv(a, b, device, row_scale=floats(scale, "float32", device), **given)
    assert_ok(reference.check_bits(got, want))


@pytest.mark.any_path
@pytest.mark.parametrize("m", (1, 9, 65))
def test_dual_gemm(backend, m):
    rng, device = rng_of(7, m), backend.device
    ops = dual_operands(rng, data.exact_family, m, 33, 112)
    scale = factors(rng, m)
    expected = reference.dual_gemm(*(o.values for o in ops), row_scale=scale, c=backend.c)
    got = run_dual(ops, device, row_scale=floats(scale, "float32", device), dtype="float32")
    assert_ok(reference.check(got, expected, "float32"))


@pytest.mark.any_path
@pytest.mark.parametrize("by_rows", (False, True))
@pytest.mark.parametrize("kind", ("NVFP4", "W4A16", "16-bit"))
@pytest.mark.parametrize("experts", (Matrices, Stack), ids=("grouped_gemm", "grouped_dual_gemm"))
def test_experts(backend, experts, kind, by_rows):
    """Factors are those of tokens, whichever rows are made of them."""
    if kind not in experts.kinds:
        return
    rng, device = rng_of(8), backend.device
    a = Tokens(rng, device, 46, 96, kind=kind, make=data.full_range)
    b = experts(rng, device, 3, 35, 96, kind=kind, make=data.full_range)
    scale = factors(rng, 46) * np.float32(2.0**-12)
    options, tokens, of_rows = {}, a.values, scale
    if by_rows:
        rows = drawn(rng, NOBODYS, 90, 46, 2)
        options = {"rows": from_numpy(rows, device), "rows_per_token": 2, "count": 90}
        tokens, of_rows = a.of(rows // 2), scale[np.clip(rows // 2, 0, 45)]
    given = strided(scale, device)
    got = b.run(a.tensor, a.sf, NOBODYS, dtype="float32", row_scale=given, **options)
    nvfp4 = kind == "NVFP4"
    expected = b.expect(tokens, row_scale=of_rows, c=backend.c, nvfp4=nvfp4)
    check_rows(got, NOBODYS, expected, "float32")


@pytest.mark.any_path
@pytest.mark.parametrize("form", ("linear", "blocked"))
@pytest.mark.parametrize("activation", ("identity", "relu2"))
def test_experts_exact(device, form, activation):
    rng, offsets = rng_of(9), OFFSETS["two atoms"]
    a, b = Tokens(rng, device, 305, 64), Matrices(rng, device, 3, 40, 64)
    if form == "blocked":
        a.block_by_expert(offsets, rng)
    scale = powers(rng, 305)
    given = {"row_scale": floats(scale, "float32", device), "activation": activation}
    got = b.run(a.tensor, a.sf, offsets, form=a.form, dtype="float32", **given)
    owner = expert_of(offsets, 305)
    for g, w in enumerate(b.values):
        h = reference.gemm(a.values, w, row_scale=scale).rounded("float32")
        want = h if activation == "identity" else np.maximum(h, 0) * np.maximum(h, 0)
        assert_ok(reference.check_bits(got[owner == g], want[owner == g]), g)


def test_list(device):
    """Of groups some have factors."""
    rng = rng_of(10)
    groups = [(1, 1, 16), (17, 33, 48), (0, 5, 32), (130, 7, 80), (40, 129, 256)]
    pairs = group_operands(rng, data.exact_family, groups)
    given = [None if g == 1 else powers(rng, m) for g, (m, _, _) in enumerate(groups)]
    tensors = [None if each is None else floats(each, "float32", device) for each in given]
    outs = run_list(pairs, device, row_scale=tensors)
    for got, (a, b), scale in zip(outs, pairs, given, strict=True):
        want = reference.gemm(a.values, b.values, row_scale=scale).rounded("float16")
        assert_ok(reference.check_bits(got, want))


@pytest.mark.any_path
def test_quantised_results(device):
    """The bytes of quantize, made of float32 products."""
    rng, offsets = rng_of(11), [0, 9, 9, 40]
    a, stack = Tokens(rng, device, 40, 64), Stack(rng, device, 3, 48, 64)
    scale = factors(rng, 40)
    args, options = stack.call(a.tensor, a.sf, offsets, quantized=True)
    got = nvfp4kern.grouped_dual_gemm(
        *args, row_scale=floats(scale, "float32", device), global_scale=0.37, **options
    )
    for g, w in enumerate(stack.values):
        rows = slice(offsets[g], offsets[g + 1])
        sums = scale[rows, None] * reference.gemm(a.values[rows], w).rounded("float32")
        gates, ups = np.split(sums, 2, axis=-1)
        codes, sf, _ = reference.quantize(gates, 0.37, ups)
        np.testing.assert_array_equal(raw(got.data)[rows], codes)
        np.testing.assert_array_equal(raw(got.scales)[rows], sf)


def ones(*shape):
    return lambda device: torch.ones(shape, device=device)


def several(*made):
    return lambda device: [None if each is None else each(device) for each in made]


SHAPE = r"^row_scale: shape \({}\), expected \({}\), one for each row of "
WRONG = [
    (calls.gemm, ones(5), ValueError, SHAPE.format("5,", "6,")),
    (calls.gemm, ones(6, 1), ValueError, SHAPE.format("6, 1", "6,")),
    (calls.gemm, ones(), ValueError, SHAPE.format("", "6,")),
    (calls.gemm, lambda device: ones(6)(device).half(), TypeError, "^row_scale: dtype"),
    (calls.gemm, lambda device: 1.0, TypeError, "^row_scale: float"),
    (calls.w4a16, ones(1), ValueError, SHAPE.format("1,", "6,")),
    (calls.gemv, ones(6), ValueError, SHAPE.format("6,", "1,")),
    (calls.batched, ones(6), ValueError, SHAPE.format("6,", "2, 6")),
    (calls.dual_gemm, ones(7), ValueError, SHAPE.format("7,", "6,")),
    (calls.contiguous, ones(5), ValueError, SHAPE.format("5,", "6,")),
    (calls.by_rows, ones(6), ValueError, SHAPE.format("6,", "3,")),
    (calls.stacked, ones(6), ValueError, SHAPE.format("6,", "3,")),
    (calls.encoding, ones(5), ValueError, SHAPE.format("5,", "6,")),
    (calls.encoded, ones(6), ValueError, SHAPE.format("6,", "3,")),
    (calls.group_list, several(ones(6)), ValueError, "^row_scale: 1 items, expected 3"),
    (calls.group_list, ones(6), TypeError, "^row_scale: Tensor, expected a list"),
    (
        calls.group_list, several(ones(6), ones(5), None), ValueError,
        r"^row_scale\[1\]: shape \(5,\), expected \(6,\)",
    ),
]  # fmt: skip


@pytest.mark.parametrize("base, make, error, message", WRONG)
def test_wrong_factors(device, base, make, error, message):
    args = base(device)
    with pytest.raises(error, match=message):
        calls.invoke(base, args | {"row_scale": make(device)})
    assert all(guard.untouched() for guard in calls.guards_in(args["out"]))


BASES = {
    calls.gemm: (6,), calls.gemv: (1,), calls.batched: (2, 6), calls.dual_gemm: (6,),
    calls.contiguous: (6,), calls.by_rows: (3,), calls.stacked: (3,), calls.encoding: (6,),
    calls.encoded: (3,),
    calls.group_list: (6,),
}  # fmt: skip


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
def test_a_result_in_the_factors(device, base):
    args = base(device)
    first = calls.guards_in(args["out"])[0]
    start = 64 * first.buffer.element_size() // 4
    scale = first.buffer.view(torch.float32)[start:].as_strided(
        BASES[base], (6, 1)[-len(BASES[base]) :], start
    )
    scale = [None, scale, None] if base is calls.group_list else scale
    with pytest.raises(ValueError, match="shares memory with row_scale"):
        calls.invoke(base, args | {"row_scale": scale})
    assert first.untouched()


def test_factors_that_do_not_merge(device):
    """Dimensions that count as one batch lie in no order of rows."""
    x, w = torch.ones(2, 3, 4, 64, dtype=torch.float16, device=device), calls.gemm(device)
    moved = torch.ones(3, 2, 4, device=device).transpose(0, 1)
    with pytest.raises(ValueError, match="^row_scale: .* to merge into one without a copy"):
        nvfp4kern.gemm(x, w["b"], None, w["sfb"], row_scale=moved)
    with pytest.raises(ValueError, match=r"^out\[2\]: .* to merge into one without a copy"):
        nvfp4kern.quantize(x, global_scale="token", out=(None, None, moved))


# --- Global scales of rows ---


def of_each_row(x, up=None, recipe="amax", smallest=0):
    """What quantize makes of every row by itself: codes, scale factors, global scales."""
    ups = [None] * len(x) if up is None else up
    if recipe == "four_six":
        parts = [four_six.quantize(row[None], "amax", smallest) for row in x]
    else:
        more = [None if up is None else one[None] for one in ups]
        parts = [
            reference.quantize(row[None], "amax", one, None, smallest)
            for row, one in zip(x, more, strict=True)
        ]
    codes, factors, s2 = zip(*parts, strict=True)
    return np.concatenate(codes), np.concatenate(factors), np.float32(s2)


@pytest.mark.any_path
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ("linear", "blocked"))
@pytest.mark.parametrize("how", ("amax", "up", "four_six"))
def test_quantize_rows(device, dtype, layout, how):
    for rows, k in ((1, 16), (3, 48), (17, 80), (130, 4176)):
        rng = rng_of(14, rows)
        x, up = data.halves(rng, dtype, rows, k), data.halves(rng, dtype, rows, k)
        x *= 2.0 ** rng.integers(-8, 8, (rows, 1)).astype(np.float32)
        check_rows_of(x, up if how == "up" else None, dtype, device, layout, how)


@pytest.mark.any_path
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ("amax", "up", "four_six"))
def test_hostile_rows(device, dtype, how):
    """Of zeros alone, with NaN and infinities, of denormals."""
    x, up = hostile(rng_of(1), dtype), hostile(rng_of(4), dtype)[::-1]
    x = np.concatenate([x, np.zeros_like(x[:2]), np.full_like(x[:1], np.nan)])
    up = np.concatenate([up, up[:3]])
    for smallest in (0, 2.0**-9):
        options = {"smallest_scale": smallest}
        check_rows_of(x, up if how == "up" else None, dtype, device, "linear", how, **options)


def check_rows_of(x, up, dtype, device, layout, how, **options):
    recipe = "four_six" if how == "four_six" else "amax"
    given = floats(x, dtype, device), None if up is None else floats(up, dtype, device)
    with unchanged(given), np.errstate(all="ignore"):
        q = nvfp4kern.quantize(
            given[0], up=given[1], global_scale="token", scale_layout=layout, recipe=recipe,
            **options,
        )  # fmt: skip
        codes, factors, s2 = of_each_row(x, up, recipe, options.get("smallest_scale", 0))
    want = reference.to_blocked(factors) if layout == "blocked" else factors
    np.testing.assert_array_equal(values(q.global_scale), s2)
    np.testing.assert_array_equal(raw(q.scales), want)
    np.testing.assert_array_equal(raw(q.data), codes)


@pytest.mark.parametrize("case", OFFSETS)
def test_quantize_rows_of_experts(device, case):
    rng, offsets = rng_of(15), OFFSETS[case]
    x = factors(rng, max(offsets) + 5, 80)
    at = torch.tensor(offsets, dtype=torch.int32, device=device)
    q = nvfp4kern.quantize(
        floats(x, "float32", device), global_scale="token", scale_layout="blocked", offsets=at
    )
    codes, sf, s2 = of_each_row(x)
    np.testing.assert_array_equal(values(q.global_scale), s2)
    np.testing.assert_array_equal(raw(q.scales), reference.to_blocked_by_expert(sf, offsets))
    np.testing.assert_array_equal(raw(q.data), codes)


@pytest.mark.any_path
@pytest.mark.parametrize("lead", ((), (1,), (3, 5), (2, 3, 5), (0,), (2, 0)))
@pytest.mark.parametrize("k", (0, 48))
def test_shapes_of_global_scales(device, lead, k):
    x = factors(rng_of(16), *lead, k)
    q = nvfp4kern.quantize(floats(x, "float32", device), global_scale="token")
    assert tuple(q.global_scale.shape) == (lead or (1,)) and q.global_scale.dtype == torch.float32
    codes, sf, s2 = of_each_row(x.reshape(-1, k)) if x[..., :1].size else (0, 0, 1)
    np.testing.assert_array_equal(values(q.global_scale).ravel(), s2)
    if x.size:
        np.testing.assert_array_equal(raw(q.data).reshape(codes.shape), codes)
        np.testing.assert_array_equal(raw(q.scales).reshape(sf.shape), sf)


def test_quantize_rows_into_given_tensors(device):
    x = factors(rng_of(17), 2, 5, 48)
    out = [
        Guarded(shape, dtype, device, "padded rows")
        for shape, dtype in (
            ((2, 5, 24), torch.uint8), ((2, 5, 3), torch.uint8), ((2, 5), "float32")
        )
    ]  # fmt: skip
    tensors = tuple(each.tensor for each in out)
    q = nvfp4kern.quantize(floats(x, "float32", device), global_scale="token", out=tensors)
    assert q.global_scale is tensors[2] and all(each.guards_intact() for each in out)
    codes, sf, s2 = of_each_row(x.reshape(10, 48))
    np.testing.assert_array_equal(values(tensors[2]).ravel(), s2)
    np.testing.assert_array_equal(raw(q.scales).reshape(10, 3), sf)
    np.testing.assert_array_equal(raw(q.data).reshape(10, 24), codes)


@pytest.mark.any_path
@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantize_rows(device, dtype):
    rng = rng_of(18)
    q, s2 = data.full_range(rng, 3, 7, 176), np.abs(factors(rng, 3, 7))
    want = reference.round_to(q.values * s2[..., None].astype(np.float64), "float32")
    args = from_numpy(q.codes, device), from_numpy(q.scales, device), strided(s2, device)
    got = nvfp4kern.dequantize(args, out_dtype=dtype)
    assert_ok(reference.check_bits(values(got), reference.round_to(want, dtype)))


def test_whole_operands(device):
    """A row's factor is a's global scale, also of one row, where it is alpha's."""
    rng = rng_of(19)
    w = nvfp4kern.quantize(floats(factors(rng, 33, 64), "float32", device), global_scale="amax")
    for shape in ((6, 64), (2, 3, 64), (1, 64), (64,)):
        x = floats(factors(rng, *shape), "float32", device)
        a = nvfp4kern.quantize(x, global_scale="token")
        got = nvfp4kern.gemm(a, w, out_dtype="float32")
        scale = {"row_scale": a.global_scale} if a.global_scale.numel() > 1 else {}
        alpha = w.global_scale if scale else a.global_scale * w.global_scale
        parts = a.data, w.data, a.scales, w.scales
        want = nvfp4kern.gemm(*parts, alpha=alpha, out_dtype="float32", **scale)
        np.testing.assert_array_equal(values(got), values(want))
        near = (
            values(nvfp4kern.dequantize(a, out_dtype="float32"))
            @ values(nvfp4kern.dequantize(w, out_dtype="float32")).T
        )
        np.testing.assert_allclose(values(got), near, rtol=1e-4, atol=1e-4)
    a = nvfp4kern.quantize(floats(factors(rng, 6, 64), "float32", device), global_scale="token")
    with pytest.raises(ValueError, match="row_scale: given, expected None"):
        nvfp4kern.gemm(a, w, row_scale=a.global_scale)
    with pytest.raises(ValueError, match="expected one element, or one for each row"):
        nvfp4kern.gemm(a._replace(global_scale=a.global_scale[:5]), w)
    with pytest.raises(ValueError, match="b.global_scale: .* expected one element"):
        nvfp4kern.gemm(a, a)
