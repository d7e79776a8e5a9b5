"""quantize byte by byte against the float32 model; dequantize and the scale layouts."""

import numpy as np
import pytest
import torch
from generators import (
    DTYPES,
    ORDERS,
    SCALE_FORMS,
    Guarded,
    assert_ok,
    codes,
    every_half,
    floats,
    hostile,
    layout_of,
    raw,
    rng_of,
    run,
    scale_bytes,
    scales,
    unchanged,
    values,
)

import nvfp4kern
from nvfp4kern.verify import data, reference

SHAPES = [(1, 16), (3, 48), (17, 80), (130, 4176)]
S2_RANGE = [1e-45, 1.5e-42, 2.0**-127, 1.2e-38, 1e-10, 0.37, 1.0, 1e10, 1.7e38, 3.4028235e38]


gates = pytest.mark.parametrize("gated", (False, True), ids=("plain", "gated"))


def drawn(gated, dtype, *shape, seed):
    """x, and up where it is gated."""
    x, up = (data.halves(rng_of(seed, i), dtype, *shape) for i in range(2))
    return x, up if gated else None


def quantized(x, up, dtype, device, **options):
    given = floats(x, dtype, device), None if up is None else floats(up, dtype, device)
    with unchanged(given):
        return nvfp4kern.quantize(given[0], up=given[1], **options)


def check_bytes(
    q, x, global_scale=None, layout="linear", up=None, offsets=None, inverse=None, smallest_scale=0
):
    """q against the model of x, an array of float32 values."""
    want_codes, want_scales, s2 = reference.quantize(x, global_scale, up, inverse, smallest_scale)
    if offsets is not None:
        want_scales = reference.to_blocked_by_expert(want_scales, offsets)
    elif layout == "blocked":
        want_scales = reference.to_blocked(want_scales)
    np.testing.assert_array_equal(raw(q.data), want_codes)
    np.testing.assert_array_equal(raw(q.scales), want_scales)
    kept = q.global_scale.item() if hasattr(q.global_scale, "item") else q.global_scale
    assert np.float32(kept) == s2 or np.isnan(s2)
    return s2


@gates
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ("linear", "blocked"))
@pytest.mark.parametrize("rows, k", SHAPES)
def test_normal_data(device, rows, k, layout, dtype, gated):
    x, up = drawn(gated, dtype, rows, k, seed=1)
    for scale in (None, 0.013, "amax"):
        q = quantized(x, up, dtype, device, global_scale=scale, scale_layout=layout)
        check_bytes(q, x, scale, layout, up)
        assert isinstance(q.global_scale, torch.Tensor) == (scale == "amax")


@gates
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", (None, "amax", *S2_RANGE))
def test_hostile_data(device, scale, dtype, gated):
    x, up = hostile(rng_of(1), dtype), hostile(rng_of(4), dtype)[::-1] if gated else None
    check_bytes(quantized(x, up, dtype, device, global_scale=scale), x, scale, up=up)


@gates
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("smallest", (2.0**-9, 2.0**-6, 0.0123, 448))
def test_smallest_scale(device, smallest, dtype, gated):
    """Also of blocks of zeros; of those with NaN or infinities as without it; not of padding."""
    x, up = hostile(rng_of(1), dtype), hostile(rng_of(4), dtype)[::-1] if gated else None
    for scale in (None, "amax", 1e-45, 0.37, 3.4028235e38):
        for layout in ("linear", "blocked"):
            options = {"global_scale": scale, "scale_layout": layout}
            q = quantized(x, up, dtype, device, smallest_scale=smallest, **options)
            check_bytes(q, x, scale, layout, up, smallest_scale=smallest)


def test_smallest_scale_keeps_blocks_that_vanish(device):
    """On both sides of the threshold that the docstring states."""
    threshold = np.float32(6 * 2.0**-10)
    above = np.nextafter(threshold, np.float32(1))
    x = np.repeat(np.float32([[threshold, above, 2.0**-10, 2.0**-11]]), 16, axis=1)
    q = nvfp4kern.quantize(floats(x, "float32", device))
    np.testing.assert_array_equal(raw(q.scales), [[0, 1, 0, 0]])
    q = nvfp4kern.quantize(floats(x, "float32", device), smallest_scale=2**-9)
    got = values(nvfp4kern.dequantize(q, out_dtype="float32"))
    np.testing.assert_array_equal(got[0, ::16], np.float32([3, 3, 0.5, 0]) * 2**-9)


