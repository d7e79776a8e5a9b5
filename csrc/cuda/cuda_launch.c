/* Launches kernels: fills the driver's launch configuration from a grid. */
#include "cuda_launch.h"

#include "cuda_context.h"

typedef struct launch_config {
    CUlaunchConfig config; /* points to the attributes */
    CUlaunchAttribute attributes[2];
} launch_config;

static unsigned at_least_one(int32_t ctas) { return ctas > 1 ? (unsigned)ctas : 1; }

static void configure(const cuda_grid *grid, void *stream, bool can_wait, launch_config *l)
{
    unsigned count = 0;
    const unsigned x = at_least_one(grid->cluster.x), y = at_least_one(grid->cluster.y);
    if (x * y > 1) {
        l->attributes[count++] =
            (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {x, y, 1}};
    }
    if (grid->overlap && can_wait) {
        l->attributes[count++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                                     .value.programmaticStreamSerializationAllowed = 1};
    }
    l->config = (CUlaunchConfig){
        .gridDimX = (unsigned)grid->x,
        .gridDimY = grid->y ? (unsigned)grid->y : 1,
        .gridDimZ = grid->z ? (unsigned)grid->z : 1,
        .blockDimX = (unsigned)grid->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = (unsigned)grid->smem_bytes,
        .hStream = stream,
        .attrs = l->attributes,
        .numAttrs = count,
    };
}

/* What the driver takes. A CUkernel may be launched as the CUfunction of the current context. */
static nk_status prepare_launch(cuda_kernel *kernel, const cuda_context *c, void *stream, const cuda_grid *grid,
                                CUfunction *function, launch_config *l)
{
    NK_TRY(cuda_load(kernel, c));
    *function = atomic_load_explicit(&kernel->handle, memory_order_relaxed);
    configure(grid, stream, atomic_load_explicit(&kernel->can_wait, memory_order_relaxed) >> c->gpu->index & 1, l);
    return NK_OK;
}

static nk_status launch_in_context(cuda_kernel *kernel, const cuda_context *c, void *stream, const cuda_grid *grid,
                                   void *const args[])
{
    CUfunction function;
    launch_config l;
    NK_TRY(prepare_launch(kernel, c, stream, grid, &function, &l));
    return cuda_driver_check(c->driver->cuLaunchKernelEx(&l.config, function, (void **)(uintptr_t)args, NULL),
                             "cuLaunchKernelEx", kernel->name);
}

static nk_status count_in_context(cuda_kernel *kernel, const cuda_context *c, const cuda_grid *grid, int32_t *clusters)
{
    CUfunction function;
    launch_config l;
    NK_TRY(prepare_launch(kernel, c, NULL, grid, &function, &l));
    CUresult result = c->driver->cuOccupancyMaxActiveClusters(clusters, function, &l.config);
    if (result == CUDA_ERROR_INVALID_CLUSTER_SIZE) {
        *clusters = 0;
        return NK_OK;
    }
    return cuda_driver_check(result, "cuOccupancyMaxActiveClusters", kernel->name);
}

nk_status cuda_launch(cuda_kernel *kernel, nk_device device, void *stream, const cuda_grid *grid, void *const args[])
{
    cuda_context context;
    NK_CHECK(grid->x <= INT32_MAX && grid->y <= 65535 && grid->z <= 65535, NK_VALUE_ERROR,
             "%s: a grid of %lld x %lld x %lld CTAs is more than one launch can have", kernel->name, (long long)grid->x,
             (long long)grid->y, (long long)grid->z);
    NK_TRY(cuda_enter(device, &context));
    nk_status status = launch_in_context(kernel, &context, stream, grid, args);
    cuda_leave(&context);
    return status;
}

nk_status cuda_clusters_at_once(cuda_kernel *kernel, nk_device device, const cuda_grid *grid, int32_t *clusters)
{
    cuda_context context;
    NK_TRY(cuda_enter(device, &context));
    nk_status status = count_in_context(kernel, &context, grid, clusters);
    cuda_leave(&context);
    return status;
}

nk_status cuda_clusters_by_size(cuda_kernel *kernel, nk_device device, int32_t threads, int32_t per_sm, int32_t most,
                                int32_t at_once[])
{
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(device, &gpu));
    at_once[1] = gpu->sms * per_sm;
    for (int32_t size = 2; size <= most; size += 2) {
        at_once[size] = at_once[1] / size;
        if (cuda_gpu_is_assumed()) continue; /* the driver knows how many SMs of a cluster lie together */
        const cuda_grid grid = {
            .x = 1, .y = size, .threads = threads, .smem_bytes = cuda_smem_per_cta(gpu, per_sm), .cluster.y = size};
        NK_TRY(cuda_clusters_at_once(kernel, device, &grid, &at_once[size]));
        if (at_once[size] > at_once[1] / size) at_once[size] = at_once[1] / size;
    }
    return NK_OK;
}
