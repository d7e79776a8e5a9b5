/* Decodes ldmatrix, stmatrix, movmatrix, mma and wgmma. */
#include "decode.h"

#include "exec/exec_memory.h"
#include "matrix/wgmma.h"
#include "num/num_mma.h"

/* ---------------------------------------------------------------------------------------------------------------- */
/* ldmatrix, mma                                                                                                    */
/* ---------------------------------------------------------------------------------------------------------------- */

/* ldmatrix d, [a]; stmatrix [a], d */
static void decode_ldmatrix(builder *b, const statement *s, insn *in, pieces *p)
{
    bool load = sim_is(p->at[0], "ldmatrix");
    if (!sim_take(p, "sync") || !sim_take(p, "aligned") || !sim_take(p, "m8n8")) sim_unknown(b, s, "");
    in->vec = sim_take(p, "x4") ? 4 : sim_take(p, "x2") ? 2 : sim_take(p, "x1") ? 1 : 0;
    in->flags = sim_take(p, "trans");
    in->space = sim_take(p, "shared") || sim_take(p, "shared::cta") ? SHARED : GENERIC;
    if (!in->vec || !sim_take(p, "b16") || p->next != p->n || s->n != 2) sim_unknown(b, s, "");
    in->fn = load ? sim_exec_ldmatrix : sim_exec_stmatrix;
    in->whole_warp = true;
    sim_list(b, &s->o[load ? 0 : 1], in, 'w', load);
    if (in->n_list != in->vec) sim_unknown(b, s, "the number of registers");
    sim_address(b, &s->o[load ? 1 : 0], in, 1);
}

/* movmatrix d, a */
static void decode_movmatrix(builder *b, const statement *s, insn *in, pieces *p)
{
    if (!sim_take(p, "sync") || !sim_take(p, "aligned") || !sim_take(p, "m8n8") || !sim_take(p, "trans") ||
        !sim_take(p, "b16") || p->next != p->n || s->n != 2)
        sim_unknown(b, s, "");
    in->fn = sim_exec_movmatrix;
    in->whole_warp = true;
    sim_list(b, &s->o[0], in, 'w', true);
    sim_list(b, &s->o[1], in, 'w', false);
}

static num_format format_of(slice name)
{
    static const struct {
        const char *name;
        num_format format;
    } formats[] = {{"f32", NUM_F32}, {"f16", NUM_F16}, {"bf16", NUM_BF16}, {"e4m3", NUM_E4M3}, {"e5m2", NUM_E5M2}};
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (sim_is(name, formats[i].name)) return formats[i].format;
    return NUM_FORMATS;
}

/* mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3
 * d, a, b, c, sfa, {0, tid}, sfb, {0, tid}; list holds d, a, b, c, sfa, sfb; op and a_type the two tid. */
static void decode_mma_scaled(builder *b, const statement *s, insn *in, pieces *p)
{
    static const char *const words[] = {"row", "col",  "kind::mxf4nvf4", "block_scale", "scale_vec::4X",
                                        "f32", "e2m1", "e2m1",           "f32",         "ue4m3"};
    if (sim_config.capability / 10 != 12) sim_unknown(b, s, "only compute capability 12.0 has it");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!sim_take(p, words[i])) sim_unknown(b, s, "only mxf4nvf4 with a ue4m3 for each 16 elements is modelled");
    if (p->next != p->n || s->n != 8 || s->o[5].n_items != 2 || s->o[7].n_items != 2)
        sim_unknown(b, s, "the number of operands");
    const int64_t lanes_a = sim_immediate(b, &s->o[5].items[1]), lanes_b = sim_immediate(b, &s->o[7].items[1]);
    if (sim_immediate(b, &s->o[5].items[0]) || sim_immediate(b, &s->o[7].items[0]))
        sim_unknown(b, s, "the byte of a scale that is not 0");
    if (lanes_a < 0 || lanes_a > 1 || lanes_b < 0 || lanes_b > 3) sim_unknown(b, s, "no such lanes");
    in->fn = sim_exec_mma_scaled;
    in->whole_warp = true;
    in->op = (uint8_t)lanes_a;
    in->a_type = (uint8_t)lanes_b;
    static const uint8_t operands[] = {0, 1, 2, 3, 4, 6}, registers[] = {4, 8, 10, 14, 15, 16};
    for (uint32_t i = 0; i < sizeof operands; i++) {
        sim_list(b, &s->o[operands[i]], in, 'w', i == 0);
        if (in->n_list != registers[i]) sim_unknown(b, s, "the number of registers");
    }
}

/* mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 d, a, b, c; list holds them in this order. */
static void decode_mma(builder *b, const statement *s, insn *in, pieces *p)
{
    if (!sim_take(p, "sync") || !sim_take(p, "aligned")) sim_unknown(b, s, "");
    if (sim_take(p, "m16n8k64")) {
        decode_mma_scaled(b, s, in, p);
        return;
    }
    in->vec = sim_take(p, "m16n8k16") ? 16 : sim_take(p, "m16n8k8") ? 8 : 0;
    if (!in->vec || !sim_take(p, "row") || !sim_take(p, "col")) sim_unknown(b, s, "this shape is not modelled");
    num_format d = format_of(sim_next(p)), x = format_of(sim_next(p)), y = format_of(sim_next(p));
    if (format_of(sim_next(p)) != d || p->next != p->n || s->n != 4) sim_unknown(b, s, "");
    if (!num_mma_model_of(sim_config.capability)) sim_unknown(b, s, "this compute capability's sums are not modelled");
    if (d != NUM_F32 || x != y || (x != NUM_F16 && x != NUM_BF16)) sim_unknown(b, s, "these types are not modelled");
    in->fn = sim_exec_mma;
    in->whole_warp = true;
    in->a_type = (uint8_t)x;
    in->size = in->vec / 8; /* registers of b; a has twice as many */
    for (uint32_t i = 0; i < 4; i++)
        sim_list(b, &s->o[i], in, 'w', i == 0);
    if (in->n_list != 8 + 3u * in->size) sim_unknown(b, s, "the number of registers");
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* wgmma                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

/* m64n128k16: n and k */
static bool take_shape(pieces *p, insn *in)
{
    slice shape = sim_next(p);
    unsigned m = 0, n = 0, k = 0;
    char text[32] = "";
    if (shape.n >= sizeof text) return false;
    memcpy(text, shape.s, shape.n);
    if (sscanf(text, "m%un%uk%u", &m, &n, &k) != 3 || m != 64 || n < 8 || n > 256 || n % 8) return false;
    in->columns = n;
    in->vec = (uint8_t)k;
    return k == 16 || k == 32;
}

static bool minus_one(builder *b, const statement *s, const operand *o)
{
    int64_t value = sim_immediate(b, o);
    if (value != 1 && value != -1) sim_unknown(b, s, "a scale other than 1 and -1");
    return value == -1;
}

/* wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {d}, a, b, p, scale-a, scale-b {, trans-a}, trans-b */
static void decode_product(builder *b, const statement *s, insn *in, pieces *p)
{
    if (!take_shape(p, in)) sim_unknown(b, s, "this shape is not modelled");
    num_format d = format_of(sim_next(p)), x = format_of(sim_next(p)), y = format_of(sim_next(p));
    bool halves = (x == NUM_F16 || x == NUM_BF16) && x == y && in->vec == 16;
    bool bytes = (x == NUM_E4M3 || x == NUM_E5M2) && (y == NUM_E4M3 || y == NUM_E5M2) && in->vec == 32;
    if (d != NUM_F32 || !(halves || bytes)) sim_unknown(b, s, "these types are not modelled");
    bool registers = s->n > 1 && s->o[1].kind == O_LIST;
    if (p->next != p->n || s->n != 6u + (halves ? (registers ? 1 : 2) : 0)) sim_unknown(b, s, "the number of operands");
    in->fn = sim_exec_wgmma;
    in->a_type = (uint8_t)x;
    in->op = (uint8_t)y;
    in->flags = registers ? WG_A_REGISTERS : 0;
    sim_list(b, &s->o[0], in, 'w', true);
    if (in->n_list != in->columns / 2) sim_unknown(b, s, "the number of registers");
    if (!registers)
        in->o[1] = sim_source(b, &s->o[1], 'd');
    else if (s->o[1].n_items != 4)
        sim_unknown(b, s, "the number of registers");
    else
        sim_list(b, &s->o[1], in, 'w', false);
    in->o[2] = sim_source(b, &s->o[2], 'd');
    in->o[3] = s->o[3].kind == O_IMMEDIATE && s->o[3].value ? NONE : sim_predicate(b, &s->o[3]);
    if (minus_one(b, s, &s->o[4])) in->flags |= WG_NEGATE_A;
    if (minus_one(b, s, &s->o[5])) in->flags |= WG_NEGATE_B;
    if (halves && !registers && sim_immediate(b, &s->o[6])) in->flags |= WG_TRANSPOSE_A;
    if (halves && sim_immediate(b, &s->o[s->n - 1])) in->flags |= WG_TRANSPOSE_B;
}

static void decode_wgmma(builder *b, const statement *s, insn *in, pieces *p)
{
    slice what = sim_next(p);
    if (sim_config.capability / 10 != 9) sim_unknown(b, s, "only compute capability 9.0 has it");
    if (!sim_take(p, "sync") || !sim_take(p, "aligned")) sim_unknown(b, s, "");
    in->whole_warp = true;
    if (sim_is(what, "mma_async")) {
        decode_product(b, s, in, p);
        return;
    }
    in->fn = sim_is(what, "fence")          ? sim_exec_wgmma_fence
             : sim_is(what, "commit_group") ? sim_exec_wgmma_commit
             : sim_is(what, "wait_group")   ? sim_exec_wgmma_wait
                                            : NULL;
    if (!in->fn || p->next != p->n || s->n != (in->fn == sim_exec_wgmma_wait)) sim_unknown(b, s, "");
    if (s->n) in->imm = sim_immediate(b, &s->o[0]);
}

void sim_decode_matrix(builder *b, const statement *s, insn *in, pieces *p)
{
    if (sim_is(p->at[0], "wgmma"))
        decode_wgmma(b, s, in, p);
    else if (sim_is(p->at[0], "mma"))
        decode_mma(b, s, in, p);
    else if (sim_is(p->at[0], "movmatrix"))
        decode_movmatrix(b, s, in, p);
    else
        decode_ldmatrix(b, s, in, p);
}
