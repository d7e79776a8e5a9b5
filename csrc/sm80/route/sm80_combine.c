/* combine: chooses a grid and launches. */
#include "sm80/sm80_backend.h"

#include "nk_format.h"
#include "sm80_combine_config.h"

static cuda_kernel *kernel_of(nk_dtype products)
{
    return products == NK_F16    ? &sm80_combine_halves
           : products == NK_BF16 ? &sm80_combine_bfloats
                                 : &sm80_combine_floats;
}

static bool is_wide(const uint8_t *data, int64_t row_stride, int64_t rows)
{
    return ((uint64_t)(uintptr_t)data | (rows > 1 ? (uint64_t)row_stride : 0)) % 16 == 0;
}

static int64_t size_of(nk_dtype dtype) { return dtype == NK_F32 ? 4 : 2; }

typedef struct combine_choice {
    cuda_kernel *kernel;
    sm80_combine_wide wide;
    int64_t ctas; /* of a token */
    int32_t threads;
    bool overlap;
} combine_choice;

NK_CHOICE_FITS(combine_choice);

static int64_t ctas_of_token(const nk_combine_problem *p, int32_t threads)
{
    return nk_ceil_div(p->h, (int64_t)threads * SM80_COMBINE_ELEMENTS);
}

/* As many threads as leave no SM without a CTA. */
static int32_t threads_of(const nk_combine_problem *p, const cuda_gpu *gpu)
{
    int32_t threads = SM80_COMBINE_MOST_THREADS;
    while (threads > SM80_COMBINE_FEWEST_THREADS && p->m < gpu->sms && p->m * ctas_of_token(p, threads) < gpu->sms)
        threads /= 2;
    return threads;
}

nk_status sm80_plan_combine(const nk_combine_problem *p, const nk_settings *settings, nk_plan *plan, void *choice)
{
    combine_choice *c = choice;
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    const int32_t threads = threads_of(p, gpu);
    *c = (combine_choice){
        .kernel = kernel_of(p->products.dtype),
        .wide = {.products = is_wide(p->products.data, p->products.row_stride, p->rows),
                 .out = is_wide(p->out.data, p->out.row_stride, p->m) && p->out.col_stride == size_of(p->out.dtype)},
        .ctas = ctas_of_token(p, threads),
        .threads = threads,
        .overlap = settings->pdl != NK_PDL_OFF,
    };
    NK_CHECK(p->m <= INT32_MAX && c->ctas <= 65535, NK_VALUE_ERROR,
             "combine: %lld tokens of %lld elements are more than one launch can have", (long long)p->m,
             (long long)p->h);
    plan->kernel = c->kernel->name;
    plan->why = "every row that a token selects is read once, at memory speed";
    plan->tile_m = 1;
    plan->tile_n = (int64_t)threads * SM80_COMBINE_ELEMENTS;
    plan->grid = p->m * c->ctas;
    plan->threads = threads;
    plan->batch_invariant = true;
    return NK_OK;
}

nk_status sm80_run_combine(const nk_combine_problem *p, const void *choice, const nk_exec *exec)
{
    combine_choice c = *(const combine_choice *)choice;
    cuda_grid grid = {.x = p->m, .y = c.ctas, .z = 1, .threads = c.threads, .overlap = c.overlap};
    void *args[] = {(void *)(uintptr_t)p, &c.wide};
    return cuda_launch(c.kernel, p->device, exec->stream, &grid, args);
}
