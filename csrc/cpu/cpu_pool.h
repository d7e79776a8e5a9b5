/* Threads for loops of independent jobs. The process has one pool, which starts with the first loop that wants it. A
 * loop that finds the pool busy runs on its caller alone: several callers at a time do not crowd the machine. */
#ifndef NK_CPU_POOL_H
#define NK_CPU_POOL_H

#include "nk_settings.h"
#include "nk_status.h"

#include <stdint.h>

#define CPU_MAX_THREADS 256

/* How many threads a loop may use, counting the caller: NVFP4KERN_NUM_THREADS, or the number of CPUs that the calling
 * thread may run on. */
nk_status cpu_thread_count(const nk_settings *settings, int *threads);

/* Calls body(context, job) for every job in 0 .. jobs - 1, in any order, on at most `threads` threads. Jobs run in the
 * default floating-point mode. */
void cpu_for_each(int64_t jobs, int threads, void (*body)(void *context, int64_t job), void *context);

#endif
