/* What test_launch_layer.py asks of csrc/cuda, as functions of plain numbers: one kernel, its launches, tensor maps and
 * the rows' ranges. */
#include "cuda/cuda_encode.h"
#include "cuda/cuda_launch.h"
#include "cuda/cuda_row.h"

#define EXPORT __attribute__((visibility("default")))
#define GPU ((nk_device){NK_CUDA, 0})

static cuda_image image;
static cuda_kernel kernel;
cuda_kernel *const cuda_kernels[] = {&kernel, NULL};

/* From now on the kernel is this one. */
EXPORT void layer_kernel(const char *name, const unsigned char *ptx)
{
    image = (cuda_image){.name = "layer", .row = "smtest", .begin = ptx};
    kernel = (cuda_kernel){.name = name, .image = &image};
}

static cuda_grid grid_of(const int32_t ctas[3], const int32_t cluster[2], int32_t threads, int32_t smem_bytes)
{
    return (cuda_grid){.x = ctas[0],
                       .y = ctas[1],
                       .z = ctas[2],
                       .threads = threads,
                       .smem_bytes = smem_bytes,
                       .cluster = {cluster[0], cluster[1]}};
}

EXPORT int layer_launch(const int32_t ctas[3], const int32_t cluster[2], int32_t threads, int32_t smem_bytes,
                        void *const args[])
{
    const cuda_grid grid = grid_of(ctas, cluster, threads, smem_bytes);
    return cuda_launch(&kernel, GPU, NULL, &grid, args);
}

EXPORT int layer_clusters_at_once(const int32_t cluster[2], int32_t threads, int32_t smem_bytes, int32_t *clusters)
{
    const int32_t ctas[3] = {cluster[0], cluster[1], 1};
    const cuda_grid grid = grid_of(ctas, cluster, threads, smem_bytes);
    return cuda_clusters_at_once(&kernel, GPU, &grid, clusters);
}

EXPORT int layer_encode(const void *at, int dtype, int32_t rank, const uint64_t dims[], const uint64_t strides[],
                        const uint32_t box[], int swizzle, int l2, bool nan_outside, cuda_tensor_map *map)
{
    cuda_boxes boxes = {.name = "the boxes",
                        .at = at,
                        .dtype = (nk_dtype)dtype,
                        .rank = rank,
                        .swizzle = (cuda_swizzle)swizzle,
                        .l2 = (cuda_l2_bytes)l2,
                        .nan_outside = nan_outside};
    for (int32_t i = 0; i < rank; i++) {
        boxes.dims[i] = dims[i];
        boxes.box[i] = box[i];
        if (i > 0) boxes.strides[i - 1] = strides[i - 1];
    }
    return cuda_encode_maps(GPU, 1, &boxes, &map);
}

static nk_backend row_of(int32_t oldest, int32_t newest)
{
    return (nk_backend){.name = "smtest", .oldest = oldest, .newest = newest, CUDA_ROW};
}

EXPORT bool layer_serves(int32_t oldest, int32_t newest)
{
    const nk_backend row = row_of(oldest, newest);
    return row.serves(&row, GPU);
}

EXPORT const char *layer_why_not(int32_t oldest, int32_t newest)
{
    const nk_backend row = row_of(oldest, newest);
    return row.why_not(&row);
}

EXPORT int layer_warm_up(void)
{
    const nk_backend row = row_of(80, CUDA_ANY_NEWER);
    return row.warmup(&row, GPU);
}

/* Whether the kernel is loaded on GPU 0. */
EXPORT bool layer_is_ready(void) { return kernel.ready & 1; }

EXPORT const char *layer_message(void) { return nk_status_message(); }
