/* Opens the CUDA driver, resolves its functions and words its errors. */
#include "cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STRING_(x) #x
#define STRING(x) STRING_(x)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cuda_driver driver;
static char failure[512]; /* empty: usable */

static const struct {
    const char *name;
    size_t offset;
} entries[] = {
#define ENTRY(function) {STRING(function), offsetof(cuda_driver, function)},
    CUDA_ENTRIES(ENTRY)};

static void open_driver(void)
{
    const char *path = getenv("NVFP4KERN_LIBCUDA");
    if (!path || !*path) path = "libcuda.so.1";
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        snprintf(failure, sizeof failure, "no CUDA driver: %s", reason ? reason : path);
        return;
    }
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *function = dlsym(library, entries[i].name);
        if (!function) {
            snprintf(failure, sizeof failure, "the CUDA driver %s has no %s: it is too old, CUDA 12.4 is the oldest",
                     path, entries[i].name);
            return;
        }
        memcpy((char *)&driver + entries[i].offset, &function, sizeof function);
    }
    CUresult result = driver.cuInit(0);
    if (result != CUDA_SUCCESS) {
        cuda_driver_check(result, "cuInit", path);
        snprintf(failure, sizeof failure, "%s", nk_status_message());
    }
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