@pytest.mark.parametrize("scale", S2_RANGE)
def test_scale_in_an_array(device, scale):
    x = hostile(rng_of(2), "float32")
    s2 = floats([scale], "float32", device)
    with unchanged(s2):
        q = nvfp4kern.quantize(floats(x, "float32", device), global_scale=s2)
    check_bytes(q, x, scale)
    assert q.global_scale is s2


@pytest.mark.parametrize("scale", (np.nan, np.inf, -np.inf, -1.0, -1e-45))
def test_a_scale_that_is_none_poisons_every_block(device, scale):
    x = hostile(rng_of(3), "float32")
    s2 = floats([scale], "float32", device)
    q = nvfp4kern.quantize(floats(x, "float32", device), global_scale=s2)
    assert (raw(q.scales) == 0x7F).all() and not raw(q.data).any()
    check_bytes(q, x, scale)


def test_a_scale_of_zero_in_an_array(device):
    x = hostile(rng_of(3), "float32")
    q = nvfp4kern.quantize(
        floats(x, "float32", device), global_scale=floats([0.0], "float32", device)
    )
    check_bytes(q, x, 0.0)


# fl(1 / fl(1 / S)) is not S of the first two.
INVERSES = (504.0, 1935.3601, 1.0, 2688.0, 3.4028235e38, 1.1754944e-38, 2.0**-127, 1.4e-45)


@gates
@pytest.mark.parametrize("inverse", INVERSES)
def test_an_inverse_is_taken_as_it_is(device, inverse, gated):
    x, up = drawn(gated, "float32", 9, 256, seed=5)
    inverse = float(np.float32(inverse))
    for given in (inverse, floats([inverse], "float32", device)):
        q = quantized(x, up, "float32", device, global_scale_inverse=given)
        with np.errstate(all="ignore"):
            check_bytes(q, x, up=up, inverse=inverse)
    one = floats([3.0], "float32", device)
    both = quantized(x, up, "float32", device, global_scale=one, global_scale_inverse=inverse)
    assert both.global_scale is one
    np.testing.assert_array_equal(raw(both.data), raw(q.data))


@pytest.mark.parametrize("inverse", (np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0))
def test_inverses_that_an_array_may_hold(device, inverse):
    x = hostile(rng_of(3), "float32")
    given = floats([inverse], "float32", device)
    with np.errstate(all="ignore"):
        q = nvfp4kern.quantize(floats(x, "float32", device), global_scale_inverse=given)
        check_bytes(q, x, inverse=inverse)


@pytest.mark.parametrize("options, message", (
    ({"global_scale": "amax", "global_scale_inverse": 2.0}, "given, expected None with global_sc"),
    ({"global_scale": "token", "global_scale_inverse": 2.0}, "given, .* with global_scale='token'"),
    ({"global_scale_inverse": 0.0}, "0.0, expected a finite number above 0"),
    ({"global_scale_inverse": 1e-46}, "1e-46, expected a finite number above 0"),
    ({"global_scale_inverse": np.inf}, "inf, expected a finite number above 0"),
    ({"global_scale_inverse": torch.ones(2)}, r"shape \(2,\)"),
))  # fmt: skip
def test_wrong_inverses(options, message):
    with pytest.raises(ValueError, match=f"global_scale_inverse: {message}"):
        nvfp4kern.quantize(torch.ones(2, 16), **options)


LEAST_AMAX = 2.0**-128 * 2688  # S is clamped below it


@pytest.mark.parametrize("magnitude", (0.0, 1.4e-45, 1e-41, 1e-38, LEAST_AMAX, 1e-30, 1e30, 3.4e38))
def test_amax_at_both_ends(device, magnitude):
    around = (np.nextafter(np.float32(magnitude), np.float32(end)) for end in (0, 1e38))
    for amax in (np.float32(magnitude), *around):
        x = (rng_of(4).uniform(-1, 1, (9, 64)) * amax).astype(np.float32)
        x.flat[7] = amax
        q = nvfp4kern.quantize(floats(x, "float32", device), global_scale="amax")
        assert values(q.global_scale).reshape(()) == check_bytes(q, x, "amax")


