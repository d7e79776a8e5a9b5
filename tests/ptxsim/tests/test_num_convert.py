"""The simulator's cvt: every code of the narrow formats, hard and random values of the wide."""

import ctypes
import math
from fractions import Fraction

import numpy as np
import pytest
from ptxsim import num_library as num
from ptxsim import num_oracle as oracle

from nvfp4kern.verify import reference

rng = np.random.default_rng(1)
NARROW = ["f16", "bf16", "e5m2", "e4m3", "e2m1"]
FLOATS = ["f32", "f16", "bf16"]
DIRECTED = ["rn", "rz", "rm", "rp"]


def all_codes(format):
    return np.arange(1 << oracle.SHAPES[format][0], dtype=np.uint64)


def as_f32(x):
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32)


def f32_codes(x):
    return as_f32(x).view(np.uint32).astype(np.uint64)


def f64_codes(x):
    return np.asarray(x, np.float64).view(np.uint64)


def hard_values(format, count=4000):
    """float64 around the values, the middles and the ends of a format."""
    steps = oracle.table(format)
    low = rng.integers(0, len(steps) - 1, count)
    middles = (steps[low] + steps[low + 1]) / 2
    exact = np.concatenate([steps[low], middles, steps[:20], steps[-20:], steps[-1:] * 1.5])
    near = np.concatenate([exact, np.nextafter(exact, np.inf), np.nextafter(exact, 0)])
    return np.concatenate([near, -near])


@pytest.mark.parametrize("format", NARROW)
def test_every_code_has_its_value(format):
    codes = all_codes(format)
    got = num.values(format, codes)
    want = [oracle.value(format, int(code)) for code in codes]
    finite = np.array([w is not None for w in want])
    assert (got[finite] == np.array([float(w) for w in want if w is not None])).all()
    signs = codes[finite] >> np.uint64(oracle.SHAPES[format][0] - 1)
    assert (np.signbit(got[finite]) == (signs == 1)).all()
    largest = np.uint64(oracle.max_finite(format) + 1)
    infinite = (codes & np.uint64((1 << (oracle.SHAPES[format][0] - 1)) - 1)) == largest
    infinite &= oracle.SHAPES[format][3] == "ieee"
    assert np.isinf(got[infinite]).all() and np.isnan(got[~finite & ~infinite]).all()


