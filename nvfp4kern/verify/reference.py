"""The oracle: the operators in float64, quantising in float32, written from the contract alone.

Inputs of every float type are float64 arrays. Results are float32 arrays whose values the type can
hold, since NumPy has no bfloat16. Codes and scales are uint8 arrays. Shapes are those of the
library, with any number of leading batch dimensions.
"""

import math
from dataclasses import dataclass

import numpy as np

from .activations import ACTIVATIONS, ALONE, alone, gated, silu, swish  # noqa: F401  tests have it

SF_VEC = 16
ATOM_ROWS, ATOM_COLS = 128, 4
UNIT = 2.0**-24  # half an ulp of 1 in float32
FLT_MAX = np.finfo(np.float32).max
FLT_MIN = 2.0**-126
FLT_TRUE_MIN = 2.0**-149
FORMATS = {"float16": (10, -14), "bfloat16": (7, -126), "float32": (23, -126)}  # mantissa, exponent


# --- Number formats ---


def minifloat_values(exponent_bits, mantissa_bits):
    """The values of all codes without a sign bit, in the order of the codes."""
    bias = 2 ** (exponent_bits - 1) - 1
    codes = np.arange(2 ** (exponent_bits + mantissa_bits))
    exponent, mantissa = np.divmod(codes, 2**mantissa_bits)
    significand = (exponent > 0) + mantissa / 2**mantissa_bits
    return np.ldexp(significand, np.maximum(exponent, 1) - bias)


E2M1 = minifloat_values(2, 1)
E4M3 = minifloat_values(4, 3)
E4M3[0x7F] = np.nan


def round_to_grid(x, mantissa_bits, min_exponent):
    """x rounded once, ties to even, to a binary format whose exponent has no upper limit."""
    exponent = np.maximum(np.frexp(x)[1] - 1, min_exponent)
    quantum = np.ldexp(1.0, exponent - mantissa_bits)
    return np.rint(x / quantum) * quantum


