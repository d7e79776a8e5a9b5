"""The recipe four_six of quantize, by the float32 operations of the contract."""

import numpy as np

from ..layout import SF_VEC
from .reference import FLT_MAX, encode_e2m1, encode_scales, round_to_grid


def quantize(x, global_scale=None, smallest_scale=0):
    """x [.., K] float32 -> codes [.., K/2], scales [.., K/16], s2. See reference.quantize."""
    with np.errstate(all="ignore"):
        x = np.asarray(x, np.float32)
        s2 = np.float32(1 if global_scale is None else 0)
        if isinstance(global_scale, str):
            s2 = np.abs(np.where(np.isfinite(x), x, 0)).max(initial=0) / np.float32(1536)
            s2 = s2 if s2 > 0 else np.float32(1)
        elif global_scale is not None:
            s2 = np.float32(global_scale)
        blocks = x.reshape(*x.shape[:-1], x.shape[-1] // SF_VEC, SF_VEC)
        (codes, sf, error), other = (encode_to(blocks, t, s2, smallest_scale) for t in (6, 4))
        better = other[2] < error
        codes, sf = np.where(better[..., None], other[0], codes), np.where(better, other[1], sf)
        bad = np.isnan(blocks).any(axis=-1) | ~(0 < s2 <= FLT_MAX)
        codes = encode_e2m1(np.where(bad[..., None], 0, codes).reshape(x.shape))
        return codes, np.where(bad, 0x7F, encode_scales(np.where(bad, 0, sf))).astype(np.uint8), s2


def encode_to(blocks, target, s2, smallest):
    """(values of codes, scale factors, squared errors) by which blocks' largest becomes target."""
    magnitudes, f = np.abs(blocks), np.float32
    whole = np.minimum(f(target) * s2, FLT_MAX)
    wanted = np.fmin(np.fmax(magnitudes.max(axis=-1, initial=0) / whole, f(smallest)), f(448))
    sf = np.minimum(round_to_grid(wanted.astype(np.float64), 3, -6), 448).astype(f)
    step = np.minimum(sf * s2, FLT_MAX)[..., None]
    scaled = np.where(step > 0, magnitudes / step, f(0)).astype(np.float64)
    codes = np.minimum(round_to_grid(scaled, 1, 0), 6).astype(f)
    parts = np.square(codes * step - magnitudes)
    parts = parts[..., ::2] + parts[..., 1::2]
    for apart in (4, 2, 1):
        parts = parts[..., :apart] + parts[..., apart:]
    return np.where(step > 0, np.copysign(codes, blocks), f(0)), sf, parts[..., 0]
