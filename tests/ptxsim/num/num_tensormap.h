/* Tensor maps: what cuTensorMapEncodeTiled accepts, a 128-byte record of our own behind CUtensorMap, and the bytes that
 * a tile moves.
 *
 * Sources: CUDA driver API 13.0, "Tensor Map Object Management"; PTX ISA 9.1, 5.5.1 - 5.5.8 and 9.7.9.28
 * (tensormap.replace). Tiled mode without interleaving; interleaved maps are encoded, but have no tiles here.
 * The API's formula for strides ("Each following dimension specified includes previous dimension stride") is not
 * checked: drivers take overlapping rows and strides of 0, and kernels rely on it.
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
    NUM_TM_16U4_ALIGN8B,
    NUM_TM_16U4_ALIGN16B,
    NUM_TM_16U6_ALIGN16B,
    NUM_TM_TYPES
} num_tm_type;

/* The record. The address at byte 0 and the dimensions, less one, in words 8 to 12 lie where kernels that edit maps by
 * hand expect them; the rest is ours. */
typedef struct {
    uint64_t address;
    uint32_t magic;
    uint8_t rank, type, interleave, swizzle; /* swizzle: a num_swizzle */
    uint8_t fill, l2, element_strides[NUM_TENSORMAP_MAX_RANK], box_less_one[NUM_TENSORMAP_MAX_RANK];
    uint32_t version; /* for the machine: counts replacements */
    uint32_t dims_less_one[NUM_TENSORMAP_MAX_RANK];
    uint32_t unused[3];
    uint64_t strides[NUM_TENSORMAP_MAX_RANK - 1]; /* bytes, of dimension 1 and up */
    uint64_t more_unused[4];
} num_tensormap;

/* cuTensorMapEncodeTiled. The result is a CUresult; *why says in words what is wrong (NULL: nothing), naming the
 * argument, what came and what was expected; it lives until the thread's next call. */
int num_tensormap_encode(num_tensormap *map, uint32_t type, uint32_t rank, uint64_t address, const uint64_t *dims,
                         const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                         uint32_t interleave, uint32_t swizzle, uint32_t l2, uint32_t fill, const char **why);
/* cuTensorMapReplaceAddress. */
int num_tensormap_replace_address(num_tensormap *map, uint64_t address, const char **why);
/* NULL, or why these 128 bytes are no map: a wrong magic word, or a field that tensormap.replace left illegal. */
const char *num_tensormap_check(const num_tensormap *map);

/* tensormap.replace. `value` as PTX gives it: rank less one, everything else as it is; elemtype in PTX's numbering. */
typedef enum {
    NUM_REPLACE_GLOBAL_ADDRESS,
    NUM_REPLACE_RANK,
    NUM_REPLACE_BOX_DIM,
    NUM_REPLACE_GLOBAL_DIM,
    NUM_REPLACE_GLOBAL_STRIDE,
    NUM_REPLACE_ELEMENT_STRIDE,
    NUM_REPLACE_ELEMTYPE,
    NUM_REPLACE_INTERLEAVE,
    NUM_REPLACE_SWIZZLE_MODE,
    NUM_REPLACE_SWIZZLE_ATOMICITY,
    NUM_REPLACE_FILL_MODE,
} num_tensormap_field;
/* False for an ordinal or value outside the field's range; nothing changes then. */
bool num_tensormap_replace(num_tensormap *map, num_tensormap_field field, int ordinal, uint64_t value);

/* ---- tiles --------------------------------------------------------------------------------------------------- */

/* 16 bytes of a box in shared memory. */
typedef struct {
    uint32_t shared; /* byte offset from the box's address; the machine applies num_swizzled to the sum, for each half
                      * of 8 bytes where the swizzle flips those */
    uint8_t bytes;   /* that come from or go to global memory: 16; 8 or 12 of the padded types, whose rest is padding */
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

#endif
