"""What grouped_gemm of contiguous experts and grouped_dual_gemm share: forms, rows, addresses."""

import os
from functools import partial

import numpy as np
import pytest
import torch
from expert_calls import (
    OFFSETS,
    Matrices,
    Stack,
    Tokens,
    check_rows,
    drawn,
    int32,
)
from generators import (
    DTYPES,
    ORDERS,
    POISON,
    SCALE_FORMS,
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

NOBODYS = OFFSETS["rows of nobody"]
OPERATORS = (Matrices, Stack)
OF = {"ids": lambda value: getattr(value, "name", None)}
operators = pytest.mark.parametrize("experts", OPERATORS, **OF)


# --- Against the oracle ---


@operators
@pytest.mark.parametrize("case", OFFSETS)
@pytest.mark.parametrize("form_b", SCALE_FORMS)
@pytest.mark.parametrize("form_a", ("linear", "blocked"))
def test_forms_of_scale_factors(backend, experts, case, form_a, form_b):
    """NaN is the padding. The ups' blocked scale factors begin in the middle of a row quad."""
    rng, offsets, device = rng_of(1), OFFSETS[case], backend.device
    a = Tokens(rng, device, max(offsets) + 5, 48)
    b = experts(rng, device, len(offsets) - 1, 19, 48, form=form_b)
    if form_a == "blocked":
        a.block_by_expert(offsets, rng)
    order = "row" if form_a == "linear" else "padded columns"
    got = b.run(a.tensor, a.sf, offsets, form=a.form, order=order)
    b.check(got, offsets, a.values, backend.c)


@operators
@pytest.mark.parametrize("a_dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("n, k, form", [(21, 96, "linear"), (64, 1040, "blocked"), (7, 16, "flat")])
def test_16_bit_tokens(backend, experts, n, k, form, a_dtype):
    rng, device = rng_of(5), backend.device
    x = data.halves(rng, a_dtype, 44, k)
    b = experts(rng, device, 3, n, k, make=data.full_range, form=form)
    got = b.run(floats(x, a_dtype, device), None, NOBODYS, dtype="bfloat16", alpha=1e-3)
    expected = b.expect(x.astype(np.float64), c=backend.c, nvfp4=False, alpha=1e-3)
    check_rows(got, NOBODYS, expected, "bfloat16")


@operators
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_output_orders(backend, experts, order, dtype):
    rng, device = rng_of(6), backend.device
    a, b = Tokens(rng, device, 46, 64), experts(rng, device, 3, 33, 64)
    got = b.run(a.tensor, a.sf, NOBODYS, order=order, dtype=dtype)
    b.check(got, NOBODYS, a.values, backend.c, dtype)


# --- Rows: which token each row of the result is made of ---

ROWS = {
    "even": ([0, 20, 40, 60], 60),
    "empty experts": ([0, 0, 59, 59, 60, 60], 60),
    "rows of nobody": ([3, 10, 10, 41], 46),
    "more rows than an atom": ([0, 129, 130, 300], 301),
    "one row": ([0, 0, 1], 1),
    "fewer rows than tokens": ([0, 2, 5], 6),
}


@operators
@pytest.mark.parametrize("case", ROWS)
@pytest.mark.parametrize("form", SCALE_FORMS)
@pytest.mark.parametrize("per_token", (1, 3))
def test_rows(backend, experts, case, form, per_token):
    """NaN is the padding of blocked scale factors; tokens end in the middle of an atom."""
    (offsets, count), rng, device = ROWS[case], rng_of(9, per_token), backend.device
    tokens = 140 if case.startswith("more") else 11
    a = Tokens(rng, device, tokens, 48, form=form)
    b = experts(rng, device, len(offsets) - 1, 19, 48)
    rows = drawn(rng, offsets, count, tokens, per_token)
    options = {"rows": from_numpy(rows, device), "rows_per_token": per_token}
    got = b.run(a.tensor, a.sf, offsets, form=form, count=count, **options)
    b.check(got, offsets, a.of(rows // per_token), backend.c)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("experts, kind", [(e, kind) for e in OPERATORS for kind in e.kinds], **OF)
def test_rows_of_any_kind_in_any_order(backend, experts, kind, order):
    (offsets, count), rng, device = ROWS["rows of nobody"], rng_of(2), backend.device
    a = Tokens(rng, device, 13, 96, kind=kind)
    b = experts(rng, device, len(offsets) - 1, 21, 96, kind=kind)
    rows = drawn(rng, offsets, count, 13, 4)
    options = {"rows": from_numpy(rows, device), "rows_per_token": 4, "order": order}
    got = b.run(a.tensor, a.sf, offsets, count=count, dtype="float32", **options)
    b.check(got, offsets, a.of(rows // 4), backend.c, "float32")


@operators
@pytest.mark.parametrize("k", (48, 1024, 1040))
@pytest.mark.parametrize(
    "kind, form", [("NVFP4", "linear"), ("NVFP4", "blocked"), ("W4A16", "linear")]
)
@pytest.mark.parametrize("sizes", ([1, 0, 1, 3], [40, 1, 130, 7]))
def test_the_same_bits_as_gathered_tokens(device, experts, sizes, kind, form, k):
    """Sums of full-range data round as their order says: it is that of a call without `rows`.

    Experts of one row are summed in an order of their own on CPUs.
    """
    rng, offsets = rng_of(4, k), np.append(0, np.cumsum(sizes))
    tokens, per_token = 23, 2
    a = Tokens(rng, device, tokens, k, kind=kind, form=form, make=data.full_range)
    if a.halves:
        a.tensor = floats(rng.standard_normal((tokens, k)), "bfloat16", device)
    b = experts(rng, device, len(sizes), 37, k, make=data.full_range)
    rows = drawn(rng, offsets, int(offsets[-1]), tokens, per_token)
    by_index = {"rows": from_numpy(rows, device), "rows_per_token": per_token, "form": form}
    options = {"alpha": 1e-4, "out_dtype": "float32"}
    got = b.new(a.tensor, a.sf, offsets, **by_index, **options)
    want = b.new(*a.gathered(rows // per_token), offsets, **options)
    np.testing.assert_array_equal(raw(got), raw(want))


@operators
def test_every_row_in_turn_is_the_same_without_rows(device, experts):
    """rows = 0, 1, 2, .. is what a call without `rows` does."""
    rng = rng_of(5)
    a, b = Tokens(rng, device, 30, 64), experts(rng, device, 2, 9, 64)
    args = a.tensor, a.sf, [0, 12, 30]
    got, want = b.new(*args, rows=int32(range(30), device)), b.new(*args)
    np.testing.assert_array_equal(raw(got), raw(want))


@operators
@pytest.mark.parametrize("top_k", (1, 4))
def test_the_sorted_rows_of_route(device, experts, top_k):
    """They go in as they are, with blocked scale factors as quantize writes them."""
    rng, tokens, n_experts, k = rng_of(11), 29, 6, 64
    x = floats(rng.standard_normal((tokens, k)), "bfloat16", device)
    router = floats(rng.standard_normal((n_experts, k)), "bfloat16", device)
    b = experts(rng, device, n_experts, 11, k)
    _, ids, _, offsets, rows = nvfp4kern.route(x, router, top_k, permutation=True)
    q = nvfp4kern.quantize(x, scale_layout="blocked")
    options = {"rows": rows, "rows_per_token": top_k, "form": "blocked", "out_dtype": "float32"}
    got = b.new(q.data, q.scales, offsets.tolist(), **options)
    by_token = np.empty((tokens * top_k, b.n), np.float32)
    by_token[rows.cpu().numpy()] = values(got)
    model = values(nvfp4kern.dequantize(tuple(q), scale_layout="blocked", out_dtype="float32"))
    expected = b.expect(model.astype(np.float64), c=12)
    for m, chosen in enumerate(ids.cpu().numpy()):
        for j, expert in enumerate(chosen):
            want = expected(expert, slice(m, m + 1))
            assert_ok(reference.check(by_token[m * top_k + j][None], want, "float32"), m, j)


@operators
def test_a_number_of_rows_per_token_that_is_huge(backend, experts):
    """Every row is token 0 then."""
    rng, device = rng_of(12), backend.device
    a, b = Tokens(rng, device, 2, 32), experts(rng, device, 1, 6, 32)
    options = {"rows": int32([0, 2**31 - 2, 5], device), "rows_per_token": 2**31 - 1}
    got = b.run(a.tensor, a.sf, [0, 3], count=3, **options)
    b.check(got, [0, 3], a.values[[0, 0, 0]], backend.c)


@operators
@pytest.mark.parametrize("kind, form", [("W4A16", None), ("NVFP4", "linear"), ("NVFP4", "blocked")])
@pytest.mark.parametrize("by_rows", (False, True))
def test_more_tokens_than_a_gpu_has_threads(gpu, experts, kind, form, by_rows):
    """Kernels before the product then have several rows a CTA. Not all rows are an expert's."""
    rows = 140 if "PTXSIM_CC" in os.environ else 1100  # of 256 threads each; a GPU has 132 x 2048
    rng, device, offsets = rng_of(16), gpu.device, [3, 50, 50, rows - 2]
    a = Tokens(rng, device, rows, 2048, kind=kind, form=form or "linear", dtype="float16")
    b = experts(rng, device, 3, 5, 2048)
    if by_rows:
        index = drawn(rng, offsets, rows, rows, 1)
        got = b.run(a.tensor, a.sf, offsets, rows=int32(index, device), form=a.form)
        b.check(got, offsets, a.of(index), gpu.c)
        return
    if form == "blocked":
        a.block_by_expert(offsets, rng)
    b.check(b.run(a.tensor, a.sf, offsets, form=a.form), offsets, a.values, gpu.c)


KINDS = [(experts, kind, "linear") for experts in OPERATORS for kind in experts.kinds]
KINDS += [(experts, "NVFP4", form) for experts in OPERATORS for form in ("strided", "blocked")]


@pytest.mark.parametrize("experts, kind, form", KINDS, **OF)
def test_what_names_no_token_is_clamped_on_gpus(gpu, experts, kind, form):
    """Tokens lie between NaNs, so a row that is read outside them would be NaN."""
    rng, device, offsets = rng_of(12), gpu.device, [0, 4, 10]
    a = Tokens(rng, device, 5, 64, kind=kind, form=form)
    b = experts(rng, device, 2, 9, 64, kind=kind)
    rows = np.array([-1, -(2**31), 2**31 - 1, 15, 14, 3, 16, 0, 100, -3], np.int32)
    options = {"rows": from_numpy(rows, device), "rows_per_token": 3, "form": form}
    if gpu.name == "sm100" and "transposed" not in kind:  # else no tensor map has columns of 9
        assert b.explain(a.tensor, a.sf, offsets, **options)["backend"] == "sm100"
    got = b.run(a.tensor, a.sf, offsets, count=10, **options)
    b.check(got, offsets, a.values[np.clip(rows, 0, 14) // 3], gpu.c)


@operators
@pytest.mark.parametrize("offsets", ([5, 2, 9, 40], [-7, 3, 2**31 - 1, 4], [20, 0, 0, 0]))
@pytest.mark.parametrize("by_rows", (False, True))
def test_bad_offsets_on_gpus_touch_nothing_outside(gpu, experts, offsets, by_rows):
    """They are clamped to the rows of the result, of which there are more than tokens."""
    rng, device = rng_of(13), gpu.device
    a = Tokens(rng, device, 3 if by_rows else 20, 64, form="blocked")
    b = experts(rng, device, 3, 9, 64)
    options = {"rows": int32(rng.integers(0, 3, 20), device)} if by_rows else {}
    got = b.run(a.tensor, a.sf, offsets, form="blocked", count=20, **options)
    assert experts is Stack or np.isfinite(got).all()


@operators
@pytest.mark.parametrize(
    "rows, message",
    [
        ([0, 1, -1, 2], "row 2 is -1, expected 0 or more, and less than 4 x 2: the tokens"),
        ([0, 8, 1, 2], "row 1 is 8, expected 0 or more, and less than 4 x 2: the tokens"),
        ([-(2**31), 8, 1, 2], "row 1 is 8"),  # row 0 is nobody's
        ([0, 1, 2, 2**31 - 1], "row 3 is 2147483647"),
    ],
)
def test_what_names_no_token_is_an_error_on_the_cpu(experts, rows, message):
    rng, out = rng_of(11), Guarded((4, 6), "float16", "cpu")
    a, b = Tokens(rng, "cpu", 4, 32), experts(rng, "cpu", 2, 6, 32)
    options = {"rows": int32(rows, "cpu"), "rows_per_token": 2, "out": out.tensor}
    for call in (b.new, b.explain):
        with unchanged([options["rows"]]), pytest.raises(ValueError, match=f"^rows: {message}"):
            call(a.tensor, a.sf, [1, 2, 4], **options)
    assert out.untouched()


# --- NaN ---


@pytest.mark.parametrize("experts, row", [(Matrices, 4), (Stack, 4), (Stack, 19 + 4)], **OF)
@pytest.mark.parametrize("form", ("linear", "blocked"))
def test_a_nan_scale_poisons_exactly_its_outputs(device, experts, row, form):
    """Of a token, of a weight, of a gate, of an up."""
    rng, offsets = rng_of(14), [0, 10, 20]
    a, b = data.exact_family(rng, 20, 32), experts(rng, device, 2, 19, 32, form=form)
    call = partial(b.run, codes(a, device), dtype="float32")
    clean = call(scales(a, "linear", rng, device), offsets)
    b.operand.scales[1, row, 0], a.scales[3, 1] = 0x7F, 0xFF
    b.sf = scales(b.operand, form, rng, device, 0x7F)
    got = call(scales(a, "linear", rng, device), offsets)
    nan = np.zeros((20, 19), bool)
    nan[10:, 4] = nan[3] = True
    assert np.isfinite(clean).all()
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got[~nan], clean[~nan])


@operators
def test_a_nan_stays_with_its_token(device, experts):
    """Other tokens are between NaNs: strided codes and scale factors, and padding."""
    rng, rows = rng_of(15), np.array([5, 0, 3, 3, 5, 9, 1], np.int32)
    operand = data.exact_family(rng, 5, 32)
    operand.scales[2] = 0x7F
    b = experts(rng, device, 2, 6, 32)
    for form in ("strided", "blocked"):
        args = codes(operand, device), scales(operand, form, rng, device, 0x7F), [0, 3, 7]
        got = b.run(*args, form=form, count=7, rows=int32(rows, device), rows_per_token=2)
        np.testing.assert_array_equal(np.isnan(got), np.repeat(rows[:, None] // 2 == 2, 6, 1))


# --- Addresses, new outputs, nothing to do ---


@operators
@pytest.mark.parametrize("by_rows", (False, True))
@pytest.mark.parametrize("shift", (1, 4, 8))
def test_operands_at_any_address(backend, experts, shift, by_rows):
    """Codes that no aligned load reaches, with a pitch that moves from row to row."""
    rng, device, token = rng_of(16), backend.device, np.array([4, 4, 0, 2, 1, 3, 0], np.int32)
    a, b = data.exact_family(rng, 7, 80), experts(rng, device, 2, 6, 80, form="strided")
    moved = []
    for operand in (a, b.operand):
        wide = torch.full((*operand.codes.shape[:-1], 40 + 13), 0xFF, dtype=torch.uint8)
        wide[..., shift : shift + 40] = torch.from_numpy(operand.codes)
        moved.append(wide.to(device)[..., shift : shift + 40])
    b.codes, options = moved[1], {"rows": int32(token, device)} if by_rows else {}
    got = b.run(moved[0], scales(a, "strided", rng, device), [0, 3, 7], **options)
    b.check(got, [0, 3, 7], a.values[token] if by_rows else a.values, backend.c)


@operators
@pytest.mark.parametrize("dtype", (None, *DTYPES))
def test_new_output(backend, experts, dtype):
    rng, device = rng_of(17), backend.device
    a, b = Tokens(rng, device, 12, 48), experts(rng, device, 2, 7, 48)
    args = a.tensor, a.sf, [0, 5, 12]
    with unchanged(args, b.codes, b.sf):
        got = b.new(*args, **({"out_dtype": dtype} if dtype else {}))
    dtype = dtype or "float16"
    assert got.dtype == getattr(torch, dtype) and got.shape == (12, 7)
    b.check(values(got), [0, 5, 12], a.values, backend.c, dtype)


@operators
def test_numpy(device, experts):
    if device != "cpu":
        pytest.skip("NumPy arrays live on the CPU")
    rng = rng_of(18)
    a, b = data.exact_family(rng, 6, 48), experts(rng, device, 1, 7, 48)
    arrays, offsets = (a.codes, b.operand.codes, a.scales, b.operand.scales), np.int32([0, 6])
    got = getattr(nvfp4kern, b.name)(*arrays, offsets=offsets)
    assert type(got) is np.ndarray and got.dtype == np.float16 and got.shape == (6, 7)
    b.check(values(got), [0, 6], a.values, 1)


@operators
@pytest.mark.parametrize(
    "tokens, n_experts, n, rows",
    [(0, 3, 4, None), (5, 0, 4, None), (5, 2, 0, None), (0, 2, 4, 5), (4, 2, 4, 0), (4, 0, 4, 5),
     (0, 2, 4, 0)],
)  # fmt: skip
def test_empty(device, experts, tokens, n_experts, n, rows):
    """Without tokens nothing can be read, so nothing is written."""
    b = experts.parts * n
    shapes = (tokens, 16), (n_experts, b, 16), (tokens, 2), (n_experts, b, 2)
    args = [torch.zeros(shape, dtype=torch.uint8, device=device) for shape in shapes]
    options = {"offsets": int32([0] * (n_experts + 1), device)}
    options |= {} if rows is None else {"rows": int32([-1] * rows, device), "rows_per_token": 2}
    out = Guarded((tokens if rows is None else rows, n), "float16", device)
    function = getattr(nvfp4kern, experts.name)
    function(*args, out=out.tensor, **options)
    assert out.untouched() and function(*args, **options).shape == out.tensor.shape


@operators
def test_without_tokens_gpus_write_nothing(gpu, experts):
    """Offsets that give experts rows, which the CPU would refuse."""
    shapes = (0, 16), (2, 6 * experts.parts, 16), (0, 2), (2, 6 * experts.parts, 2)
    zeros = [torch.zeros(shape, dtype=torch.uint8, device=gpu.device) for shape in shapes]
    out = Guarded((5, 6), "float16", gpu.device)
    options = {"offsets": int32([0, 2, 5], gpu.device), "rows": int32([0] * 5, gpu.device)}
    getattr(nvfp4kern, experts.name)(*zeros, out=out.tensor, **options)
    assert out.untouched()


GATED = [(Stack, {"activation": activation}) for activation in reference.ACTIVATIONS]


@pytest.mark.parametrize("experts, options", [(Matrices, {}), *GATED], **OF)
@pytest.mark.parametrize("rows", (None, [4, 2, 1, 2, 0]))
def test_k_of_zero_is_a_sum_of_zeros(device, experts, options, rows):
    shapes = (5, 0), (2, 6 * experts.parts, 0), (5, 0), (2, 6 * experts.parts, 0)
    zeros = [torch.zeros(shape, dtype=torch.uint8, device=device) for shape in shapes]
    options = options | {"offsets": int32([1, 2, 5], device)}
    options |= {} if rows is None else {"rows": int32(rows, device)}
    got = run(getattr(nvfp4kern, experts.name), *zeros, shape=(5, 6), device=device, **options)
    assert (got[0] == POISON).all() and (got[1:] == 0).all()


# --- Tiles of Hopper ---


@pytest.mark.parametrize(
    "experts, tile", [(e, tile) for e in OPERATORS for tile in tiles_of("sm90/gemm", e.name)], **OF
)
def test_wgmma_tiles_take_rows(gpu, experts, tile, monkeypatch):
    if gpu.name != "sm90":
        pytest.skip("tiles of another row")
    monkeypatch.setenv("NVFP4KERN_TILE", f"sm90/gemm:{tile}")
    rng, device, offsets, tokens, per_token = rng_of(19), gpu.device, [0, 5, 5, 44], 140, 3
    for form_a, form_b, n in (("linear", "blocked", 128), ("blocked", "linear", 70)):
        a = Tokens(rng, device, tokens, 320, form=form_a)
        b = experts(rng, device, 3, n, 320, form=form_b)
        rows = drawn(rng, offsets, 47, tokens, per_token)
        options = {"rows": from_numpy(rows, device), "rows_per_token": per_token, "form": form_a}
        plan = b.explain(a.tensor, a.sf, offsets, **options)
        assert (plan["backend"], plan["tile"]) == ("sm90", tile)
        got = b.run(a.tensor, a.sf, offsets, count=47, dtype="bfloat16", **options)
        b.check(got, offsets, a.of(rows // per_token), gpu.c, "bfloat16")
