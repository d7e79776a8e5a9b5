/* Has the CUDA driver as a table of functions, which are resolved when a GPU is first used. So nothing links to the
 * driver, and any library with the same ABI can stand in (NVFP4KERN_LIBCUDA). */
#ifndef NK_CUDA_DRIVER_H
#define NK_CUDA_DRIVER_H

#include "nk_problem.h"

#include <cuda.h>

/* The oldest driver that takes what was compiled beside this <cuda.h>, and the package of a newer one's libcuda. The
 * entries below have all been there since CUDA 12.4. */
#if CUDA_VERSION >= 13000
#define CUDA_DRIVER_NEEDED "CUDA 13.0 (r580) or newer"
#define CUDA_COMPAT "cuda-compat-13-0"
#else
#define CUDA_DRIVER_NEEDED "CUDA 12.4 (r550) or newer"
#define CUDA_COMPAT "cuda-compat-12-4"
#endif

/* <cuda.h> maps some of these to the versioned names that libcuda exports. */
#define CUDA_ENTRIES(X)                  \
    X(cuInit)                            \
    X(cuDriverGetVersion)                \
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

/* "a driver of <what is needed>, found <what there is>" */
const char *cuda_driver_needs(void);

/* As cuda_driver_check; where the driver refuses an image, the error also says what a driver is needed. */
nk_status cuda_driver_check_image(CUresult result, const char *what, const char *subject);

/* "<what>: <name> (<text>)", with the driver's own name and text; NK_OK for CUDA_SUCCESS. */
nk_status cuda_driver_check(CUresult result, const char *what, const char *subject);

#endif
