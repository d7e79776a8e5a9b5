"""The simulator's tensor cores: the published model once more with fractions, and fragments."""

import ctypes
import math
from fractions import Fraction

import numpy as np
import pytest
from ptxsim import num_library as num
from ptxsim import num_oracle as oracle

rng = np.random.default_rng(4)
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
#       arch: products a step (16 bits, 8 bits), fraction bits (16, 8 bits), smallest exponent
MODELS = {
    80: (8, 16, 24, 24, -132),
    89: (8, 16, 24, 13, -132),
    90: (16, 32, 25, 13, -133),
    100: (16, 32, 25, 25, -133),
    120: (16, 32, 25, 25, -133),
}


def model(arch):
    found = num.function("num_mma_model_of", ctypes.c_void_p, ctypes.c_int)(arch)
    return ctypes.c_void_p(found)


def words(x):
    return np.ascontiguousarray(x, dtype=np.uint32)


def mma(arch, fmt, a, b, c):
    """D = A B^T + C on codes: a [m][k], b [n][k], c [m][n]."""
    a, b, d = words(a), words(b), words(c).copy()
    sizes = map(ctypes.c_int, (a.shape[0], b.shape[0], a.shape[1]))
    formats = (num.FORMATS.index(fmt), num.FORMATS.index(fmt))
    num.library().num_mma(model(arch), *formats, *sizes, *map(num.pointer, (a, b, d)))
    return d


def codes(fmt, shape, spread=4, zeros=0.1):
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)
    x[rng.random(shape) < zeros] = 0
    x = np.clip(x, -200, 200)  # finite in every format
    return words(num.convert(fmt, "f64", x.view(np.uint64), num.mode(satfinite=True)))


def exponent(x, smallest):
    return max(math.frexp(x)[1] - 1, smallest)


def one_step(terms, fraction_bits, least):
    """(exact aligned sum): terms are (value, exponent)."""
    terms = [(Fraction(v), e) for v, e in terms if v]
    top = max([least] + [e for _, e in terms])
    unit = Fraction(2) ** (top - fraction_bits)
    return sum((int(v / unit) for v, _ in terms), 0) * unit


def truncate(x, bits):
    """Of x, the leading bit and `bits` after it."""
    if x == 0:
        return x
    top = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
    top -= Fraction(2) ** top > abs(x)
    unit = Fraction(2) ** (top - bits)
    return int(x / unit) * unit


def expected(arch, fmt, a, b, c):
    """One element: a, b float lists, c a float."""
    step16, step8, bits, bits8, least = MODELS[arch]
    narrow = fmt in ("e4m3", "e5m2")
    step = step8 if narrow else step16
    smallest = {"f16": -14, "bf16": -126, "e4m3": -6, "e5m2": -14}[fmt]
    for first in range(0, len(a), step):
        terms = [
            (p * q, exponent(p, smallest) + exponent(q, smallest))
            for p, q in zip(a[first : first + step], b[first : first + step], strict=True)
        ]
        total = one_step([*terms, (c, exponent(c, -126))], bits8 if narrow else bits, least)
        if narrow and arch in (89, 90):
            total = truncate(total, 13)
        code = oracle.round_exact("f32", total, "rz")
        c = float(num.values("f32", [code])[0])
    return code


CASES = [(arch, fmt) for arch in MODELS for fmt in ("f16", "bf16", "e4m3", "e5m2")]


@pytest.mark.parametrize(("arch", "fmt"), CASES)
def test_every_element_follows_the_model(arch, fmt):
    k = {"e4m3": 32, "e5m2": 32}.get(fmt, 16)
    a, b, c = codes(fmt, (6, k)), codes(fmt, (16, k)), codes("f32", (6, 16), spread=8)
    got = mma(arch, fmt, a, b, c)
    x, y, z = (num.values(f, v) for f, v in ((fmt, a), (fmt, b), ("f32", c)))
    for i in range(6):
        for j in range(16):
            want = expected(arch, fmt, x[i].tolist(), y[j].tolist(), float(z[i, j]))
            assert got[i, j] == want, (i, j, hex(got[i, j]), hex(want))


