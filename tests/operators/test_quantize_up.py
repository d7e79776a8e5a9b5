"""quantize of silu(x) * up: silu against float64, then the bytes against the float32 model."""

import numpy as np
import pytest
import torch
from generators import DTYPES, Guarded, floats, hostile, raw, rng_of, unchanged, values

import nvfp4kern
from nvfp4kern.verify import data, reference


def quantized(x, up, dtype, device, **options):
    given = floats(x, dtype, device), floats(up, dtype, device)
    with unchanged(given):
        return nvfp4kern.quantize(given[0], up=given[1], **options)


def check_bytes(q, x, up, scale=None, layout="linear", offsets=None):
    want_codes, want_scales, s2 = reference.quantize(x, scale, up)
    if offsets is not None:
        want_scales = reference.to_blocked_by_expert(want_scales, offsets)
    elif layout == "blocked":
        want_scales = reference.to_blocked(want_scales)
    np.testing.assert_array_equal(raw(q.data), want_codes)
    np.testing.assert_array_equal(raw(q.scales), want_scales)
    if scale == "amax":
        assert values(q.global_scale).reshape(()) == s2


# ---------------------------------------------------------------------------------------------
# silu
# ---------------------------------------------------------------------------------------------


def every_float32(step):
    """Float32 values of both signs, from zero to infinity, `step` apart in their order."""
    bits = np.arange(0, 0x7F800001, step, dtype=np.uint32)
    return np.concatenate([bits, bits | 0x80000000]).view(np.float32)


def test_silu_is_within_two_units():
    x = np.concatenate([every_float32(2039), np.linspace(-104, 40, 1_000_003, dtype=np.float32)])
    x = x[np.isfinite(x)]
    wide = x.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        want, got = wide / (1 + np.exp(-wide)), reference.silu(x).astype(np.float64)
    unit = np.ldexp(1.0, np.maximum(np.frexp(want)[1], -125) - 24)
    error = np.abs(got - want) / unit
    assert error[np.abs(want) >= reference.FLT_MIN].max() <= 2
    assert error.max() <= 2


def test_silu_at_the_ends():
    x = np.float32([0.0, -0.0, np.inf, -np.inf, 3.4e38, -3.4e38, -110, -129, 1e-45, 200])
    with np.errstate(all="ignore"):
        got = reference.silu(x)
    want = np.float32([0.0, -0.0, np.inf, -0.0, 3.4e38, -0.0, -0.0, -0.0, 0.0, 200])
    assert reference.check_bits(got, want).ok
    assert np.isnan(reference.silu(np.float32([np.nan, -np.nan]))).all()


@pytest.mark.parametrize("low, high", [(-104, -86), (-86, -20), (-20, 20), (20, 90)])
def test_silu_of_the_backend_is_the_model(device, low, high):
    """A block of 16 values in silu's own order of magnitude: the codes would show a difference."""
    x = np.linspace(low, high, 16 * 4096, dtype=np.float32).reshape(64, 1024)
    up = np.ldexp(np.float32(1), rng_of(1).integers(-3, 4, x.shape)).astype(np.float32)
    for scale in ("amax", 1e-38, 1.0):
        q = quantized(x, up, "float32", device, global_scale=scale)
        check_bytes(q, x, up, scale)


def test_silu_bit_by_bit(device):
    """s2 is the one product over 2688, so that it tells neighbouring values of silu apart."""
    x = np.float32([*np.linspace(-103, 30, 150), *np.ldexp(-1.7, np.arange(-30, 6, 3)), -0.1, 1e30])
    for value in x:
        row = np.full((1, 16), value, np.float32)
        q = quantized(row, np.ones_like(row), "float32", device, global_scale="amax")
        check_bytes(q, row, np.ones_like(row), "amax")


@pytest.mark.parametrize("special", (np.nan, np.inf, -np.inf, -0.0, 0.0))
def test_special_values(device, special):
    x, up = (data.halves(rng_of(2, i), "float32", 6, 64) for i in range(2))
    x[0, 3] = x[1, 20] = up[2, 37] = x[3, 5] = up[3, 5] = special
    up[1, 20], up[4, 0], x[4, 0] = 0, np.inf, -np.inf  # inf * 0 is NaN
    for scale in (None, "amax"):
        check_bytes(quantized(x, up, "float32", device, global_scale=scale), x, up, scale)


