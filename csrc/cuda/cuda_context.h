/* Makes the primary context of a call's device current until the call ends, and then the caller's again. For csrc/cuda
 * alone. */
#ifndef NK_CUDA_CONTEXT_H
#define NK_CUDA_CONTEXT_H

#include "cuda_driver.h"
#include "cuda_gpu.h"

typedef struct cuda_context {
    const cuda_driver *driver;
    const cuda_gpu *gpu;
    bool pushed;
} cuda_context;

/* Every cuda_enter that succeeds is followed by a cuda_leave. */
nk_status cuda_enter(nk_device device, cuda_context *context);
void cuda_leave(const cuda_context *context);

#endif
