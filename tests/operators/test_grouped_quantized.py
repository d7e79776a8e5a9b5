"""grouped_gemm and grouped_dual_gemm with quantized=True: the bytes of quantize, made of float32
products."""

import numpy as np
import pytest
import torch
from encoded_calls import UNWRITTEN, check_bytes, check_interval, encode
from expert_calls import OFFSETS, Matrices, Stack, Tokens, alphas_of, drawn, int32, interleaved
from generators import INFINITE, Guarded, floats, from_numpy, raw, rng_of, scales
from rows import tiles_of

import nvfp4kern
from nvfp4kern.verify import data, encoded, reference

OPERATORS = (Matrices, Stack)
OF = {"ids": lambda value: getattr(value, "name", None)}
operators = pytest.mark.parametrize("experts", OPERATORS, **OF)

# --- Bytes ---


@operators
@pytest.mark.parametrize("case", OFFSETS)
@pytest.mark.parametrize("form_b", ("linear", "blocked"))
@pytest.mark.parametrize("form_a", ("linear", "blocked"))
def test_exact_sums_give_the_bytes_of_quantize(device, experts, case, form_a, form_b):
    rng, offsets = rng_of(1), OFFSETS[case]
    a = Tokens(rng, device, max(offsets) + 5, 48)
    stack = experts(rng, device, len(offsets) - 1, 48, 48, form=form_b)
    if form_a == "blocked":
        a.block_by_expert(offsets, rng)
    got = encode(a, stack, offsets)
    check_bytes(got, offsets, a.values, stack)


@operators
@pytest.mark.any_path
@pytest.mark.parametrize("n", (0, 16, 32, 64, 80, 112, 128, 144, 192))
def test_any_number_of_blocks(device, experts, n):
    rng, offsets, k = rng_of(2, n), [1, 4, 4, 21], 144
    a, stack = Tokens(rng, device, 23, k), experts(rng, device, 3, n, k)
    got = encode(a, stack, offsets)
    if n:
        check_bytes(got, offsets, a.values, stack)


@operators
@pytest.mark.any_path
@pytest.mark.parametrize("scale", (None, 0.02, 3, 1e-30, 1e30, np.float32(0.3)))
def test_global_scales(device, experts, scale):
    rng, offsets = rng_of(3), [0, 9, 9, 40]
    a, stack = Tokens(rng, device, 40, 64), experts(rng, device, 3, 32, 64)
    given = (
        floats(np.float32([scale]), "float32", device) if isinstance(scale, np.float32) else scale
    )
    args = a, stack, offsets
    check_bytes(encode(*args, global_scale=given), offsets, a.values, stack, scale)


@operators
@pytest.mark.any_path
@pytest.mark.parametrize("inverse", (504.0, 1935.3601, np.float32(1935.3601)))
def test_an_inverse_is_taken_as_it_is(device, experts, inverse):
    rng, offsets = rng_of(3), [0, 9, 9, 40]
    a, stack = Tokens(rng, device, 40, 64), experts(rng, device, 3, 32, 64)
    number = float(np.float32(inverse))
    array = isinstance(inverse, np.float32)
    given = floats([number], "float32", device) if array else number
    got = encode(a, stack, offsets, global_scale_inverse=given)
    check_bytes(got, offsets, a.values, stack, inverse=number)


@operators
@pytest.mark.any_path
@pytest.mark.parametrize("scale", (np.inf, -np.inf, np.nan, -1.0, 0.0, -0.0, 1e-45))
def test_global_scales_that_an_array_may_hold(device, experts, scale):
    """Where S is not above 0, every scale factor is NaN and every code 0."""
    rng, offsets = rng_of(4), [0, 7]
    a, stack = Tokens(rng, device, 7, 32), experts(rng, device, 1, 16, 32)
    got = encode(a, stack, offsets, global_scale=floats(np.float32([scale]), "float32", device))
    with np.errstate(all="ignore"):
        check_bytes(got, offsets, a.values, stack, np.float32(scale))


