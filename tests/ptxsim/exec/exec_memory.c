/* Executes loads, stores and atomic operations.
 *
 * Of ld and st, list holds the registers, o[1] and imm the address, `size` and `vec` the elements. */
#include "exec_memory.h"

#include "checks/flags.h"
#include "checks/report.h"
#include "checks/scopes.h"
#include "checks/stores.h"
#include "exec_value.h"
#include "machine/memory.h"
#include "machine/traffic.h"

static uint64_t fetched(const uint8_t *from, unsigned size, bool is_signed)
{
    uint64_t value = 0;
    memcpy(&value, from, size);
    if (is_signed && size == 1) return (uint64_t)(int8_t)value;
    if (is_signed && size == 2) return (uint64_t)(int16_t)value;
    if (is_signed && size == 4) return (uint64_t)(int32_t)value;
    return value;
}

static bool is_global(const insn *in) { return in->space == GLOBAL || in->space == GENERIC; }

/* What flags and their like need, once sim_locate has found it. */
static void check_load(run *r, const insn *in, uint32_t lane, uint64_t address, uint32_t bytes)
{
    if (address < r->lo || address >= r->hi) return; /* another space's */
    if (in->type & SEM_STRONG)
        sim_flags_read(r, in, lane, address);
    else
        sim_stores_seen(r, in, lane, address, bytes);
}

static void note_scope(run *r, const insn *in)
{
    if (in->place) sim_scope_executed(r, in, (uint32_t)__builtin_popcount(r->mask), 0);
}

step sim_exec_load(run *r, const insn *in)
{
    uint32_t bytes = (uint32_t)in->size * in->vec;
    ACTIVE(r)
    {
        const uint8_t *from = sim_locate(r, in, i, in->space, sim_address_at(r, in, 1, i), bytes, READ);
        if (!from) return STEP_FAIL;
        if (r->launch->flags && is_global(in)) check_load(r, in, i, sim_address_at(r, in, 1, i), bytes);
        for (uint32_t k = 0; k < in->vec; k++) {
            if (in->list[k] == NONE) continue;
            if (in->size == 4 && in->reg_size == 4)
                memcpy(r->base[0] + in->list[k] + 4 * i, from + 4 * k, 4);
            else
                sim_put_lane(r, in->list[k], in->reg_size, i, fetched(from + k * in->size, in->size, in->is_signed));
        }
    }
    note_scope(r, in);
    sim_wavefronts(r, in, r->mask, bytes);
    if (is_global(in)) {
        r->stats.global_loads++;
        r->stats.global_load_bytes += bytes * (uint32_t)__builtin_popcount(r->mask);
    }
    return in->flags ? STEP_SLEEP : STEP_NEXT;
}

/* The kernels before this one may read, or write, the same. What is read is nobody's business but the caller's. */
static bool writes_early(run *r, const insn *in)
{
    const uint32_t early = r->launch->overlaps && in->space == GLOBAL ? r->mask & ~r->warp->waited : 0;
    if (early) sim_report(r, in, 'E', "unwaited", __builtin_ctz(early), "writes before griddepcontrol.wait");
    return early;
}

bool sim_same_store(const run *r, const insn *in, uint32_t lane, uint32_t other)
{
    if (in->fn != sim_exec_store || !(r->mask >> other & 1)) return false;
    if (sim_address_at(r, in, 1, lane) != sim_address_at(r, in, 1, other)) return false;
    for (uint32_t k = 0; k < in->vec; k++) {
        uint64_t mine = sim_lane(r, in->list[k], in->reg_size, lane);
        uint64_t its = sim_lane(r, in->list[k], in->reg_size, other);
        if (memcmp(&mine, &its, in->size) != 0) return false;
    }
    return true;
}

