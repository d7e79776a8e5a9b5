#include "sm90_backend.h"

#define ARCH 90

static bool serves(nk_device device)
{
    const cuda_gpu *gpu = NULL;
    return device.type == NK_CUDA && cuda_gpu_of(device, &gpu) == NK_OK && gpu->compute_capability == ARCH;
}

static const char *why_not(void)
{
    const char *why = cuda_why_not();
    if (why) return why;
    for (int i = 0; i < cuda_gpu_count(); i++) {
        if (serves((nk_device){NK_CUDA, i})) return NULL;
    }
    return "no GPU of compute capability 9.0";
}

static nk_status warmup(nk_device device) { return cuda_warmup(device, "sm90"); }

const nk_backend nk_backend_sm90 = {
    .name = "sm90",
    .devices = "H100, H200, GH200",
    .device_type = NK_CUDA,
    .serves = serves,
    .why_not = why_not,
    .device_count = cuda_gpu_count,
    .warmup = warmup,
    .gemv = {sm90_plan_gemv, sm90_run_gemv},
    .gemm = {sm90_plan_gemv, sm90_run_gemv},
};