@pytest.mark.parametrize("arch", [80, 90])
def test_small_products_keep_the_documented_bits(arch):
    """1 + 2^-n for a product that the alignment keeps, or cuts."""
    bits = MODELS[arch][2]
    one = words(np.full((1, 16), 0x3F80))
    for n in range(20, 30):
        b = words(np.zeros((8, 16)))
        b[0, :2] = 0x3F80, ((127 - n) << 7)  # 1 and 2^-n
        b[0, 2] = 0xBF80  # -1: what is left is the small product
        got = mma(arch, "bf16", one, b, np.zeros((1, 8)))[0, 0]
        assert num.values("f32", [got])[0] == (2.0**-n if n <= bits else 0)


def test_tiny_sums_align_to_the_smallest_exponent():
    a = words(np.full((1, 16), (127 - 70) << 7))  # 2^-70
    b = words(np.zeros((8, 16)))
    b[0, 0], b[0, 1] = (127 - 70) << 7, (127 - 79) << 7
    for arch in (80, 90, 100):
        assert mma(arch, "bf16", a, b, np.zeros((1, 8)))[0, 0] == (1 << 9) + 1


def test_specials():
    inf, nan, one = 0x7C00, 0x7E00, 0x3C00
    rows = {
        (inf, one): 0x7F800000,
        (inf | 0x8000, one): 0xFF800000,
        (inf, 0): 0x7FFFFFFF,
        (nan, one): 0x7FFFFFFF,
        (nan, 0): 0x7FFFFFFF,
    }
    for arch in MODELS:
        for (p, q), want in rows.items():
            a, b = words(np.full((2, 16), one)), words(np.full((8, 16), one))
            a[1, 5], b[3, 5] = p, q
            got = mma(arch, "f16", a, b, np.zeros((2, 8)))
            assert got[1, 3] == want
            assert (got[0] == [0x41800000] * 3 + [int(got[0, 3])] + [0x41800000] * 4).all()
        a, b = words(np.full((1, 16), one)), words(np.full((8, 16), one))
        c = words([[0x7F800000, 0xFF800000, 0x7FC00000, 0x7F7FFFFF, 0xFF7FFFFF, 0, 0, 0]])
        got = mma(arch, "f16", a, b, c)[0]
        assert (
            got.tolist()
            == [0x7F800000, 0xFF800000, 0x7FFFFFFF, 0x7F7FFFFF, 0xFF7FFFFF] + [0x41800000] * 3
        )
        a[0, 0], b[0, 0] = inf, inf | 0x8000
        assert mma(arch, "f16", a, b, words([[0x7F800000] * 8]))[0, 0] == 0x7FFFFFFF
        huge = words(np.full((8, 16), 0x7F7F))
        assert mma(arch, "bf16", huge[:1], huge, np.zeros((1, 8)))[0, 0] == 0x7F800000


def test_eight_bit_operands_on_hopper_round_the_accumulator_to_13_bits():
    zero = np.zeros((8, 32))
    c = words([[0x7F000000, 0xFF7FFFFF, 0x3F800FFF, 0xBF8003FF, 0x00800001, 0, 0, 0]])
    got = mma(90, "e4m3", zero[:1], zero, c)[0]
    assert got[:5].tolist() == [0x7F000000, 0xFF7FFC00, 0x3F800C00, 0xBF800000, 0x00800000]


