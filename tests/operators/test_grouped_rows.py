"""grouped_gemm with `rows`: which token each row of the result is made of."""

import numpy as np
import pytest
import torch
from expert_calls import Tokens, check_rows, drawn, int32, weights
from generators import (
    DTYPES,
    ORDERS,
    POISON,
    Guarded,
    assert_ok,
    codes,
    floats,
    from_numpy,
    raw,
    rng_of,
    run,
    scales,
    unchanged,
    values,
)
from rows import tiles_of

import nvfp4kern
from nvfp4kern.verify import data, reference

OFFSETS = {
    "even": ([0, 20, 40, 60], 60),
    "empty experts": ([0, 0, 59, 59, 60, 60], 60),
    "rows of nobody": ([3, 10, 10, 41], 46),
    "more rows than an atom": ([0, 129, 130, 300], 301),
    "one row": ([0, 0, 1], 1),
    "fewer rows than tokens": ([0, 2, 5], 6),
}
KINDS = ("NVFP4", "W4A16", "16-bit", "16-bit transposed")


# ---------------------------------------------------------------------------------------------
# Against the oracle, and against tokens that were gathered before
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", OFFSETS)
@pytest.mark.parametrize("form", ("linear", "strided", "blocked", "flat", "permuted"))
@pytest.mark.parametrize("per_token", (1, 3))
def test_exact(device, case, form, per_token):
    """NaN is the padding of blocked scale factors; tokens end in the middle of an atom."""
    (offsets, count), rng = OFFSETS[case], rng_of(1, per_token)
    tokens, n, k = 140 if case.startswith("more") else 11, 19, 48
    a = Tokens(rng, device, tokens, k, form=form)
    b, sfb, w = weights(rng, device, len(offsets) - 1, n, k)
    rows = drawn(rng, offsets, count, tokens, per_token)
    got = run(
        nvfp4kern.grouped_gemm,
        a.tensor,
        b,
        a.sf,
        sfb,
        shape=(count, n),
        device=device,
        offsets=int32(offsets, device),
        rows=from_numpy(rows, device),
        rows_per_token=per_token,
        scale_layout=("linear" if form in ("linear", "strided") else "blocked", "linear"),
    )
    token = rows // per_token

    def expected(g, r):
        return reference.gemm(a.values[token[r]], w[g])

    check_rows(got, offsets, expected, "float16", exact=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS)
