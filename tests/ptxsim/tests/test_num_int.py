"""Integer instructions of the simulator against PTX's own pseudocode, written out in Python."""

import ctypes
import random

import pytest
from ptxsim import num_library as num

i32, b, u32, u64 = ctypes.c_int, ctypes.c_bool, ctypes.c_uint32, ctypes.c_uint64
M32 = (1 << 32) - 1
random_ = random.Random(3)


def words(bits, count=300):
    edge = [0, 1, 2, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1]
    return edge + [random_.getrandbits(bits) >> random_.randrange(bits) for _ in range(count)]


def signed(x, bits):
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def either(x, bits, is_signed):
    return signed(x, bits) if is_signed else x & ((1 << bits) - 1)


def test_prmt():
    prmt = num.function("num_prmt", u32, u32, u32, u32, u32)
    assert prmt(0x03020100, 0x07060504, 0x7531, 0) == 0x07050301
    assert prmt(0x80, 0x7F, 0xC8C8, 0) == 0x00FF00FF
    tables = {  # d.b3 d.b2 d.b1 d.b0 for each selector, as in PTX
        1: [(3, 2, 1, 0), (4, 3, 2, 1), (5, 4, 3, 2), (6, 5, 4, 3)],
        2: [(5, 6, 7, 0), (6, 7, 0, 1), (7, 0, 1, 2), (0, 1, 2, 3)],
        3: [(0,) * 4, (1,) * 4, (2,) * 4, (3,) * 4],
        4: [(3, 2, 1, 0), (3, 2, 1, 1), (3, 2, 2, 2), (3, 3, 3, 3)],
        5: [(0, 0, 0, 0), (1, 1, 1, 0), (2, 2, 1, 0), (3, 2, 1, 0)],
        6: [(1, 0, 1, 0), (3, 2, 3, 2), (1, 0, 1, 0), (3, 2, 3, 2)],
    }
    for mode, rows in tables.items():
        for selector, row in enumerate(rows):
            assert prmt(0x83828180, 0x87868584, selector | 0xF0, mode) == sum(
                (0x80 + byte) << (24 - 8 * i) for i, byte in enumerate(row)
            )


def test_lop3():
    lop3 = num.function("num_lop3", u32, u32, u32, u32, ctypes.c_uint8)
    for lut in range(256):
        assert lop3(0xF0, 0xCC, 0xAA, lut) & 0xFF == lut
    x, y, z = 0x12345678, 0xDEADBEEF, 0x0F0F1234
    assert lop3(x, y, z, 0xF0 & 0xCC | 0xAA) == x & y | z
    assert lop3(x, y, z, 0x96) == x ^ y ^ z


@pytest.mark.parametrize("clamp", [False, True])
def test_funnel_shifts(clamp):
    left = num.function("num_shf_left", u32, u32, u32, u32, b)
    right = num.function("num_shf_right", u32, u32, u32, u32, b)
    for low, high in zip(words(32), words(32), strict=True):
        for amount in [*range(34), 63, 1 << 31]:
            n = min(amount, 32) if clamp else amount & 31
            assert left(low, high, amount, clamp) == ((high << 32 | low) << n >> 32) & M32
            assert right(low, high, amount, clamp) == (high << 32 | low) >> n & M32


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_past_the_width(bits):
    shl = num.function("num_shl", u64, i32, u64, u32)
    shr = num.function("num_shr", u64, i32, b, u64, u32)
    mask = (1 << bits) - 1
    for x in words(bits, 40):
        for n in [0, 1, bits - 1, bits, bits + 1, 255, 1 << 31]:
            assert shl(bits, x, n) == x << min(n, bits) & mask
            assert shr(bits, False, x, n) == x >> min(n, bits)
            assert shr(bits, True, x, n) == signed(x, bits) >> min(n, bits) & mask


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_fields(bits):
    bfe = num.function("num_bfe", u64, i32, b, u64, u32, u32)
    bfi = num.function("num_bfi", u64, i32, u64, u64, u32, u32)
    msb = bits - 1
    cases = [(random_.randrange(80), random_.randrange(80)) for _ in range(150)]
    cases += [(0, 0), (0, 255), (255, 1), (255, 255), (msb, 1), (msb, 2), (bits, 1), (256, 256 + 8)]
    for (c, d), x, y in zip(cases, words(bits, 152), words(bits, 152), strict=False):
        position, length = c & 0xFF, d & 0xFF
        for is_signed in (False, True):
            sign = x >> min(position + length - 1, msb) & 1 if is_signed and length else 0
            want = sum(
                (x >> position + i & 1 if i < length and position + i <= msb else sign) << i
                for i in range(bits)
            )
            assert bfe(bits, is_signed, x, c, d) == want
        want = y
        for i in range(length):
            if position + i <= msb:
                want = want & ~(1 << position + i) | (x >> i & 1) << position + i
        assert bfi(bits, x, y, c, d) == want