def expected_nvf4(a, sfa, b, sfb, c):
    """One element: codes of a and b [64], of the scales [4], c a float."""
    terms = []
    for j in range(4):
        scales = num.values("e4m3", [sfa[j] & 127, sfb[j] & 127])
        total = sum(Fraction(E2M1[a[k]]) * Fraction(E2M1[b[k]]) for k in range(16 * j, 16 * j + 16))
        value = total * Fraction(scales[0]) * Fraction(scales[1])
        terms.append((value, sum(exponent(s, -6) if s else -126 for s in scales)))
    terms.append((Fraction(c), exponent(c, -126) if c else -126))
    unit = Fraction(2) ** (max(e for _, e in terms) - 35)
    return oracle.round_exact("f32", sum(int(v / unit) for v, _ in terms) * unit, "rz")


def mma_nvf4(a, sfa, b, sfb, c, zeros_win=False):
    d = words(c).copy()
    operands = map(num.pointer, (a, sfa, b, sfb, d))
    num.library().num_mma_nvf4(model(100), zeros_win, len(a), len(b), *operands)
    return d


def test_nvf4_follows_the_model():
    m, n = 5, 16
    a, b = (rng.integers(0, 16, (rows, 64), dtype=np.uint8) for rows in (m, n))
    sfa, sfb = (rng.integers(0, 126, (rows, 4), dtype=np.uint8) for rows in (m, n))
    sfa[0], b[2, :32] = 0, 0
    a[3, 16:32] = np.resize([1, 9], 16)
    c = codes("f32", (m, n), spread=12)
    d, x = mma_nvf4(a, sfa, b, sfb, c), num.values("f32", c)
    for i in range(m):
        for j in range(n):
            want = expected_nvf4(a[i], sfa[i], b[j], sfb[j], float(x[i, j]))
            assert d[i, j] == want, (i, j, hex(d[i, j]), hex(want))


def test_nvf4_specials():
    a, b = np.full((1, 64), 2, np.uint8), np.full((8, 64), 2, np.uint8)
    sfa, sfb = np.full((1, 4), 0x38, np.uint8), np.full((8, 4), 0x38, np.uint8)
    sfb[1, 2], sfb[2] = 0x7F, 0xB8  # NaN; the sign is ignored
    d = mma_nvf4(a, sfa, b, sfb, [[0, 0, 0, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000, 0]])
    sum64, nan = 0x42800000, 0x7FFFFFFF
    want = [sum64, nan, sum64, 0x7F800000, 0xFF800000, nan, 0x42820000, sum64]
    assert d[0].tolist() == want


def test_a_nan_scale_of_zeros_may_count_or_not():
    a, b = np.full((1, 64), 2, np.uint8), np.full((8, 64), 2, np.uint8)
    sfa, sfb = np.full((1, 4), 0x38, np.uint8), np.full((8, 4), 0x38, np.uint8)
    b[0, 16:32], sfb[0, 1] = 0, 0x7F  # zeros; products that cancel; one that does not; -NaN
    b[1, 16:32], sfb[1, 1] = np.resize([1, 9], 16), 0x7F
    b[2, 16:31], sfb[2, 1] = 0, 0x7F
    b[3, 16:32], sfb[3, 1] = 8, 0xFF
    b[4, 16:32], sfb[4, 2] = 0, 0x7F  # of the next block
    c, nan, sum48, sum64 = np.zeros((1, 8), np.uint32), 0x7FFFFFFF, 0x42400000, 0x42800000
    assert mma_nvf4(a, sfa, b, sfb, c)[0].tolist() == [nan] * 5 + [sum64] * 3
    want = [sum48, sum48, nan, sum48, nan] + [sum64] * 3
    assert mma_nvf4(a, sfa, b, sfb, c, zeros_win=True)[0].tolist() == want


def test_nvf4_sums_that_cancel_are_zero():
    a, b = np.zeros((2, 64), np.uint8), np.full((16, 64), 7, np.uint8)
    a[1, ::2], a[1, 1::2] = 5, 13
    sfa, sfb = np.full((2, 4), 0x39, np.uint8), np.full((16, 4), 0x41, np.uint8)
    for c in (0, 0x80000001):  # the smallest, negative: far below what the alignment keeps
        assert not mma_nvf4(a, sfa, b, sfb, np.full((2, 16), c, np.uint32)).any()


