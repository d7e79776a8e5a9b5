/* combine: a plan, with the portable kernels. cuda/cuda_combine.h has all else. */
#include "sm80/sm80_backend.h"

#include "cuda/cuda_combine.h"

nk_status sm80_plan_combine(const nk_combine_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    static const cuda_combine_kernels kernels = CUDA_COMBINE_KERNELS(sm80, 16);
    return cuda_plan_combine(p, &kernels, settings, plan, choice);
}
