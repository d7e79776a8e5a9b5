/* PTX ISA 9.7.1 (arithmetic), 9.7.8 (logic and shifts), 9.7.9.7 (prmt). */
#include "num_int.h"

static uint64_t mask_of(int bits) { return bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1; }

static int64_t extend(int bits, bool is_signed, uint64_t a)
{
    a &= mask_of(bits);
    return (int64_t)(is_signed && a >> (bits - 1) ? a | ~mask_of(bits) : a);
}

static uint32_t at_most(uint32_t a, uint32_t limit) { return a < limit ? a : limit; }

/* ---------------------------------------------------------------------------------------------------------------- */
/* Bytes and bits                                                                                                   */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The byte numbers that a mode's two-bit selector picks, d.b3 in the upper nibble of each entry. */
static const uint16_t PRMT_SELECTORS[][4] = {
    [NUM_PRMT_F4E] = {0x3210, 0x4321, 0x5432, 0x6543}, [NUM_PRMT_B4E] = {0x5670, 0x6701, 0x7012, 0x0123},
    [NUM_PRMT_RC8] = {0x0000, 0x1111, 0x2222, 0x3333}, [NUM_PRMT_ECL] = {0x3210, 0x3211, 0x3222, 0x3333},
    [NUM_PRMT_ECR] = {0x0000, 0x1110, 0x2210, 0x3210}, [NUM_PRMT_RC16] = {0x1010, 0x3232, 0x1010, 0x3232},
};

uint32_t num_prmt(uint32_t a, uint32_t b, uint32_t c, num_prmt_mode mode)
{
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t selector = mode == NUM_PRMT_INDEX ? c : PRMT_SELECTORS[mode][c & 3];
    uint32_t d = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t pick = selector >> (4 * i) & 15;
        uint32_t byte = (uint32_t)(bytes >> (8 * (pick & 7))) & 0xFF;
        if (pick & 8) byte = byte & 0x80 ? 0xFF : 0;
        d |= byte << (8 * i);
    }
    return d;
}

uint32_t num_lop3(uint32_t a, uint32_t b, uint32_t c, uint8_t lut)
{
    uint32_t d = 0;
    for (unsigned i = 0; i < 8; i++) {
        if (lut >> i & 1) d |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }
    return d;
}

uint32_t num_shf_left(uint32_t a, uint32_t b, uint32_t amount, bool clamp)
{
    uint32_t n = clamp ? at_most(amount, 32) : amount & 31;
    return (uint32_t)(((uint64_t)b << 32 | a) << n >> 32 | (n == 32 ? a : 0));
}

uint32_t num_shf_right(uint32_t a, uint32_t b, uint32_t amount, bool clamp)
{
    uint32_t n = clamp ? at_most(amount, 32) : amount & 31;
    return (uint32_t)(((uint64_t)b << 32 | a) >> n);
}

uint64_t num_shl(int bits, uint64_t a, uint32_t amount)
{
    return amount >= (uint32_t)bits ? 0 : a << amount & mask_of(bits);
}

uint64_t num_shr(int bits, bool is_signed, uint64_t a, uint32_t amount)
{
    int64_t wide = extend(bits, is_signed, a);
    if (is_signed) return (uint64_t)(wide >> at_most(amount, (uint32_t)bits - 1)) & mask_of(bits);
    return amount >= (uint32_t)bits ? 0 : (uint64_t)wide >> amount;
}

uint64_t num_bfe(int bits, bool is_signed, uint64_t a, uint32_t position, uint32_t length)
{
    position &= 0xFF, length &= 0xFF;
    if (length == 0) return 0;
    uint32_t end = at_most(position + length, (uint32_t)bits); /* the sign is the bit below, a's top at the latest */
    bool sign = is_signed && a >> (end - 1) & 1;
    uint64_t field = num_shr(bits, false, a, position);
    if (length >= (uint32_t)bits - at_most(position, (uint32_t)bits)) length = end > position ? end - position : 0;
    field &= mask_of((int)length);
    return (sign ? field | ~mask_of((int)length) : field) & mask_of(bits);
}

uint64_t num_bfi(int bits, uint64_t a, uint64_t b, uint32_t position, uint32_t length)
{
    position &= 0xFF, length &= 0xFF;
    uint64_t field = num_shl(bits, mask_of((int)length), position);
    return ((b & ~field) | (num_shl(bits, a, position) & field)) & mask_of(bits);
}

uint32_t num_bfind(int bits, bool is_signed, uint64_t a, bool shift_amount)
{
    int64_t wide = extend(bits, is_signed, a);
    uint64_t magnitude = (uint64_t)(is_signed && wide < 0 ? ~wide : wide);
    if (magnitude == 0) return UINT32_MAX;
    uint32_t position = 63 - (uint32_t)__builtin_clzll(magnitude);
    return shift_amount ? (uint32_t)bits - 1 - position : position;
}