# --- Fragments ---


class Position(ctypes.Structure):
    _fields_ = [("row", ctypes.c_int), ("col", ctypes.c_int)]


def positions(name, *arguments):
    at = num.function(name, Position, *[ctypes.c_int] * len(arguments))(*arguments)
    return at.row, at.col


def test_fragments_follow_ptx():
    """PTX ISA 9.7.14.5.7 and .8: m16n8k8 and m16n8k16 of 16 bits; .10: m16n8k32 of 8 bits."""
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        for i in range(8):
            row = group if i < 2 or 4 <= i < 6 else group + 8
            col = thread * 2 + (i & 1) + (8 if i >= 4 else 0)
            assert positions("num_mma_a_position", 16, lane, i) == (row, col)
        for i in range(4):
            row = thread * 2 + (i & 1) + (8 if i >= 2 else 0)
            assert positions("num_mma_b_position", 16, lane, i) == (row, group)
            row = group if i < 2 else group + 8
            assert positions("num_mma_d_position", lane, i) == (row, thread * 2 + (i & 1))
        for i in range(16):
            row = group if i < 4 or 8 <= i < 12 else group + 8
            col = thread * 4 + (i & 3) + (16 if i >= 8 else 0)
            assert positions("num_mma_a_position", 8, lane, i) == (row, col)
        for i in range(8):
            row = thread * 4 + (i & 3) + (16 if i >= 4 else 0)
            assert positions("num_mma_b_position", 8, lane, i) == (row, group)


def test_warpgroup_fragments_cover_their_matrices():
    for n in (8, 64, 256):
        seen = {positions("num_wgmma_d_position", t, i) for t in range(128) for i in range(n // 2)}
        assert seen == {(row, col) for row in range(64) for col in range(n)}
    for bits, k in ((16, 16), (8, 32)):
        at = [
            positions("num_wgmma_a_position", bits, t, i) for t in range(128) for i in range(k // 2)
        ]
        assert sorted(at) == [(row, col) for row in range(64) for col in range(k)]
    assert positions("num_wgmma_d_position", 37, 7) == (16 + 1 + 8, 8 + 3)


def warp_mma(arch, fmt, a, b, c):
    """mma.sync of a warp: codes a [16][k], b [8][k], c [16][8], through registers to D and back."""
    k = a.shape[1]
    a_regs, b_regs, c_regs, d_regs = np.zeros((4, 4, 32), np.uint32)

    def put(registers, lane, i, value):
        registers[i // 2, lane] |= np.uint32(int(value) << (16 * (i % 2)))

    def pointers(*registers):
        return (ctypes.c_void_p * len(registers))(*(row.ctypes.data for row in registers))

    for lane in range(32):
        for i in range(k // 2):
            put(a_regs, lane, i, a[positions("num_mma_a_position", 16, lane, i)])
        for i in range(k // 4):
            row, col = positions("num_mma_b_position", 16, lane, i)
            put(b_regs, lane, i, b[col, row])
        for i in range(4):
            c_regs[i, lane] = c[positions("num_mma_d_position", lane, i)]
    operands = pointers(*a_regs, *b_regs[:2], *c_regs)
    num.library().num_mma_sync(model(arch), num.FORMATS.index(fmt), k, operands, pointers(*d_regs))
    d = np.zeros((16, 8), np.uint32)
    for lane in range(32):
        for i in range(4):
            d[positions("num_mma_d_position", lane, i)] = d_regs[i, lane]
    return d


@pytest.mark.parametrize(("fmt", "k"), [("f16", 8), ("f16", 16), ("bf16", 16)])
def test_a_warp_multiplies_its_fragments(fmt, k):
    a, b, c = codes(fmt, (16, k)), codes(fmt, (8, k)), codes("f32", (16, 8))
    assert (warp_mma(90, fmt, a, b, c) == mma(90, fmt, a, b, c)).all()
