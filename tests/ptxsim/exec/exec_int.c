/* Executes integer arithmetic; signed and unsigned have one function where the bits are the same. */
#include "exec.h"

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
typedef unsigned __int128 u128;
typedef __int128 s128;

#define FOR_WIDTH(T)                  \
    MAP2(add_##T, T, T, T, a + b)     \
    MAP2(sub_##T, T, T, T, a - b)     \
    MAP2(mul_##T, T, T, T, (u64)a *b) \
    MAP3(mad_##T, T, T, T, T, (u64)a *b + c)

FOR_WIDTH(u16)
FOR_WIDTH(u32)
FOR_WIDTH(u64)

/* What a division by zero gives is not specified: all ones, as the hardware's sequence does. */
static s64 divide(s64 a, s64 b) { return b == 0 ? -1 : b == -1 ? (s64)(0 - (u64)a) : a / b; }
static s64 remainder_of(s64 a, s64 b) { return b == 0 ? a : b == -1 ? 0 : a % b; }
static u64 divide_u(u64 a, u64 b) { return b == 0 ? ~(u64)0 : a / b; }
static u64 remainder_u(u64 a, u64 b) { return b == 0 ? a : a % b; }

#define FOR_SIGN(T, DIVIDE, REMAINDER)    \
    MAP2(min_##T, T, T, T, a < b ? a : b) \
    MAP2(max_##T, T, T, T, a > b ? a : b) \
    MAP2(div_##T, T, T, T, DIVIDE(a, b))  \
    MAP2(rem_##T, T, T, T, REMAINDER(a, b))

FOR_SIGN(u16, divide_u, remainder_u)
FOR_SIGN(s16, divide, remainder_of)
FOR_SIGN(u32, divide_u, remainder_u)
FOR_SIGN(s32, divide, remainder_of)
FOR_SIGN(u64, divide_u, remainder_u)
FOR_SIGN(s64, divide, remainder_of)

MAP2(hi_u16, u16, u16, u16, (u32)a *b >> 16)
MAP2(hi_s16, u16, s16, s16, (s32)a *b >> 16)
MAP2(hi_u32, u32, u32, u32, (u64)a *b >> 32)
MAP2(hi_s32, u32, s32, s32, (s64)a *b >> 32)
MAP2(hi_u64, u64, u64, u64, (u128)a *b >> 64)
MAP2(hi_s64, u64, s64, s64, (s128)a *b >> 64)
MAP3(mad_hi_u32, u32, u32, u32, u32, ((u64)a * b >> 32) + c)
MAP3(mad_hi_s32, u32, s32, s32, u32, (u64)((s64)a * b >> 32) + c)
MAP3(mad_hi_u64, u64, u64, u64, u64, (u64)((u128)a * b >> 64) + c)

MAP2(wide_u16, u32, u16, u16, (u32)a *b)
MAP2(wide_s16, u32, s16, s16, (s32)a *b)
MAP2(wide_u32, u64, u32, u32, (u64)a *b)
MAP2(wide_s32, u64, s32, s32, (s64)a *b)
MAP3(mad_wide_u16, u32, u16, u16, u32, (u32)a *b + c)
MAP3(mad_wide_s16, u32, s16, s16, u32, (u32)((s32)a * b) + c)
MAP3(mad_wide_u32, u64, u32, u32, u64, (u64)a *b + c)
MAP3(mad_wide_s32, u64, s32, s32, u64, (u64)((s64)a * b) + c)

MAP1(neg_16, u16, u16, 0 - a)
MAP1(neg_32, u32, u32, 0 - a)
MAP1(neg_64, u64, u64, 0 - a)
MAP1(abs_16, u16, s16, a < 0 ? 0 - (u16)a : (u16)a)
MAP1(abs_32, u32, s32, a < 0 ? 0 - (u32)a : (u32)a)
MAP1(abs_64, u64, s64, a < 0 ? 0 - (u64)a : (u64)a)

#define BOTH(op, width, letter, fn) \
    {op ".s" #width, letter letter letter, fn, 0, 0}, {op ".u" #width, letter letter letter, fn, 0, 0}
#define SIGNED(op, width, letter, stem)                            \
    {op ".s" #width, letter letter letter, stem##_s##width, 0, 0}, \
        {op ".u" #width, letter letter letter, stem##_u##width, 0, 0}

const op_row sim_int_rows[] = {
    BOTH("add", 16, "h", add_u16),
    BOTH("add", 32, "w", add_u32),
    BOTH("add", 64, "d", add_u64),
    BOTH("sub", 16, "h", sub_u16),
    BOTH("sub", 32, "w", sub_u32),
    BOTH("sub", 64, "d", sub_u64),
    BOTH("mul.lo", 16, "h", mul_u16),
    BOTH("mul.lo", 32, "w", mul_u32),
    BOTH("mul.lo", 64, "d", mul_u64),
    SIGNED("mul.hi", 16, "h", hi),
    SIGNED("mul.hi", 32, "w", hi),
    SIGNED("mul.hi", 64, "d", hi),
    SIGNED("min", 16, "h", min),
    SIGNED("min", 32, "w", min),
    SIGNED("min", 64, "d", min),
    SIGNED("max", 16, "h", max),
    SIGNED("max", 32, "w", max),
    SIGNED("max", 64, "d", max),
    SIGNED("div", 16, "h", div),
    SIGNED("div", 32, "w", div),
    SIGNED("div", 64, "d", div),
    SIGNED("rem", 16, "h", rem),
    SIGNED("rem", 32, "w", rem),
    SIGNED("rem", 64, "d", rem),
    {"mad.lo.s16", "hhhh", mad_u16, 0, 0},
    {"mad.lo.u16", "hhhh", mad_u16, 0, 0},
    {"mad.lo.s32", "wwww", mad_u32, 0, 0},
    {"mad.lo.u32", "wwww", mad_u32, 0, 0},
    {"mad.lo.s64", "dddd", mad_u64, 0, 0},
    {"mad.lo.u64", "dddd", mad_u64, 0, 0},
    {"mad.hi.u32", "wwww", mad_hi_u32, 0, 0},
    {"mad.hi.s32", "wwww", mad_hi_s32, 0, 0},
    {"mad.hi.u64", "dddd", mad_hi_u64, 0, 0},
    {"mul.wide.u16", "whh", wide_u16, 0, 0},
    {"mul.wide.s16", "whh", wide_s16, 0, 0},
    {"mul.wide.u32", "dww", wide_u32, 0, 0},
    {"mul.wide.s32", "dww", wide_s32, 0, 0},
    {"mad.wide.u16", "whhw", mad_wide_u16, 0, 0},
    {"mad.wide.s16", "whhw", mad_wide_s16, 0, 0},
    {"mad.wide.u32", "dwwd", mad_wide_u32, 0, 0},
    {"mad.wide.s32", "dwwd", mad_wide_s32, 0, 0},
    {"neg.s16", "hh", neg_16, 0, 0},
    {"neg.s32", "ww", neg_32, 0, 0},
    {"neg.s64", "dd", neg_64, 0, 0},
    {"abs.s16", "hh", abs_16, 0, 0},
    {"abs.s32", "ww", abs_32, 0, 0},
    {"abs.s64", "dd", abs_64, 0, 0},
    {0},
};
