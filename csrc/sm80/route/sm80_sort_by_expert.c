/* sort_by_expert: a plan, with the portable kernel. cuda/cuda_route_sort.h has all else. */
#include "sm80/sm80_backend.h"

#include "cuda/cuda_route_sort.h"

nk_status sm80_plan_sort_by_expert(const nk_sort_by_expert_problem *p, const nk_settings *settings, nk_plan *plan,
                                   void *choice)
{
    return cuda_plan_sort_by_expert(p, &sm80_sort_by_expert, settings, plan, choice);
}
