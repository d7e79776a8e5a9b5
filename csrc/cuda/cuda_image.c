/* Loads images and makes their kernels ready on a device. */
#include "cuda_image.h"

#include "cuda_context.h"
#include "nk_settings.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---------------------------------------------------------------------------------------------------------------- */
/* Images                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

static nk_status load_from_bytes(const cuda_driver *driver, cuda_image *image, const void *bytes, CUlibrary *library)
{
    char log[1024] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    CUresult result = driver->cuLibraryLoadData(library, bytes, options, values, 2, NULL, NULL, 0);
    nk_status status = cuda_driver_check_image(result, "cuLibraryLoadData", image->name);
    if (!log[0]) return status;
    if (status == NK_OK) { /* PTX that does not compile; the driver says so only when it is asked for a kernel */
        driver->cuLibraryUnload(*library);
        return nk_fail(NK_BACKEND_ERROR, "cuLibraryLoadData of %s: %s", image->name, log);
    }
    char message[320];
    snprintf(message, sizeof message, "%s", nk_status_message());
    return nk_fail(status, "%s: %s", message, log);
}

/* <directory>/<image>.ptx, with the NUL that the driver wants at the end of PTX text. */
static nk_status load_file(const cuda_driver *driver, cuda_image *image, const char *directory, CUlibrary *library)
{
    char path[8192];
    struct stat facts;
    snprintf(path, sizeof path, "%s/%s.ptx", directory, image->name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &facts) < 0 || facts.st_size == 0) {
        if (file >= 0) close(file);
        return nk_fail(NK_BACKEND_ERROR, "NVFP4KERN_PTX_DIR: cannot read %s", path);
    }
    size_t size = (size_t)facts.st_size, done = 0;
    char *text = mmap(NULL, size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (ssize_t got = 1; text != MAP_FAILED && got > 0 && done < size; done += got > 0 ? (size_t)got : 0)
        got = read(file, text + done, size - done);
    close(file);
    NK_CHECK(text != MAP_FAILED, NK_BACKEND_ERROR, "NVFP4KERN_PTX_DIR: no memory for %s", path);
    nk_status status = done == size ? load_from_bytes(driver, image, text, library)
                                    : nk_fail(NK_BACKEND_ERROR, "NVFP4KERN_PTX_DIR: cannot read %s", path);
    munmap(text, size + 1);
    return status;
}

static nk_status load_image(const cuda_driver *driver, cuda_image *image, CUlibrary *library)
{
    *library = atomic_load_explicit(&image->library, memory_order_acquire);
    if (*library) return NK_OK;
    const char *directory = nk_late_text(NK_PTX_DIR);
    bool from_file = *directory;
    NK_TRY(from_file ? load_file(driver, image, directory, library)
                     : load_from_bytes(driver, image, image->begin, library));
    atomic_store_explicit(&image->library, *library, memory_order_release);
    return NK_OK;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Kernels                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Kernels wait for those before them from 9.0 on; machine code says what PTX it was made of. */
static nk_status find_can_wait(const cuda_context *c, CUkernel kernel, const char *name, bool *can_wait)
{
    int compiled_for;
    CUresult result =
        c->driver->cuKernelGetAttribute(&compiled_for, CU_FUNC_ATTRIBUTE_PTX_VERSION, kernel, c->gpu->handle);
    NK_TRY(cuda_driver_check(result, "cuKernelGetAttribute", name));
    *can_wait = compiled_for >= 90;
    return NK_OK;
}

/* Brings the code into the current context, and lets it have all the shared memory there is. */
static nk_status make_ready(const cuda_context *c, CUkernel kernel, const char *name)
{
    CUfunction function;
    int fixed;
    NK_TRY(cuda_driver_check_image(c->driver->cuKernelGetFunction(&function, kernel), "cuKernelGetFunction", name));
    CUresult result =
        c->driver->cuKernelGetAttribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, c->gpu->handle);
    NK_TRY(cuda_driver_check(result, "cuKernelGetAttribute", name));
    result = c->driver->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                             c->gpu->smem_per_cta - fixed, kernel, c->gpu->handle);
    return cuda_driver_check(result, "cuKernelSetAttribute", name);
}

static nk_status load_kernel(const cuda_context *c, cuda_kernel *kernel)
{
    CUlibrary library;
    CUkernel handle;
    bool can_wait;
    NK_TRY(load_image(c->driver, kernel->image, &library));
    NK_TRY(cuda_driver_check_image(c->driver->cuLibraryGetKernel(&handle, library, kernel->name), "cuLibraryGetKernel",
                                   kernel->name));
    NK_TRY(make_ready(c, handle, kernel->name));
    NK_TRY(find_can_wait(c, handle, kernel->name, &can_wait));
    atomic_store_explicit(&kernel->handle, handle, memory_order_relaxed);
    atomic_fetch_or_explicit(&kernel->can_wait, (uint64_t)can_wait << c->gpu->index, memory_order_relaxed);
    atomic_fetch_or_explicit(&kernel->ready, (uint64_t)1 << c->gpu->index, memory_order_release);
    return NK_OK;
}

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void lock(void) { pthread_mutex_lock(&loading); }
static void unlock(void) { pthread_mutex_unlock(&loading); }
static void keep_over_forks(void) { pthread_atfork(lock, unlock, unlock); }

/* Loading allocates, which a graph capture of this or another thread forbids unless this thread says that it may. */
static nk_status load_in_capture(const cuda_context *c, cuda_kernel *kernel)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    pthread_once(&once, keep_over_forks);
    c->driver->cuThreadExchangeStreamCaptureMode(&mode);
    lock();
    nk_status status = load_kernel(c, kernel);
    unlock();
    c->driver->cuThreadExchangeStreamCaptureMode(&mode);
    return status;
}

nk_status cuda_load(cuda_kernel *kernel, const cuda_context *c)
{
    bool ready = atomic_load_explicit(&kernel->ready, memory_order_acquire) >> c->gpu->index & 1;
    return ready ? NK_OK : load_in_capture(c, kernel);
}

nk_status cuda_load_row(nk_device device, const char *row)
{
    cuda_context context;
    nk_status status = NK_OK;
    NK_TRY(cuda_enter(device, &context));
    for (cuda_kernel *const *kernel = cuda_kernels; *kernel && status == NK_OK; kernel++) {
        if (strcmp((*kernel)->image->row, row) == 0) status = cuda_load(*kernel, &context);
    }
    cuda_leave(&context);
    return status;
}
