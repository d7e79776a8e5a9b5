/* Opens and closes a CTA: its warps, special registers and shared memory. */
#include "machine.h"

#include "checks/shadow.h"
#include "exec/exec_memory.h"
#include "matrix/tmem.h"
#include "matrix/wgmma.h"
#include "sync/flight.h"
#include "sync/mbarrier.h"

#include <stdlib.h>
#include <string.h>

static void set(const program *p, uint8_t *registers, special which, uint32_t value)
{
    if (!p->special[which]) return;
    uint32_t *v = (uint32_t *)(void *)(registers + p->special[which]);
    for (int i = 0; i < LANES; i++)
        v[i] = value;
}

static void set_lanes(const warp *w, special which, uint32_t (*of)(const warp *, uint32_t))
{
    const program *p = w->cta->launch->program;
    if (!p->special[which]) return;
    uint32_t *v = (uint32_t *)(void *)(w->registers + p->special[which]);
    for (int i = 0; i < LANES; i++)
        v[i] = of(w, (uint32_t)i);
}

static uint32_t thread_of(const warp *w, uint32_t lane) { return w->index * LANES + lane; }
static uint32_t tid_x(const warp *w, uint32_t lane) { return thread_of(w, lane) % w->cta->launch->block.x; }
static uint32_t tid_y(const warp *w, uint32_t lane)
{
    return thread_of(w, lane) / w->cta->launch->block.x % w->cta->launch->block.y;
}
static uint32_t tid_z(const warp *w, uint32_t lane)
{
    return thread_of(w, lane) / w->cta->launch->block.x / w->cta->launch->block.y;
}
static uint32_t lane_itself(const warp *w, uint32_t lane) { return (void)w, lane; }
static uint32_t lane_eq(const warp *w, uint32_t lane) { return (void)w, 1u << lane; }
static uint32_t lane_lt(const warp *w, uint32_t lane) { return (void)w, (1u << lane) - 1; }
static uint32_t lane_le(const warp *w, uint32_t lane) { return lane_lt(w, lane) | 1u << lane; }
static uint32_t lane_gt(const warp *w, uint32_t lane) { return ~lane_le(w, lane); }
static uint32_t lane_ge(const warp *w, uint32_t lane) { return ~lane_lt(w, lane); }

static void set_three(const program *p, uint8_t *registers, special first, uint32_t x, uint32_t y, uint32_t z)
{
    set(p, registers, first, x);
    set(p, registers, first + 1, y);
    set(p, registers, first + 2, z);
}

static void fill_specials(const warp *w)
{
    const cta *c = w->cta;
    const launch *l = c->launch;
    const program *p = l->program;
    dims k = l->cluster;
    uint8_t *to = w->registers;
    set_lanes(w, SR_TID_X, tid_x);
    set_lanes(w, SR_TID_Y, tid_y);
    set_lanes(w, SR_TID_Z, tid_z);
    set_lanes(w, SR_LANEID, lane_itself);
    set_lanes(w, SR_LANEMASK_EQ, lane_eq);
    set_lanes(w, SR_LANEMASK_LT, lane_lt);
    set_lanes(w, SR_LANEMASK_LE, lane_le);
    set_lanes(w, SR_LANEMASK_GT, lane_gt);
    set_lanes(w, SR_LANEMASK_GE, lane_ge);
    set_three(p, to, SR_NTID_X, l->block.x, l->block.y, l->block.z);
    set_three(p, to, SR_CTAID_X, c->id[0], c->id[1], c->id[2]);
    set_three(p, to, SR_NCTAID_X, l->grid.x, l->grid.y, l->grid.z);
    set_three(p, to, SR_CLUSTERID_X, c->id[0] / k.x, c->id[1] / k.y, c->id[2] / k.z);
    set_three(p, to, SR_NCLUSTERID_X, l->grid.x / k.x, l->grid.y / k.y, l->grid.z / k.z);
    set_three(p, to, SR_CLUSTER_CTAID_X, c->id[0] % k.x, c->id[1] % k.y, c->id[2] % k.z);
    set_three(p, to, SR_CLUSTER_NCTAID_X, k.x, k.y, k.z);
    for (uint32_t i = 0; i < p->n_shared_bases; i++) {
        const shared_base *base = &p->shared_bases[i];
        uint32_t address = base->address | c->rank << 24;
        for (int lane = 0; lane < LANES; lane++) {
            if (base->width == 'w')
                ((uint32_t *)(void *)(to + base->place))[lane] = address;
            else
                ((uint64_t *)(void *)(to + base->place))[lane] = address;
        }
    }
    set(p, to, SR_CLUSTER_CTARANK, c->rank);
    set(p, to, SR_CLUSTER_NCTARANK, k.x * k.y * k.z);
    set(p, to, SR_WARPID, w->index);
    set(p, to, SR_NWARPID, c->n_warps);
    set(p, to, SR_SMID, c->number % (uint32_t)sim_config.sms);
    set(p, to, SR_NSMID, (uint32_t)sim_config.sms);
    set(p, to, SR_DYNAMIC_SMEM, l->smem_bytes);
    set(p, to, SR_TOTAL_SMEM, c->smem_bytes);
}