@pytest.mark.any_path
@pytest.mark.parametrize("kind", ("float", "expert", "pair", "row"))
def test_alphas(device, kind):
    """Powers of two: alphas that leave sums exact."""
    rng, offsets, n = rng_of(5), [0, 9, 9, 40], 48
    a, stack = Tokens(rng, device, 40, 64), Stack(rng, device, 3, n, 64)
    given, alpha1, alpha2 = alphas_of(kind, rng, 3, n)
    two = np.vectorize(lambda x: np.float32(2.0) ** np.round(np.log2(abs(x) * 1e4)))
    given, alpha1, alpha2 = two(given), two(alpha1), two(alpha2)
    given = float(given) if kind == "float" else floats(given, "float32", device)
    got = encode(a, stack, offsets, alpha=given, global_scale=0.125)
    check_bytes(got, offsets, a.values, stack, 0.125, (alpha1, alpha2))


@pytest.mark.any_path
@pytest.mark.parametrize(
    "form, gate_up", [("linear", "halves"), ("blocked", "halves"), ("linear", "interleaved")]
)
@pytest.mark.parametrize("offsets", ([0, 9, 9, 40], [0, 2, 2, 5]), ids=str)
def test_biases(device, offsets, form, gate_up):
    """Sums with them are exact, too."""
    rng, n = rng_of(10), 48
    a, stack = Tokens(rng, device, 40, 64), Stack(rng, device, 3, n, 64, form=form)
    bias = rng.integers(-9, 10, (3, 2 * n)).astype(np.float32)
    given = floats(bias, "float16", device)
    if gate_up == "interleaved":
        stack.interleave()
        given = interleaved(given)
    got = encode(a, stack, offsets, bias=given, gate_up=gate_up, global_scale=0.125)
    check_bytes(got, offsets, a.values, stack, 0.125, bias=bias)


@operators
@pytest.mark.any_path
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_16_bit_tokens(device, experts, dtype):
    rng, offsets = rng_of(6), [3, 10, 10, 41]
    a = Tokens(rng, device, 45, 80, kind="W4A16", dtype=dtype)
    stack = experts(rng, device, 3, 32, 80)
    got = encode(a, stack, offsets, global_scale=0.5)
    check_bytes(got, offsets, a.values, stack, 0.5)


@operators
@pytest.mark.any_path
@pytest.mark.parametrize("form", ("linear", "blocked"))
@pytest.mark.parametrize("per_token", (1, 3))
def test_rows(device, experts, form, per_token):
    """Rows of nobody hold what names no token."""
    rng, offsets, count = rng_of(7, per_token), [0, 129, 130, 300], 301
    a = Tokens(rng, device, 140, 48, form=form)
    stack = experts(rng, device, 3, 32, 48)
    rows = drawn(rng, offsets, count, 140, per_token)
    by_index = {"rows": from_numpy(rows, device), "rows_per_token": per_token}
    got = encode(a, stack, offsets, count=count, global_scale=0.25, **by_index)
    check_bytes(got, offsets, a.of(rows // per_token), stack, 0.25)


@operators
@pytest.mark.parametrize("alpha, scale", [(1.0, 1e4), (1e-5, None), (1e-5, 1e-5)])
def test_full_range_is_within_the_bound_of_the_sums(backend, experts, alpha, scale):
    """Where sums round a code may be its neighbour, and no other."""
    rng, device, offsets = rng_of(8), backend.device, [0, 9, 9, 40]
    a = Tokens(rng, device, 41, 304, make=data.full_range)
    stack = experts(rng, device, 3, 48, 304, make=data.full_range)
    got = encode(a, stack, offsets, alpha=alpha, global_scale=scale)
    expected = stack.expect(a.values, alpha=alpha, c=backend.c)
    check_interval(got, offsets, expected, scale)


def test_the_check_of_intervals_notices_a_step():
    rng = rng_of(19)
    exact = rng.standard_normal((3, 32)).astype(np.float32).astype(np.float64)
    around = reference.Expected(exact * (1 - 1e-6), exact, exact * (1 + 1e-6))
    codes, scales, _ = reference.quantize(exact, 0.5)
    assert encoded.check(codes, scales, around, 0.5) is None
    wrong = codes.copy()
    wrong[1, 9] ^= 0x20
    assert encoded.check(wrong, scales, around, 0.5)[0] == "code"
    scales[2, 1] += 1
    assert encoded.check(codes, scales, around, 0.5) == ("scale factor", (2, 1))


def test_the_bytes_of_quantize_of_our_own_sums_on_the_cpu(device):
    """There a sum has the same bits whatever is made of it, as long as no row is alone."""
    if device != "cpu":
        pytest.skip("GPUs may add in another order")
    rng, offsets, n = rng_of(9), [0, 9, 9, 40], 48
    a = Tokens(rng, device, 40, 304, make=data.full_range)
    stack = Stack(rng, device, 3, n, 304, make=data.full_range)
    args, options = stack.call(a.tensor, a.sf, offsets, alpha=1e-4)
    got = nvfp4kern.grouped_dual_gemm(*args, **options, quantized=True, global_scale=0.01)
    sums = nvfp4kern.grouped_gemm(*args, **options, out_dtype="float32")
    want = nvfp4kern.quantize(sums[:, :n], up=sums[:, n:], global_scale=0.01)
    np.testing.assert_array_equal(raw(got.data), raw(want.data))
    np.testing.assert_array_equal(raw(got.scales), raw(want.scales))


# --- NaN, infinities, zeros ---


@pytest.mark.any_path
@pytest.mark.parametrize("experts, row", [(Matrices, 20), (Stack, 20), (Stack, 48 + 20)], **OF)
def test_a_nan_scale_of_a_row_poisons_exactly_its_blocks(device, experts, row):
    rng, offsets = rng_of(10), [0, 10, 20]
    a, stack = Tokens(rng, device, 20, 32), experts(rng, device, 2, 48, 32)
    args = a, stack, offsets
    clean = encode(*args)
    stack.operand.scales[1, row, 0] = 0x7F
    stack.sf = scales(stack.operand, "linear", rng, device)
    got = encode(*args)
    want = tuple(part.copy() for part in clean)
    want[0][10:, 8:16], want[1][10:, 1] = 0, 0x7F
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])


