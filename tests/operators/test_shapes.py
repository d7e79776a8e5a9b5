"""Activations of any rank: which dimensions are rows, which count as L, and what must merge."""

import math

import numpy as np
import pytest
import torch
from generators import (
    SCALE_FORMS,
    Guarded,
    assert_ok,
    codes,
    floats,
    from_numpy,
    layout_of,
    raw,
    rng_of,
    scale_bytes,
    scales,
    unchanged,
    values,
)

import nvfp4kern
from nvfp4kern.verify import data, reference
from nvfp4kern.verify.data import Operand

# Before the rows: none, one, several that count as one L, with extents of 1 and 0 among them.
LEADS = [(), (1,), (3,), (2, 2), (2, 1, 2), (1, 2, 1, 2), (2, 0, 3)]
ROWS = (1, 5, 128)


def laid_out(operand, lead, form, device):
    """Codes [*lead, m, K/2] and scales in one of SCALE_FORMS, or "as quantize" has them."""
    rng, flat = rng_of(7), operand.codes.reshape(-1, *operand.codes.shape[-2:])
    batch = Operand(flat, operand.scales.reshape(-1, *operand.scales.shape[-2:]))
    if not lead:
        batch = operand
    sf = scales(batch, "blocked" if form == "as quantize" else form, rng, device)
    if lead and form in ("linear", "strided", "as quantize"):
        sf = sf.view(torch.uint8).unflatten(0, lead).view(torch.float8_e4m3fn)
    return codes(operand, device), sf


def guarded(lead, m, n, device, dtype="float16", order="row"):
    """A Guarded output, and a view of it with the dimensions `lead`."""
    if not lead:
        guard = Guarded((m, n), dtype, device, order)
        return guard, guard.tensor
    guard = Guarded((math.prod(lead), m, n), dtype, device, order)
    return guard, guard.tensor.unflatten(0, lead)


@pytest.mark.parametrize("form", (*SCALE_FORMS, "as quantize"))
@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("m", ROWS)
def test_gemm_shares_its_weights(device, m, lead, form):
    n, k = 18, 112
    a, b = data.exact_family(rng_of(1), *lead, m, k), data.exact_family(rng_of(2), n, k)
    want = reference.gemm(a.values, b.values).rounded("float16")
    a_codes, sfa = laid_out(a, lead, form, device)
    args = a_codes, codes(b, device), sfa, scales(b, "blocked", rng_of(3), device)
    layout = "blocked" if form == "as quantize" else layout_of(form)
    options = {"scale_layout": (layout, "blocked")}
    guard, out = guarded(lead, m, n, device)
    with unchanged(args):
        nvfp4kern.gemm(*args, out=out, **options)
        new = nvfp4kern.gemm(*args, **options)
    assert guard.guards_intact() and new.shape == (*lead, m, n) and new.is_contiguous()
    assert_ok(reference.check_bits(values(out), want))
    assert_ok(reference.check_bits(values(new), want))


@pytest.mark.parametrize("order", ("row", "padded rows", "column", "padded columns"))
@pytest.mark.parametrize("m", ROWS)
def test_outputs_of_shared_weights(device, m, order):
    lead, n, k = (2, 2), 17, 64
    x = data.small_integers(rng_of(4), *lead, m, k)
    b = data.exact_family(rng_of(5), n, k)
    want = reference.gemm(x.astype(np.float64), b.values, nvfp4=False).rounded("float32")
    guard, out = guarded(lead, m, n, device, "float32", order)
    sfb = scale_bytes(b.scales, device)
    nvfp4kern.gemm(floats(x, "bfloat16", device), codes(b, device), None, sfb, out=out)
    assert guard.guards_intact()
    assert_ok(reference.check_bits(values(out), want))


