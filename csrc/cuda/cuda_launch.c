#include "cuda_launch.h"

#include "driver.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_GPUS 64

typedef struct gpu_state {
    cuda_gpu facts;
    CUdevice handle;
    _Atomic(CUcontext) primary; /* retained for the life of the process, as frameworks do */
} gpu_state;

static gpu_state gpus[MAX_GPUS];
static int gpu_count;
static const char *why_not; /* NULL: there are GPUs */
static char failure[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static const cuda_driver *driver;

/* ---------------------------------------------------------------------------------------------------------------- */
/* GPUs                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

static void lock_loading(void) { pthread_mutex_lock(&loading); }
static void unlock_loading(void) { pthread_mutex_unlock(&loading); }

/* A smaller device than this one, for tests: the number in the environment where it is less. */
static int limited(const char *variable, int most)
{
    const char *text = getenv(variable);
    long limit = text && *text ? strtol(text, NULL, 10) : most;
    return limit > 0 && limit < most ? (int)limit : most;
}

static nk_status read_facts(int index)
{
    gpu_state *gpu = &gpus[index];
    int major, minor, sms, per_cta, per_sm;
    const struct {
        CUdevice_attribute attribute;
        int *value;
    } wanted[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &sms},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &per_cta},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, &per_sm},
    };
    NK_TRY(cuda_driver_check(driver->cuDeviceGet(&gpu->handle, index), "cuDeviceGet", "a GPU"));
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        CUresult result = driver->cuDeviceGetAttribute(wanted[i].value, wanted[i].attribute, gpu->handle);
        NK_TRY(cuda_driver_check(result, "cuDeviceGetAttribute", "a GPU"));
    }
    sms = limited("NVFP4KERN_SM_LIMIT", sms);
    per_cta = limited("NVFP4KERN_SMEM_LIMIT", per_cta);
    gpu->facts = (cuda_gpu){index, 10 * major + minor, sms, per_cta, per_sm};
    return NK_OK;
}

static void find_gpus(void)
{
    driver = cuda_driver_open(&why_not);
    if (!driver) return;
    pthread_atfork(lock_loading, unlock_loading, unlock_loading);
    nk_status status = cuda_driver_check(driver->cuDeviceGetCount(&gpu_count), "cuDeviceGetCount", "the CUDA driver");
    if (gpu_count > MAX_GPUS) gpu_count = MAX_GPUS;
    for (int i = 0; i < gpu_count && status == NK_OK; i++)
        status = read_facts(i);
    if (status != NK_OK) snprintf(failure, sizeof failure, "%s", nk_status_message());
    if (status == NK_OK && gpu_count == 0) snprintf(failure, sizeof failure, "the CUDA driver sees no GPU");
    if (failure[0]) {
        gpu_count = 0;
        why_not = failure;
    }
}

const char *cuda_why_not(void)
{
    pthread_once(&once, find_gpus);
    return why_not;
}

int32_t cuda_gpu_count(void) { return cuda_why_not() ? 0 : gpu_count; }

static nk_status state_of(nk_device device, gpu_state **gpu)
{
    const char *why = cuda_why_not();
    NK_CHECK(!why, NK_BACKEND_ERROR, "cuda:%d: %s", device.index, why);
    NK_CHECK(device.index >= 0 && device.index < gpu_count, NK_BACKEND_ERROR, "cuda:%d: there are %d GPUs",
             device.index, gpu_count);
    *gpu = &gpus[device.index];
    return NK_OK;
}