@pytest.mark.parametrize("value", (1.8e-38, 1e-37, LEAST_AMAX / 2, LEAST_AMAX, 2 * LEAST_AMAX))
def test_tiny_values_come_back(device, value):
    x = np.full((2, 32), value, np.float32)
    q = nvfp4kern.quantize(floats(x, "float32", device), global_scale="amax")
    got = values(nvfp4kern.dequantize(q, out_dtype="float32"))
    np.testing.assert_allclose(got, x, rtol=1 / 16)  # half a step of a scale factor


def test_amax_passes_over_infinity_and_nan(device):
    x = data.halves(rng_of(5), "float32", 4, 64)
    clean = nvfp4kern.quantize(floats(x, "float32", device), global_scale="amax")
    x[1, 0], x[2, 17] = np.inf, np.nan
    q = nvfp4kern.quantize(floats(x, "float32", device), global_scale="amax")
    assert torch.equal(q.global_scale, clean.global_scale)
    check_bytes(q, x, "amax")
    np.testing.assert_array_equal(raw(q.data)[[0, 3]], raw(clean.data)[[0, 3]])


@pytest.mark.parametrize("bad", (np.inf, -np.inf, np.nan))
def test_amax_of_nothing_finite(device, bad):
    x = np.full((2, 16), bad, np.float32)
    q = nvfp4kern.quantize(floats(x, "float32", device), global_scale="amax")
    assert check_bytes(q, x, "amax") == 1 == float(q.global_scale)


@pytest.mark.parametrize("scale", (None, "amax", 1e-45, 2.0**-127, 0.37, 1e10, 3.4028235e38))
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_every_half(device, dtype, scale):
    x = every_half(dtype)
    check_bytes(nvfp4kern.quantize(floats(x, dtype, device), global_scale=scale), x, scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_with_every_scale_factor(device, dtype):
    """Every byte of codes in every row, whose number is its scale factors' byte."""
    row = np.arange(256, dtype=np.uint8)
    every = data.Operand(np.tile(row, (256, 1)), np.repeat(row[:, None], 32, 1))
    for s2 in (None, 0.37):
        q = codes(every, device), scale_bytes(every.scales, device), s2
        got = nvfp4kern.dequantize(q, out_dtype=dtype)
        want = reference.dequantize(every.codes, every.scales, s2)
        assert_ok(reference.check_bits(values(got), reference.round_to(want, dtype)))


def test_every_tie_goes_to_even(device):
    """Scale 1 by an element of 6; all values between codes, on the ties and next to them."""
    ties = (reference.E2M1[:-1] + reference.E2M1[1:]) / 2
    around = np.stack([ties, np.nextafter(ties, 0), np.nextafter(ties, 9)]).astype(np.float32)
    around[1:] = np.nextafter(around[0], np.float32([[0], [9]]), dtype=np.float32)
    x = np.zeros((2, 64), np.float32)
    x[:, ::16] = 6
    x[0, np.arange(64) % 16 > 8] = np.resize(around, 28)
    x[1] = -x[0]
    q = nvfp4kern.quantize(floats(x, "float32", device))
    check_bytes(q, x)
    got = reference.decode_e2m1(raw(q.data))
    np.testing.assert_array_equal(np.abs(got[0, 9:16]), [0, 1, 1, 2, 2, 4, 4])


def test_every_tie_of_the_scale_goes_to_even(device):
    """Block maxima halfway between 6 times neighbouring scales."""
    middle = (reference.E4M3[:126] + reference.E4M3[1:127]) / 2 * 6
    steps = [np.float32(middle), np.nextafter(np.float32(middle), np.float32(0))]
    x = np.zeros((126, 3 * 16), np.float32)
    x[:, 0], x[:, 16] = steps
    x[:, 32] = np.nextafter(np.float32(middle), np.float32(1e9))
    check_bytes(nvfp4kern.quantize(floats(x, "float32", device)), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_denormals_survive_a_caller_that_flushes_them(device, dtype):
    x = hostile(rng_of(6), dtype)
    given, scale_of = floats(x, dtype, device), (None, "amax", 1e-45)
    want = [reference.quantize(x, s) for s in scale_of]
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    try:
        got = [nvfp4kern.quantize(given, global_scale=s) for s in scale_of]
        assert torch.tensor([1e-40]).mul(1).item() == 0  # the caller's mode is still on
    finally:
        torch.set_flush_denormal(False)
    for q, (want_codes, want_scales, _) in zip(got, want, strict=True):
        np.testing.assert_array_equal(raw(q.data), want_codes)
        np.testing.assert_array_equal(raw(q.scales), want_scales)


@gates
@pytest.mark.parametrize("layout", ("linear", "blocked"))
def test_batches_and_other_strides(device, layout, gated):
    """x and up as halves of one projection; batches that lie otherwise; odd addresses; steps."""
    both, options = hostile(rng_of(7), "float32", 120).reshape(3, 40, 256), {"global_scale": "amax"}
    given, options = floats(both, "float32", device), options | {"scale_layout": layout}
    turned = floats(both.swapaxes(0, 1), "float32", device).transpose(0, 1)
    places = np.s_[..., :128], np.s_[..., 128:], np.s_[0, :, 1:129], np.s_[1, ::3]
    for x, up, at, up_at in [
        (given, given, places[0], places[1]),
        (turned, given, np.s_[:], np.s_[:]),
        (given, turned, np.s_[:], np.s_[:]),
        (given, given, places[2], np.s_[0, :, :128]),
        (given, given, np.s_[0, :, :128], places[2]),
        (given, given, places[3], np.s_[2, ::3]),
    ]:
        q = nvfp4kern.quantize(x[at], up=up[up_at] if gated else None, **options)
        check_bytes(q, both[at], "amax", layout, both[up_at] if gated else None)


@gates
@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (0, 3, 32), (2, 0, 0)], ids=str)
@pytest.mark.parametrize("layout", ("linear", "blocked"))
def test_empty(device, shape, layout, gated):
    x = np.zeros(shape, np.float32)
    up = x if gated else None
    q = quantized(x, up, "float32", device, global_scale="amax", scale_layout=layout)
    assert check_bytes(q, x, "amax", layout, up) == 1


