"""grouped_dual_gemm: dual_gemm of each expert's tokens, with gate and up in one stack."""

import numpy as np
import pytest
import torch
from expert_calls import (
    OFFSETS,
    Stack,
    Tokens,
    alphas_of,
    blocked_by_expert,
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
    layout_of,
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

ACTIVATIONS = tuple(reference.ACTIVATIONS)
NOBODYS = OFFSETS["rows of nobody"]


def run_experts(a, sfa, stack, offsets, *, form="linear", count=None, dtype="float16", **options):
    device = stack.codes.device
    shape = (len(a) if count is None else count, stack.n)
    return run(
        nvfp4kern.grouped_dual_gemm, a, stack.codes, sfa, stack.sf, int32(offsets, device),
        shape=shape, device=device, dtype=dtype,
        scale_layout=(layout_of(form), layout_of(stack.form)), **options,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Against the oracle
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", OFFSETS)
@pytest.mark.parametrize("form_b", SCALE_FORMS)
@pytest.mark.parametrize("form_a", ("linear", "blocked"))
def test_forms_of_scale_factors(backend, case, form_a, form_b):
    """NaN is the padding. The ups' blocked scale factors begin in the middle of a row quad."""
    rng, offsets, device = rng_of(1), OFFSETS[case], backend.device
    rows, k = max(offsets) + 5, 48
    a = data.exact_family(rng, rows, k)
    stack = Stack(rng, device, len(offsets) - 1, 19, k, form=form_b)
    sfa = scales(a, "linear", rng, device)
    if form_a == "blocked":
        sfa = blocked_by_expert(a, offsets, device, rng)
    got = run_experts(codes(a, device), sfa, stack, offsets, form=form_a)
    check_rows(got, offsets, stack.expect(a.values, c=backend.c), "float16")


@pytest.mark.parametrize("n", (1, 16, 32, 40, 64, 96, 100, 128, 130, 192))
@pytest.mark.parametrize("form", ("linear", "blocked"))
def test_ups_begin_at_any_row_of_an_atom(device, n, form):
    """With act(h) = h and sums that are exact every output is one rounding of the product."""
    rng, offsets, k = rng_of(2, n), [1, 4, 4, 21], 144
    a = data.exact_family(rng, 23, k)
    stack = Stack(rng, device, 3, n, k, form=form)
    got = run_experts(
        codes(a, device), scales(a, "linear", rng, device), stack, offsets,
        activation="identity", dtype="float32",
    )  # fmt: skip
    assert (got[[0, 21, 22]] == POISON).all()
    for g in range(3):
        rows = slice(offsets[g], offsets[g + 1])
        sums = reference.gemm(a.values[rows], stack.operand.values[g]).rounded("float32")
        assert_ok(reference.check_bits(got[rows], sums[:, :n] * sums[:, n:]), g)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_full_range_is_within_the_bound(backend, activation, dtype):
    rng, device, offsets = rng_of(3), backend.device, [0, 9, 9, 40]
    a = data.full_range(rng, 41, 304)
    stack = Stack(rng, device, 3, 40, 304, make=data.full_range)
    args = codes(a, device), scales(a, "linear", rng, device), stack, offsets
    for alpha in (1.0, 1e-5):
        got = run_experts(*args, dtype=dtype, activation=activation, alpha=alpha)
        options = {"alpha1": alpha, "alpha2": alpha, "activation": activation, "c": backend.c}
        check_rows(got, offsets, stack.expect(a.values, **options), dtype)


@pytest.mark.parametrize("kind", ("none", "float", "one", "expert", "pair", "row", "strided"))
@pytest.mark.parametrize("n", (1, 27))
def test_alphas(backend, kind, n):
    rng, device = rng_of(4), backend.device
    a = data.full_range(rng, 44, 96)
    stack = Stack(rng, device, 3, n, 96, make=data.full_range)
    given, alpha1, alpha2 = alphas_of(kind, rng, 3, n)
    if kind == "strided":
        given = floats(np.repeat(given, 3, axis=1), "float32", device)[:, ::3]
    elif isinstance(given, np.ndarray):
        given = floats(given, "float32", device)
    got = run_experts(
        codes(a, device), scales(a, "linear", rng, device), stack, NOBODYS, alpha=given,
        dtype="float32",
    )  # fmt: skip
    options = {"alpha1": alpha1, "alpha2": alpha2, "c": backend.c}
    check_rows(got, NOBODYS, stack.expect(a.values, **options), "float32")


@pytest.mark.parametrize("a_dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("n, k, form", [(21, 96, "linear"), (64, 1040, "blocked"), (7, 16, "flat")])
def test_16_bit_tokens(backend, n, k, form, a_dtype):
    rng, device = rng_of(5), backend.device
    x = data.halves(rng, a_dtype, 44, k)
    stack = Stack(rng, device, 3, n, k, make=data.full_range, form=form)
    given = floats(x, a_dtype, device)
    got = run_experts(given, None, stack, NOBODYS, dtype="bfloat16", alpha=1e-3)
    options = {"alpha1": 1e-3, "alpha2": 1e-3, "c": backend.c, "nvfp4": False}
    check_rows(got, NOBODYS, stack.expect(x.astype(np.float64), **options), "bfloat16")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_output_orders(backend, order, dtype):
    rng, device = rng_of(6), backend.device
    a = data.exact_family(rng, 46, 64)
    stack = Stack(rng, device, 3, 33, 64)
    args = codes(a, device), scales(a, "linear", rng, device), stack, NOBODYS
    got = run_experts(*args, order=order, dtype=dtype)
    check_rows(got, NOBODYS, stack.expect(a.values, c=backend.c), dtype)


def test_it_is_grouped_gemm_of_the_stack_and_the_activation(device):
    """Sums that are exact: of gates and of ups, before silu."""
    rng, n, k = rng_of(7), 37, 128
    a = data.exact_family(rng, 60, k)
    stack = Stack(rng, device, 3, n, k)
    operands = codes(a, device), stack.codes, scales(a, "linear", rng, device), stack.sf
    offsets = int32([0, 20, 40, 60], device)
    alpha = floats(2.0 ** -rng.integers(4, 9, (3, 2 * n)), "float32", device)
    options = {"alpha": alpha, "out_dtype": "float32"}
    got = nvfp4kern.grouped_dual_gemm(*operands, offsets, activation="relu", **options)
    gate, up = nvfp4kern.grouped_gemm(*operands, offsets=offsets, **options).chunk(2, dim=1)
    np.testing.assert_array_equal(values(got), values(gate.relu() * up))


def test_infinities_are_the_oracles(device):
    rng, offsets = rng_of(8), [0, 20]
    a = data.exact_family(rng, 20, 512, low=2, high=4)
    stack = Stack(rng, device, 1, 30, 512)
    got = run_experts(codes(a, device), scales(a, "linear", rng, device), stack, offsets)
    want = stack.expect(a.values)(0, slice(0, 20)).rounded("float16")
    assert np.isposinf(want).any() and np.isneginf(want).any() and np.isfinite(want).any()
    assert reference.ulps(got, want, "float16").max() <= 1


# ---------------------------------------------------------------------------------------------
# Rows
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ("linear", "strided", "blocked", "flat", "permuted"))
@pytest.mark.parametrize("per_token", (1, 3))
@pytest.mark.parametrize("offsets, count, tokens", [
    ([3, 10, 10, 41], 46, 11), ([0, 129, 130, 300], 301, 140), ([0, 2, 5], 6, 11),
])  # fmt: skip
def test_rows(backend, offsets, count, tokens, form, per_token):
    """Rows of nobody hold what names no token."""
    rng, device = rng_of(9, per_token), backend.device
    a = Tokens(rng, device, tokens, 48, form=form)
    stack = Stack(rng, device, len(offsets) - 1, 19, 48)
    rows = drawn(rng, offsets, count, tokens, per_token)
    got = run_experts(
        a.tensor, a.sf, stack, offsets, form=form, count=count, rows=from_numpy(rows, device),
        rows_per_token=per_token,
    )  # fmt: skip
    token = np.clip(rows // per_token, 0, tokens - 1)
    check_rows(got, offsets, stack.expect(a.values[token], c=backend.c), "float16")


@pytest.mark.parametrize("kind", ("NVFP4", "blocked", "W4A16"))
@pytest.mark.parametrize("sizes, k", [([1, 0, 1, 3], 1040), ([40, 1, 130, 7], 48)])
def test_the_same_bits_as_gathered_tokens(device, sizes, k, kind):
    """Sums of full-range data round as their order says: it is that of a call without `rows`."""
    rng, offsets, n = rng_of(10, k), np.append(0, np.cumsum(sizes)), 37
    tokens, per_token, form = 23, 2, "blocked" if kind == "blocked" else "linear"
    kind = "NVFP4" if kind == "blocked" else kind
    a = Tokens(rng, device, tokens, k, kind=kind, form=form, make=data.full_range)
    if a.halves:
        a.tensor = floats(rng.standard_normal((tokens, k)), "bfloat16", device)
    stack = Stack(rng, device, len(sizes), n, k, make=data.full_range)
    rows = drawn(rng, offsets, int(offsets[-1]), tokens, per_token)
    options = {"out_dtype": "float32", "alpha": 1e-4}
    where = int32(offsets, device)
    got = nvfp4kern.grouped_dual_gemm(
        a.tensor, stack.codes, a.sf, stack.sf, where, rows=from_numpy(rows, device),
        rows_per_token=per_token, scale_layout=(form, "linear"), **options,
    )  # fmt: skip
    left, sfa, layout = a.gathered(rows // per_token)
    layouts = {"scale_layout": (layout, "linear")}
    want = nvfp4kern.grouped_dual_gemm(
        left, stack.codes, sfa, stack.sf, where, **layouts, **options
    )
    np.testing.assert_array_equal(raw(got), raw(want))


@pytest.mark.parametrize("top_k", (1, 4))
def test_the_sorted_rows_of_route(device, top_k):
    """They go in as they are, with blocked scale factors as quantize writes them."""
    rng, tokens, experts, n, k = rng_of(11), 29, 6, 11, 64
    x = floats(rng.standard_normal((tokens, k)), "bfloat16", device)
    router = floats(rng.standard_normal((experts, k)), "bfloat16", device)
    stack = Stack(rng, device, experts, n, k)
    _, ids, _, offsets, rows = nvfp4kern.route(x, router, top_k, permutation=True)
    q = nvfp4kern.quantize(x, scale_layout="blocked")
    got = nvfp4kern.grouped_dual_gemm(
        q.data, stack.codes, q.scales, stack.sf, offsets, rows=rows, rows_per_token=top_k,
        scale_layout=("blocked", "linear"), out_dtype="float32",
    )  # fmt: skip
    by_token = np.empty((tokens * top_k, n), np.float32)
    by_token[rows.cpu().numpy()] = values(got)
    model = values(nvfp4kern.dequantize(tuple(q), scale_layout="blocked", out_dtype="float32"))
    expected = stack.expect(model.astype(np.float64), c=12)
    for m, chosen in enumerate(ids.cpu().numpy()):
        for j, expert in enumerate(chosen):
            want = expected(expert, slice(m, m + 1))
            verdict = reference.check(by_token[m * top_k + j][None], want, "float32")
            assert_ok(verdict, m, j)


@pytest.mark.parametrize("kind", ("NVFP4", "blocked", "W4A16"))
def test_what_names_no_token_is_clamped_on_gpus(gpu, kind):
    """Tokens lie between NaNs, so a row that is read outside them would be NaN."""
    rng, device, form = rng_of(12), gpu.device, "blocked" if kind == "blocked" else "linear"
    a = Tokens(rng, device, 5, 48, kind="W4A16" if kind == "W4A16" else "NVFP4", form=form)
    stack = Stack(rng, device, 2, 9, 48)
    rows = np.array([-1, -(2**31), 2**31 - 1, 15, 14, 3, 16, 0, 100, -3], np.int32)
    got = run_experts(
        a.tensor, a.sf, stack, [0, 4, 10], form=form, count=10, rows=from_numpy(rows, device),
        rows_per_token=3,
    )  # fmt: skip
    token = np.clip(rows, 0, 14) // 3
    check_rows(got, [0, 4, 10], stack.expect(a.values[token], c=gpu.c), "float16")


@pytest.mark.parametrize("offsets", ([5, 2, 9, 40], [-7, 3, 2**31 - 1, 4], [20, 0, 0, 0]))
@pytest.mark.parametrize("by_rows", (False, True))
def test_bad_offsets_on_gpus_touch_nothing_outside(gpu, offsets, by_rows):
    rng, device = rng_of(13), gpu.device
    a = Tokens(rng, device, 3 if by_rows else 20, 48, form="blocked")
    stack = Stack(rng, device, 3, 9, 48)
    options = {"rows": int32(rng.integers(0, 3, 20), device)} if by_rows else {}
    run_experts(a.tensor, a.sf, stack, offsets, form="blocked", count=20, **options)


# ---------------------------------------------------------------------------------------------
# NaN
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", (4, 19 + 4))
@pytest.mark.parametrize("form", ("linear", "blocked"))
def test_a_nan_scale_of_a_gate_or_an_up_poisons_exactly_its_outputs(device, row, form):
    rng, offsets = rng_of(14), [0, 10, 20]
    a, stack = data.exact_family(rng, 20, 32), Stack(rng, device, 2, 19, 32, form=form)
    args = codes(a, device), scales(a, "linear", rng, device), stack, offsets
    clean = run_experts(*args, dtype="float32")
    stack.operand.scales[1, row, 0] = 0x7F
    stack.sf = scales(stack.operand, form, rng, device, 0x7F)
    got = run_experts(*args, dtype="float32")
    nan = np.zeros((20, 19), bool)
    nan[10:, 4] = True
    assert np.isfinite(clean).all()
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got[~nan], clean[~nan])


def test_a_nan_stays_with_its_token(device):
    """Other tokens are between NaNs: strided codes and scale factors, and padding."""
    rng, rows = rng_of(15), np.array([5, 0, 3, 3, 5, 9, 1], np.int32)
    operand = data.exact_family(rng, 5, 32)
    operand.scales[2] = 0x7F
    stack = Stack(rng, device, 2, 6, 32)
    for form in ("strided", "blocked"):
        got = run_experts(
            codes(operand, device), scales(operand, form, rng, device, 0x7F), stack, [0, 3, 7],
            form=form, count=7, rows=int32(rows, device), rows_per_token=2,
        )  # fmt: skip
        np.testing.assert_array_equal(np.isnan(got), np.repeat(rows[:, None] // 2 == 2, 6, 1))


# ---------------------------------------------------------------------------------------------
# Addresses, new outputs, nothing to do
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", (1, 4, 8))
def test_operands_at_any_address(backend, shift):
    """Codes that no aligned load reaches, with a pitch that moves from row to row."""
    rng, device = rng_of(16), backend.device
    a, stack = data.exact_family(rng, 7, 80), Stack(rng, device, 2, 6, 80, form="strided")
    moved = []
    for operand in (a, stack.operand):
        wide = torch.full((*operand.codes.shape[:-1], 40 + 13), 0xFF, dtype=torch.uint8)
        wide[..., shift : shift + 40] = torch.from_numpy(operand.codes)
        moved.append(wide.to(device)[..., shift : shift + 40])
    stack.codes = moved[1]
    got = run_experts(moved[0], scales(a, "strided", rng, device), stack, [0, 3, 7])
    check_rows(got, [0, 3, 7], stack.expect(a.values, c=backend.c), "float16")


@pytest.mark.parametrize("dtype", (None, *DTYPES))
def test_new_output(backend, dtype):
    rng, device = rng_of(17), backend.device
    a, stack = data.exact_family(rng, 12, 48), Stack(rng, device, 2, 7, 48)
    args = codes(a, device), stack.codes, scales(a, "linear", rng, device), stack.sf
    options = {"out_dtype": dtype} if dtype else {}
    with unchanged(args):
        got = nvfp4kern.grouped_dual_gemm(*args, offsets=int32([0, 5, 12], device), **options)
    dtype = dtype or "float16"
    assert got.dtype == getattr(torch, dtype) and got.shape == (12, 7)
    check_rows(values(got), [0, 5, 12], stack.expect(a.values, c=backend.c), dtype)


def test_numpy(device):
    if device != "cpu":
        pytest.skip("NumPy arrays live on the CPU")
    rng = rng_of(18)
    a, b = data.exact_family(rng, 6, 48), data.exact_family(rng, 1, 14, 48)
    offsets = np.array([0, 6], np.int32)
    got = nvfp4kern.grouped_dual_gemm(a.codes, b.codes, a.scales, b.scales, offsets)
    assert type(got) is np.ndarray and got.dtype == np.float16 and got.shape == (6, 7)
    want = reference.dual_gemm(a.values, b.values[0, :7], b.values[0, 7:]).rounded("float16")
    assert reference.ulps(got, want, "float16").max() <= 1


@pytest.mark.parametrize(
    "tokens, experts, n, rows",
    [(0, 3, 4, None), (5, 0, 4, None), (5, 2, 0, None), (0, 2, 4, 5), (4, 2, 4, 0), (4, 0, 4, 5)],
)
def test_empty(device, tokens, experts, n, rows):
    """Without tokens nothing can be read, so nothing is written."""
    shapes = (tokens, 16), (experts, 2 * n, 16), (tokens, 2), (experts, 2 * n, 2)
    args = [torch.zeros(shape, dtype=torch.uint8, device=device) for shape in shapes]
    count = tokens if rows is None else rows
    options = {} if rows is None else {"rows": int32([-1] * rows, device)}
    out = Guarded((count, n), "float16", device)
    offsets = int32([0] * (experts + 1), device)
    nvfp4kern.grouped_dual_gemm(*args, offsets, out=out.tensor, **options)
    assert out.untouched()
    assert nvfp4kern.grouped_dual_gemm(*args, offsets, **options).shape == (count, n)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_k_of_zero_gives_zero(device, activation):
    shapes = (5, 0), (2, 6, 0), (5, 0), (2, 6, 0)
    args = [torch.zeros(shape, dtype=torch.uint8, device=device) for shape in shapes]
    got = run(
        nvfp4kern.grouped_dual_gemm, *args, int32([1, 2, 5], device), shape=(5, 3), device=device,
        activation=activation,
    )  # fmt: skip
    assert (got[0] == POISON).all() and (got[1:] == 0).all()


# ---------------------------------------------------------------------------------------------
# Tiles of Hopper
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", tiles_of("sm90/gemm", "grouped_dual_gemm"))
def test_wgmma_tiles_take_rows(gpu, tile, monkeypatch):
    if gpu.name != "sm90":
        pytest.skip("tiles of another row")
    monkeypatch.setenv("NVFP4KERN_TILE", f"sm90/gemm:{tile}")
    rng, device, offsets, tokens, per_token = rng_of(19), gpu.device, [0, 5, 5, 44], 140, 3
    for form_a, form_b, n in (("linear", "blocked", 128), ("blocked", "linear", 70)):
        a = Tokens(rng, device, tokens, 320, form=form_a)
        stack = Stack(rng, device, 3, n, 320, form=form_b)
        rows = drawn(rng, offsets, 47, tokens, per_token)
        options = {"rows": from_numpy(rows, device), "rows_per_token": per_token}
        got = run_experts(
            a.tensor, a.sf, stack, offsets, form=form_a, count=47, dtype="bfloat16", **options
        )
        token = np.clip(rows // per_token, 0, tokens - 1)
        check_rows(got, offsets, stack.expect(a.values[token], c=gpu.c), "bfloat16")


def test_hopper_leaves_ups_within_an_atom_to_sm80(gpu, monkeypatch):
    if gpu.name != "sm90":
        pytest.skip("tiles of another row")
    rng, device = rng_of(20), gpu.device
    a = data.exact_family(rng, 4, 64)
    args = codes(a, device), scales(a, "linear", rng, device)
    for n, form, served in ((64, "linear", True), (64, "blocked", False), (128, "blocked", True)):
        stack = Stack(rng, device, 1, n, 64, form=form)
        call = (
            "grouped_dual_gemm", args[0], stack.codes, args[1], stack.sf, int32([0, 4], device)
        )  # fmt: skip
        plan = nvfp4kern.explain(*call, scale_layout=("linear", form))
        assert plan["backend"] == ("sm90" if served else "sm80")
        assert served == ("declined" not in plan)
        if not served:
            assert "N is no multiple of 128" in plan["declined"]
            monkeypatch.setenv("NVFP4KERN_TILE", "sm90/gemm:v8")
            with pytest.raises(nvfp4kern.BackendError, match="N is no multiple of 128"):
                nvfp4kern.explain(*call, scale_layout=("linear", form))
            monkeypatch.delenv("NVFP4KERN_TILE")