nk_status cuda_gpu_of(nk_device device, const cuda_gpu **gpu)
{
    gpu_state *state = NULL;
    NK_TRY(state_of(device, &state));
    *gpu = &state->facts;
    return NK_OK;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Contexts: the device's primary one for the call, the caller's afterwards                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

static nk_status enter(gpu_state *gpu, bool *pushed)
{
    CUcontext current, primary = atomic_load_explicit(&gpu->primary, memory_order_acquire);
    *pushed = false;
    if (!primary) { /* two threads may both retain it, which is harmless */
        CUresult result = driver->cuDevicePrimaryCtxRetain(&primary, gpu->handle);
        NK_TRY(cuda_driver_check(result, "cuDevicePrimaryCtxRetain", "the GPU"));
        atomic_store_explicit(&gpu->primary, primary, memory_order_release);
    }
    NK_TRY(cuda_driver_check(driver->cuCtxGetCurrent(&current), "cuCtxGetCurrent", "this thread"));
    if (current == primary) return NK_OK;
    NK_TRY(cuda_driver_check(driver->cuCtxPushCurrent(primary), "cuCtxPushCurrent", "the primary context"));
    *pushed = true;
    return NK_OK;
}

static void leave(bool pushed)
{
    CUcontext popped;
    if (pushed) driver->cuCtxPopCurrent(&popped);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Loading                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

static nk_status load_bytes(cuda_image *image, const void *bytes, CUlibrary *library)
{
    char log[1024] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    CUresult result = driver->cuLibraryLoadData(library, bytes, options, values, 2, NULL, NULL, 0);
    nk_status status = cuda_driver_check(result, "cuLibraryLoadData", image->name);
    if (!log[0]) return status;
    if (status == NK_OK) { /* PTX that does not compile; the driver would only say so when asked for a kernel */
        driver->cuLibraryUnload(*library);
        return nk_fail(NK_BACKEND_ERROR, "cuLibraryLoadData of %s: %s", image->name, log);
    }
    char message[256];
    snprintf(message, sizeof message, "%s", nk_status_message());
    return nk_fail(status, "%s: %s", message, log);
}

/* <directory>/<image>.ptx, with the NUL that the driver wants at the end of PTX text. */
static nk_status load_file(cuda_image *image, const char *directory, CUlibrary *library)
{
    char path[4096];
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
    nk_status status = done == size ? load_bytes(image, text, library)
                                    : nk_fail(NK_BACKEND_ERROR, "NVFP4KERN_PTX_DIR: cannot read %s", path);
    munmap(text, size + 1);
    return status;
}

/* Under the lock. */
static nk_status load_image(cuda_image *image, CUlibrary *library)
{
    *library = atomic_load_explicit(&image->library, memory_order_acquire);
    if (*library) return NK_OK;
    const char *directory = getenv("NVFP4KERN_PTX_DIR");
    bool from_file = directory && *directory;
    NK_TRY(from_file ? load_file(image, directory, library) : load_bytes(image, image->begin, library));
    atomic_store_explicit(&image->library, *library, memory_order_release);
    return NK_OK;
}

/* Kernels wait for those before them from 9.0 on; machine code says what PTX it was made of. */
static nk_status find_can_wait(const gpu_state *gpu, CUkernel kernel, const char *name, bool *can_wait)
{
    int compiled_for;
    CUresult result = driver->cuKernelGetAttribute(&compiled_for, CU_FUNC_ATTRIBUTE_PTX_VERSION, kernel, gpu->handle);
    NK_TRY(cuda_driver_check(result, "cuKernelGetAttribute", name));
    *can_wait = compiled_for >= 90;
    return NK_OK;
}

/* Brings the code into the current context, and lets it have all the shared memory there is. */
static nk_status ready_kernel(const gpu_state *gpu, CUkernel kernel, const char *name)
{
    CUfunction function;
    int fixed;
    NK_TRY(cuda_driver_check(driver->cuKernelGetFunction(&function, kernel), "cuKernelGetFunction", name));
    CUresult result = driver->cuKernelGetAttribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, gpu->handle);
    NK_TRY(cuda_driver_check(result, "cuKernelGetAttribute", name));
    result = driver->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                          gpu->facts.smem_per_cta - fixed, kernel, gpu->handle);
    return cuda_driver_check(result, "cuKernelSetAttribute", name);
}

static nk_status load_kernel(cuda_kernel *kernel, const gpu_state *gpu)
{
    CUlibrary library;
    CUkernel handle;
    NK_TRY(load_image(kernel->image, &library));
    NK_TRY(cuda_driver_check(driver->cuLibraryGetKernel(&handle, library, kernel->name), "cuLibraryGetKernel",
                             kernel->name));
    bool can_wait;
    NK_TRY(ready_kernel(gpu, handle, kernel->name));
    NK_TRY(find_can_wait(gpu, handle, kernel->name, &can_wait));
    atomic_store_explicit(&kernel->handle, handle, memory_order_relaxed);
    atomic_fetch_or_explicit(&kernel->can_wait, (uint64_t)can_wait << gpu->facts.index, memory_order_relaxed);
    atomic_fetch_or_explicit(&kernel->ready, (uint64_t)1 << gpu->facts.index, memory_order_release);
    return NK_OK;
}

/* Loading allocates, which a graph capture of this or another thread forbids unless this thread says that it may. */
#define LOADING(status, call)                                       \
    do {                                                            \
        CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED; \
        driver->cuThreadExchangeStreamCaptureMode(&mode_);          \
        lock_loading();                                             \
        (status) = (call);                                          \
        unlock_loading();                                           \
        driver->cuThreadExchangeStreamCaptureMode(&mode_);          \
    } while (0)

/* ---------------------------------------------------------------------------------------------------------------- */
/* Launching                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

typedef struct launch_config {
    CUlaunchConfig config; /* points to: */
    CUlaunchAttribute attributes[2];
} launch_config;

static void configure(const cuda_grid *grid, void *stream, bool can_wait, launch_config *l)
{
    unsigned count = 0;
    if (grid->cluster > 1) {
        l->attributes[count++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                                     .value.clusterDim = {1, (unsigned)grid->cluster, 1}};
    }
    if (grid->overlap && can_wait) {
        l->attributes[count++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                                     .value.programmaticStreamSerializationAllowed = 1};
    }
    l->config = (CUlaunchConfig){
        .gridDimX = (unsigned)grid->x,
        .gridDimY = (unsigned)grid->y,
        .gridDimZ = (unsigned)grid->z,
        .blockDimX = (unsigned)grid->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = (unsigned)grid->smem_bytes,
        .hStream = stream,
        .attrs = l->attributes,
        .numAttrs = count,
    };
}