@operators
def test_infinities(device, experts):
    """Products beyond fp32: the scale factor is 448, the infinity's code 6 with its sign."""
    rng, offsets = rng_of(11), [0, 20]
    a, stack = Tokens(rng, device, 20, 64), experts(rng, device, 1, 32, 64)
    alpha = 2.0 ** (200 / stack.parts - 80 * (stack.parts == 1))
    got = encode(a, stack, offsets, alpha=alpha, global_scale=1e30)
    check_bytes(got, offsets, a.values, stack, 1e30, (alpha, alpha))
    assert (got[1] == 0x7E).any()


@pytest.mark.any_path
@pytest.mark.parametrize("kind", Stack.kinds)
@operators
@pytest.mark.parametrize("offsets", ([0, 1, 1, 2], [0, 9, 9, 140]), ids=str)
def test_infinite_sums(device, offsets, experts, kind):
    """silu(-inf) is -0 here. Each block has one sort of gates, and others between them."""
    rng, n = rng_of(20), 16 * len(INFINITE)
    a = Tokens(rng, device, offsets[-1], 64, kind=kind)
    stack = experts(rng, device, 3, n, 64)
    alpha1, alpha2 = np.resize(np.float32([1e-3, 1]), (3, n)), np.ones((3, n), np.float32)
    alpha1[:, ::2] = np.repeat(INFINITE, 8)
    alphas = (alpha1, alpha2)[: stack.parts]
    given = floats(np.concatenate(alphas, axis=1), "float32", device)
    got = encode(a, stack, offsets, alpha=given, activation="silu")
    check_bytes(got, offsets, a.values, stack, alphas=alphas, activation="silu")
    assert set(np.unique(got[1])) > {0x7E, 0x7F}  # infinities and NaN, and finite blocks


@operators
@pytest.mark.any_path
def test_k_of_zero_gives_zero(device, experts):
    b = 2, 16 * experts.parts, 0
    shapes = (5, 0), b, (5, 0), b
    args = [torch.zeros(shape, dtype=torch.uint8, device=device) for shape in shapes]
    out = (
        torch.full((5, 8), 9, dtype=torch.uint8, device=device),
        torch.full((5, 1), 9, dtype=torch.uint8, device=device),
    )
    options = {"offsets": int32([1, 2, 5], device), "quantized": True, "out": out}
    getattr(nvfp4kern, experts.name)(*args, **options)
    for part in out:
        assert (part[0] == 9).all() and (part[1:] == 0).all()