@gates
@pytest.mark.parametrize("layout", ("linear", "blocked"))
def test_given_outputs(device, layout, gated):
    x, up = hostile(rng_of(9), "float32", 130, 80), hostile(rng_of(8), "float32", 130, 80)
    up = up if gated else None
    shape, order = ((130, 5), "padded rows") if layout == "linear" else ((256, 8), "row")
    outs = [
        Guarded((130, 40), torch.uint8, device, "padded rows"),
        Guarded(shape, torch.uint8, device, order),
        Guarded((1,), torch.float32, device),
    ]
    options = {"global_scale": "amax", "scale_layout": layout, "out": [o.tensor for o in outs]}
    q = quantized(x, up, "float32", device, **options)
    assert all(got is out.tensor for got, out in zip(q, outs, strict=True))
    assert all(out.guards_intact() for out in outs)
    check_bytes(q, x, "amax", layout, up)


@gates
@pytest.mark.parametrize("scale", (None, "amax"))
@pytest.mark.parametrize(
    "offsets", ([0, 40], [0, 0, 3, 3, 200], [5, 130, 131, 131, 300], [0] * 6, [300, 300])
)
def test_an_atom_row_for_every_expert(device, offsets, scale, gated):
    x, up = drawn(gated, "bfloat16", 300, 96, seed=10)
    where = torch.tensor(offsets, dtype=torch.int32, device=device)
    options = {"global_scale": scale, "scale_layout": "blocked", "offsets": where}
    q = quantized(x, up, "bfloat16", device, **options)
    check_bytes(q, x, scale, up=up, offsets=offsets)


@gates
def test_numpy(device, gated):
    if device != "cpu":
        pytest.skip("NumPy arrays live on the CPU")
    for dtype in ("float16", "float32"):
        x, up = hostile(rng_of(11), dtype), hostile(rng_of(12), dtype) if gated else None
        given = [part if part is None else part.astype(dtype) for part in (x, up)]
        q = nvfp4kern.quantize(given[0], up=given[1], global_scale="amax")
        assert all(type(part) is np.ndarray for part in q)
        check_bytes(q, x, "amax", up=up)


