/* Makes a device's primary context current for the time of a call. */
#include "cuda_context.h"

#include <stdatomic.h>

/* Retained for the life of the process, as frameworks do. */
static _Atomic(CUcontext) primaries[CUDA_MAX_GPUS];

static nk_status retain(const cuda_context *c, CUcontext *primary)
{
    CUresult result = c->driver->cuDevicePrimaryCtxRetain(primary, c->gpu->handle); /* maybe twice, by two threads */
    NK_TRY(cuda_driver_check(result, "cuDevicePrimaryCtxRetain", "the GPU"));
    atomic_store_explicit(&primaries[c->gpu->index], *primary, memory_order_release);
    return NK_OK;
}

nk_status cuda_enter(nk_device device, cuda_context *c)
{
    const char *why = NULL;
    *c = (cuda_context){0};
    NK_TRY(cuda_gpu_of(device, &c->gpu));
    NK_CHECK(!cuda_gpu_is_assumed(), NK_BACKEND_ERROR, "cuda:%d: NVFP4KERN_ASSUMED_GPU is set, so nothing runs",
             device.index);
    c->driver = cuda_driver_open(&why); /* not NULL: there is a GPU */
    CUcontext current, primary = atomic_load_explicit(&primaries[c->gpu->index], memory_order_acquire);
    if (!primary) NK_TRY(retain(c, &primary));
    NK_TRY(cuda_driver_check(c->driver->cuCtxGetCurrent(&current), "cuCtxGetCurrent", "this thread"));
    if (current == primary) return NK_OK;
    NK_TRY(cuda_driver_check(c->driver->cuCtxPushCurrent(primary), "cuCtxPushCurrent", "the primary context"));
    c->pushed = true;
    return NK_OK;
}

void cuda_leave(const cuda_context *c)
{
    CUcontext popped;
    if (c->pushed) c->driver->cuCtxPopCurrent(&popped);
}
