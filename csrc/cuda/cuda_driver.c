/* Opens the CUDA driver, resolves its functions and words its errors. */
#include "cuda_driver.h"

#include "nk_settings.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define STRING_(x) #x
#define STRING(x) STRING_(x)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cuda_driver driver;
static char failure[512]; /* empty: usable */
static char found[32] = "none";
static char needs[96];

static const struct {
    const char *name;
    size_t offset;
} entries[] = {
#define ENTRY(function) {STRING(function), offsetof(cuda_driver, function)},
    CUDA_ENTRIES(ENTRY)};

/* The name of the first entry that the library lacks, or NULL. */
static const char *resolve(void *library)
{
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *function = dlsym(library, entries[i].name);
        if (!function) return entries[i].name;
        memcpy((char *)&driver + entries[i].offset, &function, sizeof function);
    }
    return NULL;
}

static void open_library(void)
{
    int version;
    const char *path = nk_late_text(NK_LIBCUDA);
    if (!*path) path = "libcuda.so.1";
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        snprintf(failure, sizeof failure, "no CUDA driver: %s", reason ? reason : path);
        return;
    }
    const char *missing = resolve(library);
    if (driver.cuDriverGetVersion && driver.cuDriverGetVersion(&version) == CUDA_SUCCESS)
        snprintf(found, sizeof found, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    if (missing) {
        snprintf(failure, sizeof failure,
                 "the CUDA driver %s has no %s: it is too old, expected " CUDA_DRIVER_NEEDED ", found %s", path,
                 missing, found);
        return;
    }
    CUresult result = driver.cuInit(0);
    if (result != CUDA_SUCCESS) {
        cuda_driver_check(result, "cuInit", path);
        snprintf(failure, sizeof failure, "%s", nk_status_message());
    }
}

static void open_driver(void)
{
    open_library();
    snprintf(needs, sizeof needs, "a driver of " CUDA_DRIVER_NEEDED ", found %s", found);
}

const char *cuda_driver_needs(void)
{
    pthread_once(&once, open_driver);
    return needs;
}

const cuda_driver *cuda_driver_open(const char **why)
{
    pthread_once(&once, open_driver);
    if (failure[0]) {
        *why = failure;
        return NULL;
    }
    return &driver;
}

nk_status cuda_driver_check(CUresult result, const char *what, const char *subject)
{
    if (result == CUDA_SUCCESS) return NK_OK;
    const char *name = NULL, *text = NULL;
    driver.cuGetErrorName(result, &name);
    driver.cuGetErrorString(result, &text);
    return nk_fail(NK_BACKEND_ERROR, "%s of %s: %s (%s)", what, subject, name ? name : "unknown error",
                   text ? text : "no description");
}

nk_status cuda_driver_check_image(CUresult result, const char *what, const char *subject)
{
    char message[320];
    nk_status status = cuda_driver_check(result, what, subject);
    switch (result) {
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
        break;
    default:
        return status;
    }
    snprintf(message, sizeof message, "%s", nk_status_message());
    return nk_fail(status, "%s; the kernels need %s; on data-center GPUs the package " CUDA_COMPAT " will do", message,
                   cuda_driver_needs());
}