uint32_t num_fns(uint32_t mask, uint32_t base, int32_t offset)
{
    if (offset == 0) return base < 32 && mask >> base & 1 ? base : UINT32_MAX;
    int64_t left = offset < 0 ? -(int64_t)offset : offset;
    for (int64_t position = base; position >= 0 && position < 32; position += offset < 0 ? -1 : 1) {
        if (mask >> position & 1 && --left == 0) return (uint32_t)position;
    }
    return UINT32_MAX;
}

uint32_t num_bmsk(uint32_t position, uint32_t width, bool clamp)
{
    if (clamp && position >= 32) return 0;
    position &= 31;
    width = clamp ? at_most(width, 32) : width & 31;
    return (uint32_t)(mask_of((int)width) << position);
}

uint32_t num_szext(bool is_signed, uint32_t a, uint32_t width, bool clamp)
{
    if (clamp && width >= 32) return a;
    width &= 31;
    return width == 0 ? 0 : (uint32_t)extend((int)width, is_signed, a);
}

uint64_t num_brev(int bits, uint64_t a)
{
    uint64_t reversed = 0;
    for (int i = 0; i < bits; i++)
        reversed |= (a >> i & 1) << (bits - 1 - i);
    return reversed;
}

uint32_t num_clz(int bits, uint64_t a)
{
    a &= mask_of(bits);
    return a ? (uint32_t)(__builtin_clzll(a) - (64 - bits)) : (uint32_t)bits;
}

uint32_t num_popc(int bits, uint64_t a) { return (uint32_t)__builtin_popcountll(a & mask_of(bits)); }

/* ---------------------------------------------------------------------------------------------------------------- */
/* Arithmetic                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

uint64_t num_mul_hi(int bits, bool is_signed, uint64_t a, uint64_t b)
{
    __extension__ typedef __int128 wide;
    __extension__ typedef unsigned __int128 unsigned_wide;
    if (!is_signed) {
        unsigned_wide product = (unsigned_wide)(a & mask_of(bits)) * (b & mask_of(bits));
        return (uint64_t)(product >> bits) & mask_of(bits);
    }
    wide product = (wide)extend(bits, true, a) * extend(bits, true, b);
    return (uint64_t)(product >> bits) & mask_of(bits);
}

uint64_t num_mul_wide(int bits, bool is_signed, uint64_t a, uint64_t b)
{
    return (uint64_t)extend(bits, is_signed, a) * (uint64_t)extend(bits, is_signed, b) & mask_of(2 * bits);
}

uint32_t num_mul24(bool is_signed, bool high, uint32_t a, uint32_t b)
{
    int64_t product = extend(24, is_signed, a) * extend(24, is_signed, b); /* 48 bits */
    return (uint32_t)(high ? product >> 16 : product);
}

uint64_t num_div(int bits, bool is_signed, uint64_t a, uint64_t b)
{
    int64_t x = extend(bits, is_signed, a), y = extend(bits, is_signed, b);
    if (y == 0) return mask_of(bits);
    if (is_signed && y == -1) return -(uint64_t)x & mask_of(bits);
    return (is_signed ? (uint64_t)(x / y) : (uint64_t)x / (uint64_t)y) & mask_of(bits);
}

uint64_t num_rem(int bits, bool is_signed, uint64_t a, uint64_t b)
{
    int64_t x = extend(bits, is_signed, a), y = extend(bits, is_signed, b);
    if (y == 0) return a & mask_of(bits);
    if (is_signed && y == -1) return 0;
    return (is_signed ? (uint64_t)(x % y) : (uint64_t)x % (uint64_t)y) & mask_of(bits);
}

uint32_t num_sat_s32(int64_t value)
{
    return (uint32_t)(value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : value);
}

uint64_t num_sad(int bits, bool is_signed, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t difference = num_int_less(bits, is_signed, a, b) ? b - a : a - b;
    return (c + difference) & mask_of(bits);
}

static int32_t part(uint32_t word, bool is_signed, int bits, int index)
{
    return (int32_t)extend(bits, is_signed, word >> (bits * index));
}

uint32_t num_dp4a(bool a_signed, bool b_signed, uint32_t a, uint32_t b, uint32_t c)
{
    for (int i = 0; i < 4; i++)
        c += (uint32_t)(part(a, a_signed, 8, i) * part(b, b_signed, 8, i));
    return c;
}

uint32_t num_dp2a(bool a_signed, bool b_signed, bool upper, uint32_t a, uint32_t b, uint32_t c)
{
    for (int i = 0; i < 2; i++) {
        c += (uint32_t)(part(a, a_signed, 16, i) * part(b, b_signed, 8, i + (upper ? 2 : 0)));
    }
    return c;
}

bool num_int_less(int bits, bool is_signed, uint64_t a, uint64_t b)
{
    int64_t x = extend(bits, is_signed, a), y = extend(bits, is_signed, b);
    return is_signed ? x < y : (uint64_t)x < (uint64_t)y;
}