step sim_exec_store(run *r, const insn *in)
{
    uint32_t bytes = (uint32_t)in->size * in->vec;
    if (writes_early(r, in)) return STEP_FAIL;
    ACTIVE(r)
    {
        uint64_t address = sim_address_at(r, in, 1, i);
        uint8_t *to = sim_locate(r, in, i, in->space, address, bytes, WRITE);
        if (!to) return STEP_FAIL;
        if (is_global(in)) sim_stored(r, i, address, bytes);
        if (in->type & SEM_STRONG && is_global(in) && address >= r->lo && address < r->hi)
            sim_flags_write(r, in, i, address, false);
        for (uint32_t k = 0; k < in->vec; k++) {
            uint64_t value = sim_lane(r, in->list[k], in->reg_size, i);
            memcpy(to + k * in->size, &value, in->size);
        }
    }
    note_scope(r, in);
    sim_wavefronts(r, in, r->mask, bytes);
    if (is_global(in)) {
        r->stats.global_stores++;
        r->stats.global_store_bytes += bytes * (uint32_t)__builtin_popcount(r->mask);
    }
    return in->flags ? STEP_SLEEP : STEP_NEXT;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Atomics: o[0] the old value (NONE: red), o[1] the address, o[2] and o[3] operands                                 */
/* ---------------------------------------------------------------------------------------------------------------- */

static uint64_t extreme(const insn *in, uint64_t old, uint64_t b)
{
    bool less = !in->is_signed ? old < b : in->size == 4 ? (int32_t)old < (int32_t)b : (int64_t)old < (int64_t)b;
    return less == (in->op == A_MIN) ? old : b;
}

static uint64_t updated(const insn *in, uint64_t old, uint64_t b, uint64_t c)
{
    switch ((atomic_op)in->op) {
    case A_ADD:
        return old + b;
    case A_MIN:
    case A_MAX:
        return extreme(in, old, b);
    case A_AND:
        return old & b;
    case A_OR:
        return old | b;
    case A_XOR:
        return old ^ b;
    case A_CAS:
        return old == b ? c : old;
    case A_INC:
        return old >= b ? 0 : old + 1;
    case A_DEC:
        return old == 0 || old > b ? b : old - 1;
    default:
        return b;
    }
}

#define UPDATE(T)                                                                                                      \
    {                                                                                                                  \
        T old = __atomic_load_n((T *)(void *)to, __ATOMIC_SEQ_CST);                                                    \
        while (!__atomic_compare_exchange_n((T *)(void *)to, &old, (T)updated(in, old, b, c), false, __ATOMIC_SEQ_CST, \
                                            __ATOMIC_SEQ_CST))                                                         \
            ;                                                                                                          \
        return old;                                                                                                    \
    }

static uint64_t update(const insn *in, uint8_t *to, uint64_t b, uint64_t c)
{
    if (in->size == 4) UPDATE(uint32_t)
    UPDATE(uint64_t)
}

/* In either order of lanes. */
step sim_exec_atomic(run *r, const insn *in)
{
    bool backwards = sim_random(&r->random) & 1;
    if (writes_early(r, in)) return STEP_FAIL;
    for (uint32_t k = 0; k < LANES; k++) {
        uint32_t i = backwards ? LANES - 1 - k : k;
        if (!(r->mask >> i & 1)) continue;
        uint64_t address = sim_address_at(r, in, 1, i);
        uint8_t *to = sim_locate(r, in, i, in->space, address, in->size, ATOMIC);
        if (!to) return STEP_FAIL;
        if (is_global(in)) sim_stored(r, i, address, in->size);
        if (is_global(in) && address >= r->lo && address < r->hi) {
            sim_flags_read(r, in, i, address);
            sim_flags_write(r, in, i, address, true);
        }
        uint64_t c = in->op == A_CAS ? sim_lane(r, in->o[3], in->reg_size, i) : 0;
        uint64_t old = update(in, to, sim_lane(r, in->o[2], in->reg_size, i), c);
        if (in->o[0] != NONE) sim_put_lane(r, in->o[0], in->reg_size, i, old);
    }
    note_scope(r, in);
    return STEP_SLEEP;
}
