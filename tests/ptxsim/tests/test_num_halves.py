"""f16 and bf16 in bulk against the same one by one, which test_num_arith.py has tested."""

import ctypes

import numpy as np
import pytest
from ptxsim import num_library as num

rng = np.random.default_rng(5)
MANTISSA = {"f16": 10, "bf16": 7}


def operands(fmt, count):
    """Codes of every kind: all exponents, near each other, special, subnormal."""
    infinity = (0x7FFF >> MANTISSA[fmt]) << MANTISSA[fmt]
    edges = [0, 1, 2, (1 << MANTISSA[fmt]) - 1, 1 << MANTISSA[fmt], infinity - 1, infinity]
    edges = np.array([*edges, infinity + 1, 0x7FFF], np.uint16)
    edges = np.concatenate([edges, edges | 0x8000])
    grid = [x.ravel() for x in np.meshgrid(edges, edges, edges)]
    wide = rng.integers(0, 1 << 16, (3, count), dtype=np.uint16)
    near = rng.integers(0, 6 << MANTISSA[fmt], (3, count)) + (0x3F80 if fmt == "bf16" else 0x3000)
    signs = rng.integers(0, 2, (3, count)) << 15
    both = np.concatenate([grid, wide, (near | signs).astype(np.uint16)], axis=1)
    return np.ascontiguousarray(both[:, : both.shape[1] // 8 * 8])


@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma"])
@pytest.mark.parametrize("fmt", ["f16", "bf16"])
def test_arithmetic_gives_the_same_bits(op, fmt):
    a, b, c = operands(fmt, 40_000)
    out = np.empty_like(a)
    done = num.function("num_halves_arith", ctypes.c_bool)(
        num.OPS.index(op),
        num.FORMATS.index(fmt),
        num.DEFAULT,
        ctypes.c_int(a.size),
        *map(num.pointer, (a, b, c, out)),
    )
    assert done
    np.testing.assert_array_equal(out, num.arith(op, fmt, a, b, c))


@pytest.mark.parametrize("fmt", ["f16", "bf16"])
def test_conversions_give_the_same_bits(fmt):
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = np.empty(every.size, np.uint32)
    arguments = (num.FORMATS.index(fmt), num.DEFAULT, ctypes.c_int(every.size))
    assert num.library().num_halves_to_f32(*arguments, num.pointer(every), num.pointer(wide))
    np.testing.assert_array_equal(wide, num.convert("f32", fmt, every))
    ties = wide + rng.integers(-1, 2, wide.size).astype(np.uint32) + (1 << (22 - MANTISSA[fmt]))
    for x in (wide, ties, rng.integers(0, 1 << 32, wide.size, dtype=np.uint32)):
        narrow = np.empty(x.size, np.uint16)
        assert num.library().num_halves_from_f32(*arguments, num.pointer(x), num.pointer(narrow))
        np.testing.assert_array_equal(narrow, num.convert(fmt, "f32", x))


def test_other_modes_and_formats_are_left_to_others():
    x = np.zeros(8, np.uint16)
    arith = num.function("num_halves_arith", ctypes.c_bool)
    for op, fmt, mode in [
        ("add", "f16", num.mode("rn", sat=True)),
        ("min", "f16", num.DEFAULT),
        ("add", "e4m3", num.DEFAULT),
    ]:
        arguments = (num.OPS.index(op), num.FORMATS.index(fmt), mode, ctypes.c_int(8))
        assert not arith(*arguments, *[num.pointer(x)] * 4)
