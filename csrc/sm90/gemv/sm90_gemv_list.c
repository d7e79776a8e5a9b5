/* Lists of groups with few tokens each on Hopper: a launch whose batches are the groups. */
#include "sm90/sm90_backend.h"

#include "sm90_gemv_scheduler.h"

_Static_assert(sizeof(sm90_gemv_list) <= CUDA_MAX_PARAM_BYTES, "a list is one kernel's parameters");
_Static_assert(SM90_GEMV_LIST_GROUPS == GEMM_MEMBERS, "one launch takes all members of a description");

/* The kernels multiply strides between batches by the group's number, and that of one batch may be any number. */
static nk_gemv_problem without_batches(const nk_gemm_problem *group)
{
    nk_gemv_problem p = *group;
    p.a.batch_stride = p.a.sf_batch_stride = p.b.batch_stride = p.b.sf_batch_stride = p.d.batch_stride = 0;
    p.row_scale.batch_stride = 0;
    return p;
}

static bool is_served(const nk_gemv_problem *p, const nk_gemv_problem *first)
{
    return p->m <= SM90_GEMV_MAX_TOKENS && p->n == first->n && p->k == first->k && p->k > 0 &&
           p->a.dtype == first->a.dtype && p->b.sf_layout == first->b.sf_layout &&
           sm90_gemv_access_of(p) != SM90_GEMV_NARROW && sm90_gemv_fits_32_bits(p);
}

/* A batch for each group, of as many tokens as the largest has. */
static nk_gemv_problem batch_per_group(const gemm_desc *d)
{
    nk_gemv_problem all = without_batches(d->members[0]);
    all.l = d->count;
    for (int i = 1; i < d->count; i++)
        all.m = d->members[i]->m > all.m ? d->members[i]->m : all.m;
    return all;
}

nk_status sm90_plan_gemv_list(const gemm_desc *d, const nk_settings *settings, nk_plan *found, sm90_gemv_choice *choice)
{
    const nk_gemv_problem all = batch_per_group(d);
    const nk_dtype dtype = all.a.dtype;
    const sm90_gemv_variant variant = {.kind = dtype == NK_F16    ? SM90_GEMV_FEW_FP16
                                               : dtype == NK_BF16 ? SM90_GEMV_FEW_BF16
                                                                  : SM90_GEMV_FEW_CODES,
                                       .is_list = true};
    /* Of one token, strides between tokens may be any number: those of the first group count for all here. */
    if (d->is_partial || d->activation || sm90_gemv_access_of(&all) == SM90_GEMV_NARROW) return NK_DECLINED;
    for (int i = 0; i < d->count; i++) {
        const nk_gemv_problem one = without_batches(d->members[i]);
        if (!is_served(&one, &all)) return NK_DECLINED;
    }
    NK_TRY(sm90_gemv_plan(&all, &variant, settings, found, choice));
    found->why = "one launch for all groups, which have few tokens: each reads its weights once";
    return NK_OK;
}

nk_status sm90_run_gemv_list(const gemm_desc *d, const sm90_gemv_choice *choice, const nk_exec *exec)
{
    const nk_gemv_problem all = batch_per_group(d);
    sm90_gemv_list list;
    for (int i = 0; i < d->count; i++) {
        const nk_gemv_problem one = without_batches(d->members[i]);
        list.group[i] = sm90_gemv_args_of(&one, choice);
        list.group[i].scheduler.tokens = (uint16_t)one.m;
    }
    return sm90_gemv_launch(&all, choice, (void *[]){&list}, exec);
}