@pytest.mark.parametrize("format", NARROW)
def test_narrow_formats_agree_with_ml_dtypes(format):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    names = {"f16": np.float16, "bf16": "bfloat16", "e5m2": "float8_e5m2", "e4m3": "float8_e4m3fn"}
    names |= {"e2m1": "float4_e2m1fn"}
    name = names[format]
    dtype = getattr(ml_dtypes, name) if isinstance(name, str) else name
    bits = oracle.SHAPES[format][0]
    stored = all_codes(format).astype(np.uint16 if bits == 16 else np.uint8).view(dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        want = stored.astype(np.float64)
    assert np.array_equal(num.values(format, all_codes(format)), want, equal_nan=True)

    x = as_f32(np.concatenate([hard_values(format, 300), rng.standard_normal(2000) * 4]))
    x = x[np.abs(x) <= oracle.table(format)[-2]]  # ml_dtypes overflows in its own ways
    want = x.astype(dtype).view(np.uint16 if bits == 16 else np.uint8)
    got = num.convert(format, "f32", f32_codes(x), num.mode(satfinite=True))
    assert (got == want).all()


@pytest.mark.parametrize("format", NARROW)
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_hard_values_round_to_nearest_even(format, source):
    x = np.concatenate([hard_values(format), rng.standard_normal(4000)])
    if source == "f32":
        x = as_f32(x).astype(np.float64)
        x = x[np.isfinite(x)]
    codes = f32_codes(x) if source == "f32" else f64_codes(x)
    got = num.convert(format, source, codes, num.mode(satfinite=True))
    want = oracle.round_nearest(format, x)
    assert (got == want).all()


def test_narrow_conversions_are_the_contracts():
    """e2m1_rne and e4m3_rne of the package's oracle: all bf16 numbers, ties, their neighbours."""
    bits = np.arange(1 << 16, dtype=np.uint32) << 16
    x = np.concatenate([(bits + delta).view(np.float32) for delta in (0, 1, 0xFFFF)])
    hard = [as_f32(hard_values(format)) for format in ("e2m1", "e4m3")]
    x = np.concatenate([x[np.isfinite(x)], *hard])
    want = reference.round_to_grid(np.minimum(np.abs(x), 6.0), 1, 0)
    signed = reference.encode_e2m1(np.repeat(np.copysign(want, x), 2)) & 15
    assert (num.convert("e2m1", "f32", f32_codes(x), num.mode(satfinite=True)) == signed).all()
    want = reference.round_to_grid(np.minimum(np.abs(x), 448.0), 3, -6)
    got = num.convert("e4m3", "f32", f32_codes(np.abs(x)), num.mode(satfinite=True))
    assert (got == reference.encode_scales(want)).all()
    assert (num.values("e2m1", np.arange(8)) == reference.E2M1).all()
    assert np.array_equal(num.values("e4m3", np.arange(128)), reference.E4M3, equal_nan=True)


@pytest.mark.parametrize("source", ["f16", "bf16"])
@pytest.mark.parametrize("to", NARROW)
def test_every_half_converts(source, to):
    codes = all_codes(source)
    x = num.values(source, codes)
    got = num.convert(to, source, codes, num.mode(satfinite=True))
    finite = np.isfinite(x)
    want = oracle.round_nearest(to, x[finite])
    assert (got[finite] == want).all()
    if to != source:
        nan = oracle.NAN.get(to, oracle.max_finite(to))
        assert (got[np.isnan(x)] == nan).all()
    sign = np.uint64(1 << (oracle.SHAPES[to][0] - 1))
    largest = np.uint64(oracle.max_finite(to))
    infinite = np.where(x > 0, largest, largest | sign)[np.isinf(x)]
    if to != source:
        assert (got[np.isinf(x)] == infinite).all()


@pytest.mark.parametrize("format", ["f16", "bf16", "e4m3", "e5m2", "f32"])
@pytest.mark.parametrize("rounding", num.ROUNDINGS)
def test_every_rounding_mode_is_exact(format, rounding):
    if format == "f32":
        x = rng.standard_normal(1500) * 2.0 ** rng.integers(-155, 140, 1500)
        x = np.concatenate([x, [3.5e38, -3.5e38, 2**-150, -(2**-150), 2**-151, 1 + 2**-24]])
        x = np.concatenate([x, as_f32(x[:300]).astype(np.float64)])
        x = x[np.isfinite(x)]
    else:
        x = hard_values(format, 60)
    got = num.convert(format, "f64", f64_codes(x), num.mode(rounding))
    for i in range(len(x)):
        want = oracle.round_exact(
            format, Fraction(float(x[i])), rounding, math.copysign(1, x[i]) < 0
        )
        assert got[i] == want, (x[i].hex(), hex(int(got[i])), hex(want))


def test_without_satfinite_overflow_is_infinite_or_nan():
    big = f32_codes([1e30, -1e30, np.inf, np.nan])
    assert num.convert("f16", "f32", big).tolist() == [0x7C00, 0xFC00, 0x7C00, 0x7FFF]
    assert num.convert("e4m3", "f32", big).tolist() == [0x7F, 0xFF, 0x7F, 0x7F]
    assert num.convert("bf16", "f32", f32_codes([3.4e38]), num.mode("rz")).tolist() == [0x7F7F]
    finite = num.mode(satfinite=True)
    assert num.convert("e4m3", "f32", big, finite).tolist() == [0x7E, 0xFE, 0x7E, 0x7F]
    assert num.convert("e2m1", "f32", big, finite).tolist() == [7, 15, 7, 7]
    assert num.convert("f16", "f32", big, finite).tolist() == [0x7BFF, 0xFBFF, 0x7BFF, 0x7FFF]


def test_modifiers_clamp():
    x = f32_codes([-2, -0.0, 0, 0.25, 1, 3, np.inf, -np.inf, np.nan, 2**-140, -(2**-140)])
    relu = num.convert("f16", "f32", x, num.mode(relu=True))
    assert relu.tolist() == [0, 0, 0, 0x3400, 0x3C00, 0x4200, 0x7C00, 0, 0x7FFF, 0, 0]
    sat = num.convert("f32", "f32", x, num.mode(sat=True))
    one = 0x3F800000
    assert sat.tolist() == [0, 0, 0, 0x3E800000, one, one, one, 0, 0, 0x200, 0]
    ftz = num.convert("f32", "f32", x, num.mode(ftz=True))
    assert ftz.tolist()[-2:] == [0, 0x80000000]
    assert num.convert("f64", "f32", x[-1:], num.mode(ftz=True)).tolist() == [1 << 63]
    assert num.convert("f32", "f64", f64_codes([2**-127]), num.mode(ftz=True)).tolist() == [0]


def test_nan_is_canonical():
    x = [0x7FC00001, 0xFF800001, 0x7F800001]
    assert num.convert("f16", "f32", x).tolist() == [0x7FFF] * 3
    assert num.convert("bf16", "f32", x).tolist() == [0x7FFF] * 3
    assert num.convert("f64", "f32", x).tolist() == [0x7FF8000000000000] * 3
    assert num.convert("f32", "f16", [0x7C01, 0xFE00]).tolist() == [0x7FFFFFFF] * 2
    assert num.convert("f32", "bf16", [0x7F81, 0xFFC0]).tolist() == [0x7F810000, 0xFFC00000]


def test_pairs_put_the_first_operand_on_top():
    u32, u64 = ctypes.c_uint32, ctypes.c_uint64
    to_pair = num.function("num_convert_to_pair", u32, u32, u32, u64, u64, num.Mode)
    pair = num.function("num_convert_pair", u32, u32, u32, u32, num.Mode)
    f = {name: i for i, name in enumerate(num.FORMATS)}
    one, two = 0x3F800000, 0x40000000
    finite = num.mode(satfinite=True)
    assert to_pair(f["f16"], f["f32"], one, two, finite) == 0x3C004000
    assert to_pair(f["bf16"], f["f32"], one, two, finite) == 0x3F804000
    assert to_pair(f["e4m3"], f["f32"], one, two, finite) == 0x3840
    assert to_pair(f["e2m1"], f["f32"], one, two, finite) == 0x24
    assert pair(f["f16"], f["e4m3"], 0x3840, finite) == 0x3C004000
    assert pair(f["f16"], f["e2m1"], 0xA4, finite) == 0xBC004000
    assert pair(f["e5m2"], f["f16"], 0x3C004000, finite) == 0x3C40


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("rounding", DIRECTED)
def test_floats_become_integers(source, rounding):
    if source in ("f16", "bf16"):
        codes = all_codes(source)[::7]
    else:
        x = rng.standard_normal(3000) * 2.0 ** rng.integers(-3, 70, 3000)
        x = np.concatenate([x, np.arange(-9, 9) / 2, [np.inf, -np.inf, np.nan, 2**31, 2**63]])
        codes = f32_codes(x)
    x = num.values(source, codes)
    whole = {"rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil}[rounding](x)
    for bits in (8, 16, 32, 64):
        for signed in (True, False):
            low, high = (
                (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
            )
            nan = 1 << 63 if bits == 64 else 0
            want = [
                nan if v != v else low if v < low else high if v > high else int(v)
                for v in whole.tolist()
            ]
            got = num.to_integer(bits, signed, source, codes, num.mode(rounding))
            assert got.tolist() == [w % (1 << 64) for w in want]


def test_flushed_subnormals_are_zero_before_they_become_integers():
    tiny = [1, 1 << 31 | 1, 0x00800000]
    for ftz, want in ((False, [1, 0, 1]), (True, [0, 0, 1])):
        assert num.to_integer(32, True, "f32", tiny, num.mode("rp", ftz=ftz)).tolist() == want
    to_integral = num.function(
        "num_to_integral", ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64, num.Mode
    )
    f32 = num.FORMATS.index("f32")
    assert to_integral(f32, 1, num.mode("rp")) == 0x3F800000
    assert to_integral(f32, 1, num.mode("rp", ftz=True)) == 0
    assert to_integral(f32, 1 << 31 | 1, num.mode("rm", ftz=True)) == 1 << 31


@pytest.mark.parametrize("format", FLOATS)
@pytest.mark.parametrize("rounding", DIRECTED)
def test_floats_become_integral_floats(format, rounding):
    x = np.concatenate(
        [rng.standard_normal(2000) * 50, np.arange(-20, 20) / 4, [0.0, -0.0, np.inf]]
    )
    codes = num.convert(format, "f64", f64_codes(x))
    to_integral = num.function(
        "num_to_integral", ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64, num.Mode
    )
    got = [to_integral(num.FORMATS.index(format), int(c), num.mode(rounding)) for c in codes]
    whole = {"rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil}[rounding]
    want = num.convert(format, "f64", f64_codes(whole(num.values(format, codes))))
    assert (num.codes(got) == want).all()


@pytest.mark.parametrize("format", FLOATS)
@pytest.mark.parametrize("rounding", DIRECTED)
def test_integers_become_floats(format, rounding):
    wide = [int(v) >> (i % 63) for i, v in enumerate(rng.integers(0, 1 << 63, 400))]
    wide += [0, 1, (1 << 63) - 1, 1 << 24, (1 << 24) + 1, (1 << 53) + 1, 65504, 65520, 65535]
    for signed in (True, False):
        x = wide + [-v for v in wide] if signed else wide + [(1 << 64) - 1, (1 << 64) - (1 << 39)]
        got = num.from_integer(format, signed, [v % (1 << 64) for v in x], num.mode(rounding))
        want = [oracle.round_exact(format, Fraction(v), rounding) for v in x]
        assert got.tolist() == want


def test_integers_become_narrower_integers():
    convert = num.function(
        "num_integer_to_integer",
        ctypes.c_uint64,
        ctypes.c_int,
        ctypes.c_bool,
        ctypes.c_bool,
        ctypes.c_bool,
        ctypes.c_uint64,
    )
    for bits in (8, 16, 32):
        for signed in (True, False):
            low, high = (
                (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
            )
            for v in [
                0,
                1,
                -1,
                127,
                128,
                255,
                256,
                -128,
                -129,
                1 << 31,
                -(1 << 31) - 1,
                (1 << 63) - 1,
            ]:
                clamped = convert(bits, signed, True, True, v % (1 << 64))
                assert clamped == min(max(v, low), high) % (1 << 64)
                chopped = convert(bits, signed, False, True, v % (1 << 64))
                want = v % (1 << bits)
                want -= (1 << bits) if signed and want > high else 0
                assert chopped == want % (1 << 64)
    assert convert(32, True, True, False, (1 << 64) - 1) == 0x7FFFFFFF