/* Per cent of their turns that a warp or a CTA takes. */
static int draw_weight(uint64_t *random)
{
    static const int weights[] = {100, 100, 100, 30, 20, 3, 2, 1};
    return weights[sim_random(random) % (sizeof weights / sizeof weights[0])];
}

/* What ptxas gives a thread at most, and with setmaxnreg always: 64 K shared by the threads of a CTA, 8 at a time. */
static uint32_t register_share(const cta *c)
{
    uint32_t share = 65536 / (c->n_warps * LANES) / 8 * 8;
    return share > 256 ? 256 : share;
}

static void open_warp(cta *c, uint32_t index, uint64_t *random)
{
    const program *p = c->launch->program;
    warp *w = &c->warps[index];
    uint32_t threads = c->n_threads - index * LANES;
    *w = (warp){.cta = c, .index = index, .live = threads >= LANES ? ALL_LANES : (1u << threads) - 1};
    w->registers = aligned_alloc(64, (p->register_bytes + 63) / 64 * 64);
    memset(w->registers, POISON_BYTE, p->register_bytes);
    w->predicates = calloc(p->n_predicates, sizeof *w->predicates);
    if (p->local_bytes) {
        w->local = malloc((size_t)LANES * p->local_bytes);
        memset(w->local, POISON_BYTE, (size_t)LANES * p->local_bytes);
    }
    fill_specials(w);
    w->register_share = register_share(c);
    w->weight = draw_weight(random);
    w->n_fragments = 1;
    w->fragments[0] = (fragment){.state = READY, .mask = w->live, .rejoin = NONE, .parent = -1};
}

void sim_cta_open(run *r, cta *c, uint32_t number)
{
    launch *l = r->launch;
    const program *p = l->program;
    uint64_t random = l->seed * 0x9e3779b97f4a7c15u + number;
    c->launch = l;
    c->number = number;
    c->n_threads = l->block.x * l->block.y * l->block.z;
    c->n_warps = (c->n_threads + LANES - 1) / LANES;
    c->live = c->n_threads;
    c->smem_bytes = (p->dynamic_smem_at ? p->dynamic_smem_at - 1 : p->static_smem) + l->smem_bytes;
    c->smem = aligned_alloc(1024, (c->smem_bytes + 2047) / 1024 * 1024);
    memset(c->smem, POISON_BYTE, c->smem_bytes);
    c->weight = draw_weight(&random);
    sim_shadow_open(c);
    c->warps = calloc(c->n_warps, sizeof *c->warps);
    for (uint32_t i = 0; i < c->n_warps; i++)
        open_warp(c, i, &random);
    r->stats.ctas++;
}

void sim_cta_close(cta *c)
{
    sim_shadow_close(c);
    for (uint32_t i = 0; i < c->n_warps; i++) {
        free(c->warps[i].registers);
        free(c->warps[i].predicates);
        free(c->warps[i].local);
        free(c->warps[i].copies);
        sim_bulk_close(&c->warps[i]);
        sim_wgmma_close(&c->warps[i]);
    }
    free(c->warps);
    sim_mbarriers_close(c);
    sim_tmem_close(c);
    free(c->smem);
    free(c);
}
