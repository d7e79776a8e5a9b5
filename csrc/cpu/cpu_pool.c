/* The pool of threads, which starts them, shares them among callers, follows affinity, and survives forks. */
#include "cpu_pool.h"

#include "cpu_float_mode.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define STACK_BYTES ((size_t)2 << 20)
#define BODY_STACK ((size_t)512 << 10) /* more than any body takes: its tiles and panels lie on the stack */
#define ASK_MS 50 /* how often a caller asks whether it is interrupted */

typedef struct loop {
    void (*body)(void *context, int64_t job);
    void *context;
    int64_t jobs;
    _Atomic int64_t next;
    int threads;         /* that it may use, counting the caller unless it waits */
    bool waits;          /* the caller runs no jobs, for want of stack */
    unsigned forks;      /* the pool's, when it began */
    int helpers;         /* threads of the pool that are in it */
    pthread_cond_t left; /* the last of them has left */
    struct loop *other;  /* the next one of the pool's list */
} loop;

/* Idle workers wait for `begin`. */
static struct {
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t begin;
    loop *loops;           /* that callers are running */
    int callers, helpers;  /* threads in those loops that run jobs */
    _Atomic unsigned turn; /* changes when a loop begins or ends: helpers then choose again */
    unsigned forks;        /* of this process and those it comes from */
    int workers;           /* threads of the pool; callers are none of them */
    pthread_t thread[CPU_MAX_THREADS];
    cpu_set_t cpus; /* where they may run */
} pool = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .begin = PTHREAD_COND_INITIALIZER,
};

/* ---------------------------------------------------------------------------------------------------------------- */
/* Helping                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The next job, or one beyond the last. */
static int64_t take_job(loop *l) { return atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed); }

static void drop_jobs(loop *l) { atomic_store_explicit(&l->next, l->jobs, memory_order_relaxed); }

static bool has_jobs(loop *l) { return atomic_load_explicit(&l->next, memory_order_relaxed) < l->jobs; }

/* The loop with the fewest helpers of those that may have one more; NULL where all threads are busy that one loop may
 * use. First comes one whose jobs nobody runs: it would wait for ever where callers are never few. */
static loop *loop_to_help(void)
{
    loop *fewest = NULL;
    int most_threads = 0;
    for (loop *l = pool.loops; l; l = l->other) {
        if (l->threads > most_threads) most_threads = l->threads;
        if (!has_jobs(l) || l->helpers + !l->waits >= l->threads) continue;
        if (l->waits && l->helpers == 0) return l;
        if (!fewest || l->helpers < fewest->helpers) fewest = l;
    }
    return pool.callers + pool.helpers < most_threads ? fewest : NULL;
}

static void help(loop *l, unsigned turn)
{
    for (int64_t job; atomic_load_explicit(&pool.turn, memory_order_relaxed) == turn && (job = take_job(l)) < l->jobs;)
        l->body(l->context, job);
}

static void *work(void *unused)
{
    (void)unused;
    cpu_enter_default_mode();
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        loop *l = loop_to_help();
        if (!l) {
            pthread_cond_wait(&pool.begin, &pool.lock);
            continue;
        }
        unsigned turn = pool.turn;
        l->helpers++;
        pool.helpers++;
        pthread_mutex_unlock(&pool.lock);
        help(l, turn);
        pthread_mutex_lock(&pool.lock);
        pool.helpers--;
        if (--l->helpers == 0) pthread_cond_signal(&l->left);
    }
    return NULL;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Starting threads                                                                                                 */
/* ---------------------------------------------------------------------------------------------------------------- */

/* In the child of a fork there are no workers, and a lock may be held by a thread that does not exist. */
static void forget_threads(void)
{
    pool.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool.begin = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pool.loops = NULL;
    pool.workers = pool.callers = pool.helpers = 0;
    pool.forks++;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_threads); }

/* Workers may run where the caller may. Its affinity can have changed since they were made. False where they run loops
 * of callers elsewhere. */
static bool follow_affinity(void)
{
    cpu_set_t cpus;
    if (pthread_getaffinity_np(pthread_self(), sizeof cpus, &cpus) != 0) return true;
    if (memcmp(&cpus, &pool.cpus, sizeof cpus) == 0) return true;
    if (pool.loops) return false;
    pool.cpus = cpus;
    for (int i = 0; i < pool.workers; i++)
        pthread_setaffinity_np(pool.thread[i], sizeof cpus, &cpus);
    return true;
}

/* The system may refuse threads: there are fewer workers then. They block all signals, which are for the program's own
 * threads. */
