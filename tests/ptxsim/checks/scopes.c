/* Counts, by place, how often releases and acquires of more than a CTA are executed and needed. */
#include "scopes.h"

#include "report.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct place {
    char kernel[128], source[256];
    scoped is;
} place;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static place *places;
static uint32_t n_places;

static void add(uint64_t *to, uint64_t more) { __atomic_fetch_add(to, more, __ATOMIC_RELAXED); }

void sim_scope_executed(run *r, const insn *in, uint32_t times, uint32_t needed)
{
    if (!sim_config.check_scopes || !in->place) return;
    add(&r->program->scoped[in->place - 1].executed, times);
    add(&r->program->scoped[in->place - 1].needed, needed);
}

void sim_scope_needed(run *r, uint32_t place) { add(&r->program->scoped[place - 1].needed, 1); }

static place *same_place(const char *kernel, uint32_t line)
{
    for (uint32_t i = 0; i < n_places; i++)
        if (places[i].is.line == line && strncmp(places[i].kernel, kernel, sizeof places[i].kernel - 1) == 0)
            return &places[i];
    if (n_places % 64 == 0) places = realloc(places, (n_places + 64) * sizeof *places);
    places[n_places] = (place){.is.line = 0};
    return &places[n_places++];
}

void sim_scopes_keep(const launch *l)
{
    const program *p = l->program;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < p->n_scoped; i++) {
        scoped now = p->scoped[i];
        if (!now.executed) continue;
        place *at = same_place(p->name, now.line);
        const insn here = {.loc = now.loc};
        snprintf(at->kernel, sizeof at->kernel, "%s", p->name);
        sim_source_place(p, &here, at->source, sizeof at->source);
        now.executed += at->is.executed;
        now.needed += at->is.needed;
        at->is = now;
        p->scoped[i].executed = p->scoped[i].needed = 0;
    }
    pthread_mutex_unlock(&lock);
}

void sim_scopes_clear(void)
{
    pthread_mutex_lock(&lock);
    n_places = 0;
    pthread_mutex_unlock(&lock);
}

void sim_scopes_json(FILE *to)
{
    pthread_mutex_lock(&lock);
    fputc('[', to);
    for (uint32_t i = 0; i < n_places; i++) {
        const place *at = &places[i];
        fprintf(to, "%s{\"kernel\": \"%s\", \"opcode\": \"%s\", \"source\": \"%s\", \"line\": %u, ", i ? ", " : "",
                at->kernel, at->is.opcode, at->source, at->is.line);
        fprintf(to, "\"executed\": %llu, \"needed\": %llu}", (unsigned long long)at->is.executed,
                (unsigned long long)at->is.needed);
    }
    fputc(']', to);
    pthread_mutex_unlock(&lock);
}