# --- Addresses, new outputs, nothing to do ---


@operators
@pytest.mark.any_path
@pytest.mark.parametrize("shift", (1, 2, 7))
def test_outputs_at_any_address(device, experts, shift):
    rng, offsets = rng_of(12), [0, 3, 7]
    a, stack = Tokens(rng, device, 7, 80), experts(rng, device, 2, 48, 80)
    wide = torch.full((7, 24 + 3 + 13), UNWRITTEN, dtype=torch.uint8, device=device)
    out = wide[:, shift : shift + 24], wide[:, shift + 24 : shift + 27]
    stack.new(a.tensor, a.sf, offsets, quantized=True, out=out)
    check_bytes(tuple(map(raw, out)), offsets, a.values, stack)
    rest = np.delete(raw(wide), np.arange(shift, shift + 27), axis=1)
    assert (rest == UNWRITTEN).all()


@operators
@pytest.mark.any_path
@pytest.mark.parametrize("data_dtype", (None, "uint8", torch.uint8))
def test_new_outputs(device, experts, data_dtype):
    rng, offsets = rng_of(13), [0, 5, 12]
    a, stack = Tokens(rng, device, 12, 48), experts(rng, device, 2, 32, 48)
    scale = floats(np.float32([0.5]), "float32", device)
    given = {"global_scale": scale, "data_dtype": data_dtype}
    got = stack.new(a.tensor, a.sf, offsets, quantized=True, **given)
    assert isinstance(got, nvfp4kern.NVFP4) and got.global_scale is scale
    assert got.data.dtype == (torch.uint8 if data_dtype else torch.float4_e2m1fn_x2)
    assert got.scales.dtype == torch.float8_e4m3fn
    assert got.data.shape == (12, 16) and got.scales.shape == (12, 2)
    check_bytes((raw(got.data), raw(got.scales)), offsets, a.values, stack, 0.5)
    one = torch.empty(12, 16, dtype=torch.uint8, device=device)
    half = stack.new(a.tensor, a.sf, offsets, quantized=True, out=(one, None))
    assert half.data is one and half.global_scale == 1.0 and half.scales.shape == (12, 2)


@operators
def test_numpy(device, experts):
    if device != "cpu":
        pytest.skip("NumPy arrays live on the CPU")
    rng = rng_of(14)
    a, stack = Tokens(rng, device, 6, 48), experts(rng, device, 1, 16, 48)
    x, b = a.operand, stack.operand
    arrays, offsets = (x.codes, b.codes, x.scales, b.scales), np.int32([0, 6])
    got = getattr(nvfp4kern, stack.name)(*arrays, offsets=offsets, quantized=True)
    assert type(got.data) is np.ndarray and got.data.shape == (6, 8)
    check_bytes((raw(got.data), raw(got.scales)), [0, 6], a.values, stack)


