/* Between num_tensormap.c and num_box.c: the element types of tensor maps. */
#ifndef PTXSIM_NUM_TENSOR_TYPE_H
#define PTXSIM_NUM_TENSOR_TYPE_H

#include "num_tensormap.h"

#include <stddef.h>

typedef struct {
    uint8_t bits;        /* of an element in global memory */
    uint8_t piece_bytes; /* of global memory in 16 bytes of shared memory */
    uint64_t nan;        /* eight bytes of the type's NaN; 0 where it has none */
} num_tensor_type;

extern const num_tensor_type num_tensor_types[NUM_TM_TYPES];

/* Bytes of a row of the box (boxDim[0] elements) in shared memory. */
int num_box_row_bytes(const num_tensormap *map);

#endif
