/* Executes arithmetic and conversions of floating-point values.
 *
 * What kernels spend their time on runs on the processor's own float arithmetic, with the NaN that the GPU gives. All
 * other arithmetic goes through num_float.h, lane by lane. */
#include "exec.h"
#include "exec_value.h"
#include "num/num_float.h"
#include "num/num_halves.h"

#include <math.h>

typedef float f32;
typedef uint32_t u32;
typedef uint64_t u64;

#define RESULT(out)                                          \
    u32 bits[LANES];                                         \
    memcpy(bits, out, sizeof bits);                          \
    EACH bits[i] = out[i] == out[i] ? bits[i] : 0x7fffffffu; \
    return put(r, in->o[0], bits, sizeof *bits);

#define FAST2(name, expression)                               \
    static step name(run *r, const insn *in)                  \
    {                                                         \
        const f32 *a = at(r, in->o[1]), *b = at(r, in->o[2]); \
        f32 out[LANES];                                       \
        EACH out[i] = expression;                             \
        RESULT(out)                                           \
    }
FAST2(add, a[i] + b[i])
FAST2(sub, a[i] - b[i])
FAST2(mul, a[i] * b[i])
FAST2(divide, a[i] / b[i])

static step fused(run *r, const insn *in)
{
    const f32 *a = at(r, in->o[1]), *b = at(r, in->o[2]), *c = at(r, in->o[3]);
    f32 out[LANES];
    EACH out[i] = fmaf(a[i], b[i], c[i]);
    RESULT(out)
}

MAP1(neg, u32, u32, a ^ 0x80000000u)
MAP1(magnitude, u32, u32, a & 0x7fffffffu)
MAP2(copysign_f32, u32, u32, u32, (a & 0x80000000u) | (b & 0x7fffffffu)) /* the sign comes first */

const op_row sim_float_rows[] = {
    {"add.f32", "www", add, 0, 0},
    {"add.rn.f32", "www", add, 0, 0},
    {"sub.f32", "www", sub, 0, 0},
    {"sub.rn.f32", "www", sub, 0, 0},
    {"mul.f32", "www", mul, 0, 0},
    {"mul.rn.f32", "www", mul, 0, 0},
    {"div.rn.f32", "www", divide, 0, 0},
    {"fma.rn.f32", "wwww", fused, 0, 0},
    {"neg.f32", "ww", neg, 0, 0},
    {"abs.f32", "ww", magnitude, 0, 0},
    {"copysign.f32", "www", copysign_f32, 0, 0},
    {0},
};

static num_mode mode_of(const insn *in)
{
    num_mode mode;
    _Static_assert(sizeof mode <= sizeof in->imm, "a mode travels in insn.imm");
    memcpy(&mode, &in->imm, sizeof mode);
    return mode;
}

static bool is_half(uint8_t format) { return format == NUM_F16 || format == NUM_BF16; }

static bool arith_halves(run *r, const insn *in, num_mode mode)
{
    uint16_t out[2 * LANES];
    int n = LANES * in->reg_size / 2;
    if (!num_halves_arith(in->op, in->type, mode, n, at(r, in->o[1]), at(r, in->o[2]), at(r, in->o[3]), out))
        return false;
    put(r, in->o[0], out, in->reg_size);
    return true;
}

