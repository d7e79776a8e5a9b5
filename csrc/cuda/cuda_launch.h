/* Kernels from C. An image (one .cu file, embedded by the build) is loaded on first use, also inside a graph capture;
 * a launch binds the primary context of its device and restores the caller's. Launches neither allocate nor
 * synchronise.
 */
#ifndef NK_CUDA_LAUNCH_H
#define NK_CUDA_LAUNCH_H

#include "cuda_tensor_map.h"
#include "nk_problem.h"

#include <stdatomic.h>

#define CUDA_MAX_PARAM_BYTES 32764 /* of one launch, from CUDA 12.1 and sm_70 on */

/* What plans know of a GPU. */
typedef struct cuda_gpu {
    int32_t index;
    int32_t compute_capability; /* 80, 89, 90, .. */
    int32_t sms;                /* NVFP4KERN_SM_LIMIT lowers it */
    int32_t smem_per_cta;       /* bytes that one CTA can have; NVFP4KERN_SMEM_LIMIT lowers it */
    int32_t smem_per_sm;        /* shared by the CTAs of one SM, 1 KB of each CTA's share reserved */
} cuda_gpu;

/* Why no GPU can be used, or NULL. */
const char *cuda_why_not(void);
int32_t cuda_gpu_count(void);

/* The facts of one GPU; never NULL on NK_OK. */
nk_status cuda_gpu_of(nk_device device, const cuda_gpu **gpu);

/* One .cu file, compiled. */
typedef struct cuda_image {
    const char *name; /* the file's */
    const char *row;  /* the folder of csrc that the file is in */
    const unsigned char *begin;
    _Atomic(void *) library; /* CUlibrary, NULL before first use */
} cuda_image;

/* One extern "C" __global__ function. The build defines an object of the same name for each and declares it in
 * cuda_kernels.h, so that a table which lists a missing kernel does not compile. The state is filled on first use. */
typedef struct cuda_kernel {
    const char *name;
    cuda_image *image;
    _Atomic(void *) handle;     /* CUkernel */
    _Atomic(uint64_t) ready;    /* bit i: loaded on device i, and allowed all of its shared memory */
    _Atomic(uint64_t) can_wait; /* bit i: for others to end, by itself: compiled for 9.0 or later there */
} cuda_kernel;

/* All kernels of this build, ended by NULL. */
extern cuda_kernel *const cuda_kernels[];

typedef struct cuda_grid {
    int64_t x, y, z; /* CTAs; y and z at most 65535 */
    int32_t threads;
    int32_t smem_bytes; /* dynamic */
    int32_t cluster;    /* CTAs of a cluster, along y; 0 and 1: none */
    bool overlap;       /* may be scheduled before the kernel before it in the stream ends, where it waits by itself */
} cuda_grid;

/* args[i] points to the i-th parameter. */
nk_status cuda_launch(cuda_kernel *kernel, nk_device device, void *stream, const cuda_grid *grid, void *const args[]);

/* How many of the grid's clusters, of a kernel that has no shared memory but dynamic one, the device has room for: none
 * where it has no clusters of that size. */
nk_status cuda_clusters_at_once(cuda_kernel *kernel, nk_device device, const cuda_grid *grid, int32_t *clusters);

/* Bytes in up to five dimensions, of which the first is contiguous, and the box of them that one instruction moves:
 * rows of `box[0]` bytes, turned by the row where `swizzled` (128 bytes). */
typedef struct cuda_boxes {
    const char *name; /* for errors */
    const void *at;
    int32_t rank;
    uint64_t dims[5], strides[4]; /* strides of dimensions 1 and up, multiples of 16 as `at` is */
    uint32_t box[5];
    bool swizzled;
} cuda_boxes;

nk_status cuda_encode_maps(nk_device device, int32_t count, const cuda_boxes boxes[], cuda_tensor_map *const maps[]);

/* Loads every kernel of a row. */
nk_status cuda_warmup(nk_device device, const char *row);

#endif
