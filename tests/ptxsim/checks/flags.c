/* Keeps what flags in global memory tell, and who has heard of it. */
#include "flags.h"

#include "clocks.h"
#include "exec/exec.h"
#include "scopes.h"

#include <pthread.h>

typedef struct publication {
    struct publication *next; /* of the launch */
    uint32_t cluster, thread, reach, place;
    clock_set *known;
} publication;

typedef struct entry {
    const publication *what;
    uint32_t reach; /* of the access, too */
} entry;

typedef struct entries {
    entry *at;
    uint32_t n;
} entries;

typedef struct flag {
    uint64_t address; /* 0: free */
    entries told;
} flag;

struct flags {
    pthread_mutex_t lock;
    publication *all;
    flag *table; /* open addressing */
    uint32_t n, size;
};

/* Of a thread: its last release, what it has read since its last acquire. */
struct flag_reader {
    const publication *last;
    entries heard;
};

/* That a thread of the cluster acquired something, at an epoch. */
typedef struct acquired {
    const publication *what;
    uint32_t epoch, place;
} acquired;

struct acquisitions {
    acquired *at;
    uint32_t n;
};

static uint32_t cluster_of(const cta *c) { return c->number / c->cluster->n; }

void sim_flags_open(launch *l)
{
    if (!sim_config.check_scopes || !sim_config.check_races) return;
    l->flags = calloc(1, sizeof *l->flags);
    pthread_mutex_init(&l->flags->lock, NULL);
}

void sim_flags_close(launch *l)
{
    struct flags *all = l->flags;
    if (!all) return;
    for (publication *p = all->all, *next; p; p = next) {
        next = p->next;
        free(p->known);
        free(p);
    }
    for (uint32_t i = 0; i < all->size; i++)
        free(all->table[i].told.at);
    free(all->table);
    pthread_mutex_destroy(&all->lock);
    free(all);
    l->flags = NULL;
}

void sim_flags_leave(cluster *c)
{
    if (c->acquisitions) free(c->acquisitions->at);
    free(c->acquisitions);
}

void sim_flags_forget(struct flag_reader *reader)
{
    if (reader) free(reader->heard.at);
    free(reader);
}

static void add(entries *to, entry what)
{
    for (uint32_t i = 0; i < to->n; i++) {
        if (to->at[i].what != what.what) continue;
        to->at[i].reach |= what.reach;
        return;
    }
    to->at = realloc(to->at, (to->n + 1) * sizeof *to->at);
    to->at[to->n++] = what;
}

static thread_order *order_of(const run *r, uint32_t lane)
{
    return &r->cta->shadow->threads[r->warp->index * LANES + lane];
}

static struct flag_reader *reader_of(thread_order *t)
{
    if (!t->reader) t->reader = calloc(1, sizeof *t->reader);
    return t->reader;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Releases and acquires                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

static void publish(run *r, const insn *in, uint32_t lane)
{
    const cta *c = r->cta;
    struct flags *all = r->launch->flags;
    thread_order *t = order_of(r, lane);
    publication *p = calloc(1, sizeof *p);
    *p = (publication){.cluster = cluster_of(c), .reach = in->type & SEM_REACH, .place = in->place};
    p->thread = first_thread(c) + r->warp->index * LANES + lane;
    p->known = new_set(threads_of(c));
    for (uint32_t i = 0; t->seen && i < p->known->n; i++)
        p->known->at[i] = t->seen->at[i];
    p->known->at[p->thread] = known_of(t->clock);
    if (t->clock < MOST_CLOCK) t->clock++;
    pthread_mutex_lock(&all->lock);
    p->next = all->all;
    all->all = p;
    pthread_mutex_unlock(&all->lock);
    reader_of(t)->last = p;
}

static void acquire(run *r, const insn *in, uint32_t lane)
{
    thread_order *t = order_of(r, lane);
    struct flag_reader *mine = t->reader;
    cluster *c = r->cta->cluster;
    if (!mine || !mine->heard.n) return;
    if (!c->acquisitions) c->acquisitions = calloc(1, sizeof *c->acquisitions);
    struct acquisitions *to = c->acquisitions;
    uint32_t epoch = epoch_of(first_thread(r->cta) + r->warp->index * LANES + lane, t->clock);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < mine->heard.n; i++) {
        const entry *heard = &mine->heard.at[i];
        uint32_t reach = heard->reach & in->type;
        if (!(reach & (heard->what->cluster == cluster_of(r->cta) ? SEM_REACH : SEM_GPU))) {
            mine->heard.at[kept++] = *heard;
            continue;
        }
        to->at = realloc(to->at, (to->n + 1) * sizeof *to->at);
        to->at[to->n++] = (acquired){heard->what, epoch, in->place};
    }
    mine->heard.n = kept;
    if (t->clock < MOST_CLOCK) t->clock++;
}

