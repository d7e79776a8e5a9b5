/* Executes tcgen05.ld, st and wait.
 *
 * op: the shape; vec: registers of a lane; imm: the column of the second half (16x32bx2); list: the address, then the
 * registers. Loads and stores act at once or as late as their wait, as the seed says. Until then a load's registers
 * hold poison. */
#include "matrix/tmem.h"

#include "exec_value.h"
#include "checks/report.h"
#include "machine/fragment.h"
#include "num/num_layout.h"

#include <stdlib.h>

static uint32_t *registers(const warp *w, uint32_t place) { return (uint32_t *)(void *)(w->registers + place); }
static uint32_t per_cell(const insn *in) { return in->flags & TENSOR_HALVES ? 2 : 1; }

/* The sixteen or thirty-two lanes of the warp's quarter, their columns; 16x32bx2 has two of them. */
static uint32_t spans_of(const insn *in, uint32_t lane, uint32_t column, tmem_span spans[2])
{
    bool whole = in->op == NUM_TMEM_32X32B, split = in->op == NUM_TMEM_16X32BX2;
    uint32_t wide = in->op == NUM_TMEM_16X64B ? 2 : in->op == NUM_TMEM_16X128B ? 2 : in->op == NUM_TMEM_16X256B ? 2 : 1;
    uint32_t columns = in->vec * per_cell(in) * wide, group = lane / TMEM_GROUP;
    spans[0] = (tmem_span){.groups = (whole ? 3u : 1u) << group, .column = column, .columns = columns};
    spans[1] = (tmem_span){.groups = 1u << group, .column = column + (uint32_t)in->imm, .columns = columns};
    return split ? 2 : 1;
}

