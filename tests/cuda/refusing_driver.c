/* A libcuda of CUDA 12.8 with one GPU that takes no image: what test_driver_needed.py loads instead of a driver.
 * Defined are LACKS_LAUNCH, an older one without cuLaunchKernelEx, and LAZY, one that refuses only when asked for a
 * kernel. */
#define ENTRY(name) \
    __attribute__((visibility("default"))) int name(void) { return 0; }
#define EXPORT __attribute__((visibility("default")))
enum { UNSUPPORTED_PTX_VERSION = 222 };

static char something;

ENTRY(cuInit)
ENTRY(cuCtxPushCurrent_v2)
ENTRY(cuCtxPopCurrent_v2)
ENTRY(cuThreadExchangeStreamCaptureMode)
ENTRY(cuLibraryUnload)
ENTRY(cuKernelGetAttribute)
ENTRY(cuKernelSetAttribute)
ENTRY(cuOccupancyMaxActiveClusters)
ENTRY(cuTensorMapEncodeTiled)
#ifndef LACKS_LAUNCH
ENTRY(cuLaunchKernelEx)
#endif

EXPORT int cuDriverGetVersion(int *version) { return *version = 12080, 0; }
EXPORT int cuGetErrorName(int code, const char **name)
{
    *name = code == UNSUPPORTED_PTX_VERSION ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" : "another";
    return 0;
}
EXPORT int cuGetErrorString(int code, const char **text)
{
    (void)code;
    return *text = "the provided PTX was compiled with an unsupported toolchain.", 0;
}
EXPORT int cuDeviceGetCount(int *count) { return *count = 1, 0; }
EXPORT int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    return *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 232448, 0; /* compute capability 9.0 */
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &something, device; }
EXPORT int cuCtxGetCurrent(void **context) { return *context = &something, 0; }
EXPORT int cuLibraryLoadData(void **library, ...)
{
    *library = &something;
#ifdef LAZY
    return 0;
#else
    return UNSUPPORTED_PTX_VERSION;
#endif
}
EXPORT int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    (void)name;
    return *kernel = library, 0;
}
EXPORT int cuKernelGetFunction(void **function, void *kernel)
{
    (void)function, (void)kernel;
    return UNSUPPORTED_PTX_VERSION;
}