void sim_flags_fence(run *r, const insn *in)
{
    if (!r->launch->flags || !r->cta->shadow) return;
    ACTIVE(r)
    {
        if (in->type & SEM_RELEASE) publish(r, in, i);
        if (in->type & SEM_ACQUIRE) acquire(r, in, i);
    }
    sim_scope_executed(r, in, (uint32_t)__builtin_popcount(r->mask), 0);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Flags                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

static flag *find(struct flags *all, uint64_t address)
{
    uint64_t random = address;
    uint32_t i = (uint32_t)sim_random(&random);
    if (!all->size) return NULL;
    while (all->table[i % all->size].address && all->table[i % all->size].address != address)
        i++;
    return &all->table[i % all->size];
}

static flag *make(struct flags *all, uint64_t address)
{
    flag *at = find(all, address);
    if (at && at->address) return at;
    if (2 * ++all->n > all->size) {
        const struct flags was = *all;
        all->size = was.size ? 2 * was.size : 64;
        all->table = calloc(all->size, sizeof *all->table);
        for (uint32_t i = 0; i < was.size; i++)
            if (was.table[i].address) *find(all, was.table[i].address) = was.table[i];
        free(was.table);
        at = find(all, address);
    }
    at->address = address;
    return at;
}

void sim_flags_read(run *r, const insn *in, uint32_t lane, uint64_t address)
{
    struct flags *all = r->launch->flags;
    if (!all || !r->cta->shadow) return;
    pthread_mutex_lock(&all->lock);
    const flag *at = find(all, address);
    for (uint32_t i = 0; at && at->address && i < at->told.n; i++)
        add(&reader_of(order_of(r, lane))->heard, (entry){at->told.at[i].what, at->told.at[i].reach & in->type});
    pthread_mutex_unlock(&all->lock);
    if (in->type & SEM_ACQUIRE) acquire(r, in, lane);
}

void sim_flags_write(run *r, const insn *in, uint32_t lane, uint64_t address, bool atomically)
{
    struct flags *all = r->launch->flags;
    if (!all || !r->cta->shadow) return;
    if (in->type & SEM_RELEASE) publish(r, in, lane);
    const struct flag_reader *mine = order_of(r, lane)->reader;
    if (!mine || !mine->last) return;
    pthread_mutex_lock(&all->lock);
    flag *at = make(all, address);
    if (!atomically) at->told.n = 0;
    const uint32_t self = first_thread(r->cta) + r->warp->index * LANES + lane, reach = mine->last->reach & in->type;
    const struct acquisitions *passed_on = r->cta->cluster->acquisitions;
    for (uint32_t i = 0; passed_on && i < passed_on->n; i++)
        if (knows(order_of(r, lane), self, passed_on->at[i].epoch))
            add(&at->told, (entry){passed_on->at[i].what, reach});
    add(&at->told, (entry){mine->last, reach});
    pthread_mutex_unlock(&all->lock);
}

bool sim_flags_tell(run *r, uint32_t lane, uint32_t cluster, uint32_t epoch)
{
    const struct acquisitions *all = r->cta->cluster->acquisitions;
    const uint32_t self = first_thread(r->cta) + r->warp->index * LANES + lane;
    if (clock_in(epoch) == MOST_CLOCK) return true;
    for (uint32_t i = 0; all && i < all->n; i++) {
        const acquired *a = &all->at[i];
        if (a->what->cluster != cluster || clock_in(epoch) > clock_of(a->what->known->at[thread_in(epoch)])) continue;
        if (!knows(order_of(r, lane), self, a->epoch)) continue;
        if (a->place) sim_scope_needed(r, a->place);
        if (a->what->place) sim_scope_needed(r, a->what->place);
        return true;
    }
    return false;
}
