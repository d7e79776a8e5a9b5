/* Decodes what sm_90 added: clusters, mbarriers, bulk copies and tiles of tensor maps. */
#include "decode.h"

#include "exec/exec_memory.h"
#include "sync/cluster.h"
#include "sync/flight.h"

#include <stdlib.h>

static void expect_end(builder *b, const statement *s, const pieces *p, uint32_t operands)
{
    if (p->next != p->n || s->n != operands) sim_unknown(b, s, "");
}

static void decode_cluster_barrier(builder *b, const statement *s, insn *in, pieces *p)
{
    bool arrive = sim_take(p, "arrive");
    if (!arrive && !sim_take(p, "wait")) sim_unknown(b, s, "");
    in->flags = arrive && !sim_take(p, "relaxed");
    if (!sim_take(p, "release")) sim_take(p, "acquire");
    if (in->flags) sim_scoped(b, s, in);
    b->p->relaxes |= arrive && !in->flags;
    in->whole_warp = sim_take(p, "aligned");
    in->fn = arrive ? sim_exec_cluster_arrive : sim_exec_cluster_wait;
    expect_end(b, s, p, 0);
}

static void decode_mapa(builder *b, const statement *s, insn *in, pieces *p)
{
    sim_take(p, "shared::cluster");
    char width = sim_width_of(sim_next(p));
    expect_end(b, s, p, 3);
    if (width != 'w' && width != 'd') sim_unknown(b, s, "");
    in->fn = sim_exec_mapa;
    in->reg_size = (uint8_t)sim_bytes(width);
    in->o[0] = sim_destination(b, &s->o[0], width);
    in->o[1] = sim_source(b, &s->o[1], width);
    in->o[2] = sim_source(b, &s->o[2], 'w');
}

void sim_decode_cluster(builder *b, const statement *s, insn *in, pieces *p)
{
    slice name = p->at[0];
    in->fn = sim_exec_nothing;
    if (sim_is(name, "barrier")) {
        p->next = 2;
        decode_cluster_barrier(b, s, in, p);
    } else if (sim_is(name, "mapa")) {
        decode_mapa(b, s, in, p);
    } else if (sim_is(name, "setmaxnreg")) {
        in->flags = sim_take(p, "inc");
        if (!in->flags && !sim_take(p, "dec")) sim_unknown(b, s, "");
        if (!sim_take(p, "sync") || !sim_take(p, "aligned") || !sim_take(p, "u32")) sim_unknown(b, s, "");
        expect_end(b, s, p, 1);
        in->fn = sim_exec_setmaxnreg;
        in->imm = sim_immediate(b, &s->o[0]);
    } else if (sim_is(name, "griddepcontrol")) {
        if (sim_take(p, "wait"))
            in->fn = sim_exec_kernels_wait;
        else if (!sim_take(p, "launch_dependents"))
            sim_unknown(b, s, "");
        expect_end(b, s, p, 0);
    } /* else a prefetch, whatever it says */
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* mbarrier                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

static void take_order_and_scope(pieces *p, insn *in)
{
    for (;;) {
        if (sim_take(p, "relaxed"))
            in->flags |= MB_RELAXED;
        else if (sim_take(p, "cluster"))
            in->flags |= MB_CLUSTER;
        else if (!sim_take(p, "release") && !sim_take(p, "acquire") && !sim_take(p, "cta"))
            return;
    }
}

static void take_shared(pieces *p, insn *in)
{
    in->space = sim_take(p, "shared") || sim_take(p, "shared::cta") ? SHARED
                : sim_take(p, "shared::cluster")                    ? CLUSTER
                                                                    : GENERIC;
}

/* mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [a], parity {, time} */
static void decode_wait(builder *b, const statement *s, insn *in, pieces *p, char op)
{
    in->op = (uint8_t)op;
    bool parity = sim_take(p, "parity");
    take_order_and_scope(p, in);
    in->is_signed = in->flags & MB_RELAXED;
    if (in->flags == MB_CLUSTER) sim_scoped(b, s, in);
    take_shared(p, in);
    if (!sim_take(p, "b64") || p->next != p->n || s->n < 3 || s->n > 4) sim_unknown(b, s, "");
    in->fn = sim_exec_mbarrier_wait;
    in->flags = (uint8_t)((in->flags & MB_CLUSTER) | (parity ? WAIT_PARITY : 0));
    in->size = parity ? 4 : 8;
    in->o[0] = sim_predicate(b, &s->o[0]);
    sim_address(b, &s->o[1], in, 1);
    in->o[2] = sim_source(b, &s->o[2], parity ? 'w' : 'd');
}

static bool take_operation(pieces *p, insn *in)
{
    static const struct {
        const char *name;
        mbarrier_op op;
    } ops[] = {{"init", MB_INIT},        {"inval", MB_INVAL},          {"arrive", MB_ARRIVE},
               {"expect_tx", MB_EXPECT}, {"complete_tx", MB_COMPLETE}, {"arrive_drop", MB_DROP}};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (!sim_take(p, ops[i].name)) continue;
        in->op = (uint8_t)ops[i].op;
        return true;
    }
    return false;
}

/* mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 state, [a], bytes */
void sim_decode_mbarrier(builder *b, const statement *s, insn *in, pieces *p)
{
    if (sim_take(p, "try_wait")) {
        decode_wait(b, s, in, p, 't');
        return;
    }
    if (sim_take(p, "test_wait")) {
        decode_wait(b, s, in, p, 'n');
        return;
    }
    if (!take_operation(p, in)) sim_unknown(b, s, "");
    bool arrives = in->op == MB_ARRIVE || in->op == MB_DROP;
    if (arrives && sim_take(p, "noComplete")) sim_unknown(b, s, "");
    if (arrives && sim_take(p, "expect_tx")) in->flags |= MB_WITH_BYTES;
    take_order_and_scope(p, in);
    if (arrives && (in->flags & (MB_RELAXED | MB_CLUSTER)) == MB_CLUSTER) sim_scoped(b, s, in);
    b->p->relaxes |= arrives && in->flags & MB_RELAXED;
    take_shared(p, in);
    if (!sim_take(p, "b64") || p->next != p->n || s->n == 0) sim_unknown(b, s, "");
    in->fn = sim_exec_mbarrier;
    in->o[0] = in->o[2] = NONE;
    uint32_t at = arrives && s->o[0].kind != O_ADDRESS; /* a state to write first */
    if (at && s->o[0].kind != O_SINK) in->o[0] = sim_destination(b, &s->o[0], 'd');
    if (s->n < at + 1 || s->n > at + 2) sim_unknown(b, s, "the number of operands");
    sim_address(b, &s->o[at], in, 1);
    if (s->n > at + 1) in->o[2] = sim_source(b, &s->o[at + 1], 'w');
    bool wanted = in->op == MB_INIT || in->op == MB_EXPECT || in->op == MB_COMPLETE || in->flags & MB_WITH_BYTES;
    if (wanted && in->o[2] == NONE) sim_unknown(b, s, "the number of operands");
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Bulk copies and tiles                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

static bool take_cache_hint(pieces *p) { return sim_take(p, "L2::cache_hint"); }

/* Behind the fixed operands: a mask of CTAs with .multicast, a policy with a hint. */
static void take_mask(builder *b, const statement *s, insn *in, pieces *p, uint32_t fixed)
{
    bool multicast = sim_take(p, "multicast::cluster");
    if (multicast && !sim_has_clusters()) sim_unknown(b, s, "this compute capability has no multicast");
    if (in->fn == sim_exec_tile && sim_take(p, "cta_group::2")) in->flags |= TILE_PAIR;
    if (in->fn == sim_exec_tile) sim_take(p, "cta_group::1");
    bool hint = take_cache_hint(p);
    expect_end(b, s, p, fixed + multicast + hint);
    sim_push(in, multicast ? sim_source(b, &s->o[fixed], 'h') : NONE);
}

static void decode_groups(builder *b, const statement *s, insn *in, pieces *p, bool commit)
{
    sim_take(p, "read");
    expect_end(b, s, p, commit ? 0 : 1);
    in->fn = commit ? sim_exec_bulk_commit : sim_exec_bulk_wait;
    if (!commit) in->imm = sim_immediate(b, &s->o[0]);
}

static void decode_copy(builder *b, const statement *s, insn *in, pieces *p)
{
    bool out = sim_take(p, "global");
    if (!out && !sim_take(p, "shared::cluster") && !sim_take(p, "shared::cta")) sim_unknown(b, s, "");
    bool from_global = !out && sim_take(p, "global");
    if (!from_global && !sim_take(p, "shared::cta")) sim_unknown(b, s, "");
    if (!sim_take(p, out ? "bulk_group" : "mbarrier::complete_tx::bytes")) sim_unknown(b, s, "");
    if (s->n < 3) sim_unknown(b, s, "");
    in->fn = sim_exec_bulk;
    in->op = out ? FLY_OUT : from_global ? FLY_IN : FLY_ACROSS;
    b->p->loads_async |= in->op == FLY_IN;
    sim_address(b, &s->o[0], in, 1);
    sim_push_address(b, &s->o[1], in);
    sim_push(in, sim_source(b, &s->o[2], 'w'));
    if (out) {
        bool hint = take_cache_hint(p);
        expect_end(b, s, p, 3 + hint);
        return;
    }
    if (s->n < 4) sim_unknown(b, s, "");
    sim_push_address(b, &s->o[3], in);
    take_mask(b, s, in, p, 4);
}

/* list: the map's address, the coordinates (vec of them), inwards the mbarrier's address and the mask. */
static void decode_tile(builder *b, const statement *s, insn *in, pieces *p)
{
    slice rank = sim_next(p);
    if (sim_take(p, "cta_group::2")) in->flags = TILE_PAIR;
    sim_take(p, "cta_group::1");
    if (rank.n != 2 || rank.s[0] < '1' || rank.s[0] > '5' || rank.s[1] != 'd') sim_unknown(b, s, "");
    bool out = sim_take(p, "global");
    if (!out && !sim_take(p, "shared::cluster") && !sim_take(p, "shared::cta")) sim_unknown(b, s, "");
    if (!sim_take(p, out ? "shared::cta" : "global")) sim_unknown(b, s, "");
    if (!out && sim_take(p, "tile::gather4")) in->flags |= TILE_GATHER;
    sim_take(p, "tile");
    if (in->flags & TILE_GATHER && rank.s[0] != '2') sim_unknown(b, s, "rows of a matrix only");
    if (!sim_take(p, out ? "bulk_group" : "mbarrier::complete_tx::bytes") || s->n < 2) sim_unknown(b, s, "");
    in->fn = sim_exec_tile;
    in->op = out ? FLY_TILE_OUT : FLY_TILE_IN;
    b->p->loads_async |= !out;
    in->vec = in->flags & TILE_GATHER ? 1 + GATHERED_ROWS : (uint8_t)(rank.s[0] - '0');
    const operand *map = &s->o[out ? 0 : 1];
    if (map->kind != O_ADDRESS || map->n_items != in->vec) sim_unknown(b, s, "the number of coordinates");
    sim_address(b, &s->o[out ? 1 : 0], in, 1);
    sim_push_address(b, map, in);
    for (uint32_t i = 0; i < in->vec; i++)
        sim_push(in, sim_source(b, &map->items[i], 'w'));
    if (out) {
        bool hint = take_cache_hint(p);
        expect_end(b, s, p, 2 + hint);
        return;
    }
    if (s->n < 3) sim_unknown(b, s, "");
    sim_push_address(b, &s->o[2], in);
    take_mask(b, s, in, p, 3);
}

/* Behind "cp.async.bulk" or "cp.async.mbarrier". */
void sim_decode_bulk(builder *b, const statement *s, insn *in, pieces *p)
{
    if (sim_is(p->at[2], "mbarrier")) {
        bool noinc = sim_take(p, "arrive") && sim_take(p, "noinc");
        take_shared(p, in);
        if (!noinc || !sim_take(p, "b64")) sim_unknown(b, s, "only .noinc is modelled");
        expect_end(b, s, p, 1);
        in->fn = sim_exec_copy_arrive;
        in->op = MB_ARRIVE;
        in->o[0] = in->o[2] = NONE;
        sim_address(b, &s->o[0], in, 1);
    } else if (sim_take(p, "commit_group")) {
        decode_groups(b, s, in, p, true);
    } else if (sim_take(p, "wait_group")) {
        decode_groups(b, s, in, p, false);
    } else if (sim_take(p, "prefetch")) {
        in->fn = sim_exec_nothing;
    } else if (sim_take(p, "tensor")) {
        decode_tile(b, s, in, p);
    } else {
        decode_copy(b, s, in, p);
    }
}

/* st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [a], {..}, [mbarrier] */
void sim_decode_store_async(builder *b, const statement *s, insn *in, pieces *p)
{
    if (!sim_take(p, "async")) sim_unknown(b, s, "");
    sim_take(p, "weak");
    sim_take(p, "shared::cluster");
    if (!sim_take(p, "mbarrier::complete_tx::bytes")) sim_unknown(b, s, "");
    in->vec = sim_take(p, "v2") ? 2 : sim_take(p, "v4") ? 4 : 1;
    slice type = sim_next(p);
    char width = sim_width_of(type);
    expect_end(b, s, p, 3);
    if (width != 'w' && width != 'd') sim_unknown(b, s, "");
    in->fn = sim_exec_store_async;
    in->size = in->reg_size = (uint8_t)sim_bytes(width);
    if (in->size * in->vec > 16) sim_unknown(b, s, "more than 16 bytes");
    sim_address(b, &s->o[0], in, 1);
    sim_list(b, &s->o[1], in, width, false);
    if (in->n_list != in->vec) sim_unknown(b, s, "the vector's length");
    sim_push_address(b, &s->o[2], in);
}
