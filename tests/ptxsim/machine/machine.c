/* Runs a launch: workers take clusters, and a seed draws whose fragment runs next and for how long. */
#include "machine.h"

#include "fragment.h"
#include "memory.h"
#include "traffic.h"
#include "checks/flags.h"
#include "checks/report.h"
#include "checks/stores.h"
#include "matrix/tmem.h"
#include "sync/cluster.h"
#include "sync/flight.h"

#include <fenv.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BURST 64
#define SAMPLE_TURNS 32
#define MORE_CTAS_AFTER 100000 /* instructions without anything finishing, when more CTAs might be what it takes */

/* ---------------------------------------------------------------------------------------------------------------- */
/* One fragment for a while                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

static inline uint32_t active(const run *r, const fragment *f, const insn *in)
{
    if (in->guard == NONE) return f->mask;
    uint32_t p = r->predicates[in->guard];
    return f->mask & (in->guard_not ? ~p : p);
}

static void burst(run *r, fragment *f, uint32_t count)
{
    warp *w = r->warp;
    const insn *code = r->program->code;
    while (count-- > 0) {
        if (f->pc == f->rejoin) {
            f = sim_rejoin(w, f);
            if (!f) return;
            continue;
        }
        const insn *in = &code[f->pc];
        uint32_t mask = active(r, f, in);
        r->stats.warp_insns++;
        if (!mask) {
            f->pc++;
            continue;
        }
        r->mask = mask;
        r->fragment = f;
        r->stats.lane_insns += (uint32_t)__builtin_popcount(mask);
        switch (in->fn(r, in)) {
        case STEP_NEXT:
            f->pc++;
            break;
        case STEP_JUMP:
            f = r->fragment;
            if (f->state != READY) return;
            break;
        case STEP_SLEEP:
            f->pc++;
            return;
        case STEP_WAIT:
        case STEP_YIELD:
        case STEP_FAIL:
            return;
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Who is next                                                                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

static fragment *ready_in(run *r, warp *w)
{
    uint32_t start = w->n_fragments > 1 ? (uint32_t)(sim_random(&r->random) % (uint32_t)w->n_fragments) : 0;
    for (int i = 0; i < w->n_fragments; i++) {
        fragment *f = &w->fragments[(start + (uint32_t)i) % (uint32_t)w->n_fragments];
        if (f->state == READY) return f;
    }
    return NULL;
}

static fragment *pick(run *r, cta *c)
{
    fragment *f = NULL;
    for (int tries = 0; tries < 8; tries++) {
        uint64_t random = sim_random(&r->random);
        warp *w = &c->warps[random % c->n_warps];
        if ((random >> 32) % 100 >= (uint64_t)w->weight) continue;
        f = ready_in(r, w);
        if (f) return r->warp = w, f;
    }
    uint32_t start = (uint32_t)sim_random(&r->random);
    for (uint32_t i = 0; i < c->n_warps; i++) {
        warp *w = &c->warps[(start + i) % c->n_warps];
        f = ready_in(r, w);
        if (f) return r->warp = w, f;
    }
    return NULL;
}

/* What the warps of a CTA are doing, as a profiler that looks now and then sees it. */
static void sample(run *r, const cta *c)
{
    for (uint32_t k = 0; k < c->n_warps; k++) {
        const warp *w = &c->warps[k];
        for (int i = 0; i < w->n_fragments; i++) {
            const fragment *f = &w->fragments[i];
            if (f->state == READY) r->stats.samples[W_NONE]++;
            if (f->state == WAITING) r->stats.samples[f->reason]++;
        }
    }
}

static bool advance(run *r, cta *c)
{
    r->cta = c;
    if (r->turns++ % SAMPLE_TURNS == 0) sample(r, c);
    fragment *f = pick(r, c);
    if (!f) return false;
    r->base[0] = r->warp->registers;
    r->predicates = r->warp->predicates;
    uint64_t before = r->stats.warp_insns;
    burst(r, f, 1 + (uint32_t)(sim_random(&r->random) % MOST_BURST));
    r->idle_steps += r->stats.warp_insns - before + 1;
    return true;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* CTAs of a worker                                                                                                 */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef struct worker {
    run r;
    cta **resident;
    uint32_t n, limit, most;
    uint32_t flying_weight; /* per cent of turns at which something asynchronous may land */
    pthread_t thread;
} worker;

/* The CTAs of one cluster start together, on one worker. */
static bool open_cluster(worker *k)
{
    launch *l = k->r.launch;
    dims c = l->cluster, clusters = {l->grid.x / c.x, l->grid.y / c.y, l->grid.z / c.z};
    uint32_t size = c.x * c.y * c.z;
    uint64_t total = (uint64_t)clusters.x * clusters.y * clusters.z;
    if (k->n && k->n + size > k->limit) return false;
    uint64_t number = __atomic_fetch_add(&l->next_cluster, 1, __ATOMIC_RELAXED);
    if (number >= total) return false;
    cluster *together = calloc(1, sizeof *together);
    together->n = size;
    for (uint32_t rank = 0; rank < size; rank++) {
        cta *mine = calloc(1, sizeof *mine);
        mine->rank = rank;
        mine->cluster = together;
        mine->id[0] = (uint32_t)(number % clusters.x) * c.x + rank % c.x;
        mine->id[1] = (uint32_t)(number / clusters.x % clusters.y) * c.y + rank / c.x % c.y;
        mine->id[2] = (uint32_t)(number / clusters.x / clusters.y) * c.z + rank / c.x / c.y;
        together->ctas[rank] = k->resident[k->n++] = mine;
    }
    for (uint32_t rank = 0; rank < size; rank++)
        sim_cta_open(&k->r, together->ctas[rank], (uint32_t)(number * size + rank));
    return true;
}

static bool cluster_done(const cluster *c)
{
    uint32_t running = c->n_flights;
    for (uint32_t j = 0; j < c->n; j++)
        running += !c->ctas[j]->done;
    return running == 0;
}

static void close_cluster(cluster *c)
{
    sim_cluster_close(c);
    for (uint32_t j = 0; j < c->n; j++)
        sim_cta_close(c->ctas[j]);
    free(c);
}

/* A cluster's memory stays until the last of its CTAs and of its asynchronous operations is done. */
static void close_done(worker *k)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < k->n; i++) {
        cluster *c = k->resident[i]->cluster;
        if (!cluster_done(c)) {
            k->resident[kept++] = k->resident[i];
            continue;
        }
        i += c->n - 1; /* its CTAs lie side by side */
        close_cluster(c);
    }
    k->n = kept;
}

