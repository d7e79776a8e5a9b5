/* Threads for loops of independent jobs. The process has one pool, which starts with the first loop that wants it.
 * Callers that run loops at the same time get equal numbers of its threads; all together they use no more threads than
 * one of them may. */
#ifndef NK_CPU_POOL_H
#define NK_CPU_POOL_H

#include "nk_problem.h"
#include "nk_settings.h"

#include <stdint.h>

#define CPU_MAX_THREADS 256

/* How many threads a loop may use, counting the caller: NVFP4KERN_NUM_THREADS, or the number of CPUs that the calling
 * thread may run on, but no more than `worthwhile`. If that is 1 the system is not asked, which costs a short call a
 * quarter of its time. */
nk_status cpu_thread_count(const nk_settings *settings, int worthwhile, int *threads);

/* Calls body(context, job) for every job in 0 .. jobs - 1, in any order, on at most `threads` threads. Jobs run in the
 * default floating-point mode. Asks exec->interrupted between jobs; no job runs once this has returned. A
 * caller with little stack left runs none: a thread of the pool does. */
nk_status cpu_for_each(const nk_exec *exec, int64_t jobs, int threads, void (*body)(void *context, int64_t job),
                       void *context);

#endif
