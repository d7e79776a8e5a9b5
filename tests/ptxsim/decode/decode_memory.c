/* Decodes loads, stores, atomic operations and cp.async. */
#include "decode.h"

#include "checks/flags.h"
#include "exec/exec_memory.h"
#include "exec/exec_wide.h"

#include <stdlib.h>

/* Modifiers that leave what an access does alone: caches. */
static bool take_hint(pieces *p)
{
    static const char *const hints[] = {"weak", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "noftz", "unified"};
    if (p->next >= p->n) return false;
    if (sim_begins(p->at[p->next], "L1::") || sim_begins(p->at[p->next], "L2::")) {
        p->next++;
        return true;
    }
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++)
        if (sim_take(p, hints[i])) return true;
    return false;
}

/* Into insn.type. */
static bool take_order(pieces *p, uint8_t *order)
{
    static const struct {
        const char *name;
        uint8_t order;
    } orders[] = {{"volatile", SEM_STRONG | SEM_REACH},
                  {"mmio", SEM_STRONG | SEM_REACH},
                  {"relaxed", SEM_STRONG},
                  {"acquire", SEM_STRONG | SEM_ACQUIRE},
                  {"release", SEM_STRONG | SEM_RELEASE},
                  {"acq_rel", SEM_STRONG | SEM_ACQUIRE | SEM_RELEASE},
                  {"cta", SEM_STRONG},
                  {"cluster", SEM_STRONG | SEM_CLUSTER},
                  {"gpu", SEM_STRONG | SEM_REACH},
                  {"sys", SEM_STRONG | SEM_REACH}};
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        if (!sim_take(p, orders[i].name)) continue;
        *order |= orders[i].order;
        return true;
    }
    return false;
}

static bool names_scope(const pieces *p, uint32_t first)
{
    for (uint32_t i = first; i < p->next; i++)
        if (sim_is(p->at[i], "cta") || sim_is(p->at[i], "cluster") || sim_is(p->at[i], "gpu") ||
            sim_is(p->at[i], "sys"))
            return true;
    return false;
}

static void note_scope(builder *b, const statement *s, insn *in)
{
    if (in->type & (SEM_ACQUIRE | SEM_RELEASE) && in->type & SEM_REACH) sim_scoped(b, s, in);
}

static bool take_space(pieces *p, uint8_t *space)
{
    static const struct {
        const char *name;
        uint8_t space;
    } spaces[] = {{"global", GLOBAL}, {"shared", SHARED}, {"shared::cta", SHARED}, {"shared::cluster", CLUSTER},
                  {"local", LOCAL},   {"param", PARAM},   {"const", GLOBAL},       {"param::entry", PARAM}};
    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++) {
        if (!sim_take(p, spaces[i].name)) continue;
        *space = spaces[i].space;
        return true;
    }
    return false;
}

/* ld.relaxed.gpu.global.L1::no_allocate.v4.u32 */
void sim_decode_memory(builder *b, const statement *s, insn *in, pieces *p)
{
    if (p->n > 1 && sim_is(p->at[1], "async")) {
        sim_decode_store_async(b, s, in, p);
        return;
    }
    bool load = *p->at[0].s == 'l', has_space = false;
    while (take_hint(p) || (take_order(p, &in->type) && (in->flags = 1)) ||
           (!has_space && (has_space = take_space(p, &in->space))))
        ;
    note_scope(b, s, in);
    in->vec = sim_take(p, "v2") ? 2 : sim_take(p, "v4") ? 4 : sim_take(p, "v8") ? 8 : 1;
    slice type = sim_next(p);
    char width = sim_width_of(type);
    in->size = (uint8_t)sim_size_of(type);
    in->is_signed = type.n && *type.s == 's';
    uint32_t operands = s->n == 3 ? 2 : s->n; /* the third is a cache policy */
    const uint32_t most = in->space == GLOBAL ? 32 : 16;
    if (in->vec > 1 && in->vec * in->size > most) sim_unknown(b, s, "more bytes at once than this memory gives");
    if (width == 'q' && in->vec == 1 && p->next == p->n && operands == 2) {
        in->fn = load ? sim_exec_load_wide : sim_exec_store_wide;
        in->o[0] = sim_destination(b, &s->o[load ? 0 : 1], 'q');
        sim_address(b, &s->o[load ? 1 : 0], in, 1);
        return;
    }
    if (!width || width == 'p' || width == 'q' || p->next != p->n || operands != 2) sim_unknown(b, s, "");
    const operand *data = &s->o[load ? 0 : 1];
    sim_address(b, &s->o[load ? 1 : 0], in, 1);
    if (data->kind == O_LIST ? data->n_items != in->vec : in->vec != 1) sim_unknown(b, s, "the vector's length");
    const operand *one = data->kind == O_LIST ? data->items : data;
    for (uint32_t i = 0; one->kind == O_SINK && i < in->vec; i++)
        one++;
    char declared = one->kind == O_REGISTER ? one->width : width; /* may be wider than the type */
    if (declared == 'p' || sim_bytes(declared) < in->size) sim_unknown(b, s, "the register's width");
    in->reg_size = (uint8_t)sim_bytes(declared);
    sim_list(b, data, in, declared, load);
    in->fn = load ? sim_exec_load : sim_exec_store;
}

