/* The GPUs of this machine, and what plans know of each. */
#ifndef NK_CUDA_GPU_H
#define NK_CUDA_GPU_H

#include "nk_problem.h"

typedef struct cuda_gpu {
    int32_t index;
    int32_t handle;             /* the driver's */
    int32_t compute_capability; /* 80, 89, 90, .. */
    int32_t sms;                /* NVFP4KERN_SM_LIMIT lowers it */
    int32_t smem_per_cta;       /* bytes that one CTA can have; NVFP4KERN_SMEM_LIMIT lowers it */
    int32_t smem_per_sm;        /* bytes for all CTAs of an SM; the hardware reserves 1024 of them for each CTA */
} cuda_gpu;

#define CUDA_MAX_GPUS 64 /* a kernel's state has a bit for each; further ones are not seen */

/* Why no GPU can be used, or NULL. */
const char *cuda_why_not(void);
int32_t cuda_gpu_count(void);

/* The facts of one GPU; never NULL on NK_OK. */
nk_status cuda_gpu_of(nk_device device, const cuda_gpu **gpu);

#endif
