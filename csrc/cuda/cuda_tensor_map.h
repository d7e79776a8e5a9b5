/* What the driver makes of a tensor's shape for the TMA unit: a parameter of a kernel. */
#ifndef NK_CUDA_TENSOR_MAP_H
#define NK_CUDA_TENSOR_MAP_H

#include <stdint.h>

typedef struct __attribute__((aligned(64))) cuda_tensor_map {
    uint64_t opaque[16];
} cuda_tensor_map;

#endif
