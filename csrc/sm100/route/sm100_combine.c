/* combine: a plan, with this row's kernels. cuda/cuda_combine.h has all else. */
#include "sm100/sm100_backend.h"

#include "cuda/cuda_combine.h"

nk_status sm100_plan_combine(const nk_combine_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    static const cuda_combine_kernels kernels = CUDA_COMBINE_KERNELS(sm100, 32);
    return cuda_plan_combine(p, &kernels, settings, plan, choice);
}