static const struct {
    const char *name;
    atomic_op op;
    uint8_t operands;
} atomics[] = {{"add", A_ADD, 1}, {"min", A_MIN, 1},   {"max", A_MAX, 1}, {"and", A_AND, 1}, {"or", A_OR, 1},
               {"xor", A_XOR, 1}, {"exch", A_EXCH, 1}, {"cas", A_CAS, 2}, {"inc", A_INC, 1}, {"dec", A_DEC, 1}};

/* atom.acq_rel.gpu.global.add.u32 d, [a], b; red has no d. */
void sim_decode_atomic(builder *b, const statement *s, insn *in, pieces *p)
{
    bool red = *p->at[0].s == 'r', has_space = false;
    const uint32_t first = p->next;
    while (take_hint(p) || take_order(p, &in->type) || (!has_space && (has_space = take_space(p, &in->space))))
        ;
    in->type |= SEM_STRONG | (names_scope(p, first) ? 0 : SEM_REACH);
    note_scope(b, s, in);
    slice name = sim_next(p);
    uint32_t operands = 0;
    for (size_t i = 0; i < sizeof atomics / sizeof atomics[0]; i++) {
        if (!sim_is(name, atomics[i].name)) continue;
        in->op = (uint8_t)atomics[i].op;
        operands = atomics[i].operands;
    }
    while (take_hint(p))
        ;
    slice type = sim_next(p);
    char width = sim_width_of(type);
    in->size = (uint8_t)sim_size_of(type);
    if (!operands || (in->size != 4 && in->size != 8) || *type.s == 'f' || p->next != p->n) sim_unknown(b, s, "");
    uint32_t at = red ? 0 : 1;
    if (s->n != at + 1 + operands) sim_unknown(b, s, "the number of operands");
    in->fn = sim_exec_atomic;
    in->is_signed = *type.s == 's';
    in->reg_size = (uint8_t)sim_bytes(width);
    in->o[0] = red || s->o[0].kind == O_SINK ? NONE : sim_destination(b, &s->o[0], width);
    sim_address(b, &s->o[at], in, 1);
    in->o[2] = sim_source(b, &s->o[at + 1], width);
    if (operands == 2) in->o[3] = sim_source(b, &s->o[at + 2], width);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* cp.async                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

void sim_decode_async(builder *b, const statement *s, insn *in, pieces *p)
{
    if (!sim_take(p, "async")) sim_unknown(b, s, "");
    if (sim_take(p, "bulk") || sim_take(p, "mbarrier")) {
        sim_decode_bulk(b, s, in, p);
        return;
    }
    if (sim_take(p, "commit_group") && p->next == p->n && s->n == 0) {
        in->fn = sim_exec_commit;
        return;
    }
    bool all = sim_take(p, "wait_all");
    if (all || sim_take(p, "wait_group")) {
        if (p->next != p->n || s->n != (all ? 0u : 1u)) sim_unknown(b, s, "");
        in->fn = sim_exec_wait;
        in->imm = all ? -1 : sim_immediate(b, &s->o[0]);
        return;
    }
    if (!sim_take(p, "ca") && !sim_take(p, "cg")) sim_unknown(b, s, "");
    if (!sim_take(p, "shared") && !sim_take(p, "shared::cta")) sim_unknown(b, s, "");
    if (!sim_take(p, "global")) sim_unknown(b, s, "");
    bool policy = false; /* the last operand then */
    while (sim_take(p, "L2::cache_hint") ? (policy = true) : take_hint(p))
        ;
    uint32_t operands = s->n - policy;
    if (p->next != p->n || operands < 3 || operands > 4) sim_unknown(b, s, "");
    in->fn = sim_exec_copy;
    in->size = (uint8_t)sim_immediate(b, &s->o[2]);
    if (in->size != 4 && in->size != 8 && in->size != 16) sim_unknown(b, s, "the size");
    insn from = {0};
    sim_address(b, &s->o[1], &from, 2);
    if (from.a_type != 8) sim_unknown(b, s, "a global address in 32 bits");
    sim_address(b, &s->o[0], in, 1);
    in->o[2] = from.o[2];
    in->o[4] = sim_constant(b, (uint64_t)from.imm, 'd');
    in->o[3] = operands == 4 ? sim_source(b, &s->o[3], 'w') : NONE;
    if (policy) sim_source(b, &s->o[operands], 'd'); /* it must be one */
}
