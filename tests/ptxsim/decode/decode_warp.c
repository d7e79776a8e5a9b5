/* Decodes collectives of a warp, named barriers and memory fences. */
#include "decode.h"

#include "checks/flags.h"
#include "exec/exec_flow.h"
#include "exec/exec_warp.h"
#include "sync/barrier.h"
#include "sync/cluster.h"
#include "sync/flight.h"

#include <stdlib.h>
#include <string.h>

/* Operand 0 of a collective, d or d|p. */
static void decode_pair(builder *b, const operand *o, insn *in)
{
    in->list = malloc(sizeof *in->list);
    in->n_list = 1;
    in->list[0] = o->pair && o->pair->kind != O_SINK ? sim_predicate(b, o->pair) : NONE;
    in->o[0] = o->kind == O_SINK ? NONE : sim_destination(b, o, 'w');
}

static void decode_shfl(builder *b, const statement *s, insn *in, pieces *p)
{
    if (!sim_take(p, "sync")) sim_unknown(b, s, "only with .sync");
    in->op = sim_take(p, "up")     ? 'u'
             : sim_take(p, "down") ? 'd'
             : sim_take(p, "bfly") ? 'b'
             : sim_take(p, "idx")  ? 'i'
                                   : 0;
    if (!in->op || !sim_take(p, "b32") || p->next != p->n || s->n != 5) sim_unknown(b, s, "");
    in->fn = sim_exec_shfl;
    decode_pair(b, &s->o[0], in);
    for (uint32_t i = 1; i < 5; i++)
        in->o[i] = sim_source(b, &s->o[i], 'w');
}

static void decode_vote(builder *b, const statement *s, insn *in, pieces *p)
{
    if (!sim_take(p, "sync")) sim_unknown(b, s, "only with .sync");
    in->op = sim_take(p, "all")      ? 'l'
             : sim_take(p, "any")    ? 'n'
             : sim_take(p, "uni")    ? 'u'
             : sim_take(p, "ballot") ? 'b'
                                     : 0;
    if (!in->op || !sim_take(p, in->op == 'b' ? "b32" : "pred") || p->next != p->n || s->n != 3) sim_unknown(b, s, "");
    in->fn = sim_exec_vote;
    in->o[0] = in->op == 'b' ? sim_destination(b, &s->o[0], 'w') : sim_predicate(b, &s->o[0]);
    in->o[1] = sim_predicate(b, &s->o[1]);
    in->flags = s->o[1].negated;
    in->o[4] = sim_source(b, &s->o[2], 'w');
}

static void decode_match(builder *b, const statement *s, insn *in, pieces *p)
{
    in->op = sim_take(p, "any") ? 'a' : sim_take(p, "all") ? 'l' : 0;
    if (!in->op || !sim_take(p, "sync")) sim_unknown(b, s, "only with .sync");
    in->size = sim_take(p, "b32") ? 4 : sim_take(p, "b64") ? 8 : 0;
    if (!in->size || p->next != p->n || s->n != 3) sim_unknown(b, s, "");
    in->fn = sim_exec_match;
    decode_pair(b, &s->o[0], in);
    in->o[1] = sim_source(b, &s->o[1], in->size == 4 ? 'w' : 'd');
    in->o[4] = sim_source(b, &s->o[2], 'w');
}

static void decode_redux(builder *b, const statement *s, insn *in, pieces *p)
{
    static const struct {
        const char *name;
        char op;
    } ops[] = {{"add", '+'}, {"min", '<'}, {"max", '>'}, {"and", '&'}, {"or", '|'}, {"xor", '^'}};
    if (!sim_take(p, "sync")) sim_unknown(b, s, "only with .sync");
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (!in->op && sim_take(p, ops[i].name)) in->op = (uint8_t)ops[i].op;
    in->is_signed = sim_take(p, "s32");
    if (!in->op || (!in->is_signed && !sim_take(p, "u32") && !sim_take(p, "b32")) || p->next != p->n || s->n != 3)
        sim_unknown(b, s, "");
    in->fn = sim_exec_redux;
    in->o[0] = sim_destination(b, &s->o[0], 'w');
    in->o[1] = sim_source(b, &s->o[1], 'w');
    in->o[4] = sim_source(b, &s->o[2], 'w');
}