# ---------------------------------------------------------------------------------------------
# The operator
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ("linear", "blocked"))
@pytest.mark.parametrize("rows, k", [(1, 16), (3, 48), (17, 80), (130, 4176)])
def test_normal_data(device, rows, k, layout, dtype):
    x, up = (data.halves(rng_of(rows, k, i), dtype, rows, k) for i in range(2))
    for scale in (None, 0.013, "amax"):
        q = quantized(x, up, dtype, device, global_scale=scale, scale_layout=layout)
        check_bytes(q, x, up, scale, layout)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", (None, "amax", 1e-45, 1e-10, 0.37, 3.4028235e38))
def test_hostile_data(device, scale, dtype):
    x, up = hostile(rng_of(3), dtype), hostile(rng_of(4), dtype)[::-1]
    check_bytes(quantized(x, up, dtype, device, global_scale=scale), x, up, scale)


@pytest.mark.parametrize("layout", ("linear", "blocked"))
def test_batches_and_other_strides(device, layout):
    """x and up as the two halves of one projection, and with batches that lie differently."""
    both = data.halves(rng_of(5), "bfloat16", 3, 40, 256)
    given = floats(both, "bfloat16", device)
    options = {"global_scale": "amax", "scale_layout": layout}
    q = nvfp4kern.quantize(given[..., :128], up=given[..., 128:], **options)
    check_bytes(q, both[..., :128], both[..., 128:], "amax", layout)
    turned = floats(both.swapaxes(0, 1), "bfloat16", device).transpose(0, 1)
    q = nvfp4kern.quantize(given, up=turned, **options)
    check_bytes(q, both, both, "amax", layout)
    odd = floats(both, "bfloat16", device)[0, :, 1:129]
    q = nvfp4kern.quantize(given[0, :, :128], up=odd, **options)
    check_bytes(q, both[0, :, :128], both[0, :, 1:129], "amax", layout)


@pytest.mark.parametrize("scale", (None, "amax"))
@pytest.mark.parametrize("offsets", ([0, 0, 3, 3, 200], [5, 130, 131, 131, 300], [300, 300]))
def test_experts(device, offsets, scale):
    x, up = (data.halves(rng_of(6, i), "float16", 300, 96) for i in range(2))
    where = torch.tensor(offsets, dtype=torch.int32, device=device)
    options = {"global_scale": scale, "scale_layout": "blocked", "offsets": where}
    check_bytes(quantized(x, up, "float16", device, **options), x, up, scale, offsets=offsets)


def test_given_outputs(device):
    x, up = (data.halves(rng_of(7, i), "float32", 130, 80) for i in range(2))
    outs = [
        Guarded((130, 40), torch.uint8, device, "padded rows"),
        Guarded((256, 8), torch.uint8, device),
        Guarded((1,), torch.float32, device),
    ]
    options = {"global_scale": "amax", "scale_layout": "blocked", "out": [o.tensor for o in outs]}
    q = quantized(x, up, "float32", device, **options)
    assert all(got is out.tensor for got, out in zip(q, outs, strict=True))
    assert all(out.guards_intact() for out in outs)
    check_bytes(q, x, up, "amax", "blocked")


@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (0, 3, 32), (2, 0, 0)])
def test_empty(device, shape):
    x = np.zeros(shape, np.float32)
    q = quantized(x, x, "float32", device, global_scale="amax", scale_layout="blocked")
    check_bytes(q, x, x, "amax", "blocked")


def test_up_is_x(device):
    x = data.halves(rng_of(8), "float16", 5, 64)
    given = floats(x, "float16", device)
    check_bytes(nvfp4kern.quantize(given, up=given), x, x)


def test_no_output_shares_memory_with_up(device):
    buffer = torch.ones((4, 64), dtype=torch.float16, device=device)
    x, before = torch.ones_like(buffer), buffer.clone()
    codes = buffer.view(torch.uint8).flatten()[:128].view(4, 32)
    with pytest.raises(ValueError, match=r"^out\[0\]: shares memory with up"):
        nvfp4kern.quantize(x, up=buffer, out=(codes, None))
    assert torch.equal(buffer, before)


def test_numpy(device):
    if device != "cpu":
        pytest.skip("NumPy arrays live on the CPU")
    x, up = (data.halves(rng_of(9, i), "float16", 8, 32).astype(np.float16) for i in range(2))
    q = nvfp4kern.quantize(x, up=up)
    assert all(type(part) is np.ndarray for part in q[:2])
    check_bytes(q, x.astype(np.float32), up.astype(np.float32))
