/* Executes collectives of a warp, and nanosleep.
 *
 * o[4] is the mask of members. A collective runs when all members that are alive have come. */
#include "exec_warp.h"

#include "exec_value.h"
#include "checks/report.h"
#include "machine/fragment.h"

static bool gathered(run *r, const insn *in)
{
    uint32_t members = 0;
    ACTIVE(r)
    {
        uint32_t mask = (uint32_t)sim_lane(r, in->o[4], 4, i);
        members |= mask;
        if (mask >> i & 1) continue;
        sim_report(r, in, 'E', "not-a-member", (int)i, "lane %u takes part, but is not in its mask %08x", i, mask);
        return false;
    }
    return sim_gather(r, members);
}

#define GATHER(r, in) \
    if (!gathered(r, in)) return (r)->fragment->state == WAITING ? STEP_WAIT : STEP_FAIL

static uint32_t members_of(run *r, const insn *in, uint32_t lane)
{
    return (uint32_t)sim_lane(r, in->o[4], 4, lane) & r->mask;
}

/* shfl d|p, a, b, c: o[0], list[0] (NONE: no p), o[1], o[2], o[3]. */
step sim_exec_shfl(run *r, const insn *in)
{
    GATHER(r, in);
    const uint32_t *a = at(r, in->o[1]), *b = at(r, in->o[2]), *c = at(r, in->o[3]);
    uint32_t out[LANES], inside = 0;
    ACTIVE(r)
    {
        int lane = (int)i, by = (int)(b[i] & 31), segment = (int)(c[i] >> 8 & 31), clamp = (int)(c[i] & 31);
        int least = lane & segment, most = least | (clamp & ~segment);
        int from = in->op == 'u'   ? lane - by
                   : in->op == 'd' ? lane + by
                   : in->op == 'b' ? lane ^ by
                                   : least | (by & ~segment);
        bool fine = in->op == 'u' ? from >= most : from <= most;
        if (!fine) from = lane;
        if (!(r->mask >> from & 1))
            sim_report(r, in, 'W', "inactive-lane", lane, "lane %d reads lane %d, which does not take part", lane,
                       from);
        inside |= (uint32_t)fine << i;
        out[i] = r->mask >> from & 1 ? a[from] : 0x01010101u * POISON_BYTE;
    }
    if (in->list[0] != NONE) put_predicate(r, in->list[0], inside);
    return put(r, in->o[0], out, sizeof *out);
}

/* vote: 'l' all, 'n' any, 'u' uni into a predicate; 'b' ballot. o[1] is a predicate; flags: it is negated. */
step sim_exec_vote(run *r, const insn *in)
{
    GATHER(r, in);
    uint32_t p = r->predicates[in->o[1]] ^ (in->flags ? ALL_LANES : 0), bits = 0, out[LANES];
    ACTIVE(r)
    {
        uint32_t members = members_of(r, in, i), yes = p & members;
        out[i] = yes;
        bool holds = in->op == 'l' ? yes == members : in->op == 'n' ? yes != 0 : yes == members || yes == 0;
        bits |= (uint32_t)holds << i;
    }
    return in->op == 'b' ? put(r, in->o[0], out, sizeof *out) : put_predicate(r, in->o[0], bits);
}

/* match.any d, a; match.all d|p, a. op: 'a' any, 'l' all; size of a. */
step sim_exec_match(run *r, const insn *in)
{
    GATHER(r, in);
    uint32_t out[LANES], bits = 0;
    ACTIVE(r)
    {
        uint32_t members = members_of(r, in, i), same = 0;
        uint64_t mine = sim_lane(r, in->o[1], in->size, i);
        for (uint32_t left = members; left; left &= left - 1) {
            uint32_t other = (uint32_t)__builtin_ctz(left);
            same |= (uint32_t)(sim_lane(r, in->o[1], in->size, other) == mine) << other;
        }
        out[i] = in->op == 'a' || same == members ? same : 0;
        bits |= (uint32_t)(same == members) << i;
    }
    if (in->list[0] != NONE) put_predicate(r, in->list[0], bits);
    return put(r, in->o[0], out, sizeof *out);
}

static uint32_t reduced(uint8_t op, bool is_signed, uint32_t x, uint32_t y)
{
    bool less = is_signed ? (int32_t)x < (int32_t)y : x < y;
    switch (op) {
    case '+':
        return x + y;
    case '<':
        return less ? x : y;
    case '>':
        return less ? y : x;
    case '&':
        return x & y;
    case '|':
        return x | y;
    default:
        return x ^ y;
    }
}

step sim_exec_redux(run *r, const insn *in)
{
    GATHER(r, in);
    const uint32_t *a = at(r, in->o[1]);
    uint32_t out[LANES];
    ACTIVE(r)
    {
        uint32_t left = members_of(r, in, i);
        out[i] = a[__builtin_ctz(left)];
        for (left &= left - 1; left; left &= left - 1)
            out[i] = reduced(in->op, in->is_signed, out[i], a[__builtin_ctz(left)]);
    }
    return put(r, in->o[0], out, sizeof *out);
}

step sim_exec_activemask(run *r, const insn *in)
{
    uint32_t out[LANES];
    EACH out[i] = r->mask;
    return put(r, in->o[0], out, sizeof *out);
}

/* elect.sync d|p, membermask: some lane, the same every time. */
step sim_exec_elect(run *r, const insn *in)
{
    GATHER(r, in);
    uint32_t out[LANES], chosen = 0;
    ACTIVE(r)
    {
        out[i] = (uint32_t)__builtin_ctz(members_of(r, in, i));
        chosen |= 1u << out[i];
    }
    if (in->list[0] != NONE) put_predicate(r, in->list[0], chosen);
    return in->o[0] == NONE ? STEP_NEXT : put(r, in->o[0], out, sizeof *out);
}

step sim_exec_nanosleep(run *r, const insn *in)
{
    (void)r, (void)in;
    return STEP_SLEEP;
}
