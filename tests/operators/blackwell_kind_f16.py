"""What every tile of Blackwell's GEMMs with 16-bit tokens computes, for test_tiles.py."""

import numpy as np
import torch
from generators import (
    ORDERS,
    SCALE_FORMS,
    assert_ok,
    codes,
    floats,
    layout_of,
    rng_of,
    run,
    scale_bytes,
    scales,
    values,
)
from halves_tiles import check_experts_of_halves

import nvfp4kern
from nvfp4kern.verify import data, reference

DTYPES = ("float16", "bfloat16")


def weights_of(rng, full, *shape):
    return (data.full_range if full else data.exact_family)(rng, *shape)


def tokens_of(rng, dtype, full, *shape):
    if full:
        return data.halves(rng, dtype, *shape, scale=100).astype(np.float64)
    return data.small_integers(rng, *shape, most=3)


def codes_in_rows(operand, row_bytes, device):
    """Codes with so many bytes from row to row."""
    given = codes(operand, device, native=False)
    shape = (*given.shape[:-1], row_bytes)
    wide = torch.full(shape, 0xFF, dtype=torch.uint8, device=device)[..., : given.shape[-1]]
    return wide.copy_(given).view(torch.float4_e2m1fn_x2)


def vectors(rng, device, names, *shape):
    """Numbers of which products with exact sums are exact, and what a call takes."""
    made = {name: rng.integers(1, 4, shape).astype(np.float32) for name in names}
    return made, {name: floats(value, "float32", device) for name, value in made.items()}


def check(got, want, out, full):
    """Full-range data lies within the oracle's bounds; other data has its bits."""
    if full:
        assert_ok(reference.check(got, want, out))
    else:
        assert_ok(reference.check_bits(got, want.rounded(out)))


def check_gemm(
    device, c, dtype, m, n, k, form, *, lead=(), full=False, out="float32", row_bytes=0, order="row"
):
    rng = rng_of(m, n, k)
    a, b = tokens_of(rng, dtype, full, *lead, m, k), weights_of(rng, full, *lead, n, k)
    made, given = vectors(rng, device, ("alpha", "bias"), n)
    b_codes = codes_in_rows(b, row_bytes, device) if row_bytes else codes(b, device)
    got = run(
        nvfp4kern.gemm, floats(a, dtype, device), b_codes, None,
        scales(b, form, rng, device, 0x7F), shape=(*lead, m, n), device=device, dtype=out,
        order=order, scale_layout=layout_of(form), **given,
    )  # fmt: skip
    check(got, reference.gemm(a, b.values, c=c, nvfp4=False, **made), out, full)


def check_dual(device, c, dtype, m, n, k, form, *, lead=(), full=False, out="float32", **how):
    rng = rng_of(m, n, k)
    a = tokens_of(rng, dtype, full, *lead, m, k)
    b1, b2 = (weights_of(rng, full, *lead, n, k) for _ in range(2))
    made, given = vectors(rng, device, ("alpha1", "alpha2"), n)
    sf = [scales(b, form, rng, device, 0x7F) for b in (b1, b2)]
    got = run(
        nvfp4kern.dual_gemm, floats(a, dtype, device), codes(b1, device), codes(b2, device), None,
        *sf, shape=(*lead, m, n), device=device, dtype=out, scale_layout=layout_of(form),
        **given, **how,
    )  # fmt: skip
    activation = {key: how[key] for key in how if key == "activation"}
    expected = {"c": c, "nvfp4": False} | made | activation
    assert_ok(reference.check(got, reference.dual_gemm(a, b1.values, b2.values, **expected), out))


