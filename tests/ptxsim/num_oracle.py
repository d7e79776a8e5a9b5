"""What a number format is, written down a second time and another way: tables and fractions."""

import functools
from fractions import Fraction

import numpy as np

# bits, mantissa bits, bias, what the largest exponent holds
SHAPES = {
    "f64": (64, 52, 1023, "ieee"),
    "f32": (32, 23, 127, "ieee"),
    "f16": (16, 10, 15, "ieee"),
    "bf16": (16, 7, 127, "ieee"),
    "e5m2": (8, 2, 15, "ieee"),
    "e4m3": (8, 3, 7, "nan"),
    "e2m1": (4, 1, 1, "none"),
}
NAN = {"f32": 0x7FFFFFFF, "f16": 0x7FFF, "bf16": 0x7FFF, "e5m2": 0x7F, "e4m3": 0x7F}
NAN |= {"f64": 0x7FF8000000000000}


def max_finite(format):
    bits, mantissa, _, special = SHAPES[format]
    if special == "ieee":
        return (1 << (bits - 1)) - (1 << mantissa) - 1
    return (1 << (bits - 1)) - (2 if special == "nan" else 1)


def magnitude(format, code):
    """The exact value of a finite code without its sign."""
    _, mantissa, bias, _ = SHAPES[format]
    field, fraction = code >> mantissa, code & ((1 << mantissa) - 1)
    significand = fraction + (1 << mantissa if field else 0)
    exponent = max(field, 1) - bias - mantissa
    return Fraction(significand) * (Fraction(2) ** exponent)


def value(format, code):
    """A Fraction, or None where the code is no finite number."""
    bits = SHAPES[format][0]
    sign, code = code >> (bits - 1), code & ((1 << (bits - 1)) - 1)
    if code > max_finite(format):
        return None
    return -magnitude(format, code) if sign else magnitude(format, code)


@functools.cache
def table(format):
    """Every finite magnitude in order; the index is the code. One more: where overflow begins."""
    last = max_finite(format)
    return np.array([float(magnitude(format, code)) for code in range(last + 2)])


def _floor_code(format, x):
    """The largest code whose magnitude is at most x >= 0, as if exponents had no end."""
    _, mantissa, bias, _ = SHAPES[format]
    smallest = Fraction(2) ** (1 - bias)
    if x < smallest:
        return int(x / (smallest / (1 << mantissa)))
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    if Fraction(2) ** exponent > x:
        exponent -= 1
    fraction = int(x / Fraction(2) ** exponent * (1 << mantissa)) - (1 << mantissa)
    return ((exponent + bias) << mantissa) + fraction


def round_exact(format, x, rounding="rn", negative_zero=False, satfinite=False):
    """The code of a Fraction, rounded once."""
    bits, _, _, special = SHAPES[format]
    negative = x < 0 or (x == 0 and negative_zero)
    sign = negative << (bits - 1)
    code = _floor_code(format, abs(x))
    below, above = magnitude(format, code), magnitude(format, code + 1)
    rest, step = abs(x) - below, above - below
    up = {
        "rn": rest * 2 > step or (rest * 2 == step and code % 2),
        "rna": rest * 2 >= step,
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[rounding]
    code += bool(up)
    if code > max_finite(format):
        stays = {"rn": False, "rna": False, "rz": True, "rm": not negative, "rp": negative}
        finite = stays[rounding] or satfinite or special == "none"
        code = max_finite(format) + (0 if finite else 1)
    return sign | code


def round_nearest(format, x):
    """Codes of finite float64s, to nearest even, clamped to the largest finite: satfinite."""
    steps = table(format)
    size = np.abs(x)
    below = np.searchsorted(steps, size, side="right") - 1
    below = np.minimum(below, len(steps) - 2)
    middle = (steps[below] + steps[below + 1]) / 2
    up = (size > middle) | ((size == middle) & (below % 2 == 1))
    code = np.minimum(below + up, max_finite(format)).astype(np.uint64)
    return code | (np.signbit(x).astype(np.uint64) << np.uint64(SHAPES[format][0] - 1))