static bool take_address(run *r, const insn *in, uint32_t *lane, uint32_t *column)
{
    uint32_t first = (uint32_t)__builtin_ctz(r->mask), quarter = TMEM_LANES / 4 * (r->warp->index % 4);
    uint32_t address = (uint32_t)sim_listed_address(r, in, 0, first);
    ACTIVE(r)
    {
        if ((uint32_t)sim_listed_address(r, in, 0, i) == address) continue;
        sim_report(r, in, 'E', "tmem-lanes", (int)i, "the lanes of a warp name different addresses");
        return false;
    }
    *lane = address >> 16 & (TMEM_LANES - 1);
    *column = address & 0xffff;
    bool upper = in->op != NUM_TMEM_32X32B && *lane == quarter + TMEM_GROUP;
    if (*lane == quarter || upper) return true;
    sim_report(r, in, 'E', "tmem-lanes", -1, "address 0x%08x: warp %u uses lanes %u to %u", address, r->warp->index,
               quarter, quarter + 31);
    return false;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The accesses themselves                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef struct place {
    uint32_t lane, column;
} place;

static place place_of(const tmem_access *a, uint32_t thread, uint32_t reg)
{
    num_cell cell = num_tmem_cell((num_tmem_shape)a->in->op, (int)thread, (int)reg, (int)a->in->imm);
    return (place){a->lane + (uint32_t)cell.lane, a->column + (uint32_t)cell.column};
}

static uint32_t read_cell(const tmem *t, place at)
{
    uint32_t group = (uint32_t)at.lane / TMEM_GROUP;
    bool coming = t->under_way[TMEM_SUM][group][at.column] || t->under_way[TMEM_COPY][group][at.column];
    return coming ? POISON_BYTE * 0x01010101u : t->cells[at.lane][at.column];
}

static void read_now(const tmem *t, tmem_access *a)
{
    uint32_t halves = per_cell(a->in);
    a->values = malloc(a->in->vec * LANES * sizeof *a->values);
    for (uint32_t reg = 0; reg < a->in->vec; reg++) {
        for (uint32_t thread = 0; thread < LANES; thread++) {
            uint32_t value = read_cell(t, place_of(a, thread, halves * reg));
            if (halves == 2) value = (value & 0xffff) | read_cell(t, place_of(a, thread, 2 * reg + 1)) << 16;
            a->values[reg * LANES + thread] = value;
        }
    }
}

static void write_now(tmem *t, tmem_access *a)
{
    uint32_t halves = per_cell(a->in);
    for (uint32_t reg = 0; reg < a->in->vec; reg++) {
        for (uint32_t thread = 0; thread < LANES; thread++) {
            uint32_t value = a->values[reg * LANES + thread];
            for (uint32_t k = 0; a->mask >> thread & 1 && k < halves; k++) {
                place at = place_of(a, thread, halves * reg + k);
                t->cells[at.lane][at.column] = halves == 1 ? value : value >> 16 * k & 0xffff;
            }
        }
    }
    free(a->values);
    a->values = NULL;
}

static void deliver(const warp *w, tmem_access *a)
{
    for (uint32_t reg = 0; reg < a->in->vec; reg++) {
        if (a->in->list[2 + reg] == NONE) continue;
        uint32_t *to = registers(w, a->in->list[2 + reg]);
        for (uint32_t lanes = a->mask; lanes; lanes &= lanes - 1) {
            uint32_t i = (uint32_t)__builtin_ctz(lanes);
            to[i] = a->values[reg * LANES + i];
        }
    }
    free(a->values);
    a->values = NULL;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Instructions                                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

static tmem_access *begin(run *r, const insn *in, tmem_use use)
{
    tmem_access a = {.in = in, .mask = r->mask};
    tmem_span spans[2];
    if (r->mask != ALL_LANES)
        sim_report(r, in, 'W', "diverged-aligned", -1, "only lanes %08x of the warp come", r->mask);
    if (!take_address(r, in, &a.lane, &a.column)) return NULL;
    a.count = sim_tmem_issue(r);
    uint32_t n = spans_of(in, a.lane, a.column, spans);
    for (uint32_t i = 0; i < n; i++)
        if (!sim_tmem_begin(r, in, r->mask, r->cta, spans[i], use, a.count)) return NULL;
    tmem_warp *w = &r->cta->tmem->warps[r->warp->index];
    if (w->n_pending == w->most_pending) {
        w->most_pending = w->most_pending ? 2 * w->most_pending : 8;
        w->pending = realloc(w->pending, w->most_pending * sizeof *w->pending);
    }
    w->pending[w->n_pending++] = a;
    return &w->pending[w->n_pending - 1];
}

step sim_exec_tmem_load(run *r, const insn *in)
{
    if (!sim_gather(r, ALL_LANES)) return STEP_WAIT;
    tmem_access *a = begin(r, in, TMEM_LOAD);
    if (!a) return STEP_FAIL;
    uint32_t poison[LANES];
    memset(poison, POISON_BYTE, sizeof poison);
    for (uint32_t reg = 0; reg < in->vec; reg++)
        if (in->list[2 + reg] != NONE) put(r, in->list[2 + reg], poison, sizeof *poison);
    if (sim_random(&r->random) & 1) read_now(r->cta->tmem, a);
    return STEP_NEXT;
}

step sim_exec_tmem_store(run *r, const insn *in)
{
    if (!sim_gather(r, ALL_LANES)) return STEP_WAIT;
    tmem_access *a = begin(r, in, TMEM_STORE);
    if (!a) return STEP_FAIL;
    a->values = malloc(in->vec * LANES * sizeof *a->values);
    for (uint32_t reg = 0; reg < in->vec; reg++)
        memcpy(a->values + reg * LANES, at(r, in->list[2 + reg]), LANES * sizeof *a->values);
    if (sim_random(&r->random) & 1) write_now(r->cta->tmem, a);
    return STEP_NEXT;
}

/* tcgen05.wait: op a tmem_use */
step sim_exec_tmem_wait(run *r, const insn *in)
{
    if (!sim_gather(r, ALL_LANES)) return STEP_WAIT;
    tmem *t = sim_tmem(r->cta);
    tmem_warp *w = &t->warps[r->warp->index];
    uint32_t kept = 0;
    for (uint32_t k = 0; k < w->n_pending; k++) {
        tmem_access *a = &w->pending[k];
        tmem_use use = a->in->fn == sim_exec_tmem_load ? TMEM_LOAD : TMEM_STORE;
        if (use != in->op) {
            w->pending[kept++] = *a;
            continue;
        }
        if (use == TMEM_LOAD && !a->values) read_now(t, a);
        if (use == TMEM_LOAD) deliver(r->warp, a);
        if (use == TMEM_STORE && a->values) write_now(t, a);
        tmem_span spans[2];
        uint32_t n = spans_of(a->in, a->lane, a->column, spans);
        for (uint32_t i = 0; i < n; i++)
            sim_tmem_end(r->cta, spans[i], use);
    }
    w->n_pending = kept;
    return STEP_NEXT;
}