/* False where this CTA has nothing that can run. */
static bool turn(worker *k, cta *c)
{
    if (c->done || !advance(&k->r, c)) return false;
    if (!c->live) {
        c->done = true;
        k->r.warp = NULL;
        sim_tmem_exit(&k->r);
        sim_bulk_exit(&k->r);
        k->r.idle_steps = 0;
        close_done(k);
    }
    return true;
}

/* Asynchronous operations have a turn of their own: any of any cluster's, in any order. */
static bool fly(worker *k, cta *c)
{
    if (!c->cluster->n_flights) return false;
    k->r.cta = c;
    k->r.warp = NULL;
    sim_flight_land(&k->r, c->cluster);
    if (!c->cluster->n_flights) close_done(k);
    return true;
}

static void step_once(worker *k)
{
    for (int tries = 0; tries < 4; tries++) {
        uint64_t random = sim_random(&k->r.random);
        cta *c = k->resident[random % k->n];
        if ((random >> 48) % 100 < k->flying_weight && fly(k, c)) return;
        if ((random >> 32) % 100 < (uint64_t)c->weight && turn(k, c)) return;
    }
    for (uint32_t i = 0; i < k->n; i++)
        if (turn(k, k->resident[i])) return;
    for (uint32_t i = 0; i < k->n; i++)
        if (fly(k, k->resident[i])) return;
    sim_report_deadlock(&k->r, k->resident, k->n, "deadlock");
}

static void *work(void *argument)
{
    worker *k = argument;
    run *r = &k->r;
    while (!__atomic_load_n(&r->launch->failed, __ATOMIC_ACQUIRE)) {
        if (r->idle_steps / MORE_CTAS_AFTER > k->limit && k->limit < k->most) k->limit++;
        while (k->n < k->limit && open_cluster(k))
            ;
        if (k->n == 0) break;
        step_once(k);
        if (r->idle_steps > sim_config.spin_limit) sim_report_deadlock(r, k->resident, k->n, "livelock");
    }
    while (k->n) {
        cluster *c = k->resident[k->n - 1]->cluster;
        k->n -= c->n;
        close_cluster(c);
    }
    free(k->resident);
    return NULL;
}

static void add_stats(stats *to, const stats *from)
{
    const uint64_t *f = (const void *)from;
    uint64_t *t = (void *)to;
    for (size_t i = 0; i < sizeof *to / sizeof *t; i++)
        t[i] += f[i];
}

static const uint32_t flying_weights[] = {100, 30, 5, 1};

/* The GPU's arithmetic does not depend on the host thread's modes (flushed denormals, another rounding). */
bool sim_launch_run(launch *l)
{
    fenv_t modes;
    fegetenv(&modes);
    fesetenv(FE_DFL_ENV);
    uint32_t threads = (uint32_t)sim_config.threads, size = l->cluster.x * l->cluster.y * l->cluster.z;
    uint64_t ctas = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
    if (threads > ctas / size) threads = (uint32_t)(ctas / size);
    worker *workers = calloc(threads, sizeof *workers);
    sim_traffic_open(l);
    sim_stores_open(l);
    sim_flags_open(l);
    for (uint32_t i = 0; i < threads; i++) {
        worker *k = &workers[i];
        k->r = (run){.launch = l, .program = l->program, .random = l->seed + 0x51ed270b * i};
        k->r.base[1] = l->program->constants;
        k->most = l->resident / threads + size;
        k->resident = calloc(k->most + size, sizeof *k->resident);
        uint32_t few = k->most < 8 ? k->most : 8;
        k->limit = 1 + (uint32_t)(sim_random(&k->r.random) % few);
        k->flying_weight = flying_weights[sim_random(&k->r.random) % 4];
        if (i) pthread_create(&k->thread, NULL, work, k);
    }
    work(&workers[0]);
    for (uint32_t i = 0; i < threads; i++) {
        if (i) pthread_join(workers[i].thread, NULL);
        add_stats(&l->stats, &workers[i].r.stats);
    }
    free(workers);
    sim_traffic_close(l);
    sim_stores_close(l);
    sim_flags_close(l);
    fesetenv(&modes);
    sim_report_launch(l);
    return !l->failed;
}
