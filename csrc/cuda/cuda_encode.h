/* Makes tensor maps, which say where a tensor lies and which box of it one instruction copies. */
#ifndef NK_CUDA_ENCODE_H
#define NK_CUDA_ENCODE_H

#include "cuda_tensor_map.h"
#include "nk_problem.h"

/* How 16-byte chunks of a box are permuted in shared memory, by the bytes of the pattern's rows. A box's first
 * dimension is at most that many bytes. */
typedef enum cuda_swizzle { CUDA_SWIZZLE_NONE, CUDA_SWIZZLE_32, CUDA_SWIZZLE_64, CUDA_SWIZZLE_128 } cuda_swizzle;

/* Bytes that L2 reads from memory at once where a box asks for less. */
typedef enum cuda_l2_bytes { CUDA_L2_AS_ASKED, CUDA_L2_64, CUDA_L2_128, CUDA_L2_256 } cuda_l2_bytes;

/* A tensor of up to five dimensions, of which the first is contiguous. What a box has outside the tensor is read as 0
 * and is not written. */
typedef struct cuda_boxes {
    const char *name; /* for errors */
    const void *at;   /* a multiple of 16 */
    nk_dtype dtype;   /* codes, scale factors and other bytes: elements are bytes */
    int32_t rank;
    uint64_t dims[5];    /* elements */
    uint64_t strides[4]; /* bytes, of dimensions 1 and up: multiples of 16, less than 2^40 */
    uint32_t box[5];     /* elements, at most 256 in each dimension; a multiple of 16 bytes in the first */
    cuda_swizzle swizzle;
    cuda_l2_bytes l2;
    bool nan_outside; /* floats: what a box has outside the tensor is read as NaN */
} cuda_boxes;

nk_status cuda_encode_maps(nk_device device, int32_t count, const cuda_boxes boxes[], cuda_tensor_map *const maps[]);

#endif