def check_experts(device, c, dtype, sizes, n, k, form, *, full=False, out="float32", rows_before=2):
    """Some rows belong to no expert."""
    rng, offsets = rng_of(n, k, len(sizes)), np.cumsum([rows_before, *sizes]).astype(np.int32)
    m, experts = int(offsets[-1]) + 3, len(sizes)
    a, b = tokens_of(rng, dtype, full, m, k), weights_of(rng, full, experts, n, k)
    made, given = vectors(rng, device, ("alpha", "bias"), experts, n)
    got = run(
        nvfp4kern.grouped_gemm, floats(a, dtype, device), codes(b, device), None,
        scales(b, form, rng, device, 0x7F), shape=(m, n), device=device, dtype=out,
        offsets=torch.from_numpy(offsets).to(device), scale_layout=layout_of(form), **given,
    )  # fmt: skip
    for e in range(experts):
        rows, of = slice(offsets[e], offsets[e + 1]), {key: of[e] for key, of in made.items()}
        check(got[rows], reference.gemm(a[rows], b.values[e], c=c, nvfp4=False, **of), out, full)


def check_gated(device, c, dtype, sizes, n, k, form, **how):
    """n gates and n ups of each expert; some rows belong to none."""
    rng, offsets = rng_of(n, k, len(sizes)), np.cumsum([2, *sizes]).astype(np.int32)
    experts, full = len(sizes), how.pop("full", False)
    tokens = Indexed(rng, device, dtype, offsets, k, full)
    b = weights_of(rng, full, experts, 2 * n, k)
    alpha = rng.standard_normal((experts, 2 * n)).astype(np.float32) * 2.0**-6
    got = run(
        nvfp4kern.grouped_dual_gemm, tokens.given, codes(b, device), None,
        scales(b, form, rng, device, 0x7F), shape=(len(tokens.rows), n), device=device,
        dtype="float32", alpha=floats(alpha, "float32", device), scale_layout=layout_of(form),
        **tokens.options, **how,
    )  # fmt: skip
    for e, w in enumerate(b.values):
        alphas = {"alpha1": alpha[e, :n], "alpha2": alpha[e, n:]}
        want = reference.dual_gemm(tokens.of(e), w[:n], w[n:], c=c, nvfp4=False, **alphas, **how)
        assert_ok(reference.check(got[offsets[e] : offsets[e + 1]], want, "float32"), e)


