"""The silu of quantize(up=): its model against float64, then backends against the model.

What else quantize does of silu(x) * up is in test_quantize.py.
"""

import numpy as np
import pytest
import torch
from generators import floats, raw, rng_of, values

import nvfp4kern
from nvfp4kern.verify import data, reference


def check(x, up, device, scale, dtype="float32"):
    given = floats(x, dtype, device), floats(up, dtype, device)
    q = nvfp4kern.quantize(given[0], up=given[1], global_scale=scale)
    want_codes, want_scales, s2 = reference.quantize(x, scale, up)
    np.testing.assert_array_equal(raw(q.data), want_codes)
    np.testing.assert_array_equal(raw(q.scales), want_scales)
    assert scale != "amax" or values(q.global_scale).reshape(()) == s2


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
        check(x, up, device, scale)


def test_silu_bit_by_bit(device):
    """s2 is the one product over 2688, so that it tells neighbouring values of silu apart."""
    x = np.float32([*np.linspace(-103, 30, 150), *np.ldexp(-1.7, np.arange(-30, 6, 3)), -0.1, 1e30])
    for value in x:
        row = np.full((1, 16), value, np.float32)
        check(row, np.ones_like(row), device, "amax")


@pytest.mark.parametrize("special", (np.nan, np.inf, -np.inf, -0.0, 0.0))
def test_special_values(device, special):
    x, up = (data.halves(rng_of(2, i), "float32", 6, 64) for i in range(2))
    x[0, 3] = x[1, 20] = up[2, 37] = x[3, 5] = up[3, 5] = special
    up[1, 20], up[4, 0], x[4, 0] = 0, np.inf, -np.inf  # inf * 0 is NaN
    for scale in (None, "amax"):
        check(x, up, device, scale)


def test_up_is_x(device):
    given = floats(data.halves(rng_of(8), "float16", 5, 64), "float16", device)
    q, want = nvfp4kern.quantize(given, up=given), nvfp4kern.quantize(given, up=given.clone())
    np.testing.assert_array_equal(raw(q.data), raw(want.data))
    np.testing.assert_array_equal(raw(q.scales), raw(want.scales))


def test_no_output_shares_memory_with_up(device):
    buffer = torch.ones((4, 64), dtype=torch.float16, device=device)
    x, before = torch.ones_like(buffer), buffer.clone()
    codes = buffer.view(torch.uint8).flatten()[:128].view(4, 32)
    with pytest.raises(ValueError, match=r"^out\[0\]: shares memory with up"):
        nvfp4kern.quantize(x, up=buffer, out=(codes, None))
    assert torch.equal(buffer, before)
