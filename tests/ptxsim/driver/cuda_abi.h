/* The part of the CUDA driver's binary interface that libptxsim.so exports, so that no CUDA header is needed. Names and
 * numbers are those of <cuda.h>; the suffix _v2 is what that header maps the plain names to. */
#ifndef PTXSIM_CUDA_ABI_H
#define PTXSIM_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef enum CUresult {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_INVALID_CLUSTER_SIZE = 912,
} CUresult;

enum { /* CUdevice_attribute */
       ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
       ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8,
       ATTRIBUTE_WARP_SIZE = 10,
       ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
       ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
       ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
       ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
       ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
       ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
       ATTRIBUTE_CLUSTER_LAUNCH = 120,
};

enum { /* CUfunction_attribute */
       FUNCTION_MAX_THREADS_PER_BLOCK = 0,
       FUNCTION_SHARED_SIZE_BYTES = 1,
       FUNCTION_LOCAL_SIZE_BYTES = 3,
       FUNCTION_NUM_REGS = 4,
       FUNCTION_PTX_VERSION = 5,
       FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
       FUNCTION_PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
       FUNCTION_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
};

enum { /* CUlaunchAttributeID */
       LAUNCH_CLUSTER_DIMENSION = 4,
       LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
};

typedef struct CUlaunchAttribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        unsigned dims[3];
    } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    CUlaunchAttribute *attributes;
    unsigned n_attributes;
} CUlaunchConfig;

#define EXPORT __attribute__((visibility("default")))

#endif