@operators
@pytest.mark.any_path
@pytest.mark.parametrize(
    "tokens, groups, n, rows",
    [(0, 3, 16, None), (5, 0, 16, None), (5, 2, 0, None), (0, 2, 16, 5), (4, 2, 16, 0)],
)
def test_empty(device, experts, tokens, groups, n, rows):
    b = groups, experts.parts * n
    shapes = (tokens, 16), (*b, 16), (tokens, 2), (*b, 2)
    args = [torch.zeros(shape, dtype=torch.uint8, device=device) for shape in shapes]
    count = tokens if rows is None else rows
    options = {} if rows is None else {"rows": int32([-1] * rows, device)}
    out = [Guarded((count, n // of), torch.uint8, device) for of in (2, 16)]
    options |= {"offsets": int32([0] * (groups + 1), device), "quantized": True}
    getattr(nvfp4kern, experts.name)(*args, out=[item.tensor for item in out], **options)
    assert out[0].untouched() and out[1].untouched()


# --- Refusals ---


@operators
@pytest.mark.parametrize("options, message", [
    ({"global_scale": "amax"}, "global_scale: 'amax', expected None, a number or a tensor"),
    ({"global_scale": 0.0}, "global_scale: 0.0, expected a finite number above 0"),
    ({"global_scale": torch.ones(2)}, r"global_scale: shape \(2,\)"),
    ({"out_dtype": "float16"}, "out_dtype: 'float16', expected None with quantized=True"),
    ({"quantized": False, "global_scale": 1.0}, "global_scale: given, expected None unless"),
    ({"quantized": False, "global_scale_inverse": 1.0}, "global_scale_inverse: given, expected"),
    ({"quantized": False, "data_dtype": "uint8"}, "data_dtype: given, expected None unless"),
    ({"out": (None, None, None)}, r"out: 3 items, expected \(data, scales\)"),
    ({"out": (torch.zeros(7, 8, dtype=torch.uint8), None)}, r"out\[0\]: shape \(7, 8\)"),
    ({"out": (None, torch.zeros(6, 2, dtype=torch.uint8))}, r"out\[1\]: shape \(6, 2\)"),
    ({"out": (torch.zeros(8, 6, dtype=torch.uint8).T, None)}, r"out\[0\]: stride 6 along K"),
])  # fmt: skip
def test_refusals(experts, options, message):
    rng = rng_of(15)
    a, stack = Tokens(rng, "cpu", 6, 48), experts(rng, "cpu", 1, 16, 48)
    with pytest.raises(ValueError, match=message):
        stack.new(a.tensor, a.sf, [0, 6], **{"quantized": True} | options)


@operators
def test_n_is_whole_blocks(experts):
    rng = rng_of(16)
    a, stack = Tokens(rng, "cpu", 6, 48), experts(rng, "cpu", 1, 24, 48)
    shape = rf"\(1, {24 * stack.parts}, 24\)"
    with pytest.raises(ValueError, match=f"b: shape {shape}, expected N to be a multiple of 16"):
        stack.new(a.tensor, a.sf, [0, 6], quantized=True)


@operators
@pytest.mark.any_path
def test_no_output_shares_memory(device, experts):
    rng = rng_of(17)
    a, stack = Tokens(rng, device, 6, 64), experts(rng, device, 1, 32, 64)
    one = torch.zeros(6, 16 + 2, dtype=torch.uint8, device=device)
    x, sf = (t.view(torch.uint8) for t in (a.tensor, a.sf))
    for out in ((x[:, :16], None), (None, sf[:, :2]), (one[:, :16], one[:, 15:17])):
        with pytest.raises(ValueError, match="shares memory|overlaps"):
            stack.new(a.tensor, a.sf, [0, 6], quantized=True, out=out)


# --- Tiles of Hopper ---


@pytest.mark.parametrize(
    "tile, row_limit",
    [(tile, "") for tile in tiles_of("sm90/gemm", "grouped_dual_gemm")] + [("v16", "50")],
)
def test_wgmma_tiles(gpu, tile, row_limit, monkeypatch):
    """Blocks at the end of a tile of 96 features, and rows of which a tile has none."""
    if gpu.name != "sm90":
        pytest.skip("tiles of another row")
    monkeypatch.setenv("NVFP4KERN_TILE", f"sm90/gemm:{tile}")
    monkeypatch.setenv("NVFP4KERN_ROW_LIMIT", row_limit)
    rng, device, offsets, per_token = rng_of(18), gpu.device, [0, 5, 5, 44, 180], 3
    for form_a, form_b, n in (("linear", "blocked", 128), ("blocked", "linear", 208)):
        a = Tokens(rng, device, 140, 320, form=form_a)
        stack = Stack(rng, device, 4, n, 320, form=form_b)
        rows = drawn(rng, offsets, 183, 140, per_token)
        by_index = {"rows": from_numpy(rows, device), "rows_per_token": per_token}
        got = encode(a, stack, offsets, count=183, global_scale=0.5, **by_index)
        check_bytes(got, offsets, a.of(rows // per_token), stack, 0.5)
        plan = stack.explain(a.tensor, a.sf, offsets, form=form_a, quantized=True)
        assert plan["backend"] == "sm90" and ("slices" in plan) == bool(row_limit)
