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

/* Whether `at`, and the strides of dimensions that have them, are multiples of `of`, a power of two. */
static inline bool cuda_is_aligned(const void *at, int64_t row_stride, int64_t rows, int64_t batch_stride,
                                   int64_t batches, int64_t of)
{
    const uint64_t bits =
        (uint64_t)(uintptr_t)at | (rows > 1 ? (uint64_t)row_stride : 0) | (batches > 1 ? (uint64_t)batch_stride : 0);
    return (bits & (uint64_t)(of - 1)) == 0;
}

/* The same of an operand's elements or codes, and of its scale factors: blocked ones have no rows of their own. */
static inline bool cuda_are_data_aligned(const nk_operand *o, int64_t rows, int64_t batches, int64_t of)
{
    return cuda_is_aligned(o->data, o->row_stride, rows, o->batch_stride, batches, of);
}
static inline bool cuda_are_sf_aligned(const nk_operand *o, int64_t rows, int64_t batches, int64_t of)
{
    return cuda_is_aligned(o->sf, o->sf_row_stride, o->sf_layout == NK_SF_LINEAR ? rows : 1, o->sf_batch_stride,
                           batches, of);
}

/* Whether a tensor map can have this stride of a dimension of so many. A dimension of one does not use it. */
static inline bool cuda_is_stride(int64_t bytes, int64_t count)
{
    return count <= 1 || (bytes > 0 && bytes % 16 == 0 && bytes < (int64_t)1 << 40);
}

/* Whether a tensor map describes an operand's codes, or its 16-bit elements if they lie along K. All batches may be
 * one. `strict`: strides must do for any number of rows and batches, so that a row does not run elsewhere because there
 * is another one. */
bool cuda_has_map(const nk_operand *o, int64_t rows, int64_t batches, bool strict);

/* Boxes of box_k x box_rows of an operand whose elements lie along K; of one matrix, rank 2, if `batches` is 0. Rows of
 * a box are 64 or 128 bytes, and swizzled as such. */
cuda_boxes cuda_k_major_boxes(const nk_operand *o, const char *name, int64_t k, int64_t rows, int64_t batches,
                              int32_t box_k, int32_t box_rows);

/* The stride of a dimension of extent 1 is unused, but must be a multiple of 16. */
static inline uint64_t cuda_map_stride(int64_t stride, int64_t count) { return count > 1 ? (uint64_t)stride : 16; }

nk_status cuda_encode_maps(nk_device device, int32_t count, const cuda_boxes boxes[], cuda_tensor_map *const maps[]);

#endif
