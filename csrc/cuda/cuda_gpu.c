/* Finds the GPUs, once per process. */
#include "cuda_gpu.h"

#include "cuda_driver.h"
#include "nk_settings.h"

#include <pthread.h>
#include <stdio.h>

static cuda_gpu gpus[CUDA_MAX_GPUS];
static int gpu_count;
static const char *why_not; /* NULL: there are GPUs */
static bool assumed;
static char failure[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static nk_status read_facts(const cuda_driver *driver, int index)
{
    CUdevice handle;
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
    NK_TRY(cuda_driver_check(driver->cuDeviceGet(&handle, index), "cuDeviceGet", "a GPU"));
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        CUresult result = driver->cuDeviceGetAttribute(wanted[i].value, wanted[i].attribute, handle);
        NK_TRY(cuda_driver_check(result, "cuDeviceGetAttribute", "a GPU"));
    }
    NK_TRY(nk_late_limit(NK_SM_LIMIT, sms, &sms)); /* a smaller device than this one, for tests */
    NK_TRY(nk_late_limit(NK_SMEM_LIMIT, per_cta, &per_cta));
    gpus[index] = (cuda_gpu){index, handle, 10 * major + minor, sms, per_cta, per_sm};
    return NK_OK;
}

static nk_status assume_gpu(const char *text)
{
    int capability, sms, per_cta, per_sm, end = 0;
    int count = sscanf(text, "%3d:%5d:%8d:%8d%n", &capability, &sms, &per_cta, &per_sm, &end);
    NK_CHECK(count == 4 && !text[end] && capability > 0 && sms > 0 && per_cta > 0 && per_sm >= per_cta,
             NK_BACKEND_ERROR, "NVFP4KERN_ASSUMED_GPU: '%.64s', expected numbers such as 90:132:232448:233472", text);
    gpus[0] = (cuda_gpu){0, 0, capability, sms, per_cta, per_sm};
    gpu_count = 1;
    assumed = true;
    return NK_OK;
}

static nk_status ask_driver(const cuda_driver *driver)
{
    NK_TRY(cuda_driver_check(driver->cuDeviceGetCount(&gpu_count), "cuDeviceGetCount", "the CUDA driver"));
    if (gpu_count > CUDA_MAX_GPUS) gpu_count = CUDA_MAX_GPUS;
    for (int i = 0; i < gpu_count; i++)
        NK_TRY(read_facts(driver, i));
    return NK_OK;
}

static void find_gpus(void)
{
    const char *text = nk_late_text(NK_ASSUMED_GPU);
    const cuda_driver *driver = *text ? NULL : cuda_driver_open(&why_not);
    if (!*text && !driver) return;
    nk_status status = *text ? assume_gpu(text) : ask_driver(driver);
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

bool cuda_gpu_is_assumed(void)
{
    (void)cuda_why_not();
    return assumed;
}

int32_t cuda_gpu_count(void) { return cuda_why_not() ? 0 : gpu_count; }

nk_status cuda_gpu_of(nk_device device, const cuda_gpu **gpu)
{
    const char *why = cuda_why_not();
    NK_CHECK(!why, NK_BACKEND_ERROR, "cuda:%d: %s", device.index, why);
    NK_CHECK(device.index >= 0 && device.index < gpu_count, NK_BACKEND_ERROR, "cuda:%d: there are %d GPUs",
             device.index, gpu_count);
    *gpu = &gpus[device.index];
    return NK_OK;
}
