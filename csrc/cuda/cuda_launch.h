/* Launches kernels from C. A launch binds the primary context of its device and restores the caller's; it neither
 * allocates nor synchronises. */
#ifndef NK_CUDA_LAUNCH_H
#define NK_CUDA_LAUNCH_H

#include "cuda_gpu.h"
#include "cuda_image.h"

#define CUDA_MAX_PARAM_BYTES 32764 /* of one launch, from CUDA 12.1 and sm_70 on */

/* CTAs of a cluster along x and y; 0 counts as 1. The grid is a whole number of clusters. */
typedef struct cuda_cluster {
    int32_t x, y;
} cuda_cluster;

typedef struct cuda_grid {
    int64_t x, y, z; /* CTAs; y and z at most 65535, and 0 counts as 1 */
    int32_t threads;
    int32_t smem_bytes; /* dynamic */
    cuda_cluster cluster;
    bool overlap; /* may be scheduled before the kernel before it in the stream ends, where it waits by itself */
} cuda_grid;

/* args[i] points to the i-th parameter. */
nk_status cuda_launch(cuda_kernel *kernel, nk_device device, void *stream, const cuda_grid *grid, void *const args[]);

/* How many of the grid's clusters the device has room for at once, of a kernel whose shared memory is all dynamic. 0
 * where the device has no clusters of that size. */
nk_status cuda_clusters_at_once(cuda_kernel *kernel, nk_device device, const cuda_grid *grid, int32_t *clusters);

/* The same by size: of 1 and of even sizes up to `most`, since odd ones were slower. Of CTAs of which per_sm fill an
 * SM's shared memory; at_once[size] is no more than that many CTAs on each SM. */
nk_status cuda_clusters_by_size(cuda_kernel *kernel, nk_device device, int32_t threads, int32_t per_sm, int32_t most,
                                int32_t at_once[]);

#endif
