/* Executes moves, bit operations, shifts, selections, comparisons of integers, and what works on predicates. */
#include "exec.h"

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;

#define FOR_WIDTH(T, S, BITS)                                 \
    MAP1(mov_##T, T, T, a)                                    \
    MAP2(and_##T, T, T, T, a &b)                              \
    MAP2(or_##T, T, T, T, a | b)                              \
    MAP2(xor_##T, T, T, T, a ^ b)                             \
    MAP1(not_##T, T, T, ~a)                                   \
    MAP2(shl_##T, T, T, u32, b >= BITS ? 0 : (u64)a << b)     \
    MAP2(shr_##T, T, T, u32, b >= BITS ? 0 : a >> b)          \
    MAP2(sar_##T, T, S, u32, a >> (b >= BITS ? BITS - 1 : b)) \
    static step selp_##T(run *r, const insn *in)              \
    {                                                         \
        const T *a = at(r, in->o[1]), *b = at(r, in->o[2]);   \
        u32 p = r->predicates[in->o[3]];                      \
        T out[LANES];                                         \
        EACH out[i] = p >> i & 1 ? a[i] : b[i];               \
        return put(r, in->o[0], out, sizeof *out);            \
    }

FOR_WIDTH(u16, s16, 16)
FOR_WIDTH(u32, s32, 32)
FOR_WIDTH(u64, s64, 64)

MAP1(popc_32, u32, u32, __builtin_popcount(a))
MAP1(popc_64, u32, u64, __builtin_popcountll(a))
MAP1(clz_32, u32, u32, a ? __builtin_clz(a) : 32)
MAP1(clz_64, u32, u64, a ? __builtin_clzll(a) : 64)
MAP1(bfind_u32, u32, u32, a ? 31 - __builtin_clz(a) : -1)
MAP1(bfind_s32, u32, u32, (a ^ (u32)((s32)a >> 31)) ? 31 - __builtin_clz(a ^ (u32)((s32)a >> 31)) : -1)
MAP1(bfind_u64, u32, u64, a ? 63 - __builtin_clzll(a) : -1)

static u64 reverse(u64 a)
{
    u64 out = 0;
    for (int i = 0; i < 64; i++)
        out |= (a >> i & 1) << (63 - i);
    return out;
}
MAP1(brev_32, u32, u32, reverse(a) >> 32)
MAP1(brev_64, u64, u64, reverse(a))

static u64 field_mask(u32 length) { return length >= 64 ? ~(u64)0 : ((u64)1 << length) - 1; }

/* bfi d, a, b, position, length: a's low bits into b */
static u64 insert(u64 a, u64 b, u32 position, u32 length, u32 width)
{
    position &= 255, length &= 255;
    if (position >= width || length == 0) return b;
    u64 mask = field_mask(length) << position;
    return (b & ~mask) | (a << position & mask);
}

#define INSERT(name, T, BITS)                                              \
    static step name(run *r, const insn *in)                               \
    {                                                                      \
        const T *a = at(r, in->o[1]), *b = at(r, in->o[2]);                \
        const u32 *position = at(r, in->o[3]), *length = at(r, in->o[4]);  \
        T out[LANES];                                                      \
        EACH out[i] = (T)insert(a[i], b[i], position[i], length[i], BITS); \
        return put(r, in->o[0], out, sizeof *out);                         \
    }
INSERT(bfi_32, u32, 32)
INSERT(bfi_64, u64, 64)

static u64 extract(u64 a, u32 position, u32 length, u32 width, bool is_signed)
{
    position &= 255, length &= 255;
    u32 last = position + length - 1 < width - 1 ? position + length - 1 : width - 1;
    u64 sign = is_signed && length ? a >> last & 1 : 0;
    u64 field = position < width ? a >> position : 0;
    u32 kept = position >= width ? 0 : length < width - position ? length : width - position;
    return (field & field_mask(kept)) | (sign ? ~field_mask(kept) : 0);
}
MAP3(bfe_u32, u32, u32, u32, u32, extract(a, b, c, 32, false))
MAP3(bfe_s32, u32, u32, u32, u32, extract(a, b, c, 32, true))
MAP3(bfe_u64, u64, u64, u32, u32, extract(a, b, c, 64, false))
MAP3(bfe_s64, u64, u64, u32, u32, extract(a, b, c, 64, true))

/* Four bytes chosen by the nibbles of c; bit 3 of one spreads the byte's sign instead. */
static u32 permute(u32 a, u32 b, u32 c)
{
    u64 from = (u64)b << 32 | a;
    u32 out = 0;
    for (int i = 0; i < 4; i++) {
        u32 pick = c >> 4 * i & 15, byte = from >> 8 * (pick & 7) & 255;
        if (pick & 8) byte = byte & 128 ? 255 : 0;
        out |= byte << 8 * i;
    }
    return out;
}
MAP3(prmt, u32, u32, u32, u32, permute(a, b, c))

MAP3(shf_l_wrap, u32, u32, u32, u32, ((u64)b << 32 | a) << (c & 31) >> 32)
MAP3(shf_r_wrap, u32, u32, u32, u32, ((u64)b << 32 | a) >> (c & 31))
MAP3(shf_l_clamp, u32, u32, u32, u32, ((u64)b << 32 | a) >> (32 - (c > 32 ? 32 : c)))
MAP3(shf_r_clamp, u32, u32, u32, u32, ((u64)b << 32 | a) >> (c > 32 ? 32 : c))

static u32 logic(u32 a, u32 b, u32 c, u32 table)
{
    u32 out = 0;
    for (u32 k = 0; k < 8; k++)
        if (table >> k & 1) out |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
    return out;
}
MAP3(lop3, u32, u32, u32, u32, logic(a, b, c, (u32)in->imm))

/* ---------------------------------------------------------------------------------------------------------------- */
/* Predicates and comparisons                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

static step mov_pred(run *r, const insn *in) { return put_predicate(r, in->o[0], r->predicates[in->o[1]]); }
static step mov_pred_imm(run *r, const insn *in) { return put_predicate(r, in->o[0], in->imm ? ALL_LANES : 0); }
static step not_pred(run *r, const insn *in) { return put_predicate(r, in->o[0], ~r->predicates[in->o[1]]); }

static step logic_pred(run *r, const insn *in)
{
    u32 a = r->predicates[in->o[1]], b = r->predicates[in->o[2]];
    return put_predicate(r, in->o[0], in->op == '&' ? a & b : in->op == '|' ? a | b : a ^ b);
}

const op_row sim_bit_rows[] = {
    {"mov.b16", "hh", mov_u16, 0, 0},
    {"mov.u16", "hh", mov_u16, 0, 0},
    {"mov.s16", "hh", mov_u16, 0, 0},
    {"mov.b32", "ww", mov_u32, 0, 0},
    {"mov.u32", "ww", mov_u32, 0, 0},
    {"mov.s32", "ww", mov_u32, 0, 0},
    {"mov.f32", "ww", mov_u32, 0, 0},
    {"mov.b64", "dd", mov_u64, 0, 0},
    {"mov.u64", "dd", mov_u64, 0, 0},
    {"mov.s64", "dd", mov_u64, 0, 0},
    {"and.b16", "hhh", and_u16, 0, 0},
    {"and.b32", "www", and_u32, 0, 0},
    {"and.b64", "ddd", and_u64, 0, 0},
    {"or.b16", "hhh", or_u16, 0, 0},
    {"or.b32", "www", or_u32, 0, 0},
    {"or.b64", "ddd", or_u64, 0, 0},
    {"xor.b16", "hhh", xor_u16, 0, 0},
    {"xor.b32", "www", xor_u32, 0, 0},
    {"xor.b64", "ddd", xor_u64, 0, 0},
    {"not.b16", "hh", not_u16, 0, 0},
    {"not.b32", "ww", not_u32, 0, 0},
    {"not.b64", "dd", not_u64, 0, 0},
    {"shl.b16", "hhw", shl_u16, 0, 0},
    {"shl.b32", "www", shl_u32, 0, 0},
    {"shl.b64", "ddw", shl_u64, 0, 0},
    {"shr.u16", "hhw", shr_u16, 0, 0},
    {"shr.u32", "www", shr_u32, 0, 0},
    {"shr.u64", "ddw", shr_u64, 0, 0},
    {"shr.b16", "hhw", shr_u16, 0, 0},
    {"shr.b32", "www", shr_u32, 0, 0},
    {"shr.b64", "ddw", shr_u64, 0, 0},
    {"shr.s16", "hhw", sar_u16, 0, 0},
    {"shr.s32", "www", sar_u32, 0, 0},
    {"shr.s64", "ddw", sar_u64, 0, 0},
    {"selp.b16", "hhhp", selp_u16, 0, 0},
    {"selp.u16", "hhhp", selp_u16, 0, 0},
    {"selp.s16", "hhhp", selp_u16, 0, 0},
    {"selp.b32", "wwwp", selp_u32, 0, 0},
    {"selp.u32", "wwwp", selp_u32, 0, 0},
    {"selp.s32", "wwwp", selp_u32, 0, 0},
    {"selp.f32", "wwwp", selp_u32, 0, 0},
    {"selp.b64", "dddp", selp_u64, 0, 0},
    {"selp.u64", "dddp", selp_u64, 0, 0},
    {"selp.s64", "dddp", selp_u64, 0, 0},
    {"selp.f16", "hhhp", selp_u16, 0, 0},
    {"popc.b32", "ww", popc_32, 0, 0},
    {"popc.b64", "wd", popc_64, 0, 0},
    {"clz.b32", "ww", clz_32, 0, 0},
    {"clz.b64", "wd", clz_64, 0, 0},
    {"brev.b32", "ww", brev_32, 0, 0},
    {"brev.b64", "dd", brev_64, 0, 0},
    {"bfind.u32", "ww", bfind_u32, 0, 0},
    {"bfind.s32", "ww", bfind_s32, 0, 0},
    {"bfind.u64", "wd", bfind_u64, 0, 0},
    {"bfi.b32", "wwwww", bfi_32, 0, 0},
    {"bfi.b64", "dddww", bfi_64, 0, 0},
    {"bfe.u32", "wwww", bfe_u32, 0, 0},
    {"bfe.s32", "wwww", bfe_s32, 0, 0},
    {"bfe.u64", "ddww", bfe_u64, 0, 0},
    {"bfe.s64", "ddww", bfe_s64, 0, 0},
    {"prmt.b32", "wwww", prmt, 0, 0},
    {"lop3.b32", "wwwwi", lop3, 0, 0},
    {"shf.l.wrap.b32", "wwww", shf_l_wrap, 0, 0},
    {"shf.r.wrap.b32", "wwww", shf_r_wrap, 0, 0},
    {"shf.l.clamp.b32", "wwww", shf_l_clamp, 0, 0},
    {"shf.r.clamp.b32", "wwww", shf_r_clamp, 0, 0},
    {"mov.pred", "pp", mov_pred, 0, 0},
    {"mov.pred", "pi", mov_pred_imm, 0, 0},
    {"not.pred", "pp", not_pred, 0, 0},
    {"and.pred", "ppp", logic_pred, '&', 0},
    {"or.pred", "ppp", logic_pred, '|', 0},
    {"xor.pred", "ppp", logic_pred, '^', 0},
    {0},
};
