"""The simulator's arithmetic: against NumPy where that rounds once, against fractions elsewhere."""

import ctypes
import math
from fractions import Fraction

import numpy as np
import pytest
from ptxsim import num_library as num
from ptxsim import num_oracle as oracle

rng = np.random.default_rng(2)
HALVES = ["f16", "bf16"]
FLOATS = ["f32", "f16", "bf16"]
NEAREST = ["add", "sub", "mul", "div"]
NUMPY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
UNSIGNED = {"f32": np.uint32, "f16": np.uint16}
DTYPE = {"f32": np.float32, "f16": np.float16}


def sign_bit(format):
    return np.uint64(1 << (oracle.SHAPES[format][0] - 1))


def canonical(format, got):
    """The one NaN that results have."""
    return np.where(np.isnan(num.values(format, got)), np.uint64(oracle.NAN[format]), got)


def random_codes(format, count):
    """Codes of any kind, and codes with exponents so near that sums and products meet."""
    bits, mantissa, bias, _ = oracle.SHAPES[format]
    anything = rng.integers(0, (1 << bits) - 1, count, dtype=np.uint64, endpoint=True)
    fraction = rng.integers(0, 1 << mantissa, count, dtype=np.uint64)
    fraction[::3] &= np.uint64(((1 << mantissa) - 1) ^ ((1 << (mantissa // 2)) - 1))
    field = rng.integers(bias - 6, bias + 7, count).astype(np.uint64)
    near = (field << np.uint64(mantissa)) | fraction
    near |= rng.integers(0, 2, count, dtype=np.uint64) << np.uint64(bits - 1)
    return np.concatenate([anything[: count // 2], near[: count - count // 2]])


def shuffled(format, count):
    return rng.permutation(random_codes(format, count))


@pytest.mark.parametrize("format", DTYPE)
@pytest.mark.parametrize("op", [*NEAREST, "sqrt"])
def test_rounding_to_nearest_agrees_with_numpy(format, op):
    a, b = shuffled(format, 400_000), shuffled(format, 400_000)
    x, y = (v.astype(UNSIGNED[format]).view(DTYPE[format]) for v in (a, b))
    with np.errstate(all="ignore"):
        want = np.sqrt(x) if op == "sqrt" else NUMPY[op](x, y)
    got = num.arith(op, format, a, b)
    want = canonical(format, want.view(UNSIGNED[format]).astype(np.uint64))
    assert (got == want).all()


def exact(op, a, b, c):
    return {"add": a + b, "sub": a - b, "mul": a * b, "fma": a * b + c}.get(op)


def zero_is_negative(op, a, b, c, rounding):
    """Of an exact zero: the addends' sign where they agree, else minus only in mode rm."""
    negative = [math.copysign(1, v) < 0 for v in (a, b, c)]
    if op == "mul":
        return negative[0] ^ negative[1]
    first, second = (
        (negative[0] ^ negative[1], negative[2])
        if op == "fma"
        else (negative[0], negative[1] ^ (op == "sub"))
    )
    return first if first == second else rounding == "rm"


@pytest.mark.parametrize("format", FLOATS)
@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma"])
def test_every_rounding_mode_is_exact(format, rounding, op):
    a, b, c = (shuffled(format, 500) for _ in range(3))
    product = num.arith("mul", format, a, b)  # addends that cancel all but the product's low bits
    c = np.where(np.arange(500) % 4 == 0, product ^ sign_bit(format), c)
    b = np.where((np.arange(500) % 5 == 0) & (op in ("add", "sub")), a ^ sign_bit(format), b)
    got = num.arith(op, format, a, b, c, num.mode(rounding))
    x, y, z = (num.values(format, v).tolist() for v in (a, b, c))
    for i in range(500):
        if not all(map(math.isfinite, (x[i], y[i], z[i]))):
            continue
        result = exact(op, *map(Fraction, (x[i], y[i], z[i])))
        minus = result == 0 and zero_is_negative(op, x[i], y[i], z[i], rounding)
        want = oracle.round_exact(format, result, rounding, minus)
        assert got[i] == want, (x[i], y[i], z[i], hex(int(got[i])), hex(want))


@pytest.mark.parametrize("format", FLOATS)
@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
def test_quotients_and_roots_are_exact(format, rounding):
    a, b = shuffled(format, 400), shuffled(format, 400)
    x, y = num.values(format, a).tolist(), num.values(format, b).tolist()
    quotient = num.arith("div", format, a, b, mode=num.mode(rounding))
    inverse = num.arith("rcp", format, b, mode=num.mode(rounding))
    root = num.arith("sqrt", format, a, mode=num.mode(rounding))
    for i in range(400):
        if math.isfinite(x[i]) and math.isfinite(y[i]) and y[i]:
            minus = math.copysign(1, x[i]) != math.copysign(1, y[i])
            want = oracle.round_exact(format, Fraction(x[i]) / Fraction(y[i]), rounding, minus)
            assert quotient[i] == want
            want = oracle.round_exact(format, 1 / Fraction(y[i]), rounding)
            assert inverse[i] == want
        if x[i] > 0 and math.isfinite(x[i]):
            square, scale = Fraction(x[i]), 1 << 1300  # 1300 bits of the root: enough for any tie
            approximate = Fraction(math.isqrt(int(square * scale * scale)), scale)
            if approximate * approximate != square:
                approximate += Fraction(1, 3 * scale)
            assert root[i] == oracle.round_exact(format, approximate, rounding)


@pytest.mark.parametrize("format", HALVES)
@pytest.mark.parametrize("op", NEAREST)
def test_halves_agree_with_torch(format, op):
    """torch computes in f32 and rounds again: the same as once, of 8 or 11 bits."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    a, b = shuffled(format, 200_000), shuffled(format, 200_000)
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[format]
    x, y = (torch.from_numpy(v.astype(np.uint16).view(np.int16)).view(dtype) for v in (a, b))
    want = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}[op](x, y)
    want = want.view(torch.int16).numpy().view(np.uint16).astype(np.uint64)
    got = num.arith(op, format, a, b)
    assert (got == canonical(format, want)).all()


def test_nan_results_are_canonical():
    for format, nan in oracle.NAN.items():
        if format not in FLOATS:
            continue
        infinity = np.uint64(oracle.max_finite(format) + 1)
        minus = infinity | sign_bit(format)
        assert num.arith("add", format, [infinity], [minus])[0] == nan
        assert num.arith("mul", format, [infinity], [0])[0] == nan
        assert num.arith("fma", format, [infinity], [0], [0])[0] == nan
        assert num.arith("div", format, [0], [0])[0] == nan
        assert num.arith("sqrt", format, [minus])[0] == nan
        assert num.arith("add", format, [minus + np.uint64(1)], [0])[0] == nan


def test_f32_modifiers():
    tiny, one = 0x00400000, 0x3F800000
    flushed = num.mode(ftz=True)
    assert num.arith("mul", "f32", [tiny], [one], mode=flushed)[0] == 0
    assert num.arith("mul", "f32", [tiny | 1 << 31], [one], mode=flushed)[0] == 1 << 31
    assert num.arith("mul", "f32", [0x00800000], [0x3F000000], mode=flushed)[0] == 0
    assert num.arith("fma", "f32", [one], [tiny], [one], mode=flushed)[0] == one
    saturated = num.mode(sat=True)
    assert num.arith("add", "f32", [one], [one], mode=saturated)[0] == one
    assert num.arith("sub", "f32", [0], [one], mode=saturated)[0] == 0
    assert num.arith("add", "f32", [0x7FC00000], [one], mode=saturated)[0] == 0
    assert num.arith("mul", "f32", [0x3F000000], [one], mode=saturated)[0] == 0x3F000000
    relu = num.mode(relu=True)
    assert num.arith("fma", "bf16", [0xBF80], [0x3F80], [0], mode=relu)[0] == 0
    assert num.arith("fma", "f16", [0x7E00], [0x3C00], [0], mode=relu)[0] == 0x7FFF
    assert num.arith("fma", "f16", [0x3C00], [0x3C00], [0x3C00], mode=relu)[0] == 0x4000


@pytest.mark.parametrize("format", FLOATS)
def test_minimum_and_maximum(format):
    infinity = oracle.max_finite(format) + 1
    sign = int(sign_bit(format))
    ordered = [infinity | sign, infinity - 1 | sign, 1 | sign, sign, 0, 1, infinity - 1, infinity]
    nan = oracle.NAN[format]
    for i, low in enumerate(ordered):
        for high in ordered[i:]:
            for a, b in ((low, high), (high, low)):
                assert num.arith("min", format, [a], [b])[0] == low
                assert num.arith("max", format, [a], [b])[0] == high
        for a, b in ((low, nan), (nan, low)):
            assert num.arith("max", format, [a], [b])[0] == low
            assert num.arith("max", format, [a], [b], mode=num.mode(nan=True))[0] == nan
    assert num.arith("min", format, [nan | sign], [nan - 1])[0] == nan


@pytest.mark.parametrize("format", FLOATS)
def test_signs(format):
    x, sign = shuffled(format, 1000), sign_bit(format)
    assert (num.arith("abs", format, x) == x & ~sign).all()
    assert (num.arith("neg", format, x) == x ^ sign).all()
    y = shuffled(format, 1000)
    assert (num.arith("copysign", format, x, y) == (x & sign) | (y & ~sign)).all()


def test_pairs_work_lane_by_lane():
    u32, u64 = ctypes.c_uint32, ctypes.c_uint64
    pair = num.function("num_arith_pair", u64, u32, u32, u64, u64, u64, num.Mode)
    add, fma, neg = (num.OPS.index(op) for op in ("add", "fma", "neg"))
    f16, bf16, f32 = (num.FORMATS.index(f) for f in ("f16", "bf16", "f32"))
    assert pair(add, f16, 0x3C004000, 0x3C003C00, 0, num.mode()) == 0x40004200
    assert pair(fma, bf16, 0x3F804000, 0x40004000, 0x3F80BF80, num.mode()) == 0x40404040
    assert pair(neg, f16, 0x3C008000, 0, 0, num.mode()) == 0xBC000000
    one, two = 0x3F800000, 0x40000000
    assert pair(add, f32, one << 32 | two, one << 32 | two, 0, num.mode()) == two << 32 | 0x40800000


def ulps(got, want):
    return np.abs(got.astype(np.int64) - want.astype(np.int64))


def test_approximations_are_close():
    x = np.concatenate([rng.uniform(-20, 20, 4000), 2.0 ** rng.uniform(-30, 30, 4000)])
    x = x.astype(np.float32)
    codes = x.view(np.uint32).astype(np.uint64)
    positive = np.abs(x).astype(np.float64)
    functions = {
        "ex2": (codes, np.exp2(np.clip(x.astype(np.float64), -200, 200))),
        "rsqrt": (codes & np.uint64(0x7FFFFFFF), 1 / np.sqrt(positive)),
        "lg2": (codes & np.uint64(0x7FFFFFFF), np.log2(positive)),
        "tanh": (codes, np.tanh(x.astype(np.float64))),
    }
    for op, (argument, value) in functions.items():
        with np.errstate(over="ignore"):
            want = value.astype(np.float32).view(np.uint32)
        assert ulps(num.arith(op, "f32", argument), want).max() <= 1, op


def test_approximations_at_the_ends():
    inf, ninf, nan, nzero = 0x7F800000, 0xFF800000, 0x7FFFFFFF, 0x80000000
    ends = [ninf, nzero, 0, inf, 0x7FC00000]
    assert num.arith("ex2", "f32", ends).tolist() == [0, 0x3F800000, 0x3F800000, inf, nan]
    assert num.arith("lg2", "f32", ends).tolist() == [nan, ninf, ninf, inf, nan]
    assert num.arith("rsqrt", "f32", ends).tolist() == [nan, ninf, inf, 0, nan]
    assert num.arith("rcp", "f32", ends).tolist() == [nzero, ninf, inf, 0, nan]
    assert num.arith("sqrt", "f32", ends).tolist() == [nan, nzero, 0, inf, nan]
    assert num.arith("tanh", "f32", ends).tolist() == [0xBF800000, nzero, 0, 0x3F800000, nan]
    one, huge = 0x3F800000, 0x7F000000  # 2^127
    assert num.arith("div_approx", "f32", [one, inf], [huge, huge]).tolist() == [0, nan]
    assert num.arith("div_approx", "f32", [one, one], [inf, 0x40000000]).tolist() == [0, 0x3F000000]
    tiny = num.mode(ftz=True)
    assert num.arith("ex2", "f32", [0xC2FE0000], mode=tiny)[0] == 0  # 2^-127
