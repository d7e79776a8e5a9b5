/* Lists the GPUs of this machine, with what plans know of each. */
#ifndef NK_CUDA_GPU_H
#define NK_CUDA_GPU_H

#include "nk_problem.h"

typedef struct cuda_gpu {
    int32_t index;
    int32_t handle;             /* the driver's */
    int32_t compute_capability; /* 80, 89, 90, .. */
    int32_t sms;                /* NVFP4KERN_SM_LIMIT lowers it */
    int32_t smem_per_cta;       /* bytes that one CTA can have; NVFP4KERN_SMEM_LIMIT lowers it */
    int32_t smem_per_sm;        /* bytes for all CTAs of an SM, what the hardware keeps included */
} cuda_gpu;

/* Whether NVFP4KERN_ASSUMED_GPU says what the only GPU is: calls are planned for it, and nothing runs. */
bool cuda_gpu_is_assumed(void);

#define CUDA_MAX_GPUS 64 /* a kernel's state has a bit for each; further ones are not seen */

/* Why no GPU can be used, or NULL. */
const char *cuda_why_not(void);
int32_t cuda_gpu_count(void);

#define CUDA_RESERVED_SMEM 1024 /* bytes of each CTA that the hardware keeps for itself */

/* CTAs of `smem_bytes` that an SM has shared memory for; threads and registers may allow fewer. */
static inline int32_t cuda_ctas_per_sm(const cuda_gpu *gpu, int32_t smem_bytes)
{
    return gpu->smem_per_sm / (smem_bytes + CUDA_RESERVED_SMEM);
}

/* Shared memory that a CTA can have where an SM shall have room for `ctas` of them. */
static inline int32_t cuda_smem_per_cta(const cuda_gpu *gpu, int32_t ctas)
{
    const int32_t room = gpu->smem_per_sm / ctas - CUDA_RESERVED_SMEM;
    return room < gpu->smem_per_cta ? room : gpu->smem_per_cta;
}

/* The facts of one GPU; never NULL on NK_OK. */
nk_status cuda_gpu_of(nk_device device, const cuda_gpu **gpu);

#endif
