/* Threads for loops of independent jobs. One pool for the process: it starts with the first loop that wants it, and a
 * loop that finds it busy runs on its caller alone, so that callers at the same time do not crowd the machine. */
#ifndef NK_CPU_POOL_H
#define NK_CPU_POOL_H

#include "nk_settings.h"
#include "nk_status.h"

#include <stdint.h>

#define CPU_MAX_THREADS 256

/* How many threads a loop may use, the caller's included: NVFP4KERN_NUM_THREADS, or the CPUs that the calling thread
 * may run on. */
nk_status cpu_thread_count(const nk_settings *settings, int *threads);

/* body(context, job) for every job in 0 .. jobs - 1, in any order, on `threads` threads at most. Jobs run with the
 * default floating-point mode. */
void cpu_for_each(int64_t jobs, int threads, void (*body)(void *context, int64_t job), void *context);

#endif
