/* Decides which GPUs a row serves, by their compute capability. */
#include "cuda_row.h"

#include "cuda_image.h"

#include <stdio.h>

static bool is_of_row(const nk_backend *row, const cuda_gpu *gpu)
{
    return gpu->compute_capability >= row->oldest && gpu->compute_capability <= row->newest;
}

bool cuda_row_serves(const nk_backend *row, nk_device device)
{
    const cuda_gpu *gpu = NULL;
    return device.type == NK_CUDA && cuda_gpu_of(device, &gpu) == NK_OK && is_of_row(row, gpu);
}

static void name_range(const nk_backend *row, char *text, size_t size)
{
    int oldest = row->oldest, newest = row->newest;
    int length = snprintf(text, size, "no GPU of compute capability %d.%d", oldest / 10, oldest % 10);
    if (newest == CUDA_ANY_NEWER)
        snprintf(text + length, size - (size_t)length, " or newer");
    else if (newest > oldest)
        snprintf(text + length, size - (size_t)length, " to %d.%d", newest / 10, newest % 10);
}

const char *cuda_row_why_not(const nk_backend *row)
{
    static _Thread_local char text[64];
    const char *why = cuda_why_not();
    for (int32_t i = 0; i < cuda_gpu_count() && !why; i++) {
        if (cuda_row_serves(row, (nk_device){NK_CUDA, i})) return NULL;
    }
    if (!why) name_range(row, text, sizeof text);
    return why ? why : text;
}

nk_status cuda_row_warmup(const nk_backend *row, nk_device device) { return cuda_load_row(device, row->name); }
