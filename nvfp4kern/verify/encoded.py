"""Codes and scale factors of sums that round: which ones the sums' interval allows."""

import numpy as np

from . import reference
from .reference import SF_VEC


def check(codes, scales, expected, global_scale=None):
    """None, or (what is wrong, its index) of codes [.., N/2] and scale factors [.., N/16].

    What was encoded is a float32 number in the interval of `expected`. Everything that follows
    never falls when it rises: so the interval of a block's largest magnitude says which scale
    factors are right, and then each element's which codes are.
    """
    with np.errstate(all="ignore"):
        _, encode = reference.global_scale_pair(None, global_scale)
        ends = np.float32([expected.low, expected.high])
        *rows, n = expected.exact.shape
        ends = ends.reshape(2, *rows, n // SF_VEC, SF_VEC)
        largest = np.abs(ends).max(axis=0)
        least = np.where(np.signbit(ends[0]) == np.signbit(ends[1]), np.abs(ends).min(axis=0), 0)
        low, high = (
            reference.scale_factors(part.max(axis=-1).astype(np.float32), encode)[0]
            for part in (least, largest)
        )
        sf = reference.decode_scales(scales)
        wrong = ~((low <= sf) & (sf <= high)) | (scales >= 0x80)
        if wrong.any():
            return "scale factor", tuple(np.argwhere(wrong)[0])
        factor = reference.multipliers(np.float32(sf), encode)[..., None]
        bounds = np.clip(np.where(sf[..., None] == 0, 0, ends * factor), -6, 6)
        low, high = (
            np.copysign(reference.round_to_grid(np.abs(part), 1, 0), part)
            for part in bounds.astype(np.float64)
        )
        values = reference.decode_e2m1(codes).reshape(low.shape)
        wrong = ~((low <= values) & (values <= high))
        wrong |= (sf[..., None] == 0) & np.signbit(values)
    return ("code", tuple(np.argwhere(wrong)[0])) if wrong.any() else None
