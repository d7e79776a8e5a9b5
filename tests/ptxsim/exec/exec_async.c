/* Executes cp.async.
 *
 * The destination is poisoned when the copy is issued. The data is there when the thread has waited for it. The
 * source is read as late as that, or at once, as the seed says. */
#include "exec_memory.h"
#include "exec_value.h"
#include "checks/report.h"
#include "checks/shadow.h"
#include "machine/memory.h"

#include <stdlib.h>

static void land(const copy *c, uint8_t *to)
{
    memcpy(to, c->from, c->valid);
    memset(to + c->valid, 0, c->size - c->valid);
}

static copy *add_copy(warp *w)
{
    if (w->n_copies == w->most_copies) {
        w->most_copies = w->most_copies ? 2 * w->most_copies : 64;
        w->copies = realloc(w->copies, w->most_copies * sizeof *w->copies);
    }
    return &w->copies[w->n_copies++];
}

step sim_exec_copy(run *r, const insn *in)
{
    const uint64_t *base = at(r, in->o[2]), *displacement = at(r, in->o[4]);
    ACTIVE(r)
    {
        uint64_t to = sim_address_at(r, in, 1, i), from = base[i] + displacement[i];
        uint32_t valid = in->o[3] == NONE ? in->size : (uint32_t)sim_lane(r, in->o[3], 4, i);
        if (valid > in->size) {
            sim_report(r, in, 'E', "copy-size", (int)i, "%u bytes of the source for a copy of %u", valid, in->size);
            return STEP_FAIL;
        }
        if (from % in->size) {
            sim_report(r, in, 'E', "misaligned", (int)i, "the source 0x%llx of %u bytes", (unsigned long long)from,
                       in->size);
            return STEP_FAIL;
        }
        const uint8_t *source = (const uint8_t *)"";
        uint8_t *target = sim_locate(r, in, i, SHARED, to, in->size, LANDING);
        if (target && valid) source = sim_locate(r, in, i, GLOBAL, from, valid, READ);
        if (!target || !source) return STEP_FAIL;
        copy *c = add_copy(r->warp);
        *c = (copy){i, r->warp->groups[i], (uint32_t)to, in->size, valid, source, in, sim_random(&r->random) % 8 == 0};
        if (c->landed)
            land(c, target);
        else
            memset(target, POISON_BYTE, in->size);
    }
    r->stats.async_bytes += in->size * (uint32_t)__builtin_popcount(r->mask);
    return STEP_NEXT;
}

step sim_exec_commit(run *r, const insn *in)
{
    (void)in;
    ACTIVE(r) r->warp->groups[i]++;
    return STEP_NEXT;
}

/* Groups of the first active lane that have copies under way. */
static void note_stages(run *r)
{
    const warp *w = r->warp;
    uint32_t lane = (uint32_t)__builtin_ctz(r->mask), newest = NONE, stages = 0;
    for (uint32_t k = 0; k < w->n_copies; k++) {
        const copy *c = &w->copies[k];
        if (c->lane != lane || c->group == newest) continue;
        newest = c->group;
        stages++;
    }
    if (!stages) return;
    r->stats.data_waits++;
    r->stats.stages += stages;
}

/* imm: how many groups may stay under way; -1: none, and nothing uncommitted either. */
step sim_exec_wait(run *r, const insn *in)
{
    warp *w = r->warp;
    uint32_t kept = 0;
    note_stages(r);
    for (uint32_t k = 0; k < w->n_copies; k++) {
        const copy *c = &w->copies[k];
        bool active = r->mask >> c->lane & 1;
        bool due = in->imm < 0 || (int64_t)c->group < (int64_t)w->groups[c->lane] - in->imm;
        if (!active || !due) {
            w->copies[kept++] = *c;
            continue;
        }
        uint8_t *to = sim_locate(r, c->in, c->lane, SHARED, c->to, c->size, WRITE);
        if (!to) return STEP_FAIL;
        if (!c->landed) land(c, to);
    }
    w->n_copies = kept;
    return STEP_SLEEP;
}
