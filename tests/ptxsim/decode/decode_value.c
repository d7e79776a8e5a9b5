/* Decodes arithmetic and conversions of floating-point values, as operations of num_float.h. */
#include "decode.h"

#include "exec/exec_value.h"
#include "num/num_float.h"

#include <stdlib.h>

static const struct {
    const char *name;
    num_op op;
    uint8_t operands;
} operations[] = {
    {"add", NUM_ADD, 2},           {"sub", NUM_SUB, 2},     {"mul", NUM_MUL, 2}, {"fma", NUM_FMA, 3},
    {"mad", NUM_FMA, 3},           {"div", NUM_DIV, 2},     {"rcp", NUM_RCP, 1}, {"sqrt", NUM_SQRT, 1},
    {"min", NUM_MIN, 2},           {"max", NUM_MAX, 2},     {"abs", NUM_ABS, 1}, {"neg", NUM_NEG, 1},
    {"copysign", NUM_COPYSIGN, 2}, {"rsqrt", NUM_RSQRT, 1}, {"ex2", NUM_EX2, 1}, {"lg2", NUM_LG2, 1},
    {"tanh", NUM_TANH, 1},
};

static const struct {
    const char *name;
    num_format format;
    uint8_t pair; /* two in a register */
    char width;   /* of the register */
} formats[] = {
    {"f32", NUM_F32, 0, 'w'},     {"f16", NUM_F16, 0, 'h'},     {"bf16", NUM_BF16, 0, 'h'},
    {"f16x2", NUM_F16, 1, 'w'},   {"bf16x2", NUM_BF16, 1, 'w'}, {"f32x2", NUM_F32, 1, 'd'},
    {"e4m3x2", NUM_E4M3, 1, 'h'}, {"e5m2x2", NUM_E5M2, 1, 'h'}, {"e2m1x2", NUM_E2M1, 1, 'b'},
};

static int format_of(slice name)
{
    for (int i = 0; i < (int)(sizeof formats / sizeof formats[0]); i++)
        if (sim_is(name, formats[i].name)) return i;
    return -1;
}

static bool take_modifier(pieces *p, num_mode *m)
{
    static const struct {
        const char *name;
        num_round round;
    } rounds[] = {{"rn", NUM_RN},  {"rz", NUM_RZ},  {"rm", NUM_RM},  {"rp", NUM_RP},  {"rni", NUM_RN},
                  {"rzi", NUM_RZ}, {"rmi", NUM_RM}, {"rpi", NUM_RP}, {"rna", NUM_RNA}};
    for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++) {
        if (!sim_take(p, rounds[i].name)) continue;
        m->round = (uint8_t)rounds[i].round;
        return true;
    }
    bool *flag = sim_take(p, "ftz")         ? &m->ftz
                 : sim_take(p, "sat")       ? &m->sat
                 : sim_take(p, "satfinite") ? &m->satfinite
                 : sim_take(p, "relu")      ? &m->relu
                 : sim_take(p, "NaN")       ? &m->nan
                                            : NULL;
    if (flag) *flag = true;
    return flag != NULL;
}

void sim_decode_arith(builder *b, const statement *s, insn *in, pieces *p)
{
    slice name = sim_next(p);
    num_mode mode = {0};
    bool approx = false, found = false;
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        if (!sim_is(name, operations[i].name)) continue;
        in->op = (uint8_t)operations[i].op;
        in->vec = operations[i].operands;
        found = true;
    }
    if (!found) sim_unknown(b, s, "");
    for (;;) {
        if (sim_take(p, "approx") || sim_take(p, "full"))
            approx = true;
        else if (!take_modifier(p, &mode))
            break;
    }
    int format = format_of(sim_next(p));
    if (format < 0 || p->next != p->n || s->n != in->vec + 1u) sim_unknown(b, s, "");
    if (formats[format].format > NUM_BF16) sim_unknown(b, s, "");
    if (approx && in->op == NUM_DIV) in->op = NUM_DIV_APPROX;
    in->fn = sim_exec_arith;
    in->type = (uint8_t)formats[format].format;
    in->flags = formats[format].pair;
    in->reg_size = (uint8_t)sim_bytes(formats[format].width);
    memcpy(&in->imm, &mode, sizeof mode);
    in->o[0] = sim_destination(b, &s->o[0], formats[format].width);
    for (uint32_t i = 1; i < s->n; i++)
        in->o[i] = sim_source(b, &s->o[i], formats[format].width);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* cvt                                                                                                              */
