/* Stands in for the CUDA driver: contexts, devices, modules and launches.
 *
 * A launch runs to its end before cuLaunchKernelEx returns, so every stream is in order with every other. Its errors
 * come back from the call itself, with the report as text. */
#include "cuda_abi.h"
#include "checks/report.h"
#include "machine/machine.h"
#include "machine/memory.h"
#include "num/num_mma.h"
#include "parse/ptx.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t decoding = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char primary; /* its address is the context */
static _Thread_local void *contexts[16];
static _Thread_local int n_contexts;

EXPORT CUresult cuInit(unsigned flags)
{
    (void)flags;
    pthread_once(&once, sim_configure);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version) { return *version = 13000, CUDA_SUCCESS; }

static const struct {
    CUresult code;
    const char *name, *text;
} results[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX compilation failed"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_INVALID_CLUSTER_SIZE, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "cluster misconfiguration"},
};

EXPORT CUresult cuGetErrorName(CUresult code, const char **name)
{
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        if (results[i].code == code) return *name = results[i].name, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_VALUE;
}

/* Where this thread's last error had more to say, that. */
EXPORT CUresult cuGetErrorString(CUresult code, const char **text)
{
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        if (results[i].code == code) *text = results[i].text;
    if (code && *sim_last_error()) *text = sim_last_error();
    return CUDA_SUCCESS;
}

