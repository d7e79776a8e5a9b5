/* Queues what tcgen05 instructions issue, and runs the copies and commits. */
#include "tcgen05.h"

#include "checks/report.h"
#include "exec/exec_value.h"

#include <stdlib.h>

uint32_t sim_tensor_ctas(run *r, const insn *in, cta *ctas[2])
{
    ctas[0] = r->cta;
    if (!(in->flags & TENSOR_PAIR)) return 1;
    ctas[1] = sim_tmem_peer(r, in);
    if (!ctas[1]) return 0;
    if (r->cta->rank % 2 == 0) return 2;
    sim_report(r, in, 'E', "cta-pair", -1, "cta_group::2 issued by CTA rank %u, the odd one of its pair", r->cta->rank);
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Matrices in shared memory                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

uint32_t sim_tensor_byte(const tensor_matrix *m, uint32_t row, uint32_t byte)
{
    return m->mn_major ? num_smem_mn_major(&m->at, (int)row, (int)byte) : num_smem_k_major(&m->at, (int)row, (int)byte);
}

bool sim_tensor_describe(run *r, const insn *in, uint64_t bits, tensor_matrix *m)
{
    if (num_tcgen05_descriptor(bits, &m->at) && !m->at.base_offset) return true;
    sim_report(r, in, 'E', "descriptor", -1, "0x%016llx is no matrix descriptor that is modelled",
               (unsigned long long)bits);
    return false;
}

bool sim_tensor_reading(run *r, const insn *in, uint32_t lane, cta *owner, const tensor_matrix *m)
{
    for (uint32_t row = 0; row < m->rows; row++) {
        for (uint32_t byte = 0; byte < m->bytes; byte += 16) {
            uint32_t place = sim_tensor_byte(m, row, byte);
            if (place + 16 > owner->smem_bytes) {
                sim_report(r, in, 'E', "out-of-bounds", (int)lane,
                           "a matrix descriptor reaches shared byte %u of %u of CTA rank %u", place + 15,
                           owner->smem_bytes, owner->rank);
                return false;
            }
            sim_shadow_sending(r, in, lane, owner, place, 16);
        }
    }
    return true;
}

void sim_tensor_have_read(cta *owner, const tensor_matrix *m)
{
    for (uint32_t row = 0; owner->shadow && row < m->rows; row++)
        for (uint32_t byte = 0; byte < m->bytes; byte += 16)
            sim_shadow_sent(owner, sim_tensor_byte(m, row, byte), 16);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The queue of a CTA                                                                                               */
/* ---------------------------------------------------------------------------------------------------------------- */

bool sim_tensor_claim(run *r, tensor_op *op, cta *owner, tmem_span span, tmem_use use)
{
    if (!sim_tmem_begin(r, op->in, 1u << op->lane, owner, span, use, op->count)) return false;
    op->uses[op->n_uses++] = (tensor_use){owner, span, use};
    return true;
}

/* One of the asynchronous operations under way stands for the next of this queue, whichever that is by then. */
void sim_tensor_queue(run *r, const tensor_op *op)
{
    tmem *t = sim_tmem(r->cta);
    if (t->n_queue == t->most_queue) {
        t->most_queue = t->most_queue ? 2 * t->most_queue : 16;
        t->queue = realloc(t->queue, t->most_queue * sizeof *t->queue);
    }
    t->queue[t->n_queue++] = *op;
    flight f = {.kind = FLY_TENSOR, .signalled = r->cta, .epoch = op->epoch};
    sim_flight_start(r, op->in, op->lane, &f);
}

/* Some seeds have slow tensor cores; some arrivals are far later than others. */
bool sim_tensor_ready(run *r, const flight *f)
{
    static const uint32_t chances[] = {1000, 1000, 200, 30};
    uint64_t seed = r->launch->seed * 0x9e3779b97f4a7c15u + 0x7c5;
    uint32_t chance = f->kind == FLY_ARRIVE ? f->data[0] ? 2 : 1000 : chances[sim_random(&seed) % 4];
    return sim_random(&r->random) % 1000 < chance;
}

static bool alive(run *r, const insn *in, const cta *c)
{
    if (!c->done) return true;
    sim_report(r, in, 'E', "exited-cta", -1, "an operation of the tensor cores of CTA rank %u, which has exited",
               c->rank);
    return false;
}

static void copy_into(const tensor_op *op, cta *c);
static void signal(run *r, const tensor_op *op);

bool sim_tensor_run(run *r, cta *issuer)
{
    tmem *t = issuer->tmem;
    tensor_op op = t->queue[0];
    memmove(t->queue, t->queue + 1, --t->n_queue * sizeof *t->queue);
    r->cta = issuer;
    r->warp = op.warp;
    r->lane = (int)op.lane;
    if (op.in->fn == sim_exec_tensor_commit) return signal(r, &op), true;
    cta *ctas[2] = {issuer, issuer};
    uint32_t n = op.in->flags & TENSOR_PAIR ? 2 : 1;
    if (n == 2) ctas[1] = issuer->cluster->ctas[issuer->rank ^ 1];
    for (uint32_t i = 0; i < n; i++)
        if (!alive(r, op.in, ctas[i])) return false;
    for (uint32_t i = 0; i < op.n_uses; i++) {
        const tensor_use *use = &op.uses[i];
        if (!sim_tmem_allocated(r, op.in, use->owner, use->span)) return false;
        sim_tmem_end(use->owner, use->span, use->use);
    }
    if (op.in->fn == sim_exec_tensor_mma) {
        sim_tensor_multiply(r, &op, ctas, n);
        return true;
    }
    for (uint32_t i = 0; i < n; i++)
        copy_into(&op, ctas[i]);
    return true;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* tcgen05.cp: op the shape; list: the address, the descriptor. A CTA of a pair copies out of its own shared memory.  */
/* ---------------------------------------------------------------------------------------------------------------- */

static tensor_matrix source_of(const insn *in)
{
    num_cp_shape shape = (num_cp_shape)in->op;
    return (tensor_matrix){.rows = (uint32_t)num_cp_rows(shape), .bytes = 16 * (uint32_t)num_cp_pieces(shape)};
}

static void copy_into(const tensor_op *op, cta *c)
{
    tensor_matrix m = source_of(op->in);
    num_tcgen05_descriptor(op->a, &m.at);
    for (uint32_t row = 0; row < m.rows; row++) {
        int lanes[4], n = num_cp_lanes((num_cp_shape)op->in->op, (int)row, lanes);
        for (uint32_t byte = 0; byte < m.bytes; byte += 16)
            for (int k = 0; k < n; k++)
                memcpy(&c->tmem->cells[lanes[k]][op->d + byte / 4], c->smem + sim_tensor_byte(&m, row, byte), 16);
    }
    sim_tensor_have_read(c, &m);
}

static bool whole_lanes(run *r, const insn *in, uint32_t address)
{
    if ((address >> 16) % TMEM_LANES == 0) return true;
    sim_report(r, in, 'E', "tmem-lanes", -1, "address 0x%08x: expected lane 0", address);
    return false;
}

static bool issue_copy(run *r, const insn *in, uint32_t lane)
{
    tensor_matrix m = source_of(in);
    uint32_t address = (uint32_t)sim_listed_address(r, in, 0, lane);
    tensor_op op = {.in = in, .warp = r->warp, .lane = lane, .d = address & 0xffff};
    cta *ctas[2];
    uint32_t n = sim_tensor_ctas(r, in, ctas);
    op.a = sim_lane(r, in->list[2], 8, lane);
    if (!n || !whole_lanes(r, in, address) || !sim_tensor_describe(r, in, op.a, &m)) return false;
    op.count = sim_tmem_issue_by(r, lane);
    for (uint32_t i = 0; i < n; i++) {
        tmem_span to = {.groups = TMEM_ALL_GROUPS, .column = op.d, .columns = m.bytes / 4};
        if (!sim_tensor_reading(r, in, lane, ctas[i], &m) || !sim_tensor_claim(r, &op, ctas[i], to, TMEM_COPY))
            return false;
    }
    op.epoch = sim_order_issue(r, lane);
    sim_tensor_queue(r, &op);
    return true;
}

step sim_exec_tensor_cp(run *r, const insn *in)
{
    ACTIVE(r)
    {
        if (!issue_copy(r, in, i)) return STEP_FAIL;
    }
    return STEP_SLEEP;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* tcgen05.commit: o[1] the mbarrier; list[0] the ranks (NONE: where the address points)                             */
/* ---------------------------------------------------------------------------------------------------------------- */

/* What it waited for is done; each CTA hears of it in its own time, and no commit waits for another's arrival. */
static void signal(run *r, const tensor_op *op)
{
    cluster *c = r->cta->cluster;
    for (uint32_t rank = 0; rank < c->n; rank++) {
        if (!(op->mask >> rank & 1)) continue;
        flight f = {.kind = FLY_ARRIVE, .signalled = c->ctas[rank], .mbarrier = op->barrier};
        f.epoch = op->epoch;
        f.group = op->count;
        f.data[0] = sim_random(&r->random) % 8 == 0;
        sim_flight_start(r, op->in, op->lane, &f);
    }
}

/* PTX has no rule for it, and public kernels do it to themselves at their end: nobody hears of it. */
static bool is_gone(run *r, const insn *in, uint32_t lane, const cta *c)
{
    if (c->done)
        sim_report(r, in, 'W', "commit-exited", (int)lane, "arrives at an mbarrier of CTA rank %u, which has exited",
                   c->rank);
    return c->done;
}

bool sim_tensor_arrive(run *r, const flight *f)
{
    r->lane = (int)f->lane;
    if (is_gone(r, f->in, f->lane, f->signalled)) return true;
    mbarrier *m = sim_mbarrier_in(r, f->in, f->signalled, f->mbarrier);
    if (!m) return false;
    m->commits--;
    sim_order_signal(f->signalled, &m->order, f->epoch);
    if (m->order) sim_tmem_done(r->cta, f->warp->index, f->group, m->order);
    return sim_mbarrier_arrive(r, f->in, f->lane, f->signalled, m);
}

static bool issue_commit(run *r, const insn *in, uint32_t lane)
{
    uint64_t address = sim_address_at(r, in, 1, lane), own = address & RANK_MASK;
    tensor_op op = {.in = in, .warp = r->warp, .lane = lane, .barrier = (uint32_t)address & ~RANK_MASK};
    op.mask = in->list[0] == NONE ? 1u << (own >> RANK_SHIFT) : (uint32_t)sim_lane(r, in->list[0], 2, lane);
    const cluster *c = r->cta->cluster;
    for (uint32_t rank = 0; rank < MOST_PEERS; rank++) {
        cta *owner = NULL;
        if (!(op.mask >> rank & 1)) continue;
        if (rank < c->n && is_gone(r, in, lane, c->ctas[rank])) {
            op.mask &= ~(1u << rank);
            continue;
        }
        uint64_t there = (address & ~(uint64_t)RANK_MASK) | (uint64_t)rank << RANK_SHIFT;
        mbarrier *m = sim_mbarrier_at(r, in, lane, in->space, there, &owner);
        if (!m) return false;
        m->commits++;
    }
    op.count = sim_tmem(r->cta)->warps[r->warp->index].last_mma[lane];
    op.epoch = sim_order_issue(r, lane);
    sim_tensor_queue(r, &op);
    return true;
}

step sim_exec_tensor_commit(run *r, const insn *in)
{
    ACTIVE(r)
    {
        if (!issue_commit(r, in, i)) return STEP_FAIL;
    }
    return STEP_SLEEP;
}