void sim_decode_warp(builder *b, const statement *s, insn *in, pieces *p)
{
    slice name = p->at[0];
    if (sim_is(name, "shfl")) {
        decode_shfl(b, s, in, p);
    } else if (sim_is(name, "vote")) {
        decode_vote(b, s, in, p);
    } else if (sim_is(name, "match")) {
        decode_match(b, s, in, p);
    } else if (sim_is(name, "redux")) {
        decode_redux(b, s, in, p);
    } else if (sim_is(name, "activemask") && sim_take(p, "b32") && s->n == 1) {
        in->fn = sim_exec_activemask;
        in->o[0] = sim_destination(b, &s->o[0], 'w');
    } else if (sim_is(name, "elect") && sim_take(p, "sync") && s->n == 2) {
        in->fn = sim_exec_elect;
        decode_pair(b, &s->o[0], in);
        in->o[4] = sim_source(b, &s->o[1], 'w');
    } else if (sim_is(name, "nanosleep") && sim_take(p, "u32") && s->n == 1) {
        in->fn = sim_exec_nanosleep;
    } else if (sim_is(name, "trap") && s->n == 0) {
        in->fn = sim_exec_trap;
    } else {
        sim_unknown(b, s, "");
    }
    if (p->next != p->n) sim_unknown(b, s, "");
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Barriers and fences                                                                                              */
/* ---------------------------------------------------------------------------------------------------------------- */

static void decode_bar(builder *b, const statement *s, insn *in, pieces *p)
{
    bool aligned = sim_is(p->at[0], "bar");
    sim_take(p, "cta");
    in->fn = sim_exec_bar;
    in->op = sim_take(p, "sync") ? 's' : sim_take(p, "arrive") ? 'a' : 0;
    aligned |= sim_take(p, "aligned");
    if (!in->op || s->n < 1 || s->n > 2) sim_unknown(b, s, "");
    in->o[1] = sim_source(b, &s->o[0], 'w');
    in->o[2] = s->n == 2 ? sim_source(b, &s->o[1], 'w') : NONE;
    if (in->op == 'a' && s->n != 2) sim_unknown(b, s, "arrive wants a count");
    in->whole_warp = aligned;
    if (p->next != p->n) sim_unknown(b, s, "");
}

static void decode_proxy_fence(builder *b, const statement *s, insn *in, pieces *p)
{
    in->fn = sim_exec_fence;
    if (sim_take(p, "alias")) return;
    in->fn = sim_exec_proxy_fence;
    if (sim_take(p, "async::generic")) { /* one way: what threads did, before what copies do */
        const bool acquire = sim_take(p, "acquire");
        if (!acquire && !sim_take(p, "release")) sim_unknown(b, s, "");
        if (!sim_take(p, acquire ? "sync_restrict::shared::cluster" : "sync_restrict::shared::cta"))
            sim_unknown(b, s, "");
        if (!sim_take(p, "cluster")) sim_unknown(b, s, "");
        in->flags = acquire ? FENCE_SHARED_CTA | FENCE_SHARED_CLUSTER : FENCE_SHARED_CTA;
        return;
    }
    if (!sim_take(p, "async")) sim_unknown(b, s, "");
    in->flags = sim_take(p, "shared::cta")       ? FENCE_SHARED_CTA
                : sim_take(p, "shared::cluster") ? FENCE_SHARED_CTA | FENCE_SHARED_CLUSTER
                : sim_take(p, "global")          ? FENCE_GLOBAL
                                                 : FENCE_SHARED_CTA | FENCE_SHARED_CLUSTER | FENCE_GLOBAL;
}

/* fence{.sem}.scope; membar.level; fence.mbarrier_init.release.cluster; fence.proxy or membar.proxy of some kind */
static void decode_fence(builder *b, const statement *s, insn *in, pieces *p)
{
    in->fn = sim_exec_fence;
    if (sim_take(p, "proxy")) {
        decode_proxy_fence(b, s, in, p);
    } else if (sim_take(p, "mbarrier_init")) {
        in->fn = sim_exec_proxy_fence;
        in->flags = FENCE_INITS;
        if (!sim_take(p, "release") || !sim_take(p, "cluster")) sim_unknown(b, s, "");
    } else {
        const bool acquires = sim_take(p, "acquire"), releases = !acquires && sim_take(p, "release");
        in->type = SEM_STRONG | (releases ? 0 : SEM_ACQUIRE) | (acquires ? 0 : SEM_RELEASE);
        if (!sim_take(p, "acq_rel")) sim_take(p, "sc");
        in->type |= sim_take(p, "cta") ? 0 : sim_take(p, "cluster") ? SEM_CLUSTER : SEM_REACH;
        if (in->type & SEM_REACH) sim_scoped(b, s, in);
        p->next = p->n;
    }
    if (p->next != p->n) sim_unknown(b, s, "");
    b->p->fences |= in->flags;
}

void sim_decode_barrier(builder *b, const statement *s, insn *in, pieces *p)
{
    slice name = p->at[0];
    if (sim_is(name, "membar") || sim_is(name, "fence")) {
        decode_fence(b, s, in, p);
        return;
    }
    if (sim_is(p->at[1], "cluster")) {
        sim_decode_cluster(b, s, in, p);
        return;
    }
    if (sim_take(p, "warp")) {
        if (!sim_take(p, "sync") || p->next != p->n || s->n != 1) sim_unknown(b, s, "");
        in->fn = sim_exec_warp_sync;
        in->o[0] = sim_source(b, &s->o[0], 'w');
        return;
    }
    decode_bar(b, s, in, p);
}
