/* The CUDA driver as a table of functions, resolved on first GPU use: no link dependency, and any library with the same
 * ABI can stand in (NVFP4KERN_LIBCUDA). */
#ifndef NK_CUDA_DRIVER_H
#define NK_CUDA_DRIVER_H

#include "nk_problem.h"

#include <cuda.h>

/* <cuda.h> maps some of these to the versioned names that libcuda exports. */
#define CUDA_ENTRIES(X)                  \
    X(cuInit)                            \
    X(cuGetErrorName)                    \
    X(cuGetErrorString)                  \
    X(cuDeviceGetCount)                  \
    X(cuDeviceGet)                       \
    X(cuDeviceGetAttribute)              \
    X(cuDevicePrimaryCtxRetain)          \
    X(cuCtxGetCurrent)                   \
    X(cuCtxPushCurrent)                  \
    X(cuCtxPopCurrent)                   \
    X(cuThreadExchangeStreamCaptureMode) \
    X(cuLibraryLoadData)                 \
    X(cuLibraryUnload)                   \
    X(cuLibraryGetKernel)                \
    X(cuKernelGetFunction)               \
    X(cuKernelGetAttribute)              \
    X(cuKernelSetAttribute)              \
    X(cuOccupancyMaxActiveClusters)      \
    X(cuTensorMapEncodeTiled)            \
    X(cuLaunchKernelEx)

typedef struct cuda_driver {
#define CUDA_MEMBER(function) __typeof__(function) *function;
    CUDA_ENTRIES(CUDA_MEMBER)
#undef CUDA_MEMBER
} cuda_driver;

/* Opens the library and initialises the driver, once per process; NULL where that failed, and *why says why. */
const cuda_driver *cuda_driver_open(const char **why);

/* "<what>: <name> (<text>)", with the driver's own name and text; NK_OK for CUDA_SUCCESS. */
nk_status cuda_driver_check(CUresult result, const char *what, const char *subject);

#endif
