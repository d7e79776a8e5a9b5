/* Edits tensor maps in memory, as tensormap.replace does, and hands them to the copy engine.
 *
 * The engine has a proxy of its own: whoever uses a map in global memory that the launch has written needs
 * fence.proxy.tensormap::generic.acquire in between (PTX ISA, 9.7.9.28). stores.h remembers who wrote what. */
#include "flight.h"

#include "checks/report.h"
#include "checks/stores.h"
#include "exec/exec_value.h"
#include "num/num_tensormap.h"

enum { HALF = NUM_TENSORMAP_BYTES / 2 }; /* what is located at once */

/* The map, or NULL after an error. */
static uint8_t *locate(run *r, const insn *in, uint32_t lane, space of, uint64_t address, access how)
{
    if (address % HALF) {
        sim_report(r, in, 'E', "misaligned", (int)lane, "a tensor map at 0x%llx, no multiple of 64",
                   (unsigned long long)address);
        return NULL;
    }
    uint8_t *map = sim_locate(r, in, lane, of, address, HALF, how);
    return map && sim_locate(r, in, lane, of, address + HALF, HALF, how) ? map : NULL;
}

step sim_exec_map_replace(run *r, const insn *in)
{
    ACTIVE(r)
    {
        uint64_t address = sim_address_at(r, in, 1, i), value = sim_lane(r, in->list[0], in->reg_size, i);
        uint8_t *at = locate(r, in, i, in->space, address, WRITE);
        if (!at) return STEP_FAIL;
        num_tensormap map;
        memcpy(&map, at, sizeof map);
        if (!num_tensormap_replace(&map, (num_tensormap_field)in->op, in->flags, value)) {
            sim_report(r, in, 'E', "tensor-map", (int)i, "tensormap.replace with %llu, or of dimension %u",
                       (unsigned long long)value, in->flags);
            return STEP_FAIL;
        }
        memcpy(at, &map, sizeof map);
        if (in->space != SHARED) sim_stored(r, i, address, NUM_TENSORMAP_BYTES);
    }
    return STEP_SLEEP;
}

/* All lanes name the same addresses; the first one copies. */
step sim_exec_map_publish(run *r, const insn *in)
{
    uint32_t lane = (uint32_t)__builtin_ctz(r->mask);
    uint64_t to = sim_address_at(r, in, 1, lane);
    const uint8_t *source = locate(r, in, lane, SHARED, sim_listed_address(r, in, 0, lane), READ);
    uint8_t *target = source ? locate(r, in, lane, GLOBAL, to, WRITE) : NULL;
    if (!target) return STEP_FAIL;
    sim_stored(r, lane, to, NUM_TENSORMAP_BYTES);
    memcpy(target, source, NUM_TENSORMAP_BYTES);
    return STEP_SLEEP;
}

step sim_exec_map_fence(run *r, const insn *in)
{
    (void)in;
    sim_stores_map_fence(r);
    return STEP_SLEEP;
}