/* A CUkernel may be launched as the CUfunction of the current context. */
static nk_status loaded(cuda_kernel *kernel, const gpu_state *gpu, CUfunction *function, bool *can_wait)
{
    if (!(atomic_load_explicit(&kernel->ready, memory_order_acquire) >> gpu->facts.index & 1)) {
        nk_status status;
        LOADING(status, load_kernel(kernel, gpu));
        NK_TRY(status);
    }
    *function = atomic_load_explicit(&kernel->handle, memory_order_relaxed);
    *can_wait = atomic_load_explicit(&kernel->can_wait, memory_order_relaxed) >> gpu->facts.index & 1;
    return NK_OK;
}

static nk_status launch(cuda_kernel *kernel, const gpu_state *gpu, void *stream, const cuda_grid *grid,
                        void *const args[])
{
    CUfunction function;
    launch_config l;
    bool can_wait;
    NK_TRY(loaded(kernel, gpu, &function, &can_wait));
    configure(grid, stream, can_wait, &l);
    return cuda_driver_check(driver->cuLaunchKernelEx(&l.config, function, (void **)(uintptr_t)args, NULL),
                             "cuLaunchKernelEx", kernel->name);
}

static nk_status count_clusters(cuda_kernel *kernel, const gpu_state *gpu, const cuda_grid *grid, int32_t *clusters)
{
    CUfunction function;
    launch_config l;
    bool can_wait;
    NK_TRY(loaded(kernel, gpu, &function, &can_wait));
    configure(grid, NULL, can_wait, &l);
    CUresult result = driver->cuOccupancyMaxActiveClusters(clusters, function, &l.config);
    if (result == CUDA_ERROR_INVALID_CLUSTER_SIZE) {
        *clusters = 0;
        return NK_OK;
    }
    return cuda_driver_check(result, "cuOccupancyMaxActiveClusters", kernel->name);
}

nk_status cuda_warmup(nk_device device, const char *row)
{
    gpu_state *gpu = NULL;
    CUfunction function;
    bool pushed, can_wait;
    nk_status status = NK_OK;
    NK_TRY(state_of(device, &gpu));
    NK_TRY(enter(gpu, &pushed));
    for (cuda_kernel *const *kernel = cuda_kernels; *kernel && status == NK_OK; kernel++) {
        if (strcmp((*kernel)->image->row, row) == 0) status = loaded(*kernel, gpu, &function, &can_wait);
    }
    leave(pushed);
    return status;
}

nk_status cuda_launch(cuda_kernel *kernel, nk_device device, void *stream, const cuda_grid *grid, void *const args[])
{
    gpu_state *gpu = NULL;
    bool pushed;
    NK_TRY(state_of(device, &gpu));
    NK_CHECK(grid->x <= INT32_MAX && grid->y <= 65535 && grid->z <= 65535, NK_VALUE_ERROR,
             "%s: a grid of %lld x %lld x %lld CTAs is more than one launch can have", kernel->name, (long long)grid->x,
             (long long)grid->y, (long long)grid->z);
    NK_TRY(enter(gpu, &pushed));
    nk_status status = launch(kernel, gpu, stream, grid, args);
    leave(pushed);
    return status;
}

_Static_assert(sizeof(cuda_tensor_map) == sizeof(CUtensorMap), "what the driver fills");

static nk_status encode_map(const cuda_boxes *b, cuda_tensor_map *map)
{
    static const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
    CUresult result = driver->cuTensorMapEncodeTiled(
        (CUtensorMap *)map, CU_TENSOR_MAP_DATA_TYPE_UINT8, (cuuint32_t)b->rank, (void *)(uintptr_t)b->at, b->dims,
        b->strides, b->box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
        b->swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return cuda_driver_check(result, "cuTensorMapEncodeTiled", b->name);
}

/* The driver wants a context for it. */
nk_status cuda_encode_maps(nk_device device, int32_t count, const cuda_boxes boxes[], cuda_tensor_map *const maps[])
{
    gpu_state *gpu = NULL;
    bool pushed;
    NK_TRY(state_of(device, &gpu));
    NK_TRY(enter(gpu, &pushed));
    nk_status status = NK_OK;
    for (int32_t i = 0; i < count && !status; i++)
        status = encode_map(&boxes[i], maps[i]);
    leave(pushed);
    return status;
}

nk_status cuda_clusters_at_once(cuda_kernel *kernel, nk_device device, const cuda_grid *grid, int32_t *clusters)
{
    gpu_state *gpu = NULL;
    bool pushed;
    NK_TRY(state_of(device, &gpu));
    NK_TRY(enter(gpu, &pushed));
    nk_status status = count_clusters(kernel, gpu, grid, clusters);
    leave(pushed);
    return status;
}
