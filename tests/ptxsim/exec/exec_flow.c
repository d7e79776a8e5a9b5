/* Executes branches, exits, traps, clocks, packing of registers, and cvta. */
#include "exec_flow.h"

#include "exec_value.h"
#include "checks/report.h"
#include "machine/fragment.h"
#include "machine/memory.h"

#include <time.h>

step sim_exec_bra(run *r, const insn *in)
{
    fragment *f = r->fragment;
    if (r->mask == f->mask) {
        f->pc = in->target;
        return STEP_JUMP;
    }
    if (in->flags)
        sim_report(r, in, 'W', "diverged-uniform", -1, "lanes %08x of %08x take a branch that is marked uniform",
                   r->mask, f->mask);
    sim_part(r, r->mask, in->target, in->rejoin);
    return STEP_JUMP;
}

step sim_exec_exit(run *r, const insn *in)
{
    fragment *f = r->fragment;
    const uint32_t early = r->launch->overlaps ? r->mask & ~r->warp->waited : 0;
    if (early) {
        sim_report(r, in, 'E', "unwaited", __builtin_ctz(early),
                   "ends without griddepcontrol.wait: the next kernel may begin before the last one has ended");
        return STEP_FAIL;
    }
    f->pc++; /* of the lanes that stay, where the exit has a guard */
    sim_leave(r, r->mask);
    return STEP_JUMP;
}

step sim_exec_trap(run *r, const insn *in)
{
    sim_report(r, in, 'E', "trap", __builtin_ctz(r->mask), "trap");
    return STEP_FAIL;
}

/* Nobody may count on what clocks say: they advance with the instructions of this worker. */
step sim_exec_clock(run *r, const insn *in)
{
    uint64_t out[LANES];
    EACH out[i] = r->stats.warp_insns + 1;
    return sim_put_lanes(r, in->o[0], in->reg_size, out);
}

/* Two halves of a register, the common case. */
#define SPLIT(WIDE, HALF)                                                   \
    {                                                                       \
        const WIDE *from = at(r, in->o[0]);                                 \
        HALF lower[LANES], upper[LANES];                                    \
        EACH lower[i] = (HALF)from[i];                                      \
        EACH upper[i] = (HALF)(from[i] >> 8 * sizeof(HALF));                \
        if (in->list[0] != NONE) put(r, in->list[0], lower, sizeof *lower); \
        if (in->list[1] != NONE) put(r, in->list[1], upper, sizeof *upper); \
        return STEP_NEXT;                                                   \
    }
#define JOIN(WIDE, HALF)                                                     \
    {                                                                        \
        const HALF *lower = at(r, in->list[0]), *upper = at(r, in->list[1]); \
        WIDE out[LANES];                                                     \
        EACH out[i] = (WIDE)((WIDE)upper[i] << 8 * sizeof(HALF) | lower[i]); \
        return put(r, in->o[0], out, sizeof *out);                           \
    }

step sim_exec_pack(run *r, const insn *in)
{
    if (in->n_list == 2 && in->reg_size == 4 && in->size == 2) JOIN(uint32_t, uint16_t)
    if (in->n_list == 2 && in->reg_size == 8 && in->size == 4) JOIN(uint64_t, uint32_t)
    const uint8_t each = in->size == 1 ? 2 : in->size; /* bytes have registers of two */
    const uint64_t low = UINT64_MAX >> (64 - 8 * in->size);
    ACTIVE(r)
    {
        uint64_t value = 0;
        for (uint32_t k = 0; k < in->n_list; k++)
            value |= (sim_lane(r, in->list[k], each, i) & low) << 8 * in->size * k;
        sim_put_lane(r, in->o[0], in->reg_size, i, value);
    }
    return STEP_NEXT;
}

step sim_exec_unpack(run *r, const insn *in)
{
    if (in->n_list == 2 && in->reg_size == 4 && in->size == 2) SPLIT(uint32_t, uint16_t)
    if (in->n_list == 2 && in->reg_size == 8 && in->size == 4) SPLIT(uint64_t, uint32_t)
    const uint8_t each = in->size == 1 ? 2 : in->size; /* bytes have registers of two */
    const uint64_t low = UINT64_MAX >> (64 - 8 * in->size);
    ACTIVE(r)
    {
        uint64_t value = sim_lane(r, in->o[0], in->reg_size, i);
        for (uint32_t k = 0; k < in->n_list; k++)
            if (in->list[k] != NONE) sim_put_lane(r, in->list[k], each, i, value >> 8 * in->size * k & low);
    }
    return STEP_NEXT;
}

step sim_exec_cvta(run *r, const insn *in)
{
    uint64_t window = in->space == SHARED ? SHARED_WINDOW : in->space == LOCAL ? LOCAL_WINDOW : PARAM_WINDOW;
    if (in->space == GLOBAL) window = 0;
    const uint64_t *a = at(r, in->o[1]);
    uint64_t out[LANES];
    EACH out[i] = in->op == '+' ? a[i] + window : a[i] - window;
    return put(r, in->o[0], out, sizeof *out);
}
