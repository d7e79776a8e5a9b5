/* Declares a tensor map as a kernel takes it: the driver fills it (cuda_encode.h), and the copy engine reads it. */
#ifndef NK_CUDA_TENSOR_MAP_H
#define NK_CUDA_TENSOR_MAP_H

#include <stdint.h>

typedef struct __attribute__((aligned(64))) cuda_tensor_map {
    uint64_t opaque[16];
} cuda_tensor_map;

#endif
