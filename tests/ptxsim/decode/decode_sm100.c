/* Decodes what sm_100 added: tensor memory, tcgen05, cluster launch control. */
#include "decode.h"

#include "matrix/tcgen05.h"
#include "sync/cancel.h"

#include <stdlib.h>

static void expect_end(builder *b, const statement *s, const pieces *p, uint32_t operands)
{
    if (p->next != p->n || s->n != operands) sim_unknown(b, s, "");
}

/* .cta_group::1 or 2; the same in all instructions of a kernel. */
static void take_group(builder *b, const statement *s, insn *in, pieces *p)
{
    uint32_t group = sim_take(p, "cta_group::1") ? 1 : sim_take(p, "cta_group::2") ? 2 : 0;
    if (!group) sim_unknown(b, s, "expected .cta_group::1 or ::2");
    if (b->p->cta_group && b->p->cta_group != group)
        sim_unknown(b, s, "all tcgen05 instructions of a kernel have the same .cta_group");
    b->p->cta_group = group;
    if (group == 2) in->flags |= TENSOR_PAIR;
}

static void take_aligned(builder *b, const statement *s, insn *in, pieces *p)
{
    if (!sim_take(p, "sync") || !sim_take(p, "aligned")) sim_unknown(b, s, "");
    in->whole_warp = true;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Allocation, fences, waits                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

static void decode_alloc(builder *b, const statement *s, insn *in, pieces *p)
{
    take_group(b, s, in, p);
    take_aligned(b, s, in, p);
    in->space = sim_take(p, "shared::cta") ? SHARED : GENERIC;
    if (!sim_take(p, "b32")) sim_unknown(b, s, "");
    expect_end(b, s, p, 2);
    in->fn = sim_exec_tmem_alloc;
    sim_address(b, &s->o[0], in, 1);
    in->o[2] = sim_source(b, &s->o[1], 'w');
}

static void decode_dealloc(builder *b, const statement *s, insn *in, pieces *p)
{
    take_group(b, s, in, p);
    take_aligned(b, s, in, p);
    if (!sim_take(p, "b32")) sim_unknown(b, s, "");
    expect_end(b, s, p, 2);
    in->fn = sim_exec_tmem_dealloc;
    in->o[0] = sim_source(b, &s->o[0], 'w');
    in->o[2] = sim_source(b, &s->o[1], 'w');
}

static void decode_relinquish(builder *b, const statement *s, insn *in, pieces *p)
{
    take_group(b, s, in, p);
    take_aligned(b, s, in, p);
    expect_end(b, s, p, 0);
    in->fn = sim_exec_tmem_relinquish;
}

static void decode_before(builder *b, const statement *s, insn *in, pieces *p)
{
    expect_end(b, s, p, 0);
    in->fn = sim_exec_tmem_fence;
    in->op = 'b';
}

static void decode_after(builder *b, const statement *s, insn *in, pieces *p)
{
    decode_before(b, s, in, p);
    in->op = 'a';
}

static void decode_wait_load(builder *b, const statement *s, insn *in, pieces *p)
{
    take_aligned(b, s, in, p);
    expect_end(b, s, p, 0);
    in->fn = sim_exec_tmem_wait;
    in->op = TMEM_LOAD;
}

static void decode_wait_store(builder *b, const statement *s, insn *in, pieces *p)
{
    decode_wait_load(b, s, in, p);
    in->op = TMEM_STORE;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* ld, st, cp                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

static bool take_shape(pieces *p, insn *in)
{
    static const char *const shapes[] = {
        [NUM_TMEM_32X32B] = "32x32b",   [NUM_TMEM_16X64B] = "16x64b",     [NUM_TMEM_16X128B] = "16x128b",
        [NUM_TMEM_16X256B] = "16x256b", [NUM_TMEM_16X32BX2] = "16x32bx2",
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (!sim_take(p, shapes[i])) continue;
        in->op = (uint8_t)i;
        return true;
    }
    return false;
}

/* .x1 to .x128: registers of a lane, at most 128 */
static uint32_t take_registers(pieces *p, const insn *in)
{
    slice count = sim_next(p);
    char text[8] = "";
    unsigned n = 0;
    if (count.n < 2 || count.n >= sizeof text || *count.s != 'x') return 0;
    memcpy(text, count.s, count.n);
    if (sscanf(text, "x%u", &n) != 1 || n == 0 || n > 128 || n & (n - 1)) return 0;
    n *= (unsigned)num_tmem_registers((num_tmem_shape)in->op);
    return n <= 128 ? n : 0;
}

/* tcgen05.ld.sync.aligned.32x32b.x2.pack::16b.b32 {d}, [a] {, half}; tcgen05.st ... [a], {half,} {d} */
static void decode_access(builder *b, const statement *s, insn *in, pieces *p, bool load)
{
    take_aligned(b, s, in, p);
    if (!take_shape(p, in)) sim_unknown(b, s, "no such shape");
    uint32_t registers = take_registers(p, in), split = in->op == NUM_TMEM_16X32BX2;
    if (!registers) sim_unknown(b, s, "no such count");
    if (sim_take(p, load ? "pack::16b" : "unpack::16b")) in->flags |= TENSOR_HALVES;
    if (in->flags & TENSOR_HALVES && in->op != NUM_TMEM_32X32B) sim_unknown(b, s, "16b only with .32x32b");
    if (!sim_take(p, "b32")) sim_unknown(b, s, "");
    expect_end(b, s, p, 2 + split);
    in->fn = load ? sim_exec_tmem_load : sim_exec_tmem_store;
    in->vec = (uint8_t)registers;
    sim_push_address(b, &s->o[load ? 1 : 0], in);
    const operand *list = &s->o[load ? 0 : 1 + split];
    if (list->kind != O_LIST) sim_unknown(b, s, "expected registers in braces");
    sim_list(b, list, in, 'w', load);
    if (in->n_list != 2 + registers) sim_unknown(b, s, "the number of registers");
    if (split) in->imm = sim_immediate(b, &s->o[load ? 2 : 1]);
}

static void decode_load(builder *b, const statement *s, insn *in, pieces *p) { decode_access(b, s, in, p, true); }
static void decode_store(builder *b, const statement *s, insn *in, pieces *p) { decode_access(b, s, in, p, false); }

static void decode_copy(builder *b, const statement *s, insn *in, pieces *p)
{
    static const struct {
        const char *shape, *multicast;
        num_cp_shape value;
    } shapes[] = {{"128x256b", NULL, NUM_CP_128X256B},
                  {"4x256b", NULL, NUM_CP_4X256B},
                  {"128x128b", NULL, NUM_CP_128X128B},
                  {"64x128b", "warpx2::02_13", NUM_CP_64X128B_02_13},
                  {"64x128b", "warpx2::01_23", NUM_CP_64X128B_01_23},
                  {"32x128b", "warpx4", NUM_CP_32X128B_WARPX4}};
    take_group(b, s, in, p);
    slice shape = sim_next(p);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] && !in->fn; i++) {
        if (!sim_is(shape, shapes[i].shape)) continue;
        if (shapes[i].multicast && !sim_take(p, shapes[i].multicast)) continue;
        in->op = (uint8_t)shapes[i].value;
        in->fn = sim_exec_tensor_cp;
    }
    if (!in->fn) sim_unknown(b, s, "no such shape");
    if (p->next != p->n) sim_unknown(b, s, "decompression is not modelled");
    expect_end(b, s, p, 2);
    sim_push_address(b, &s->o[0], in);
    sim_push(in, sim_source(b, &s->o[1], 'd'));
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* mma, commit                                                                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

static void take_collector(insn *in, pieces *p)
{
    if (sim_take(p, "collector::a::fill"))
        in->flags |= TENSOR_FILL;
    else if (sim_take(p, "collector::a::use"))
        in->flags |= TENSOR_FILL | TENSOR_USE;
    else if (sim_take(p, "collector::a::lastuse"))
        in->flags |= TENSOR_USE;
    else
        sim_take(p, "collector::a::discard");
}

/* mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [d], a, b, instruction, [sfa], [sfb], p;
 * mma.cta_group::1.kind::f16 [d], a, b, instruction, p; a is a descriptor or [an address] */
static void decode_mma(builder *b, const statement *s, insn *in, pieces *p)
{
    take_group(b, s, in, p);
    bool scaled = sim_take(p, "kind::mxf4nvf4");
    if (!scaled && !sim_take(p, "kind::f16")) sim_unknown(b, s, "this kind is not modelled");
    if (scaled && (!sim_take(p, "block_scale") || !(sim_take(p, "scale_vec::4X") || sim_take(p, "block16"))))
        sim_unknown(b, s, "only .block_scale.scale_vec::4X (.block16) is modelled");
    take_collector(in, p);
    expect_end(b, s, p, scaled ? 7 : 5);
    in->fn = sim_exec_tensor_mma;
    in->op = scaled ? NUM_KIND_MXF4NVF4 : NUM_KIND_F16;
    sim_push_address(b, &s->o[0], in);
    if (s->o[1].kind != O_ADDRESS) {
        sim_push(in, sim_source(b, &s->o[1], 'd'));
    } else if (scaled) {
        sim_unknown(b, s, "A in tensor memory is modelled for .kind::f16 only");
    } else {
        in->flags |= TENSOR_A_TMEM;
        sim_push_address(b, &s->o[1], in);
    }
    sim_push(in, sim_source(b, &s->o[2], 'd'));
    sim_push(in, sim_source(b, &s->o[3], 'w'));
    for (uint32_t i = 4; scaled && i < 6; i++)
        sim_push_address(b, &s->o[i], in);
    const operand *enable = &s->o[s->n - 1];
    in->o[0] = NONE;
    if (enable->kind == O_IMMEDIATE) {
        in->imm = enable->value != 0;
    } else {
        in->o[0] = sim_predicate(b, enable);
        if (enable->negated) in->flags |= TENSOR_NOT;
    }
}

static void decode_commit(builder *b, const statement *s, insn *in, pieces *p)
{
    take_group(b, s, in, p);
    if (!sim_take(p, "mbarrier::arrive::one")) sim_unknown(b, s, "");
    in->space = sim_take(p, "shared::cluster") ? CLUSTER : GENERIC;
    bool multicast = sim_take(p, "multicast::cluster");
    if (!sim_take(p, "b64")) sim_unknown(b, s, "");
    expect_end(b, s, p, 1 + multicast);
    in->fn = sim_exec_tensor_commit;
    sim_address(b, &s->o[0], in, 1);
    sim_push(in, multicast ? sim_source(b, &s->o[1], 'h') : NONE);
}

void sim_decode_tensor(builder *b, const statement *s, insn *in, pieces *p)
{
    static const struct {
        const char *name;
        decoder *decode;
    } forms[] = {{"alloc", decode_alloc},
                 {"dealloc", decode_dealloc},
                 {"relinquish_alloc_permit", decode_relinquish},
                 {"fence::before_thread_sync", decode_before},
                 {"fence::after_thread_sync", decode_after},
                 {"wait::ld", decode_wait_load},
                 {"wait::st", decode_wait_store},
                 {"ld", decode_load},
                 {"st", decode_store},
                 {"cp", decode_copy},
                 {"mma", decode_mma},
                 {"commit", decode_commit}};
    if (sim_config.capability / 10 != 10) sim_unknown(b, s, "needs compute capability 10.0");
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (!sim_take(p, forms[i].name)) continue;
        forms[i].decode(b, s, in, p);
        return;
    }
    sim_unknown(b, s, "not modelled");
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Cluster launch control                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

static void decode_try_cancel(builder *b, const statement *s, insn *in, pieces *p)
{
    if (!sim_take(p, "async")) sim_unknown(b, s, "");
    in->space = sim_take(p, "shared::cta") ? SHARED : GENERIC;
    if (!sim_take(p, "mbarrier::complete_tx::bytes")) sim_unknown(b, s, "");
    in->flags = sim_take(p, "multicast::cluster::all");
    if (in->flags && !sim_has_clusters()) sim_unknown(b, s, "this compute capability has no multicast");
    if (!sim_take(p, "b128")) sim_unknown(b, s, "");
    expect_end(b, s, p, 2);
    in->fn = sim_exec_try_cancel;
    sim_address(b, &s->o[0], in, 1);
    sim_push_address(b, &s->o[1], in);
}

static void decode_first_cta(builder *b, const statement *s, insn *in, pieces *p, bool vector)
{
    if ((vector && !sim_take(p, "v4")) || !sim_take(p, "b32") || !sim_take(p, "b128")) sim_unknown(b, s, "");
    expect_end(b, s, p, 2);
    in->fn = sim_exec_first_cta;
    sim_list(b, &s->o[0], in, 'w', true);
    if (in->n_list != (vector ? 4 : 1)) sim_unknown(b, s, "the vector's length");
    in->o[1] = sim_source(b, &s->o[1], 'q');
}

/* op: the first of the coordinates */
void sim_decode_cancel(builder *b, const statement *s, insn *in, pieces *p)
{
    if (sim_config.capability < 100) sim_unknown(b, s, "needs compute capability 10.0");
    if (sim_take(p, "try_cancel")) {
        decode_try_cancel(b, s, in, p);
        return;
    }
    if (!sim_take(p, "query_cancel")) sim_unknown(b, s, "");
    if (sim_take(p, "is_canceled")) {
        if (!sim_take(p, "pred") || !sim_take(p, "b128")) sim_unknown(b, s, "");
        expect_end(b, s, p, 2);
        in->fn = sim_exec_is_cancelled;
        in->o[0] = sim_predicate(b, &s->o[0]);
        in->o[1] = sim_source(b, &s->o[1], 'q');
        return;
    }
    bool vector = sim_take(p, "get_first_ctaid");
    in->op = 0;
    if (!vector && !sim_take(p, "get_first_ctaid::x")) {
        in->op = 1;
        if (!sim_take(p, "get_first_ctaid::y")) {
            in->op = 2;
            if (!sim_take(p, "get_first_ctaid::z")) sim_unknown(b, s, "");
        }
    }
    decode_first_cta(b, s, in, p, vector);
}