@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
@pytest.mark.parametrize("m", ROWS)
def test_batches_of_any_stride_share_weights(device, m, axes):
    """Rows of a wider buffer; batches that lie inside each other, as tokens of attention heads."""
    batch, n, k = 3, 12, 64
    a, b = data.exact_family(rng_of(6), batch, m, 2 * k), data.exact_family(rng_of(7), n, k)
    wide = Operand(*(np.moveaxis(part, (0, 1), axes) for part in (a.codes, a.scales)))
    cut = Operand(a.codes[..., : k // 2], a.scales[..., : k // 16])
    given = [
        make(part, device)[..., : k // size].movedim(axes, (0, 1))
        for make, part, size in ((from_numpy, wide.codes, 2), (scale_bytes, wide.scales, 16))
    ]
    sfb = scale_bytes(b.scales, device)
    got = nvfp4kern.gemm(given[0], codes(b, device), given[1], sfb)
    want = reference.gemm(cut.values, b.values).rounded("float16")
    assert_ok(reference.check_bits(values(got), want))


@pytest.mark.parametrize("lead", [(3,), (2, 2)])
def test_blocked_scales_with_more_padding_than_needed(device, lead):
    """Atoms that are full, as m is 128, but do not follow each other."""
    m, n, k = 128, 12, 64
    a, b = data.exact_family(rng_of(22), *lead, m, k), data.exact_family(rng_of(23), n, k)
    blocked = reference.to_blocked(a.scales)
    padding = np.full((*lead, m, 4), 0x7F, np.uint8)
    sfa = scale_bytes(np.concatenate([blocked, padding], -2), device)
    args = codes(a, device), codes(b, device), sfa, scale_bytes(b.scales, device)
    got = nvfp4kern.gemm(*args, scale_layout=("blocked", "linear"))
    want = reference.gemm(a.values, b.values).rounded("float16")
    assert_ok(reference.check_bits(values(got), want))


@pytest.mark.parametrize("n, k", [(130, 80), (5, 80), (130, 16)])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_the_permuted_view_has_the_strides_of_blocked_bytes(device, batch, n, k):
    """Each dimension but L spoiled in turn, with several atoms along both or one alone."""
    a, b = data.exact_family(rng_of(31), *batch, 3, k), data.exact_family(rng_of(32), *batch, n, k)
    given = [codes(each, device) for each in (a, b)]
    sfa, sfb = (scales(each, "permuted", rng_of(33), device) for each in (a, b))
    layout, atoms = {"scale_layout": "blocked"}, (-(-n // 128), -(-k // 64))
    assert sfb.shape[:5] == (32, 4, atoms[0], 4, atoms[1])
    got = nvfp4kern.gemm(*given, sfa, sfb, **layout)
    want = reference.gemm(a.values, b.values).rounded("float16")
    assert_ok(reference.check_bits(values(got), want))
    for d in (d for d in range(5) if sfb.shape[d] > 1):
        strides = list(sfb.stride())
        strides[d] *= 2
        buffer = torch.zeros(4 * sfb.numel(), dtype=torch.uint8, device=device)
        spoiled = buffer.as_strided(sfb.shape, strides).view(sfb.dtype)
        with pytest.raises(ValueError, match="^sfb: "):
            nvfp4kern.gemm(*given, sfa, spoiled, **layout)


@pytest.mark.parametrize("lead", [(3,), (3, 1)])
def test_route_wants_rows_or_columns_of_its_weights_contiguous(device, lead):
    x, w = (floats(np.ones((*rows, 16)), "float16", device) for rows in (lead, (8,)))
    ids = torch.empty((*lead, 2), dtype=torch.int32, device=device)
    weights = torch.zeros((*lead, 8), dtype=torch.float32, device=device)
    with pytest.raises(
        ValueError, match=r"^out\[0\]: strides of 8 and 4 elements, expected rows or"
    ):
        nvfp4kern.route(x, w, 2, out=(weights[..., ::4], ids))
    assert not weights.any()
    columns = weights.flatten()[:6].view(2, *lead).movedim(0, -1)
    for taken in (weights[..., :2], columns):
        nvfp4kern.route(x, w, 2, out=(taken, ids))
        assert (taken == 0.5).all()


def test_blocked_scales_as_atoms(device):
    m, n, k = 130, 12, 128
    a, b = data.exact_family(rng_of(24), m, k), data.exact_family(rng_of(25), n, k)
    atoms = reference.to_blocked(a.scales).reshape(2, 2, 32, 4, 4)
    sfb = scale_bytes(b.scales, device)
    args = codes(a, device), codes(b, device), scale_bytes(atoms, device), sfb
    got = nvfp4kern.gemm(*args, scale_layout=("blocked", "linear"))
    want = reference.gemm(a.values, b.values).rounded("float16")
    assert_ok(reference.check_bits(values(got), want))


def test_no_experts(device):
    none, x = torch.zeros(1, dtype=torch.int32, device=device), of_ones(0, 64, dtype=torch.half)
    x = x.to(device)
    assert nvfp4kern.grouped_gemm(x, x[None][:0], offsets=none).shape == (0, 0)
    q = nvfp4kern.quantize(x, scale_layout="blocked", offsets=none)
    assert q.data.shape == (0, 32) and q.scales.shape == (0, 4)


@pytest.mark.parametrize("form", ("linear", "as quantize", "16-bit"))
@pytest.mark.parametrize("lead", LEADS)
def test_dual_gemm_shares_its_weights(backend, lead, form):
    m, n, k, device = 5, 18, 64, backend.device
    a = data.exact_family(rng_of(8), *lead, m, k)
    x = data.small_integers(rng_of(8), *lead, m, k)
    b1, b2 = (data.exact_family(rng_of(seed), n, k) for seed in (9, 10))
    if form == "16-bit":
        given, sfa, exact = floats(x, "float16", device), None, x.astype(np.float64)
    else:
        (given, sfa), exact = laid_out(a, lead, form, device), a.values
    want = reference.dual_gemm(
        exact, b1.values, b2.values, alpha1=2.0**-6, c=backend.c, nvfp4=form != "16-bit"
    )
    sfb = [scale_bytes(b.scales, device) for b in (b1, b2)]
    got = nvfp4kern.dual_gemm(
        given, codes(b1, device), codes(b2, device), sfa, *sfb, alpha1=2.0**-6,
        scale_layout=("blocked" if form == "as quantize" else "linear", "linear"),
    )  # fmt: skip
    assert got.shape == (*lead, m, n)
    assert_ok(reference.check(values(got), want, "float16"))


@pytest.mark.parametrize("layout", ("linear", "blocked"))
@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("m", ROWS)
def test_quantize_and_back(device, m, lead, layout):
    k = 80
    x, up = (data.halves(rng_of(seed), "bfloat16", *lead, m, k) for seed in (11, 12))
    wanted_codes, wanted, s2 = reference.quantize(x, "amax", up)
    given, gate = (floats(part, "bfloat16", device) for part in (x, up))
    q = nvfp4kern.quantize(given, up=gate, global_scale="amax", scale_layout=layout)
    np.testing.assert_array_equal(raw(q.data), wanted_codes)
    assert q.global_scale.item() == s2
    got = raw(q.scales)
    np.testing.assert_array_equal(
        got, wanted if layout == "linear" else reference.to_blocked(wanted)
    )
    back = nvfp4kern.dequantize(q, scale_layout=layout, out_dtype="float32")
    want = reference.dequantize(wanted_codes, wanted, s2).astype(np.float32)
    assert_ok(reference.check_bits(values(back), want))


def test_a_row_alone(device):
    """[K] is one row: results have no dimension for it, but blocked scales are an atom."""
    n, k = 18, 96
    x, b = data.halves(rng_of(13), "float16", k), data.exact_family(rng_of(14), n, k)
    given, sfb = floats(x, "float16", device), scale_bytes(b.scales, device)
    for layout, shape in (("linear", (k // 16,)), ("blocked", (128, 8))):
        q = nvfp4kern.quantize(given, scale_layout=layout)
        matrix = nvfp4kern.quantize(given[None], scale_layout=layout)
        assert q.data.shape == (k // 2,) and q.scales.shape == shape
        np.testing.assert_array_equal(raw(q.data), raw(matrix.data)[0])
        np.testing.assert_array_equal(raw(q.scales), raw(matrix.scales).reshape(shape))
        back = nvfp4kern.dequantize(q, scale_layout=layout)
        assert torch.equal(back, nvfp4kern.dequantize(matrix, scale_layout=layout)[0])
        args = codes(b, device), q.scales, sfb
        got = nvfp4kern.gemm(q.data, *args, scale_layout=(layout, "linear"))
        want = nvfp4kern.gemm(q.data[None], args[0], matrix.scales, sfb,
                              scale_layout=(layout, "linear"))  # fmt: skip
        assert got.shape == (n,) and torch.equal(got, want[0])
    weights = floats(data.small_integers(rng_of(15), 6, k), "float16", device)
    alone, rows = nvfp4kern.route(given, weights, 2), nvfp4kern.route(given[None], weights, 2)
    for got, want in zip(alone, rows, strict=True):
        assert got.shape == (2,) and torch.equal(got, want[0])


@pytest.mark.parametrize("options", [{}, {"dense": True}, {"permutation": True}])
@pytest.mark.parametrize("lead", LEADS)
def test_route(device, lead, options):
    m, n, k = 5, 8, 64
    x, w = data.small_integers(rng_of(16), *lead, m, k), data.small_integers(rng_of(17), n, k)
    given = floats(x, "bfloat16", device), floats(w, "bfloat16", device)
    with unchanged(given):
        got = nvfp4kern.route(*given, 3, **options)
    want = nvfp4kern.route(given[0].reshape(-1, k), given[1], 3, **options)
    assert got[0].shape == (*lead, m, n if options.get("dense") else 3)
    assert got[1].shape == (*lead, m, 3)
    for ours, theirs in zip(got, want, strict=True):
        assert torch.equal(ours.reshape(theirs.shape), theirs)


def test_route_writes_rows_of_a_wider_output(device):
    lead, m, n, k = (2, 2), 3, 8, 64
    x, w = data.small_integers(rng_of(18), *lead, m, k), data.small_integers(rng_of(19), n, k)
    given = floats(x, "float16", device), floats(w, "float16", device)
    want = nvfp4kern.route(*given, 2)
    outs = [torch.full((*lead, m, 7), 99, dtype=t.dtype, device=device) for t in want]
    nvfp4kern.route(*given, 2, out=[t[..., 1:3] for t in outs])
    for out, wanted in zip(outs, want, strict=True):
        assert torch.equal(out[..., 1:3], wanted)
        assert (out[..., 0] == 99).all() and (out[..., 3:] == 99).all()


@pytest.mark.parametrize("lead", [(2, 3), (2,)])
@pytest.mark.parametrize("m, layout", [(4, "linear"), (1, "linear"), (128, "blocked")])
def test_evenly_spaced_rows_are_one_matrix(device, m, layout, lead):
    """So the weights are read once, as for [L M, K]."""
    x = floats(data.halves(rng_of(20), "float16", *lead, m, 64), "float16", device)
    w = nvfp4kern.quantize(floats(data.halves(rng_of(21), "float16", 40, 64), "float16", device))

    def plan(x):
        q = nvfp4kern.quantize(x, scale_layout=layout)
        args = q.data, w.data, q.scales, w.scales
        return nvfp4kern.explain("gemm", *args, scale_layout=(layout, "linear"))

    assert plan(x) == plan(x.reshape(-1, 64))


# --- What is refused ---


def of_ones(*shape, dtype=torch.uint8):
    return torch.ones(shape, dtype=dtype)


def gapped(*shape, dtype=torch.uint8):
    """Its first dimension does not follow on its second."""
    return torch.ones((shape[0], shape[1] + 1, *shape[2:]), dtype=dtype)[:, :-1]


B, SFB, X = of_ones(10, 32), of_ones(10, 4), of_ones(10, 64, dtype=torch.half)
REFUSED = {
    "codes that do not merge": (
        lambda: nvfp4kern.gemm(gapped(2, 3, 4, 32), B, of_ones(2, 3, 4, 4), SFB),
        r"a: shape \(2, 3, 4, 32\) with strides \(512, 128, 32, 1\), expected dimensions 0 to 1 to "
        r"merge into one without a copy, as after \.contiguous\(\)",
    ),
    "scales that do not merge": (
        lambda: nvfp4kern.gemm(of_ones(2, 3, 4, 32), B, gapped(2, 3, 4, 4), SFB),
        r"sfa: shape .* dimensions 0 to 1 .*\.contiguous\(\)",
    ),
    "an output that does not merge": (
        lambda: nvfp4kern.gemm(of_ones(2, 3, 4, 32), B, of_ones(2, 3, 4, 4), SFB,
                               out=gapped(2, 3, 4, 10, dtype=torch.half)),
        r"out: shape .* dimensions 0 to 1 .*\.contiguous\(\)",
    ),
    "x of quantize": (
        lambda: nvfp4kern.quantize(gapped(2, 3, 4, 64, dtype=torch.half)),
        r"x: shape .* dimensions 0 to 1 .*\.contiguous\(\)",
    ),
    "x of route, whose batch and rows count as one": (
        lambda: nvfp4kern.route(gapped(2, 3, 64, dtype=torch.half), X, 2),
        r"x: shape \(2, 3, 64\) .* dimensions 0 to 1 .*\.contiguous\(\)",
    ),
    "ids of route": (
        lambda: nvfp4kern.route(of_ones(2, 3, 64, dtype=torch.half), X, 2,
                                out=(None, gapped(2, 3, 2, dtype=torch.int32))),
        r"out\[1\]: shape .* dimensions 0 to 1 .*\.contiguous\(\)",
    ),
    "weights for each of several dimensions": (
        lambda: nvfp4kern.gemm(of_ones(2, 3, 4, 32), of_ones(6, 10, 32), of_ones(2, 3, 4, 4),
                               of_ones(6, 10, 4)),
        r"b: shape \(6, 10, 32\), expected \[N, K/2\], or \[L, N, K/2\] with the L of a, which has "
        r"shape \(2, 3, 4, 32\)",
    ),
    "weights of another batch": (
        lambda: nvfp4kern.gemm(of_ones(2, 4, 32), of_ones(3, 10, 32), of_ones(2, 4, 4),
                               of_ones(3, 10, 4)),
        r"b: shape \(3, 10, 32\), expected .* the L of a",
    ),
    "a batch of weights for a matrix": (
        lambda: nvfp4kern.gemm(of_ones(4, 32), B[None], of_ones(4, 4), SFB[None]),
        r"b: shape \(1, 10, 32\), expected .* the L of a",
    ),
    "dual_gemm, weights of which one is shared": (
        lambda: nvfp4kern.dual_gemm(of_ones(2, 4, 32), B, of_ones(2, 10, 32), of_ones(2, 4, 4),
                                    SFB, of_ones(2, 10, 4)),
        r"b2: shape \(2, 10, 32\), expected the shape of b1, \(10, 32\)",
    ),
    "scales flattened": (
        lambda: nvfp4kern.gemm(of_ones(2, 3, 4, 32), B, of_ones(24, 4), SFB),
        r"sfa: shape \(24, 4\), expected \(2, 3, 4, 4\) for scale_layout 'linear'",
    ),
    "blocked scales without the padding of each batch": (
        lambda: nvfp4kern.gemm(of_ones(3, 4, 32), B, of_ones(128, 4), SFB,
                               scale_layout=("blocked", "linear")),
        r"sfa: shape \(128, 4\), expected .* at least 1536 bytes",
    ),
    "blocked scales of other dimensions": (
        lambda: nvfp4kern.gemm(of_ones(1, 1, 2, 4, 32), B, of_ones(2, 1, 1, 128, 4).mT, SFB,
                               scale_layout=("blocked", "linear")),
        r"sfa: shape \(2, 1, 1, 4, 128\), expected blocked scales",
    ),
    "scales of other dimensions": (
        lambda: nvfp4kern.gemm(of_ones(2, 3, 4, 32), B, of_ones(3, 2, 4, 4), SFB),
        r"sfa: shape \(3, 2, 4, 4\), expected \(2, 3, 4, 4\)",
    ),
    "blocked scales of too few rows": (
        lambda: nvfp4kern.gemm(of_ones(1, 2, 130, 32), B, of_ones(1, 2, 128, 4), SFB,
                               scale_layout=("blocked", "linear")),
        r"sfa: shape \(1, 2, 128, 4\), expected .* at least 2048 bytes",
    ),
    "codes of quantize that do not merge": (
        lambda: nvfp4kern.quantize(of_ones(2, 3, 4, 64, dtype=torch.half),
                                   out=(gapped(2, 3, 4, 32), None)),
        r"out\[0\]: shape .* dimensions 0 to 1 .*\.contiguous\(\)",
    ),
    "up of another batch": (
        lambda: nvfp4kern.quantize(of_ones(2, 3, 4, 64, dtype=torch.half),
                                   up=of_ones(3, 2, 4, 64, dtype=torch.half)),
        r"up: shape \(3, 2, 4, 64\), expected \(2, 3, 4, 64\), the shape of x",
    ),
    "offsets for a batch": (
        lambda: nvfp4kern.quantize(of_ones(1, 4, 64, dtype=torch.half), scale_layout="blocked",
                                   offsets=torch.tensor([0, 4], dtype=torch.int32)),
        r"offsets: given, expected None unless scale_layout='blocked' and x is \[M, K\]",
    ),
    "a vector of another batch": (
        lambda: nvfp4kern.gemv(of_ones(2, 4, 32), of_ones(3, 1, 32), of_ones(2, 4, 4),
                               of_ones(3, 1, 4)),
        r"b: shape \(3, 1, 32\), expected one row with the batch of a, .* \(2, 4, 32\)",
    ),
    "a vector without the batch": (
        lambda: nvfp4kern.gemv(of_ones(2, 4, 32), of_ones(1, 32), of_ones(2, 4, 4), of_ones(1, 4)),
        r"b: shape \(1, 32\), expected one row with the batch of a, .* \(2, 4, 32\)",
    ),
    "a batch as a group": (
        lambda: nvfp4kern.grouped_gemm([of_ones(2, 4, 32)], [B], [of_ones(2, 4, 4)], [SFB]),
        r"a\[0\]: shape \(2, 4, 32\), expected a matrix for a group",
    ),
    "scales of rank 4 to block": (
        lambda: nvfp4kern.to_blocked(of_ones(2, 2, 4, 4)),
        r"scales: shape \(2, 2, 4, 4\), expected \[rows, K/16\] with or without a batch L",
    ),
    "no dimension": (
        lambda: nvfp4kern.quantize(of_ones(dtype=torch.half)),
        r"x: shape \(\), expected \[\.\., K\]",
    ),
    "more dimensions than there may be": (
        lambda: nvfp4kern.quantize(of_ones(1, 1, 1, 1, 1, 1, 16, dtype=torch.half)),
        r"x: 7 dimensions, expected at most 6",
    ),
    "a batch of rank 4 for a gemv": (
        lambda: nvfp4kern.gemv(of_ones(2, 2, 4, 32), of_ones(2, 2, 1, 32), of_ones(2, 2, 4, 4)),
        r"a: shape \(2, 2, 4, 32\), expected \[M, K/2\] with or without a batch L",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    call, message = REFUSED[what]
    with pytest.raises(ValueError, match=message):
        call()