@pytest.mark.parametrize("bits", [32, 64])
def test_searches_and_counts(bits):
    bfind = num.function("num_bfind", u32, i32, b, u64, b)
    brev = num.function("num_brev", u64, i32, u64)
    clz = num.function("num_clz", u32, i32, u64)
    popc = num.function("num_popc", u32, i32, u64)
    for x in words(bits):
        for is_signed in (False, True):
            flipped = x ^ ((1 << bits) - 1) if is_signed and x >> (bits - 1) else x
            position = flipped.bit_length() - 1
            assert bfind(bits, is_signed, x, False) == position & M32
            amount = bits - 1 - position if flipped else M32
            assert bfind(bits, is_signed, x, True) == amount
        assert brev(bits, x) == int(f"{x:0{bits}b}"[::-1], 2)
        assert clz(bits, x) == bits - x.bit_length()
        assert popc(bits, x) == x.bit_count()


def test_fns_bmsk_szext():
    fns = num.function("num_fns", u32, u32, u32, ctypes.c_int32)
    assert fns(0b101100, 2, 0) == 2 and fns(0b101100, 1, 0) == M32
    assert fns(0b101100, 0, 2) == 3 and fns(0b101100, 31, -1) == 5 and fns(0b101100, 5, 3) == M32
    bmsk = num.function("num_bmsk", u32, u32, u32, b)
    assert bmsk(4, 8, True) == 0xFF0 and bmsk(28, 8, True) == 0xF0000000
    assert bmsk(0, 32, True) == M32 and bmsk(0, 32, False) == 0 and bmsk(33, 1, False) == 2
    assert bmsk(32, 1, True) == 0
    szext = num.function("num_szext", u32, b, u32, u32, b)
    assert szext(True, 0x1F0, 8, True) == 0xFFFFFFF0 and szext(False, 0x1F0, 8, True) == 0xF0
    assert szext(True, 0x80000000, 32, True) == 0x80000000 and szext(True, 1, 33, False) == M32
    assert szext(True, 5, 0, True) == 0


@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_products_quotients_and_differences(bits, is_signed):
    mul_hi = num.function("num_mul_hi", u64, i32, b, u64, u64)
    mul_wide = num.function("num_mul_wide", u64, i32, b, u64, u64)
    div = num.function("num_div", u64, i32, b, u64, u64)
    rem = num.function("num_rem", u64, i32, b, u64, u64)
    sad = num.function("num_sad", u64, i32, b, u64, u64, u64)
    less = num.function("num_int_less", b, i32, b, u64, u64)
    mask = (1 << bits) - 1
    edge = words(bits, 0)
    cases = [(p, q) for p in edge for q in edge] + list(zip(words(bits), words(bits), strict=True))
    for p, q in cases:
        x, y = either(p, bits, is_signed), either(q, bits, is_signed)
        assert mul_hi(bits, is_signed, p, q) == x * y >> bits & mask
        if bits < 64:
            assert mul_wide(bits, is_signed, p, q) == x * y & ((1 << 2 * bits) - 1)
        quotient = -1 if y == 0 else abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1)
        assert div(bits, is_signed, p, q) == quotient & mask
        assert rem(bits, is_signed, p, q) == (x if y == 0 else x - quotient * y) & mask
        assert sad(bits, is_signed, p, q, 7) == 7 + abs(x - y) & mask
        assert less(bits, is_signed, p, q) == (x < y)


def test_dot_products_and_24_bits():
    dp4a = num.function("num_dp4a", u32, b, b, u32, u32, u32)
    dp2a = num.function("num_dp2a", u32, b, b, b, u32, u32, u32)
    mul24 = num.function("num_mul24", u32, b, b, u32, u32)
    sat = num.function("num_sat_s32", u32, ctypes.c_int64)
    for p, q, c in zip(words(32), words(32), words(32), strict=True):
        for s, t in [(False, False), (True, False), (False, True), (True, True)]:
            bytes_p = [either(p >> 8 * i, 8, s) for i in range(4)]
            bytes_q = [either(q >> 8 * i, 8, t) for i in range(4)]
            dot = sum(m * n for m, n in zip(bytes_p, bytes_q, strict=True))
            assert dp4a(s, t, p, q, c) == c + dot & M32
            halves = [either(p >> 16 * i, 16, s) for i in range(2)]
            for upper in (False, True):
                pair = bytes_q[2:] if upper else bytes_q[:2]
                dot = sum(m * n for m, n in zip(halves, pair, strict=True))
                assert dp2a(s, t, upper, p, q, c) == c + dot & M32
        for is_signed in (False, True):
            product = either(p, 24, is_signed) * either(q, 24, is_signed)
            assert mul24(is_signed, False, p, q) == product & M32
            assert mul24(is_signed, True, p, q) == product >> 16 & M32
    assert sat(1 << 31) == 0x7FFFFFFF and sat(-(1 << 31) - 1) == 0x80000000 and sat(-1) == M32
