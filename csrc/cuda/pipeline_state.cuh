/* Where a role is in a pipeline of shared-memory stages. */
#ifndef NK_PIPELINE_STATE_CUH
#define NK_PIPELINE_STATE_CUH

#include <stdint.h>

/* The stage, and the parity of the phase in which its full barrier completes next; its empty barrier's is the other
 * one, since stages begin empty. */
struct pipeline_state {
    int stage = 0;
    uint32_t parity = 0;

    __device__ void advance(int stages)
    {
        const bool wraps = stage == stages - 1;
        stage = wraps ? 0 : stage + 1;
        parity ^= wraps;
    }
};

#endif