/* ---------------------------------------------------------------------------------------------------------------- */

/* 8..64; 0: no integer. */
static unsigned integer_bits(slice type, bool *is_signed)
{
    if (type.n < 2 || (*type.s != 'u' && *type.s != 's')) return 0;
    unsigned bits = (unsigned)strtoul(type.s + 1, NULL, 10);
    *is_signed = *type.s == 's';
    return bits == 8 || bits == 16 || bits == 32 || bits == 64 ? bits : 0;
}

/* The register may be wider than an integer type; its bytes. */
static unsigned any_source(builder *b, const operand *o, uint32_t *place, char least)
{
    if (o->kind != O_REGISTER) {
        *place = sim_source(b, o, least);
        return sim_bytes(least);
    }
    return sim_bytes(sim_place(b, o, place));
}

static void decode_float_source(builder *b, const statement *s, insn *in, int to, int from)
{
    char width = formats[from].width == 'b' ? 'h' : formats[from].width;
    bool two = s->n == 3;
    in->op = two ? CVT_TO_PAIR : formats[from].pair ? CVT_PAIR : to == from ? CVT_INTEGRAL : CVT_FLOAT;
    if (two != (formats[to].pair && !formats[from].pair)) sim_unknown(b, s, "");
    in->a_type = (uint8_t)formats[from].format;
    in->vec = two ? 2 : 1;
    in->size = (uint8_t)sim_bytes(width);
    for (uint32_t i = 1; i < s->n; i++)
        in->o[i] = sim_source(b, &s->o[i], width);
}

void sim_decode_convert(builder *b, const statement *s, insn *in, pieces *p)
{
    num_mode mode = {0};
    bool to_signed = false, from_signed = false, integral = false;
    for (uint32_t i = p->next; i < p->n; i++)
        integral |= p->at[i].n == 3 && p->at[i].s[0] == 'r' && p->at[i].s[2] == 'i';
    while (take_modifier(p, &mode))
        ;
    slice to = sim_next(p), from = sim_next(p);
    if (p->next != p->n || s->n < 2 || s->n > 3) sim_unknown(b, s, "");
    unsigned to_bits = integer_bits(to, &to_signed), from_bits = integer_bits(from, &from_signed);
    int to_format = format_of(to), from_format = format_of(from);
    if ((!to_bits && to_format < 0) || (!from_bits && from_format < 0)) sim_unknown(b, s, "no such type");
    in->fn = sim_exec_convert;
    in->vec = 1;
    in->is_signed = to_signed;
    in->flags = from_signed;
    in->type = (uint8_t)(to_bits ? to_bits : (unsigned)formats[to_format].format);
    char width = to_bits == 64 ? 'd' : to_bits == 32 ? 'w' : 'h';
    if (!to_bits) width = formats[to_format].width == 'b' ? 'h' : formats[to_format].width;
    memcpy(&in->imm, &mode, sizeof mode);
    if (from_bits) {
        in->op = to_bits ? CVT_INT_INT : CVT_INT_FLOAT;
        in->a_type = (uint8_t)from_bits;
        in->size = (uint8_t)any_source(b, &s->o[1], &in->o[1], from_bits == 64 ? 'd' : from_bits == 32 ? 'w' : 'h');
    } else if (to_bits) {
        in->op = CVT_FLOAT_INT;
        in->a_type = (uint8_t)formats[from_format].format;
        in->size = (uint8_t)sim_bytes(formats[from_format].width);
        in->o[1] = sim_source(b, &s->o[1], formats[from_format].width);
    } else {
        decode_float_source(b, s, in, to_format, from_format);
        if (in->op == CVT_INTEGRAL && !integral) in->op = CVT_FLOAT;
    }
    in->reg_size = (uint8_t)sim_bytes(sim_place(b, &s->o[0], &in->o[0]));
    if (!to_bits && in->reg_size != sim_bytes(width)) sim_unknown(b, s, "the destination's width");
}