static void start_workers(int wanted)
{
    if (pool.workers >= wanted) return;
    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (pool.workers < wanted) {
        if (pthread_create(&pool.thread[pool.workers], &attributes, work, NULL) != 0) break;
        pool.workers++;
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---------------------------------------------------------------------------------------------------------------- */

nk_status cpu_thread_count(const nk_settings *settings, int worthwhile, int *threads)
{
    const char *text = settings->num_threads;
    if (*text) {
        char *end;
        long number = strtol(text, &end, 10);
        NK_CHECK(*end == 0 && number >= 1 && number <= CPU_MAX_THREADS, NK_BACKEND_ERROR,
                 "NVFP4KERN_NUM_THREADS: '%s', expected a number from 1 to %d", text, CPU_MAX_THREADS);
        *threads = number < worthwhile ? (int)number : worthwhile;
        return NK_OK;
    }
    *threads = 1;
    if (worthwhile <= 1) return NK_OK;
    cpu_set_t cpus;
    long count = pthread_getaffinity_np(pthread_self(), sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus)
                                                                                 : sysconf(_SC_NPROCESSORS_ONLN);
    if (count > 1) *threads = count < worthwhile ? (int)count : worthwhile;
    return NK_OK;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Calling                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* *asked is when that was asked last, 0 at first. A signal's handler, which may run meanwhile, may fork: the child has
 * none of the threads that were in the loop. */
static nk_status ask_whether_to_stop(const nk_exec *exec, const loop *l, int64_t *asked)
{
    int64_t now = now_ms();
    if (*asked == 0) *asked = now;
    if (now - *asked < ASK_MS) return NK_OK;
    *asked = now;
    if (exec->interrupted(exec->context)) return NK_INTERRUPTED;
    NK_CHECK(l->forks == pool.forks, NK_BACKEND_ERROR, "a signal handler forked this process during the call");
    return NK_OK;
}

/* Whether a body may run on this stack. One that is not the thread's own, as of a greenlet, counts as large. */
static bool has_stack(void)
{
    static _Thread_local uintptr_t lowest;
    if (!lowest) {
        void *begin = NULL;
        size_t size;
        pthread_attr_t attributes;
        if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
            pthread_attr_getstack(&attributes, &begin, &size);
            pthread_attr_destroy(&attributes);
        }
        lowest = begin ? (uintptr_t)begin : UINTPTR_MAX;
    }
    return (uintptr_t)__builtin_frame_address(0) - lowest >= BODY_STACK;
}

/* For ASK_MS at most. False where there are none. */
static bool wait_for_helpers(loop *l)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += ASK_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&pool.lock);
    bool any = pool.workers > 0;
    if (any && has_jobs(l)) pthread_cond_timedwait(&l->left, &pool.lock, &until);
    pthread_mutex_unlock(&pool.lock);
    return any;
}

static nk_status await_jobs(const nk_exec *exec, loop *l)
{
    int64_t asked = 0;
    while (has_jobs(l)) {
        NK_CHECK(wait_for_helpers(l), NK_BACKEND_ERROR,
                 "this thread has less than %zu kB of stack left, and no other can be started", BODY_STACK >> 10);
        if (exec->interrupted) NK_TRY(ask_whether_to_stop(exec, l, &asked));
    }
    return NK_OK;
}

static nk_status run_jobs(const nk_exec *exec, loop *l)
{
    if (l->waits) return await_jobs(exec, l);
    int64_t asked = 0;
    bool asks = exec->interrupted && l->jobs > 1;
    for (int64_t job; (job = take_job(l)) < l->jobs;) {
        if (asks) NK_TRY(ask_whether_to_stop(exec, l, &asked));
        l->body(l->context, job);
    }
    return NK_OK;
}

/* Makes the loop one of the pool's. False where its threads cannot help. */
static bool begin_loop(loop *l)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&pool.lock);
    bool may = follow_affinity() || l->waits;
    if (may) {
        start_workers(l->threads - !l->waits);
        l->other = pool.loops;
        pool.loops = l;
        pool.callers += !l->waits;
        pool.turn++;
        pthread_cond_broadcast(&pool.begin);
    }
    pthread_mutex_unlock(&pool.lock);
    return may;
}

/* Waits until no thread is in the loop. Its helpers go on to other loops. */
static void end_loop(void *ended)
{
    loop *l = ended;
    if (l->forks != pool.forks) return;
    drop_jobs(l);
    pthread_mutex_lock(&pool.lock);
    loop **at = &pool.loops;
    while (*at != l)
        at = &(*at)->other;
    *at = l->other;
    while (l->helpers > 0)
        pthread_cond_wait(&l->left, &pool.lock);
    pool.callers -= !l->waits;
    pool.turn++;
    if (pool.loops) pthread_cond_broadcast(&pool.begin);
    pthread_mutex_unlock(&pool.lock);
}

nk_status cpu_for_each(const nk_exec *exec, int64_t jobs, int threads, void (*body)(void *context, int64_t job),
                       void *context)
{
    const bool waits = !has_stack();
    if (jobs == 1 && !waits) { /* a tiny problem, which the loop's counters would make slower */
        body(context, 0);
        return NK_OK;
    }
    nk_status status;
    loop mine = {.body = body, .context = context, .jobs = jobs, .forks = pool.forks, .waits = waits};
    mine.threads = threads < jobs ? threads : (int)jobs;
    if (mine.threads <= 1 && !waits) return run_jobs(exec, &mine);
    mine.left = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    if (!begin_loop(&mine)) return run_jobs(exec, &mine);
    /* Also where the thread ends here: Python ends threads that want the GIL while it shuts down. */
    pthread_cleanup_push(end_loop, &mine);
    status = run_jobs(exec, &mine);
    pthread_cleanup_pop(1);
    return status;
}