class Indexed:
    """Tokens in any order, some more than once, some never; rows of no expert name none."""

    def __init__(self, rng, device, dtype, offsets, k, full, per_token=3):
        count, most = int(offsets[-1]) + 3, max(int(offsets[-1]) // 2, 1)
        self.offsets, self.values = offsets, tokens_of(rng, dtype, full, most, k)
        self.rows = rng.integers(0, most * per_token, count).astype(np.int32)
        self.rows[: offsets[0]] = self.rows[offsets[-1] :] = -1
        self.token, self.given = self.rows // per_token, floats(self.values, dtype, device)
        of_device = lambda x: torch.from_numpy(x).to(device)  # noqa: E731
        self.options = {"offsets": of_device(offsets), "rows": of_device(self.rows)}
        self.options["rows_per_token"] = per_token

    def of(self, expert):
        return self.values[self.token[self.offsets[expert] : self.offsets[expert + 1]]]


def check_rows(device, c, dtype, sizes, n, k, form, *, full=False, out="float32"):
    """Weights are NVFP4, or 16-bit where there is no form of scale factors."""
    rng, offsets = rng_of(n, k, len(sizes)), np.cumsum([2, *sizes]).astype(np.int32)
    tokens, experts = Indexed(rng, device, dtype, offsets, k, full), len(sizes)
    if form:
        b = weights_of(rng, full, experts, n, k)
        w, sfb = (codes(b, device), b.values), scales(b, form, rng, device, 0x7F)
    else:
        of = tokens_of(rng, dtype, full, experts * n, k).reshape(experts, n, k)
        w, sfb = (floats(of, dtype, device), of), None
    made, given = vectors(rng, device, ("alpha", "bias"), experts, n)
    got = run(
        nvfp4kern.grouped_gemm, tokens.given, w[0], None, sfb, shape=(len(tokens.rows), n),
        device=device, dtype=out, scale_layout=layout_of(form or "linear"), **tokens.options,
        **given,
    )  # fmt: skip
    for e in range(experts):
        of = {key: of[e] for key, of in made.items()}
        want = reference.gemm(tokens.of(e), w[1][e], c=c, nvfp4=False, **of)
        check(got[offsets[e] : offsets[e + 1]], want, out, full)


def check_list(device, c, dtype, sizes, form, *, full=False, out="float32"):
    """Groups of (m, n, k)."""
    rng = rng_of(len(sizes))
    a = [tokens_of(rng, dtype, full, m, k) for m, _, k in sizes]
    b = [weights_of(rng, full, n, k) for _, n, k in sizes]
    args = [[floats(x, dtype, device) for x in a], [codes(w, device) for w in b], None]
    args.append([scales(w, form, rng, device, 0x7F) for w in b])
    options = {"scale_layout": layout_of(form), "out_dtype": out}
    outs = nvfp4kern.grouped_gemm(*args, **options)
    for got, x, w in zip(outs, a, b, strict=True):
        check(values(got), reference.gemm(x, w.values, c=c, nvfp4=False), out, full)


def check_poison(device, dtype, m, n, k):
    """A NaN scale factor makes its row's outputs NaN, whatever bit 7 is; a token's NaN its own."""
    rng = rng_of(m, n, k)
    b = data.exact_family(rng, n, k)
    b.codes[3] = 0
    b.scales[3, -1], b.scales[n - 1, 0] = 0xFF, 0x7F
    b.scales[4] |= 0x80
    a = data.small_integers(rng, m, k)
    a[m - 1, k - 1] = np.nan
    sf = scale_bytes(b.scales, device)
    got = values(nvfp4kern.gemm(floats(a, dtype, device), codes(b, device), None, sf))
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
            check_list(device, c, dtype, sizes, "linear", full=True, out=dtype)
            check_list(device, c, dtype, [*sizes, (9, 70, 160)] * 7, "blocked")
    if "grouped_gemm" in operators:
        sizes = (mma_n + 3, 0, 1, 130, 0)
        for dtype in DTYPES:
            check_experts(device, c, dtype, sizes, 140, 320, "blocked")
            check_experts(device, c, dtype, sizes, 33, 288, "linear", full=True, out=dtype)
        check_experts(device, c, "float16", (0,) * 40 + (5, 0, 7) + (1,) * 20, 130, 64, "permuted")
        check_experts(device, c, "float16", (0, 0), 130, 64, "linear")
        for dtype in DTYPES:
            how = {"dtype": dtype, "out": dtype}
            check_experts_of_halves(device, c, (mma_n + 3, 0, 1, 64), 136, 208, **how)
            check_experts_of_halves(device, c, (3, 9), 72, 1104, full=True, dtype=dtype)
        check_experts_of_halves(device, c, (2 * mma_n + 5, 2), 260, 96)
        check_experts_of_halves(device, c, (0, 7, 0), 133, 48)
        check_experts_of_halves(device, c, (1,), 1, 16)
        check_indexed_and_gated(device, c, mma_n)


def check_indexed_and_gated(device, c, mma_n):
    """Experts' last rows are any number behind a whole four; ups begin anywhere in an atom."""
    sizes = (mma_n + 3, 0, 1, 130, 6, 0)
    for dtype in DTYPES:
        check_rows(device, c, dtype, sizes, 140, 320, "blocked")
        check_rows(device, c, dtype, sizes, 33, 288, "linear", full=True, out=dtype)
        check_rows(device, c, dtype, (5, 3 * mma_n), 72, 208, None, full=True)
    check_rows(device, c, "float16", (300,), 1, 1408, "flat")
    check_rows(device, c, "bfloat16", (0, 0), 130, 64, "linear")
    check_rows(device, c, "bfloat16", (2, 9), 133, 48, None)
    for form, n in (("linear", 133), ("blocked", 128), ("flat", 40), ("permuted", 200)):
        check_gated(device, c, "bfloat16", sizes, n, 288, form, full=True)
    check_gated(device, c, "float16", (0, 2 * mma_n + 1, 0), 1, 1408, "blocked")
    check_gated(device, c, "float16", (7,), 70, 160, "blocked", activation="gelu", full=True)
