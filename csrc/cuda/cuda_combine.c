/* combine: chooses a grid and launches. */
#include "cuda_combine.h"

#include "combine_config.h"
#include "cuda_gpu.h"
#include "nk_format.h"

static cuda_kernel *combine_kernel(const cuda_combine_kernels *kernels, nk_dtype products)
{
    return products == NK_F16 ? kernels->fp16 : products == NK_BF16 ? kernels->bf16 : kernels->fp32;
}

/* Up to `most` bytes. */
static uint8_t aligned_to(const uint8_t *data, int64_t row_stride, int64_t rows, int32_t most)
{
    const uint64_t bits = (uint64_t)(uintptr_t)data | (rows > 1 ? (uint64_t)row_stride : 0);
    return bits % (uint64_t)most == 0 ? (uint8_t)most : bits % 16 == 0 ? 16 : 0;
}

static int64_t size_of(nk_dtype dtype) { return dtype == NK_F32 ? 4 : 2; }

typedef struct combine_choice {
    cuda_kernel *kernel;
    combine_aligned aligned;
    int64_t ctas; /* of a token */
    int32_t threads;
    bool overlap;
} combine_choice;

NK_CHOICE_FITS(combine_choice);

/* As many threads as leave no SM without a CTA; each makes so many elements of a token. */
static int32_t threads_of(const nk_combine_problem *p, const cuda_gpu *gpu, int64_t elements)
{
    int32_t threads = COMBINE_MOST_THREADS;
    while (threads > COMBINE_FEWEST_THREADS && p->m < gpu->sms &&
           p->m * nk_ceil_div(p->h, threads * elements) < gpu->sms)
        threads /= 2;
    return threads;
}

nk_status cuda_plan_combine(const nk_combine_problem *p, const cuda_combine_kernels *kernels,
                            const nk_settings *settings, nk_plan *plan, void *choice)
{
    combine_choice *c = choice;
    const cuda_gpu *gpu = NULL;
    NK_TRY(cuda_gpu_of(p->device, &gpu));
    const int64_t elements = COMBINE_ELEMENTS(kernels->bytes);
    const int32_t threads = threads_of(p, gpu, elements);
    const bool contiguous = p->out.col_stride == size_of(p->out.dtype);
    *c = (combine_choice){
        .kernel = combine_kernel(kernels, p->products.dtype),
        .aligned = {.products = aligned_to(p->products.data, p->products.row_stride, p->rows, kernels->bytes),
                    .out = contiguous ? aligned_to(p->out.data, p->out.row_stride, p->m, kernels->bytes) : 0},
        .ctas = nk_ceil_div(p->h, threads * elements),
        .threads = threads,
        .overlap = settings->pdl != NK_PDL_OFF,
    };
    NK_CHECK(p->m <= INT32_MAX && c->ctas <= 65535, NK_VALUE_ERROR,
             "combine: %lld tokens of %lld elements are more than one launch can have", (long long)p->m,
             (long long)p->h);
    plan->kernel = c->kernel->name;
    plan->why = "every row that a token selects is read once, at memory speed";
    plan->tile_m = 1;
    plan->tile_n = threads * elements;
    plan->grid = p->m * c->ctas;
    plan->threads = threads;
    plan->batch_invariant = true;
    return NK_OK;
}

nk_status cuda_run_combine(const nk_combine_problem *p, const void *choice, const nk_exec *exec)
{
    combine_choice c = *(const combine_choice *)choice;
    cuda_grid grid = {.x = p->m, .y = c.ctas, .z = 1, .threads = c.threads, .overlap = c.overlap};
    void *args[] = {(void *)(uintptr_t)p, &c.aligned};
    return cuda_launch(c.kernel, p->device, exec->stream, &grid, args);
}