def test_kinds_and_orders(device, kind, order):
    (offsets, count), rng = OFFSETS["rows of nobody"], rng_of(2)
    n, k, per_token = 21, 96, 4
    a = Tokens(rng, device, 13, k, kind=kind)
    b, sfb, w = weights(rng, device, len(offsets) - 1, n, k, kind)
    rows = drawn(rng, offsets, count, 13, per_token)
    options = {"rows": from_numpy(rows, device), "rows_per_token": per_token}
    got = run(
        nvfp4kern.grouped_gemm, a.tensor, b, a.sf, sfb, shape=(count, n), device=device,
        dtype="float32", order=order, offsets=int32(offsets, device), **options,
    )  # fmt: skip

    def expected(g, r):
        return reference.gemm(a.values[rows[r] // per_token], w[g])

    check_rows(got, offsets, expected, "float32", exact=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_full_range_alpha_and_bias(backend, dtype):
    (offsets, count), rng, device = OFFSETS["rows of nobody"], rng_of(3), backend.device
    a = Tokens(rng, device, 17, 80, make=data.full_range)
    b, sfb, w = weights(rng, device, 3, 19, 80, make=data.full_range)
    alpha = rng.standard_normal((3, 19)).astype(np.float32)
    bias = data.halves(rng, dtype, 3, 19, scale=1e4)
    rows = drawn(rng, offsets, count, 17, 2)
    got = run(
        nvfp4kern.grouped_gemm, a.tensor, b, a.sf, sfb, shape=(count, 19), device=device,
        dtype=dtype, offsets=int32(offsets, device), alpha=floats(alpha, "float32", device),
        bias=floats(bias, dtype, device), rows=from_numpy(rows, device), rows_per_token=2,
    )  # fmt: skip

    def expected(g, r):
        return reference.gemm(
            a.values[rows[r] // 2], w[g], alpha=alpha[g], bias=bias[g], c=backend.c
        )

    check_rows(got, offsets, expected, dtype)


@pytest.mark.parametrize("k", (48, 1024, 1040))
@pytest.mark.parametrize("kind", ("NVFP4", "blocked", "W4A16"))
@pytest.mark.parametrize("sizes", ([1, 0, 1, 3], [40, 1, 130, 7]))
def test_the_same_bits_as_gathered_tokens(device, sizes, kind, k):
    """Sums of full-range data round as their order says: it is that of a call without `rows`.

    Experts of one row are summed in an order of their own on CPUs.
    """
    rng, offsets, n = rng_of(4, k), np.append(0, np.cumsum(sizes)), 37
    tokens, per_token, form = 23, 2, "blocked" if kind == "blocked" else "linear"
    kind = "NVFP4" if kind == "blocked" else kind
    a = Tokens(rng, device, tokens, k, kind=kind, form=form, make=data.full_range)
    if a.halves:
        a.tensor = floats(rng.standard_normal((tokens, k)), "bfloat16", device)
    b, sfb, _ = weights(rng, device, len(sizes), n, k, make=data.full_range)
    rows = drawn(rng, offsets, int(offsets[-1]), tokens, per_token)
    options = {"offsets": int32(offsets, device), "out_dtype": "float32"}
    got = nvfp4kern.grouped_gemm(
        a.tensor, b, a.sf, sfb, rows=from_numpy(rows, device), rows_per_token=per_token,
        scale_layout=(form, "linear"), **options,
    )  # fmt: skip
    left, sfa, layout = a.gathered(rows // per_token)
    want = nvfp4kern.grouped_gemm(left, b, sfa, sfb, scale_layout=layout, **options)
    np.testing.assert_array_equal(raw(got), raw(want))


@pytest.mark.parametrize("exponents", ((-5, 5), (-16, 15), (-16, 18), (-126, 100), (-126, -115)))
def test_bf16_tokens_of_any_exponents(backend, exponents):
    """Those that lie close are multiplied as halves on Hopper."""
    rng, offsets, device = rng_of(8), [0, 2, 3], backend.device
    b, sfb, w = weights(rng, device, 2, 40, 320, make=data.full_range)
    magnitudes = np.ldexp(rng.integers(128, 256, (3, 320)), rng.integers(*exponents, (3, 320)) - 7)
    x = np.where(rng.random((3, 320)) < 0.2, 0.0, magnitudes * rng.choice([-1, 1], (3, 320)))
    options = {"offsets": int32(offsets, device), "out_dtype": "float32"}
    got = nvfp4kern.grouped_gemm(floats(x, "bfloat16", device), b, None, sfb, **options)
    for row, expert in enumerate((0, 0, 1)):
        want = reference.gemm(x[row : row + 1], w[expert], c=backend.c)
        assert_ok(reference.check(values(got)[row : row + 1], want, "float32"))


@pytest.mark.parametrize("apart", (20, 31, 32, 33, 40, 120))
def test_small_elements_beside_large_ones_that_weights_of_zero_meet(device, apart):
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


def test_every_row_in_turn_is_the_same_without_rows(device):
    """rows = 0, 1, 2, .. is what a call without `rows` does."""
    rng = rng_of(5)
    a = Tokens(rng, device, 30, 64)
    b, sfb, _ = weights(rng, device, 2, 9, 64)
    options = {"offsets": int32([0, 12, 30], device)}
    got = nvfp4kern.grouped_gemm(a.tensor, b, a.sf, sfb, rows=int32(range(30), device), **options)
    want = nvfp4kern.grouped_gemm(a.tensor, b, a.sf, sfb, **options)
    np.testing.assert_array_equal(raw(got), raw(want))


@pytest.mark.parametrize("top_k", (1, 4))
def test_the_sorted_rows_of_route(device, top_k):
    """They go in as they are, with blocked scale factors as quantize writes them."""
    rng, tokens, experts, n, k = rng_of(6), 29, 6, 11, 64
    x = floats(rng.standard_normal((tokens, k)), "bfloat16", device)
    router = floats(rng.standard_normal((experts, k)), "bfloat16", device)
    b, sfb, w = weights(rng, device, experts, n, k)
    _, ids, _, offsets, rows = nvfp4kern.route(x, router, top_k, permutation=True)
    q = nvfp4kern.quantize(x, scale_layout="blocked")
    got = nvfp4kern.grouped_gemm(
        q.data, b, q.scales, sfb, offsets=offsets, rows=rows, rows_per_token=top_k,
        scale_layout=("blocked", "linear"), out_dtype="float32",
    )  # fmt: skip
    by_token = np.empty((tokens * top_k, n), np.float32)
    by_token[rows.cpu().numpy()] = values(got)
    model = values(nvfp4kern.dequantize(tuple(q), scale_layout="blocked", out_dtype="float32"))
    for m, chosen in enumerate(ids.cpu().numpy()):
        for j, expert in enumerate(chosen):
            want = reference.gemm(model[m : m + 1].astype(np.float64), w[expert], c=12)
            verdict = reference.check(by_token[m * top_k + j][None], want, "float32")
            assert_ok(verdict, m, j)


# ---------------------------------------------------------------------------------------------
# Hostile data
# ---------------------------------------------------------------------------------------------


def test_a_nan_stays_with_its_token(device):
    """Other tokens are between NaNs: strided codes and scale factors, and padding."""
    rng, rows = rng_of(7), np.array([5, 0, 3, 3, 5, 9, 1], np.int32)
    operand = data.exact_family(rng, 5, 32)
    operand.scales[2] = 0x7F
    b, sfb, _ = weights(rng, device, 2, 6, 32)
    for form in ("strided", "blocked"):
        got = run(
            nvfp4kern.grouped_gemm, codes(operand, device), b,
            scales(operand, form, rng, device, 0x7F), sfb, shape=(7, 6), device=device,
            offsets=int32([0, 3, 7], device), rows=int32(rows, device), rows_per_token=2,
            scale_layout=("linear" if form == "strided" else "blocked", "linear"),
        )  # fmt: skip
        np.testing.assert_array_equal(np.isnan(got), np.repeat(rows[:, None] // 2 == 2, 6, 1))


@pytest.mark.parametrize("shift", (1, 4, 8))
def test_tokens_at_any_address(device, shift):
    """Codes that no aligned load reaches, with a pitch that moves from row to row."""
    rng, rows = rng_of(8), np.array([4, 4, 0, 2, 1, 3, 0], np.int32)
    operand = data.exact_family(rng, 5, 80)
    wide = torch.full((5, 40 + 13), 0xFF, dtype=torch.uint8)
    wide[:, shift : shift + 40] = torch.from_numpy(operand.codes)
    a = wide.to(device)[:, shift : shift + 40]
    b, sfb, w = weights(rng, device, 2, 6, 80)
    got = run(
        nvfp4kern.grouped_gemm, a, b, scales(operand, "strided", rng, device), sfb, shape=(7, 6),
        device=device, offsets=int32([0, 3, 7], device), rows=int32(rows, device),
    )  # fmt: skip

    def expected(g, r):
        return reference.gemm(operand.values[rows[r]], w[g])

    check_rows(got, [0, 3, 7], expected, "float16", exact=True)


@pytest.mark.parametrize("kind", ("NVFP4", "blocked", "W4A16"))
def test_what_names_no_token_is_clamped_on_gpus(gpu, kind):
    """Tokens lie between NaNs, so a row that is read outside them would be NaN."""
    rng, device, form = rng_of(9), gpu.device, "blocked" if kind == "blocked" else "linear"
    a = Tokens(rng, device, 5, 48, kind="W4A16" if kind == "W4A16" else "NVFP4", form=form)
    b, sfb, w = weights(rng, device, 2, 9, 48)
    rows = np.array([-1, -(2**31), 2**31 - 1, 15, 14, 3, 16, 0, 100, -3], np.int32)
    offsets = [0, 4, 10]
    got = run(
        nvfp4kern.grouped_gemm, a.tensor, b, a.sf, sfb, shape=(10, 9), device=device,
        offsets=int32(offsets, device), rows=from_numpy(rows, device), rows_per_token=3,
        scale_layout=(form, "linear"),
    )  # fmt: skip
    token = np.clip(rows, 0, 14) // 3

    def expected(g, r):
        return reference.gemm(a.values[token[r]], w[g])

    check_rows(got, offsets, expected, "float16", exact=True)


@pytest.mark.parametrize("offsets", ([5, 2, 9, 40], [-7, 3, 2**31 - 1, 4], [20, 0, 0, 0]))
def test_bad_offsets_on_gpus_touch_nothing_outside(gpu, offsets):
    """They are clamped to the rows of the result, of which there are more than tokens."""
    rng, device = rng_of(10), gpu.device
    a = Tokens(rng, device, 3, 48, form="blocked")
    b, sfb, _ = weights(rng, device, 3, 9, 48)
    got = run(
        nvfp4kern.grouped_gemm, a.tensor, b, a.sf, sfb, shape=(20, 9), device=device,
        offsets=int32(offsets, device), rows=int32(rng.integers(0, 3, 20), device),
        scale_layout=("blocked", "linear"),
    )  # fmt: skip
    assert np.isfinite(got).all()


@pytest.mark.parametrize(
    "rows, message",
    [
        ([0, 1, -1, 2], "row 2 is -1, expected 0 or more, and less than 4 x 2: the tokens"),
        ([0, 8, 1, 2], "row 1 is 8, expected 0 or more, and less than 4 x 2: the tokens"),
        ([-(2**31), 8, 1, 2], "row 1 is 8"),  # row 0 is nobody's
        ([0, 1, 2, 2**31 - 1], "row 3 is 2147483647"),
    ],
)
def test_what_names_no_token_is_an_error_on_the_cpu(rows, message):
    rng = rng_of(11)
    a = Tokens(rng, "cpu", 4, 32)
    b, sfb, _ = weights(rng, "cpu", 2, 6, 32)
    out = Guarded((4, 6), "float16", "cpu")
    options = {"offsets": int32([1, 2, 4], "cpu"), "rows": int32(rows, "cpu"), "rows_per_token": 2}
    for call in (
        nvfp4kern.grouped_gemm,
        lambda *a, **o: nvfp4kern.explain("grouped_gemm", *a, **o),
    ):
        with unchanged([options["rows"]]), pytest.raises(ValueError, match=f"^rows: {message}"):
            call(a.tensor, b, a.sf, sfb, out=out.tensor, **options)
    assert out.untouched()


def test_a_number_of_rows_per_token_that_is_huge(device):
    """Every row is token 0 then."""
    rng = rng_of(12)
    a = Tokens(rng, device, 2, 32)
    b, sfb, w = weights(rng, device, 1, 6, 32)
    options = {"rows": int32([0, 2**31 - 2, 5], device), "rows_per_token": 2**31 - 1}
    got = nvfp4kern.grouped_gemm(
        a.tensor, b, a.sf, sfb, offsets=int32([0, 3], device), out_dtype="float32", **options
    )
    want = reference.gemm(a.values[[0, 0, 0]], w[0]).rounded("float32")
    assert_ok(reference.check_bits(values(got), want))


@pytest.mark.parametrize("tile", tiles_of("sm90/gemm", "grouped_gemm"))
@pytest.mark.parametrize("form", ("linear", "blocked"))
def test_wgmma_tiles_take_rows(gpu, tile, form, monkeypatch):
    if gpu.name != "sm90":
        pytest.skip("tiles of another row")
    monkeypatch.setenv("NVFP4KERN_TILE", f"sm90/gemm:{tile}")
    rng, device, offsets, tokens, per_token = rng_of(13), gpu.device, [0, 5, 5, 44], 140, 3
    a = Tokens(rng, device, tokens, 320, form=form)
    b, sfb, w = weights(rng, device, len(offsets) - 1, 70, 320)
    rows = drawn(rng, offsets, 47, tokens, per_token)
    options = {"offsets": int32(offsets, device), "scale_layout": (form, "linear")}
    options |= {"rows": from_numpy(rows, device), "rows_per_token": per_token}
    plan = nvfp4kern.explain("grouped_gemm", a.tensor, b, a.sf, sfb, **options)
    assert (plan["backend"], plan["tile"]) == ("sm90", tile.partition(":")[2])
    out = torch.full((47, 70), POISON, dtype=torch.float16, device=device)
    nvfp4kern.grouped_gemm(a.tensor, b, a.sf, sfb, **options, out=out)

    def expected(g, r):
        return reference.gemm(a.values[rows[r] // per_token], w[g], c=gpu.c)

    check_rows(values(out), offsets, expected, "float16")


# ---------------------------------------------------------------------------------------------
# Nothing to do
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokens, count, experts, offsets",
    [(0, 0, 2, [0, 0, 0]), (4, 0, 2, [0, 0, 0]), (0, 5, 2, [0, 0, 0]), (4, 5, 0, [0])],
)
def test_empty(device, tokens, count, experts, offsets):
    """Without tokens nothing can be read, so nothing is written."""
    a = torch.zeros((tokens, 16), dtype=torch.uint8, device=device)
    sfa = torch.zeros((tokens, 2), dtype=torch.uint8, device=device)
    b = torch.zeros((experts, 6, 16), dtype=torch.uint8, device=device)
    sfb = torch.zeros((experts, 6, 2), dtype=torch.uint8, device=device)
    rows = torch.full((count,), -1, dtype=torch.int32, device=device)
    options = {"offsets": int32(offsets, device), "rows": rows, "rows_per_token": 2}
    out = Guarded((count, 6), "float16", device)
    nvfp4kern.grouped_gemm(a, b, sfa, sfb, out=out.tensor, **options)
    assert out.untouched()
    assert nvfp4kern.grouped_gemm(a, b, sfa, sfb, **options).shape == (count, 6)


def test_without_tokens_gpus_write_nothing(gpu):
    """Offsets that give experts rows, which the CPU would refuse."""
    zeros = [torch.zeros(s, dtype=torch.uint8, device=gpu.device)
             for s in ((0, 16), (2, 6, 16), (0, 2), (2, 6, 2))]  # fmt: skip
    out = Guarded((5, 6), "float16", gpu.device)
    options = {"offsets": int32([0, 2, 5], gpu.device), "rows": int32([0] * 5, gpu.device)}
    nvfp4kern.grouped_gemm(*zeros, out=out.tensor, **options)
    assert out.untouched()


def test_k_of_zero_is_a_sum_of_zeros(device):
    zeros = [torch.zeros(s, dtype=torch.uint8, device=device)
             for s in ((3, 0), (2, 6, 0), (3, 0), (2, 6, 0))]  # fmt: skip
    options = {"offsets": int32([1, 2, 5], device), "rows": int32([9, 2, 1, 2, 0], device)}
    got = run(nvfp4kern.grouped_gemm, *zeros, shape=(5, 6), device=device, **options)
    assert (got[0] == POISON).all() and (got[1:] == 0).all()
