/* sort_by_expert: a plan, with the kernel of the router's permutation. cuda/cuda_route_sort.h has all else. */
#include "sm100/sm100_backend.h"

#include "cuda/cuda_route_sort.h"

nk_status sm100_plan_sort_by_expert(const nk_sort_by_expert_problem *p, const nk_settings *settings, nk_plan *plan,
                                    void *choice)
{
    return cuda_plan_sort_by_expert(p, &sm100_route_sort, settings, plan, choice);
}