/* op: num_op; type: num_format; flags: values are pairs; vec: operands. */
step sim_exec_arith(run *r, const insn *in)
{
    num_mode mode = mode_of(in);
    if (is_half(in->type) && arith_halves(r, in, mode)) return STEP_NEXT;
    u64 out[LANES] = {0};
    ACTIVE(r)
    {
        u64 x[3] = {0};
        for (int k = 0; k < in->vec; k++)
            x[k] = sim_lane(r, in->o[1 + k], in->reg_size, i);
        out[i] = in->flags ? num_arith_pair(in->op, in->type, x[0], x[1], x[2], mode)
                           : num_arith(in->op, in->type, x[0], x[1], x[2], mode);
    }
    return sim_put_lanes(r, in->o[0], in->reg_size, out);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* cvt: `type` to, `a_type` from; op says which of these kinds                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

static u64 extended(u64 x, unsigned bits, bool is_signed)
{
    if (bits == 64) return x;
    u64 low = x & (((u64)1 << bits) - 1);
    return is_signed && low >> (bits - 1) ? low | ~(u64)0 << bits : low;
}

static u64 convert(const insn *in, num_mode mode, u64 a, u64 b)
{
    switch ((conversion)in->op) {
    case CVT_INT_INT:
        return num_integer_to_integer(in->type, in->is_signed, mode.sat, in->flags, extended(a, in->a_type, in->flags));
    case CVT_INT_FLOAT:
        return num_from_integer(in->type, in->flags, extended(a, in->a_type, in->flags), mode);
    case CVT_FLOAT_INT:
        return num_to_integer(in->type, in->is_signed, in->a_type, a, mode);
    case CVT_FLOAT:
        return num_convert(in->type, in->a_type, a, mode);
    case CVT_INTEGRAL:
        return num_to_integral(in->type, a, mode);
    case CVT_TO_PAIR:
        return num_convert_to_pair(in->type, in->a_type, a, b, mode);
    case CVT_PAIR:
        return num_convert_pair(in->type, in->a_type, (u32)a, mode);
    }
    return 0;
}

/* Between f32 and the formats of 16 bits. */
static bool convert_halves(run *r, const insn *in, num_mode mode)
{
    u32 wide[LANES];
    uint16_t upper[LANES], lower[LANES], pairs[2 * LANES];
    if (in->op == CVT_FLOAT && in->type == NUM_F32 && is_half(in->a_type)) {
        if (!num_halves_to_f32(in->a_type, mode, LANES, at(r, in->o[1]), wide)) return false;
        put(r, in->o[0], wide, sizeof *wide);
        return true;
    }
    bool pair = in->op == CVT_TO_PAIR;
    if ((in->op != CVT_FLOAT && !pair) || in->a_type != NUM_F32 || !is_half(in->type)) return false;
    if (!num_halves_from_f32(in->type, mode, LANES, at(r, in->o[1]), upper)) return false;
    if (pair) num_halves_from_f32(in->type, mode, LANES, at(r, in->o[2]), lower);
    for (int i = 0; pair && i < LANES; i++) {
        pairs[2 * i] = lower[i];
        pairs[2 * i + 1] = upper[i];
    }
    put(r, in->o[0], pair ? pairs : upper, in->reg_size);
    return true;
}

/* reg_size: of the destination; size, vec: of the sources, how many. */
step sim_exec_convert(run *r, const insn *in)
{
    num_mode mode = mode_of(in);
    if ((is_half(in->type) || is_half(in->a_type)) && convert_halves(r, in, mode)) return STEP_NEXT;
    u64 out[LANES] = {0};
    ACTIVE(r)
    {
        u64 a = sim_lane(r, in->o[1], in->size, i), b = in->vec > 1 ? sim_lane(r, in->o[2], in->size, i) : 0;
        out[i] = convert(in, mode, a, b);
    }
    return sim_put_lanes(r, in->o[0], in->reg_size, out);
}

#define QUICK(name, D, A) MAP1(name, D, A, a)
QUICK(u64_u32, u64, u32)
QUICK(s64_s32, u64, int32_t)
QUICK(u32_u64, u32, u64)
QUICK(u16_u32, uint16_t, u32)
QUICK(u32_u16, u32, uint16_t)
QUICK(s32_s16, u32, int16_t)

const op_row sim_convert_rows[] = {
    {"cvt.u64.u32", "dw", u64_u32, 0, 0},
    {"cvt.s64.s32", "dw", s64_s32, 0, 0},
    {"cvt.u32.u64", "wd", u32_u64, 0, 0},
    {"cvt.u16.u32", "hw", u16_u32, 0, 0},
    {"cvt.u32.u16", "wh", u32_u16, 0, 0},
    {"cvt.s32.s16", "wh", s32_s16, 0, 0},
    {0},
};
