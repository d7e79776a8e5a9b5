/* The pool by itself: callers share its threads, and a loop ends that is interrupted or whose thread ends. Says what it
 * saw; exits with 1 where that did not come within a minute. */
#include "cpu/cpu_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define THREADS 6
#define ENDLESS 1000000000000
#define PAUSE_NS 200000
#define PATIENCE (60 * 1000000000LL / PAUSE_NS)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int inside[3], wanted[3]; /* by caller: threads in its loop now, and what all shall be at one moment */
static atomic_bool seen[3];      /* that they were, the last time for this caller */
static atomic_bool leave[3];     /* the caller's loop shall end */

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL); }

static bool is_moment(void)
{
    bool all = true;
    for (int i = 0; i < 3; i++)
        all = all && inside[i] == wanted[i];
    return all;
}

static void body(void *context, int64_t job)
{
    int *mine = context;
    (void)job;
    pthread_mutex_lock(&lock);
    ++*mine;
    if (is_moment()) seen[mine - inside] = true;
    pthread_mutex_unlock(&lock);
    nap();
    pthread_mutex_lock(&lock);
    --*mine;
    pthread_mutex_unlock(&lock);
}

static atomic_bool dies; /* the caller's thread ends when it asks */

static bool interrupted(void *context)
{
    if (dies) pthread_exit(NULL);
    return leave[(int *)context - inside];
}

static void *caller(void *context)
{
    nk_exec exec = {.interrupted = interrupted, .context = context};
    nk_status status = cpu_for_each(&exec, ENDLESS, THREADS, body, context);
    if (status != NK_INTERRUPTED) exit(2);
    return NULL;
}

/* Waits until so many threads are in each loop at once. */
static void expect(int a, int b, int c)
{
    const int now[3] = {a, b, c};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 3; i++) {
        wanted[i] = now[i];
        seen[i] = false;
    }
    pthread_mutex_unlock(&lock);
    for (long long tries = 0; !seen[0] && !seen[1] && !seen[2]; tries++) {
        if (tries > PATIENCE) {
            printf("never %d %d %d\n", a, b, c);
            exit(1);
        }
        nap();
    }
    printf("%d %d %d\n", a, b, c);
}

int main(void)
{
    pthread_t thread[3];
    pthread_create(&thread[0], NULL, caller, &inside[0]);
    expect(6, 0, 0);
    pthread_create(&thread[1], NULL, caller, &inside[1]);
    expect(3, 3, 0);
    pthread_create(&thread[2], NULL, caller, &inside[2]);
    expect(2, 2, 2);
    leave[0] = true;
    pthread_join(thread[0], NULL);
    expect(0, 3, 3);
    leave[1] = leave[2] = true;
    pthread_join(thread[1], NULL);
    pthread_join(thread[2], NULL);
    printf("%d %d %d\n", inside[0], inside[1], inside[2]); /* whoever returns has no helpers left */

    leave[0] = false;
    pthread_create(&thread[0], NULL, caller, &inside[0]);
    expect(6, 0, 0);
    dies = true;
    pthread_join(thread[0], NULL);
    printf("%d %d %d\n", inside[0], inside[1], inside[2]); /* nor whoever ends otherwise */
    dies = false;
    pthread_create(&thread[0], NULL, caller, &inside[0]);
    expect(6, 0, 0);
    leave[0] = true;
    pthread_join(thread[0], NULL);
    return 0;
}
