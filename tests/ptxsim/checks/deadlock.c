/* Says who waits for what where a launch cannot go on. */
#include "machine/machine.h"

#include "report.h"
#include "sync/mbarrier.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct text {
    char at[1600];
    size_t n;
} text;

static void add(text *t, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int n = vsnprintf(t->at + t->n, sizeof t->at - t->n, format, values);
    va_end(values);
    if (n > 0) t->n = t->n + (size_t)n < sizeof t->at ? t->n + (size_t)n : sizeof t->at - 1;
}

static bool alike(const fragment *a, const fragment *b)
{
    return a->state == b->state && a->pc == b->pc && a->mask == b->mask && a->reason == b->reason && a->what == b->what;
}

/* How many warps from `first` on have a fragment like its one; 0: so has the warp before. */
static uint32_t warps_alike(const cta *c, uint32_t first, int number)
{
    const fragment *f = &c->warps[first].fragments[number];
    uint32_t n = 1;
    if (first && c->warps[first - 1].n_fragments > number && alike(f, &c->warps[first - 1].fragments[number])) return 0;
    while (first + n < c->n_warps && c->warps[first + n].n_fragments > number &&
           alike(f, &c->warps[first + n].fragments[number]))
        n++;
    return n;
}

static void describe(text *t, const cta *c, const warp *w, const fragment *f, uint32_t n)
{
    const program *p = c->launch->program;
    char place[256];
    const insn *in = &p->code[f->pc];
    sim_source_place(p, in, place, sizeof place);
    add(t, "\n  CTA %u,%u,%u warp %u", c->id[0], c->id[1], c->id[2], w->index);
    if (n > 1) add(t, "-%u", w->index + n - 1);
    add(t, " lanes %08x, PTX line %u (%s): ", f->mask, in->line, place);
    if (f->state == JOINING) {
        add(t, "lanes %08x have come, waiting for %08x to rejoin", f->arrived, f->mask & ~f->arrived);
    } else if (f->state == READY) {
        add(t, "running");
    } else if (f->reason == W_BARRIER) {
        const named_barrier *b = &c->barriers[f->what % MAX_BARRIERS];
        add(t, "barrier %u, %u of %u threads have come", (unsigned)f->what, b->arrived,
            b->expected == NONE ? c->live : b->expected);
    } else if (f->reason == W_GANG) {
        add(t, "lanes %08x wait for lanes %08x", (uint32_t)f->what, (uint32_t)(f->what >> 32) & ~(uint32_t)f->what);
    } else if (f->reason == W_MBARRIER) {
        char barrier[160];
        sim_mbarrier_describe(c->cluster->ctas[f->what >> 32], (uint32_t)f->what, barrier, sizeof barrier);
        add(t, "%s", barrier);
    } else if (f->reason == W_CLUSTER) {
        add(t, "cluster barrier, %u threads have come", c->cluster->arrived);
    } else if (f->reason == W_TMEM) {
        add(t, "tensor memory that is not free, or the other CTA of its pair");
    } else if (f->reason == W_REGISTERS) {
        add(t, "%u registers more a thread, %u are free", (unsigned)f->what, c->spare_registers);
    } else {
        add(t, "waiting");
    }
}

void sim_report_deadlock(run *r, cta *const *ctas, uint32_t n, const char *code)
{
    text t = {.n = 0};
    uint32_t shown = 0, more = 0;
    for (uint32_t k = 0; k < n; k++) {
        const cta *c = ctas[k];
        for (uint32_t i = 0; i < c->n_warps; i++) {
            const warp *w = &c->warps[i];
            for (int j = 0; j < w->n_fragments; j++) {
                if (w->fragments[j].state == FREE) continue;
                uint32_t like_it = warps_alike(c, i, j);
                if (!like_it) continue;
                if (shown++ < 12)
                    describe(&t, c, w, &w->fragments[j], like_it);
                else
                    more++;
            }
        }
    }
    if (more) add(&t, "\n  and %u more", more);
    r->cta = n ? ctas[0] : NULL;
    r->warp = NULL;
    sim_report(r, NULL, 'E', code, -1, "nobody can go on:%s", t.at);
}
