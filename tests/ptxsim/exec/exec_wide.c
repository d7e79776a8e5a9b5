/* Executes loads, stores and moves of 128-bit registers, sixteen bytes a lane.
 *
 * Of ld and st, o[0] is the register, o[1] and imm the address. Of mov, list holds the halves. */
#include "exec_wide.h"
#include "exec_value.h"
#include "machine/memory.h"

static uint8_t *wide(run *r, uint32_t place, uint32_t lane) { return (uint8_t *)at(r, place) + 16 * lane; }

step sim_exec_load_wide(run *r, const insn *in)
{
    ACTIVE(r)
    {
        const uint8_t *from = sim_locate(r, in, i, in->space, sim_address_at(r, in, 1, i), 16, READ);
        if (!from) return STEP_FAIL;
        memcpy(wide(r, in->o[0], i), from, 16);
    }
    return STEP_NEXT;
}

step sim_exec_store_wide(run *r, const insn *in)
{
    ACTIVE(r)
    {
        uint8_t *to = sim_locate(r, in, i, in->space, sim_address_at(r, in, 1, i), 16, WRITE);
        if (!to) return STEP_FAIL;
        memcpy(to, wide(r, in->o[0], i), 16);
    }
    return STEP_NEXT;
}

/* mov.b128 {low, high}, q and back: op 'u' unpacks. */
step sim_exec_mov_wide(run *r, const insn *in)
{
    ACTIVE(r)
    {
        for (uint32_t k = 0; k < 2; k++) {
            uint64_t half;
            memcpy(&half, wide(r, in->o[0], i) + 8 * k, 8);
            if (in->op == 'u' && in->list[k] != NONE) sim_put_lane(r, in->list[k], 8, i, half);
            if (in->op == 'u') continue;
            half = sim_lane(r, in->list[k], 8, i);
            memcpy(wide(r, in->o[0], i) + 8 * k, &half, 8);
        }
    }
    return STEP_NEXT;
}
