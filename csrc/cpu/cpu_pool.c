/* The pool of threads, which starts them, follows affinity, and survives forks. */
#include "cpu_pool.h"

#include "cpu_float_mode.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STACK_BYTES ((size_t)2 << 20)

typedef struct loop {
    void (*body)(void *context, int64_t job);
    void *context;
    int64_t jobs;
    _Atomic int64_t next;
} loop;

/* `turn` changes with every loop. Workers 1 .. wanted join a loop. The caller does not wait for a worker that has not
 * joined when the jobs are done. */
static struct {
    pthread_mutex_t busy; /* held while a loop runs */
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t begin, end;
    uint64_t turn;
    int wanted, running; /* how many workers may join the loop, how many are in it */
    loop *current;
    int workers; /* threads of the pool; the caller is none of them */
    pthread_t thread[CPU_MAX_THREADS];
    cpu_set_t cpus; /* where they may run */
} pool = {
    .busy = PTHREAD_MUTEX_INITIALIZER,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .begin = PTHREAD_COND_INITIALIZER,
    .end = PTHREAD_COND_INITIALIZER,
};

static void take_jobs(loop *l)
{
    for (int64_t job; (job = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed)) < l->jobs;)
        l->body(l->context, job);
}

static void *work(void *argument)
{
    int me = (int)(intptr_t)argument;
    cpu_enter_default_mode();
    pthread_mutex_lock(&pool.lock);
    for (uint64_t seen = 0;;) {
        while (pool.turn == seen || pool.wanted < me)
            pthread_cond_wait(&pool.begin, &pool.lock);
        seen = pool.turn;
        pool.running++;
        loop *mine = pool.current;
        pthread_mutex_unlock(&pool.lock);
        take_jobs(mine);
        pthread_mutex_lock(&pool.lock);
        if (--pool.running == 0) pthread_cond_signal(&pool.end);
    }
    return NULL;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Starting threads                                                                                                 */
/* ---------------------------------------------------------------------------------------------------------------- */

/* In the child of a fork there are no workers, and a lock may be held by a thread that does not exist. */
static void forget_threads(void)
{
    pool.busy = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool.begin = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pool.end = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pool.turn = 0;
    pool.workers = pool.wanted = pool.running = 0;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_threads); }

/* Workers may run where the caller may. Its affinity can have changed since they were made. */
static void follow_affinity(void)
{
    cpu_set_t cpus;
    if (pthread_getaffinity_np(pthread_self(), sizeof cpus, &cpus) != 0) return;
    if (memcmp(&cpus, &pool.cpus, sizeof cpus) == 0) return;
    pool.cpus = cpus;
    for (int i = 0; i < pool.workers; i++)
        pthread_setaffinity_np(pool.thread[i], sizeof cpus, &cpus);
}

/* Returns how many of `wanted` workers there are, since the system may refuse threads. Workers block all signals, which
 * are for the program's own threads. */
static int start_workers(int wanted)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    follow_affinity();
    if (pool.workers >= wanted) return wanted;

    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (pool.workers < wanted) {
        intptr_t number = pool.workers + 1;
        if (pthread_create(&pool.thread[pool.workers], &attributes, work, (void *)number) != 0) break;
        pool.workers++;
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pool.workers < wanted ? pool.workers : wanted;
}

/* ---------------------------------------------------------------------------------------------------------------- */

nk_status cpu_thread_count(const nk_settings *settings, int *threads)
{
    const char *text = settings->num_threads;
    if (text && *text) {
        char *end;
        long number = strtol(text, &end, 10);
        NK_CHECK(*end == 0 && number >= 1 && number <= CPU_MAX_THREADS, NK_BACKEND_ERROR,
                 "NVFP4KERN_NUM_THREADS: '%s', expected a number from 1 to %d", text, CPU_MAX_THREADS);
        *threads = (int)number;
        return NK_OK;
    }
    cpu_set_t cpus;
    long count = pthread_getaffinity_np(pthread_self(), sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus)
                                                                                 : sysconf(_SC_NPROCESSORS_ONLN);
    *threads = count < 1 ? 1 : count > CPU_MAX_THREADS ? CPU_MAX_THREADS : (int)count;
    return NK_OK;
}

void cpu_for_each(int64_t jobs, int threads, void (*body)(void *context, int64_t job), void *context)
{
    loop mine = {.body = body, .context = context, .jobs = jobs};
    if (threads > jobs) threads = (int)jobs;
    if (threads <= 1 || pthread_mutex_trylock(&pool.busy) != 0) {
        take_jobs(&mine);
        return;
    }
    int helpers = start_workers(threads - 1);
    pthread_mutex_lock(&pool.lock);
    pool.current = &mine;
    pool.wanted = helpers;
    pool.turn++;
    pthread_cond_broadcast(&pool.begin);
    pthread_mutex_unlock(&pool.lock);

    take_jobs(&mine);

    pthread_mutex_lock(&pool.lock);
    pool.wanted = 0;
    while (pool.running > 0)
        pthread_cond_wait(&pool.end, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&pool.busy);
}