# --- dequantize ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", SCALE_FORMS)
@pytest.mark.parametrize("batch", (None, 2))
def test_dequantize(device, form, dtype, batch):
    rng = rng_of(12)
    operand = data.full_range(rng, *(() if batch is None else (batch,)), 33, 112)
    operand.scales[..., 3, 2] = 0x7F
    operand.scales[..., 4, :] |= 0x80
    for s2 in (None, 1.0, 0.37, floats([-3e38], "float32", device), 1e-45):
        factor = None if s2 is None else float(s2)
        want = reference.round_to(
            reference.dequantize(operand.codes, operand.scales, factor), dtype
        )
        got = run(
            nvfp4kern.dequantize,
            (codes(operand, device), scales(operand, form, rng, device), s2),
            shape=want.shape,
            device=device,
            dtype=dtype,
            scale_layout=layout_of(form),
        )
        assert_ok(reference.check_bits(got, want), s2)


@pytest.mark.parametrize("order", ORDERS)
def test_dequantize_output_orders(device, order):
    operand = data.full_range(rng_of(13), 2, 5, 48)
    q = codes(operand, device), scale_bytes(operand.scales, device), None
    got = run(nvfp4kern.dequantize, q, shape=(2, 5, 48), device=device, order=order)
    assert_ok(reference.check_bits(got, reference.round_to(operand.values, "float16")))


@pytest.mark.parametrize("dtype", (None, *DTYPES))
def test_what_quantize_made_comes_back(device, dtype):
    operand = data.exact_family(rng_of(14), 20, 64)
    operand.codes[..., ::8] |= 0x07  # every block reaches 6: the scale is the only choice
    x = reference.round_to(operand.values, "float16")
    q = nvfp4kern.quantize(floats(x, "float16", device))
    got = nvfp4kern.dequantize(q, **({"out_dtype": dtype} if dtype else {}))
    assert got.dtype == getattr(torch, dtype or "float16") and got.shape == (20, 64)
    np.testing.assert_array_equal(values(got), x)


# --- Scale layouts ---


@pytest.mark.parametrize("rows, cols", [(1, 1), (128, 4), (129, 5), (300, 17), (0, 3), (3, 0)])
@pytest.mark.parametrize("batch", (None, 3))
@pytest.mark.parametrize("native", (True, False))
def test_to_blocked_and_back(device, rows, cols, batch, native):
    lead = () if batch is None else (batch,)
    array = rng_of(rows, cols).integers(0, 256, (*lead, rows, cols), np.uint8)
    given = scale_bytes(array, device, native)
    blocked = nvfp4kern.to_blocked(given)
    assert blocked.dtype == given.dtype
    np.testing.assert_array_equal(raw(blocked), reference.to_blocked(array))
    back = nvfp4kern.from_blocked(blocked, rows, cols)
    assert back.dtype == given.dtype
    np.testing.assert_array_equal(raw(back), array)


@pytest.mark.parametrize("form", ("blocked", "flat", "permuted"))
@pytest.mark.parametrize("batch", (None, 2))
def test_from_blocked_passes_over_padding(device, form, batch):
    lead = () if batch is None else (batch,)
    operand = data.full_range(rng_of(15), *lead, 130, 80)
    buffer = scales(operand, form, rng_of(16), device)
    if form == "flat" and batch:
        buffer = buffer.view(torch.uint8).reshape(batch, -1, 8)
    got = nvfp4kern.from_blocked(buffer, 130, 5)
    np.testing.assert_array_equal(raw(got), operand.scales)


def test_to_blocked_into_a_given_buffer(device):
    array = rng_of(17).integers(0, 256, (130, 5), np.uint8)
    wide = torch.zeros((130, 9), dtype=torch.uint8, device=device)
    wide[:, 2:7] = torch.from_numpy(array)
    out = Guarded((256, 8), torch.uint8, device)
    assert nvfp4kern.to_blocked(wide[:, 2:7], out=out.tensor) is out.tensor
    assert out.guards_intact()
    np.testing.assert_array_equal(raw(out.tensor), reference.to_blocked(array))
    back = Guarded((130, 5), torch.uint8, device, "padded rows")
    assert nvfp4kern.from_blocked(out.tensor, 130, 5, out=back.tensor) is back.tensor
    assert back.guards_intact()
    np.testing.assert_array_equal(raw(back.tensor), array)
