/* quantize, dequantize and relayout: plans, with this row's kernels. cuda/cuda_quantize.h has all else. */
#include "sm100/sm100_backend.h"

nk_status sm100_plan_quantize(const nk_quantize_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    static const cuda_quantize_kernels kernels = CUDA_QUANTIZE_KERNELS(sm100);
    (void)settings;
    return cuda_plan_quantize(p, &kernels, plan, choice);
}

nk_status sm100_plan_dequantize(const nk_dequantize_problem *p, const nk_settings *settings, nk_plan *plan,
                                void *choice)
{
    static const cuda_dequantize_kernels kernels = CUDA_DEQUANTIZE_KERNELS(sm100);
    (void)settings;
    return cuda_plan_dequantize(p, &kernels, plan, choice);
}

nk_status sm100_plan_relayout(const nk_relayout_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    static const cuda_relayout_kernels kernels = CUDA_RELAYOUT_KERNELS(sm100);
    (void)settings;
    return cuda_plan_relayout(p, &kernels, plan, choice);
}
