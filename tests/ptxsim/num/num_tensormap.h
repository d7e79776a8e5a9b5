/* Tensor maps: what cuTensorMapEncodeTiled accepts, a 128-byte record of our own behind CUtensorMap, and the bytes that
 * a tile moves.
 *
 * Sources: CUDA driver API 13.0, "Tensor Map Object Management"; PTX ISA 9.1, 5.5.1 - 5.5.8. Not modelled, and refused:
 * interleaving, elements of 4 and 6 bits, swizzles of larger atoms than 16 bytes. The API's formula for strides ("Each
 * following dimension specified includes previous dimension stride") is not checked: drivers take overlapping rows and
 * strides of 0, and kernels rely on it.
 */
#ifndef PTXSIM_NUM_TENSORMAP_H
#define PTXSIM_NUM_TENSORMAP_H

#include "num_layout.h"

enum { NUM_TENSORMAP_BYTES = 128, NUM_TENSORMAP_MAX_RANK = 5 };

/* CUresult. */
enum { NUM_CUDA_SUCCESS = 0, NUM_CUDA_ERROR_INVALID_VALUE = 1 };

/* CUtensorMapDataType. */
typedef enum {
    NUM_TM_UINT8,
    NUM_TM_UINT16,
    NUM_TM_UINT32,
    NUM_TM_INT32,
    NUM_TM_UINT64,
    NUM_TM_INT64,
    NUM_TM_FLOAT16,
    NUM_TM_FLOAT32,
    NUM_TM_FLOAT64,
    NUM_TM_BFLOAT16,
    NUM_TM_FLOAT32_FTZ,
    NUM_TM_TFLOAT32,
    NUM_TM_TFLOAT32_FTZ,
    NUM_TM_TYPES
} num_tm_type;

typedef struct {
    uint64_t address;
    uint32_t magic;
    uint8_t rank, type, swizzle; /* swizzle: a num_swizzle */
    uint8_t fill, element_strides[NUM_TENSORMAP_MAX_RANK], box_less_one[NUM_TENSORMAP_MAX_RANK];
    uint32_t dims_less_one[NUM_TENSORMAP_MAX_RANK];
    uint64_t strides[NUM_TENSORMAP_MAX_RANK - 1]; /* bytes, of dimension 1 and up */
    uint64_t unused[6];
} num_tensormap;

/* cuTensorMapEncodeTiled. The result is a CUresult; *why says in words what is wrong (NULL: nothing), naming the
 * argument, what came and what was expected; it lives until the thread's next call. */
int num_tensormap_encode(num_tensormap *map, uint32_t type, uint32_t rank, uint64_t address, const uint64_t *dims,
                         const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                         uint32_t interleave, uint32_t swizzle, uint32_t l2, uint32_t fill, const char **why);
/* NULL, or why these 128 bytes are no map. */
const char *num_tensormap_check(const num_tensormap *map);

/* ---- tiles --------------------------------------------------------------------------------------------------- */

/* 16 bytes of a box in shared memory. */
typedef struct {
    uint32_t shared; /* byte offset from the box's address; the machine applies num_swizzled to the sum */
    uint16_t inside; /* bit i: byte i lies within the tensor; the others are filled, or not stored */
    uint64_t global; /* address of byte 0; meaningless where no byte is inside */
} num_box_piece;

/* Pieces of a box. Their number times 16 is what an mbarrier's transaction count gets, out-of-bounds bytes included. */
uint32_t num_box_pieces(const num_tensormap *map);
/* Bytes of shared memory that a box spans: with a swizzle, a row takes the swizzle's whole span. That the rows of a box
 * narrower than its swizzle lie so is not written in the API's rules; only hardware can settle it. */
uint32_t num_box_span(const num_tensormap *map);
/* The piece `index` of the box whose first element has these coordinates (dimension 0 first; may be negative). */
num_box_piece num_box_piece_at(const num_tensormap *map, const int32_t *coordinates, uint32_t index);
/* What fills bytes outside the tensor, as eight bytes: zeros, or the type's NaN repeated (which NaN: unpublished). */
uint64_t num_box_fill(const num_tensormap *map);

/* Between num_tensormap.c and num_box.c: element types, and bytes of a row of the box in shared memory. */
typedef struct {
    uint8_t bytes;
    uint64_t nan; /* eight bytes of the type's NaN; 0 where it has none */
} num_tensor_type;

extern const num_tensor_type num_tensor_types[NUM_TM_TYPES];
uint32_t num_box_row_bytes(const num_tensormap *map);

#endif