static CUresult fail(CUresult code, const char *text)
{
    sim_set_last_error(text);
    return code;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Devices and contexts                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuDeviceGetCount(int *count) { return *count = 1, CUDA_SUCCESS; }

EXPORT CUresult cuDeviceGet(int *device, int ordinal)
{
    *device = 0;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    switch (attribute) {
    case ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = 1024;
        break;
    case ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
        *value = 48 * 1024;
        break;
    case ATTRIBUTE_WARP_SIZE:
        *value = LANES;
        break;
    case ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = sim_config.sms;
        break;
    case ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        *value = sim_config.threads_per_sm;
        break;
    case ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = sim_config.capability / 10;
        break;
    case ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = sim_config.capability % 10;
        break;
    case ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        *value = sim_config.smem_per_sm;
        break;
    case ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = sim_config.smem_per_cta;
        break;
    case ATTRIBUTE_CLUSTER_LAUNCH:
        *value = sim_has_clusters();
        break;
    default:
        return fail(CUDA_ERROR_INVALID_VALUE, "ptxsim: a device attribute that it does not know");
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(void **context, int device)
{
    (void)device;
    *context = &primary;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(void **context)
{
    *context = n_contexts ? contexts[n_contexts - 1] : NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(void *context)
{
    if (n_contexts == 16) return fail(CUDA_ERROR_INVALID_CONTEXT, "ptxsim: 16 contexts on one thread's stack");
    contexts[n_contexts++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(void **context)
{
    if (!n_contexts) return CUDA_ERROR_INVALID_CONTEXT;
    void *top = contexts[--n_contexts];
    if (context) *context = top;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(void *context)
{
    n_contexts = 1;
    contexts[0] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) { return CUDA_SUCCESS; }
EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) { return (void)mode, CUDA_SUCCESS; }

/* ---------------------------------------------------------------------------------------------------------------- */
/* Modules                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuLibraryLoadData(void **library, const void *code, const int *options, void **values, unsigned n,
                                  const void *library_options, void **library_values, unsigned n_library)
{
    (void)library_options, (void)library_values, (void)n_library;
    char *log = NULL, scratch[512];
    size_t room = 0;
    for (unsigned i = 0; i < n; i++) {
        if (options[i] == 5) log = values[i];                     /* CU_JIT_ERROR_LOG_BUFFER */
        if (options[i] == 6) room = (size_t)(uintptr_t)values[i]; /* .._SIZE_BYTES */
    }
    const unsigned char *bytes = code;
    for (int i = 0; i < 4; i++)
        if (bytes[i] < 9 || bytes[i] > 126) return fail(CUDA_ERROR_INVALID_PTX, "ptxsim: an image that is no PTX text");
    module *m = sim_module_load(code, log ? log : scratch, log ? room : sizeof scratch);
    if (!m) return fail(CUDA_ERROR_INVALID_PTX, log ? "a PTX compilation failed" : scratch);
    *library = m;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryUnload(void *library) { return sim_module_free(library), CUDA_SUCCESS; }

EXPORT CUresult cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    *kernel = sim_module_entry(library, name);
    return *kernel ? CUDA_SUCCESS : fail(CUDA_ERROR_NOT_FOUND, "ptxsim: the image has no kernel of this name");
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned *count, void *library)
{
    *count = ((const module *)library)->n_entries;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryEnumerateKernels(void **kernels, unsigned count, void *library)
{
    module *m = library;
    for (unsigned i = 0; i < count && i < m->n_entries; i++)
        kernels[i] = &m->entries[i];
    return CUDA_SUCCESS;
}

/* Decoded when first asked for. */
EXPORT CUresult cuKernelGetFunction(void **function, void *kernel)
{
    entry *e = kernel;
    pthread_mutex_lock(&decoding);
    const program *p = sim_program_of(e->module, e);
    pthread_mutex_unlock(&decoding);
    *function = kernel;
    return p ? CUDA_SUCCESS : fail(CUDA_ERROR_INVALID_PTX, e->module->error);
}

EXPORT CUresult cuKernelGetAttribute(int *value, int attribute, void *kernel, int device)
{
    void *function;
    entry *e = kernel;
    (void)device;
    CUresult result = cuKernelGetFunction(&function, kernel);
    if (result) return result;
    switch (attribute) {
    case FUNCTION_MAX_THREADS_PER_BLOCK:
        *value = e->max_threads ? (int)e->max_threads : 1024;
        break;
    case FUNCTION_SHARED_SIZE_BYTES:
        *value = (int)e->program->static_smem;
        break;
    case FUNCTION_LOCAL_SIZE_BYTES:
        *value = (int)e->program->local_bytes;
        break;
    case FUNCTION_NUM_REGS:
        *value = 32;
        break;
    case FUNCTION_PTX_VERSION:
        *value = e->module->target;
        break;
    case FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = e->max_dynamic_smem;
        break;
    default:
        return fail(CUDA_ERROR_INVALID_VALUE, "ptxsim: a function attribute that it does not know");
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelSetAttribute(int attribute, int value, void *kernel, int device)
{
    void *function;
    entry *e = kernel;
    (void)device;
    CUresult result = cuKernelGetFunction(&function, kernel);
    if (result) return result;
    if (attribute == FUNCTION_PREFERRED_SHARED_MEMORY_CARVEOUT) return CUDA_SUCCESS;
    if (attribute == FUNCTION_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) return e->large_clusters = value, CUDA_SUCCESS;
    if (attribute != FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        return fail(CUDA_ERROR_INVALID_VALUE, "ptxsim: a function attribute that it does not know");
    if (value < 0 || value + (int)e->program->static_smem > sim_config.smem_per_cta)
        return fail(CUDA_ERROR_INVALID_VALUE, "ptxsim: more shared memory than a CTA can have");
    e->max_dynamic_smem = value;
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Launches                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

static const char *why_not(const launch *l, const entry *e)
{
    uint64_t threads = (uint64_t)l->block.x * l->block.y * l->block.z;
    uint64_t peers = (uint64_t)l->cluster.x * l->cluster.y * l->cluster.z;
    if (!l->grid.x || !l->grid.y || !l->grid.z || !threads) return "ptxsim: an empty grid or block";
    if (l->grid.x > INT32_MAX || l->grid.y > 65535 || l->grid.z > 65535) return "ptxsim: too large a grid";
    if (threads > 1024) return "ptxsim: more than 1024 threads in a CTA";
    if (e->max_threads && threads > e->max_threads) return "ptxsim: more threads than .maxntid allows";
    if ((int)l->smem_bytes > e->max_dynamic_smem)
        return "ptxsim: more dynamic shared memory than the kernel was allowed";
    if ((int)(l->smem_bytes + l->program->static_smem) > sim_config.smem_per_cta)
        return "ptxsim: more shared memory than a CTA can have";
    if (peers > 1 && !sim_has_clusters()) return "ptxsim: clusters need compute capability 9.0, and 12.0 has none";
    if (peers > MOST_PEERS) return "ptxsim: more than 16 CTAs in a cluster";
    if (peers > PORTABLE_PEERS && !e->large_clusters)
        return "ptxsim: more than 8 CTAs in a cluster want CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED";
    if (l->grid.x % l->cluster.x || l->grid.y % l->cluster.y || l->grid.z % l->cluster.z)
        return "ptxsim: a grid that is no multiple of the cluster";
    return NULL;
}

static uint32_t resident_ctas(const launch *l)
{
    uint32_t threads = l->block.x * l->block.y * l->block.z;
    uint32_t bytes = l->smem_bytes + l->program->static_smem + 1024;
    uint32_t per_sm = (uint32_t)sim_config.threads_per_sm / ((threads + 31) / 32 * 32);
    const uint32_t by_smem = (uint32_t)sim_config.smem_per_sm / bytes;
    if (per_sm > by_smem) per_sm = by_smem;
    if (per_sm > (uint32_t)sim_config.ctas_per_sm) per_sm = (uint32_t)sim_config.ctas_per_sm;
    return (per_sm ? per_sm : 1) * (uint32_t)sim_config.sms;
}

/* What a launch of `function` would be. */
static CUresult configure(const CUlaunchConfig *config, void *function, launch *l)
{
    entry *e = function;
    void *same;
    CUresult result = cuKernelGetFunction(&same, function);
    if (result) return result;
    const program *p = e->program;
    *l = (launch){.program = p, .smem_bytes = config->shared_bytes, .cluster = {1, 1, 1}};
    l->grid = (dims){config->grid[0], config->grid[1], config->grid[2]};
    l->block = (dims){config->block[0], config->block[1], config->block[2]};
    if (p->cluster[0]) l->cluster = (dims){p->cluster[0], p->cluster[1], p->cluster[2]};
    for (unsigned i = 0; i < config->n_attributes; i++) {
        const CUlaunchAttribute *a = &config->attributes[i];
        if (a->id == LAUNCH_CLUSTER_DIMENSION)
            l->cluster = (dims){a->value.dims[0], a->value.dims[1], a->value.dims[2]};
        if (a->id == LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION) l->overlaps = a->value.dims[0];
    }
    const char *why = why_not(l, e);
    if (why) return fail(CUDA_ERROR_INVALID_VALUE, why);
    l->resident = resident_ctas(l);
    return CUDA_SUCCESS;
}

/* This GPU is not made of parts: clusters find room wherever as many CTAs do. It has none that never find any. */
EXPORT CUresult cuOccupancyMaxActiveClusters(int *clusters, void *function, const CUlaunchConfig *config)
{
    launch l;
    CUresult result = configure(config, function, &l);
    if (result) return result;
    *clusters = (int)(l.resident / (l.cluster.x * l.cluster.y * l.cluster.z));
    return *clusters ? CUDA_SUCCESS : fail(CUDA_ERROR_INVALID_CLUSTER_SIZE, "ptxsim: no room for such a cluster");
}

static CUresult list_launch(const launch *l)
{
    FILE *to = fopen(sim_config.launches_to, "a");
    if (!to) return fail(CUDA_ERROR_INVALID_VALUE, "ptxsim: PTXSIM_LAUNCHES_TO cannot be written");
    fprintf(to, "%s %u %u %u\n", l->program->name, l->grid.x, l->grid.y, l->grid.z);
    fclose(to);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, void *function, void **params, void **extra)
{
    launch l;
    if (extra) return fail(CUDA_ERROR_NOT_SUPPORTED, "ptxsim: launch parameters in `extra`");
    CUresult result = configure(config, function, &l);
    if (result) return result;
    if (sim_config.launches_to) return list_launch(&l);
    const program *p = l.program;
    l.number = __atomic_fetch_add(&sim_config.launches, 1, __ATOMIC_RELAXED);
    uint64_t mixed = sim_config.seed * 1000003 + l.number;
    l.seed = sim_random(&mixed);
    uint8_t *bytes = aligned_alloc(128, (p->param_bytes + 255) / 128 * 128);
    for (uint32_t i = 0; i < p->n_params; i++)
        memcpy(bytes + p->params[i].offset, params[i], p->params[i].size);
    l.params = bytes;
    l.mma = num_mma_model_of(sim_config.capability);
    extent *extents = sim_memory_extents(&l.n_extents);
    l.extents = extents;
    bool fine = sim_launch_run(&l);
    free(extents);
    free(bytes);
    return fine ? CUDA_SUCCESS : fail(CUDA_ERROR_LAUNCH_FAILED, l.error);
}

EXPORT CUresult cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared_bytes, void *stream, void **params, void **extra)
{
    CUlaunchConfig config = {{gx, gy, gz}, {bx, by, bz}, shared_bytes, stream, NULL, 0};
    return cuLaunchKernelEx(&config, function, params, extra);
}