def round_to(x, dtype):
    """float64 -> float16, bfloat16 or float32 in one rounding, as float32 values.

    Ties to even, overflow to inf.
    """
    x = np.asarray(x, np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if dtype == "bfloat16":
            x = round_to_grid(x, *FORMATS[dtype])
        elif dtype == "float16":
            x = x.astype(np.float16)
        return x.astype(np.float32)


def ordinal(x, dtype):
    """How many representable values lie from 0 to x; both zeros count 0."""
    with np.errstate(over="ignore"):
        if dtype == "float16":
            bits = np.asarray(x, np.float16).view(np.int16).astype(np.int64)
        else:
            bits = np.asarray(x, np.float32).view(np.int32).astype(np.int64)
            bits >>= 16 if dtype == "bfloat16" else 0
    sign = 2**15 if dtype != "float32" else 2**31
    return np.where(bits < 0, -(bits + sign), bits)


def ulps(got, want, dtype):
    """The distance in ulps: 0 where both are NaN, huge where one alone is finite."""
    distance = np.abs(ordinal(got, dtype) - ordinal(want, dtype))
    one_special = np.isfinite(got) != np.isfinite(want)
    both_nan = np.isnan(got) & np.isnan(want)
    return np.where(both_nan, 0, np.where(one_special, 2**40, distance))


def decode_e2m1(packed):
    """[.., K/2] bytes -> [.., K] values: element 2i in the low nibble, 2i+1 in the high one."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1)
    codes = codes.reshape(*packed.shape[:-1], 2 * packed.shape[-1])
    return np.where(codes & 8, -1.0, 1.0) * E2M1[codes & 7]


def encode_e2m1(values):
    """[.., K] values of the format -> [.., K/2] bytes; keeps the sign of zero."""
    codes = np.searchsorted(E2M1, np.abs(values)) | np.where(np.signbit(values), 8, 0)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def decode_scales(scales):
    """Scale bytes -> values: E4M3 without its sign bit, 0x7F is NaN."""
    return E4M3[scales & 0x7F]


def encode_scales(values):
    """Values of the format that are not negative -> scale bytes."""
    return np.searchsorted(E4M3[:-1], values).astype(np.uint8)


def dequantize(codes, scales, global_scale=None):
    """[.., K/2] codes, [.., K/16] scales -> [.., K] float64: fl(code * sf * s2)."""
    values = decode_e2m1(codes) * np.repeat(decode_scales(scales), SF_VEC, axis=-1)
    if global_scale is None:
        return values
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return round_to(values * np.float64(np.float32(global_scale)), "float32").astype(np.float64)


# --- Blocked scales ---


def padded(size, multiple):
    return -(-size // multiple) * multiple


def to_blocked(scales, padding=None):
    """[.., rows, cols] -> [.., rows padded to 128, cols padded to 4] in the 128x4-blocked order.

    Atoms lie row-major. Inside an atom lie 32 row quads: for each of its four rows, 32 apart, four
    columns. `padding` (of the padded shape) holds the bytes of the padding; without it they are 0.
    """
    *batch, rows, cols = scales.shape
    shape = (*batch, padded(rows, ATOM_ROWS), padded(cols, ATOM_COLS))
    full = np.zeros(shape, np.uint8) if padding is None else padding.reshape(shape).copy()
    full[..., :rows, :cols] = scales
    atoms = full.reshape(*batch, shape[-2] // 128, 4, 32, shape[-1] // 4, 4)
    return np.moveaxis(atoms, (-4, -3, -2), (-2, -3, -4)).reshape(shape)


def from_blocked(blocked, rows, cols):
    """The inverse of to_blocked: [.., padded rows, padded cols] -> [.., rows, cols]."""
    *batch, padded_rows, padded_cols = blocked.shape
    atoms = blocked.reshape(*batch, padded_rows // 128, padded_cols // 4, 32, 4, 4)
    full = np.moveaxis(atoms, (-2, -3, -4), (-4, -3, -2)).reshape(blocked.shape)
    return full[..., :rows, :cols]


def to_blocked_by_expert(scales, offsets):
    """[M, cols] -> [(M // 128 + G) * 128, padded cols]: each expert starts an atom of its own."""
    experts = len(offsets) - 1
    cols = padded(scales.shape[1], ATOM_COLS)
    out = np.zeros(((scales.shape[0] // ATOM_ROWS + experts) * ATOM_ROWS, cols), np.uint8)
    at = 0
    for first, end in zip(offsets[:-1], offsets[1:], strict=True):
        part = to_blocked(scales[first:end])
        out[at : at + len(part)] = part
        at += len(part)
    return out


# --- Expected results and verdicts ---


@dataclass
class Expected:
    """The exact result and the interval around it, in float64, not rounded to the output type."""

    low: np.ndarray
    exact: np.ndarray
    high: np.ndarray

    @classmethod
    def within(cls, exact, error):
        error = np.where(np.isfinite(exact), error, 0)
        return cls(exact - error, exact, exact + error)

    def rounded(self, dtype):
        return round_to(self.exact, dtype)

    def in_float32(self):
        """With infinities where float32 has no larger number, and zeros where it has no smaller."""
        rounded = self.rounded("float32")
        infinite = np.isinf(rounded)
        low, high = (np.where(infinite, rounded, end) for end in (self.low, self.high))
        return Expected(low, np.where(infinite | (rounded == 0), rounded, self.exact), high)

    def where_finite(self):
        """Infinities and NaN are themselves alone."""
        special = ~np.isfinite(self.exact)
        low, high = (np.where(special, self.exact, end) for end in (self.low, self.high))
        return Expected(low, self.exact, high)


@dataclass
class Verdict:
    """`worst`: the largest error as a fraction of its bound.

    `index`, `got` and `want` are those of the first wrong element; where none is wrong, of the
    element with the largest error.
    """

    ok: bool
    worst: float
    index: tuple
    got: float
    want: float

    def __str__(self):
        error = f"worst error {self.worst:.3g} of the bound"
        return f"at {self.index}: got {self.got!r}, want {self.want!r}, {error}"


def _verdict(ok, fraction, got, want):
    if got.size == 0:
        return Verdict(True, 0.0, (), math.nan, math.nan)
    at = np.argmin(ok) if not ok.all() else np.argmax(fraction)
    index = tuple(int(i) for i in np.unravel_index(at, got.shape))
    worst = float(fraction.max())
    return Verdict(bool(ok.all()), worst, index, float(got[index]), float(want[index]))


def check(got, expected, dtype):
    """Whether each value lies in [convert(low), convert(high)] and is NaN where `exact` is, only.

    The error of a value is the distance from the exact result to the nearest number that converts
    to that value: 0 where one rounding explains it.
    """
    got, exact = np.asarray(got, np.float32), expected.exact
    if got.shape != exact.shape:
        raise ValueError(f"got: shape {got.shape}, expected {exact.shape}")
    nan = np.isnan(exact)
    ok = (round_to(expected.low, dtype) <= got) & (got <= round_to(expected.high, dtype))
    ok = np.where(nan, np.isnan(got), ok)

    want = round_to(exact, dtype)
    inf = 2.0 ** (16 if dtype == "float16" else 128)  # the next number, if the format had it
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        value = np.clip(got.astype(np.float64), -inf, inf)
        mantissa, least = FORMATS[dtype]
        exponent = np.frexp(value)[1] - 1
        shrinks = (np.abs(value) > np.abs(exact)) & (np.frexp(value)[0] == np.copysign(0.5, value))
        gap = np.ldexp(1.0, np.maximum(exponent - shrinks, least) - mantissa)
        error = np.maximum(np.abs(value - exact) - gap / 2, 0)
        side = np.where(value > exact, expected.high - exact, exact - expected.low)
        fraction = np.where(error == 0, 0, error / side)
    same = (got == want) | (nan & np.isnan(got))
    fraction = np.where(same, 0, np.where(np.isnan(fraction), np.inf, fraction))
    return _verdict(ok, fraction, got, want)


def check_bits(got, want):
    """Whether two arrays of float32 values are the same to the bit; every NaN is the same."""
    got, want = np.asarray(got, np.float32), np.asarray(want, np.float32)
    if got.shape != want.shape:
        raise ValueError(f"got: shape {got.shape}, expected {want.shape}")
    ok = (got.view(np.int32) == want.view(np.int32)) | (np.isnan(got) & np.isnan(want))
    return _verdict(ok, np.where(ok, 0, np.inf), got, want)


# --- Products ---


def _product_in_full(a, b):
    with np.errstate(invalid="ignore", over="ignore"):
        return (a * b).sum(axis=-1)


def matmul(a, b):
    """a [.., M, K], b [.., N, K] -> sum_k a*b and sum_k |a*b|, [.., M, N] float64; zeros are +0.

    Rows with NaN or inf are multiplied element by element, since BLAS need not propagate them.
    Their sum of magnitudes is 0.
    """
    a_odd, b_odd = ~np.isfinite(a).all(axis=-1), ~np.isfinite(b).all(axis=-1)
    a_even, b_even = np.where(a_odd[..., None], 0, a), np.where(b_odd[..., None], 0, b)
    b_even = np.swapaxes(b_even, -1, -2)
    x = np.matmul(a_even, b_even) + 0.0
    total = np.matmul(np.abs(a_even), np.abs(b_even))
    for *batch, m in np.argwhere(a_odd):
        at = tuple(batch)
        x[(*at, m)] = _product_in_full(a[(*at, m)], b[at])
    for *batch, n in np.argwhere(b_odd):
        at = tuple(batch)
        x[(*at, slice(None), n)] = _product_in_full(a[at], b[(*at, n)])
    return x, total


def error_bound(x, total, terms, alpha=1.0, bias=0.0, c=1):
    """e for alpha * x + bias, where x was summed in float32.

    `terms` is K/16 where both operands are NVFP4, since the sum of a block is exact; else K. `c` is
    1 where every addition rounds to nearest (CPU, gemv), 12 on tensor cores.
    """
    with np.errstate(invalid="ignore"):
        rounding = np.abs(alpha * x) + np.abs(bias)
        return UNIT * (c * (terms + 8) * np.abs(alpha) * total + rounding)


def _float32(value):
    return np.asarray(value, np.float32).astype(np.float64)


def gemm(
    a, b, *, alpha=1.0, row_scale=None, bias=0.0, activation="identity", c=1, nvfp4=True
):  # fmt: skip
    """a [.., M, K], b [.., N, K] -> act(alpha[n] * (row_scale[.., m] * sum_k a*b) + bias[n]).

    `nvfp4`: both are NVFP4.
    """
    alpha, bias, rounding = _float32(alpha), np.asarray(bias, np.float64), 0.0
    x, total = matmul(a, b)
    terms = a.shape[-1] / SF_VEC if nvfp4 else a.shape[-1]
    with np.errstate(invalid="ignore"):
        if row_scale is not None:
            factors = _float32(row_scale)[..., None]
            x, total = factors * x, np.abs(factors) * total
            rounding = np.abs(alpha) * (UNIT * np.abs(x) + FLT_TRUE_MIN)
        e = error_bound(x, total, terms, alpha, bias, c) + rounding + FLT_TRUE_MIN
        h = Expected.within(alpha * x + bias, e)
    if activation == "identity":
        return h
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return _activate(activation, h.in_float32(), 1.0).in_float32().where_finite()


def gemv(a, b, *, alpha=1.0, row_scale=None, c=1, nvfp4=True):
    """a [.., M, K] the matrix, b [.., 1, K] the vector -> [.., M, 1]; alpha per row of a."""
    e = gemm(b, a, alpha=alpha, row_scale=row_scale, c=c, nvfp4=nvfp4)
    return Expected(*(np.swapaxes(part, -1, -2) for part in (e.low, e.exact, e.high)))


def _activate(name, h, scale):
    """The activation over [h.low, h.high], and what evaluating it in float32 may cost."""
    f, minimum = swish(scale) if name == "swiglu_oai" else ACTIVATIONS[name]
    ends = f(h.low), f(h.high)
    low, high = np.minimum(*ends), np.maximum(*ends)
    exact, slack = f(h.exact), np.abs(high) if name == "relu2" else 0  # of a product
    if minimum is not None:
        low = np.where((h.low < minimum) & (minimum < h.high), f(np.float64(minimum)), low)
        slack = 8 * np.abs(exact)
        if name.startswith("gelu"):  # 1 + erf cancels
            slack = slack + 4 * np.abs(h.exact)
        if name == "swiglu_oai":  # scale * h is rounded
            slack = slack + np.abs(scale * h.exact * exact)
    error = UNIT * slack + FLT_MIN if name not in ("relu", "identity") else 0
    return Expected(low - error, exact, high + error)


def dual_gemm(
    a, b1, b2, *, alpha1=1.0, alpha2=1.0, row_scale=None, bias1=0.0, bias2=0.0, activation="silu",
    limit=np.inf, activation_scale=1.702, c=1, nvfp4=True,
):  # fmt: skip
    """act(alpha1 * a b1^T + bias1) * (alpha2 * a b2^T + bias2), with its interval."""
    options = {"row_scale": row_scale, "c": c, "nvfp4": nvfp4}
    h = gemm(a, b1, alpha=alpha1, bias=bias1, **options).in_float32()
    u = gemm(a, b2, alpha=alpha2, bias=bias2, **options).in_float32()
    limit, scale = np.float64(np.float32(limit)), np.float64(np.float32(activation_scale))
    h = Expected(*(np.minimum(part, limit) for part in (h.low, h.exact, h.high)))
    u = Expected(*(np.clip(part, -limit, limit) for part in (u.low, u.exact, u.high)))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        act = _activate(activation, h, scale).in_float32()
        if activation == "swiglu_oai":
            rounding = UNIT * np.maximum(np.abs(u.low), np.abs(u.high)) + UNIT
            u = Expected(u.low + 1 - rounding, u.exact + 1, u.high + 1 + rounding).in_float32()
        corners = np.stack([act.low * u.low, act.low * u.high, act.high * u.low, act.high * u.high])
        exact = act.exact * u.exact
        rounding = UNIT * np.abs(corners).max(axis=0)
        e = Expected(corners.min(axis=0) - rounding, exact, corners.max(axis=0) + rounding)
    return e.where_finite()


# --- Quantising, in float32 ---


def global_scale_pair(x, global_scale, inverse=None):
    """(s2, S) in float32: the global scale, and what elements are multiplied by to be encoded."""
    one = np.float32(1)
    if isinstance(global_scale, str):
        finite = np.abs(x[np.isfinite(x)])
        g = finite.max() if finite.size else np.float32(0)
        if g == 0:
            return one, one
        encode = np.float32(2688) / g
        return (g / np.float32(2688), encode) if encode <= FLT_MAX else (one / FLT_MAX, FLT_MAX)
    if inverse is not None:
        return one / np.float32(inverse), np.minimum(np.float32(inverse), FLT_MAX)
    s2 = one if global_scale is None else np.float32(global_scale)
    return s2, np.minimum(one / s2, FLT_MAX)


def quantize(x, global_scale=None, up=None, inverse=None, smallest_scale=0):
    """x [.., K] float32, or silu(x) * up -> codes [.., K/2], scales [.., K/16], s2.

    `global_scale`: None, a number or "amax". `inverse`: a number that takes its place as S.
    """
    with np.errstate(all="ignore"):
        x = np.asarray(x, np.float32)
        x = x if up is None else gated(x, np.asarray(up, np.float32))
        pair = global_scale_pair(x, global_scale, inverse)
        return _quantize(x, *pair, np.float32(smallest_scale))


def scale_factors(amax, encode, smallest=0):
    """(the factors of blocks with these largest magnitudes, what they were rounded from)"""
    wanted = np.maximum(amax * (encode * (np.float32(1) / np.float32(6))), np.float32(smallest))
    wanted = np.minimum(wanted, np.float32(448))
    sf = np.minimum(round_to_grid(wanted.astype(np.float64), 3, -6), 448).astype(np.float32)
    return sf, wanted


def multipliers(sf, encode):
    """What the elements of blocks with these scale factors are multiplied by."""
    one = np.float32(1)
    return np.minimum(one / (sf * (one / encode)), FLT_MAX)


def _quantize(x, s2, encode, smallest_scale):
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // SF_VEC, SF_VEC)
    nan = np.isnan(blocks).any(axis=-1)
    amax = np.abs(np.where(np.isnan(blocks), 0, blocks)).max(axis=-1, initial=0)

    sf, wanted = scale_factors(amax, encode, smallest_scale)
    multiplier = multipliers(sf, encode)[..., None]

    bad = nan | np.isnan(wanted) | ~(encode > 0)
    zero = bad | (sf == 0)
    scaled = np.where(np.isinf(blocks), blocks, blocks * multiplier)
    scaled = np.where(zero[..., None], np.float32(0), scaled).astype(np.float64)
    magnitude = np.minimum(round_to_grid(np.abs(scaled), 1, 0), 6)
    codes = encode_e2m1(np.copysign(magnitude, scaled).reshape(x.shape))
    scales = np.where(bad, 0x7F, encode_scales(np.where(bad, 0, sf))).astype(np.uint8)
    return codes, scales, np.float32(s2)
