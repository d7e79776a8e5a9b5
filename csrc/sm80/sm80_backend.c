#include "sm80_backend.h"

#define OLDEST 80

static bool serves(nk_device device)
{
    const cuda_gpu *gpu = NULL;
    return device.type == NK_CUDA && cuda_gpu_of(device, &gpu) == NK_OK && gpu->compute_capability >= OLDEST;
}

static const char *why_not(void)
{
    const char *why = cuda_why_not();
    if (why) return why;
    for (int i = 0; i < cuda_gpu_count(); i++) {
        if (serves((nk_device){NK_CUDA, i})) return NULL;
    }
    return "no GPU of compute capability 8.0 or newer";
}

static nk_status warmup(nk_device device) { return cuda_warmup(device, "sm80"); }

#define CELL(op) {sm80_plan_##op, sm80_run_##op}

const nk_backend nk_backend_sm80 = {
    .name = "sm80",
    .devices = "NVIDIA GPUs of compute capability 8.0 and newer",
    .device_type = NK_CUDA,
    .serves = serves,
    .why_not = why_not,
    .device_count = cuda_gpu_count,
    .warmup = warmup,
    .gemv = CELL(gemv),
    .gemm = CELL(gemm),
    .dual_gemm = CELL(dual_gemm),
    .grouped_gemm = CELL(grouped_gemm),
    .quantize = CELL(quantize),
    .dequantize = CELL(dequantize),
    .relayout = CELL(relayout),
    .route = CELL(route),
};
