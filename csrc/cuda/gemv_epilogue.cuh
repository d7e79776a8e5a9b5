/* The epilogue of the kernels for few tokens on Blackwell: from the partial sums of warps to elements of D. Sums are
 * added in a fixed order: those of a CTA's warps, then, if a cluster splits K, those of its CTAs. */
#ifndef NK_GEMV_EPILOGUE_CUH
#define NK_GEMV_EPILOGUE_CUH

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared.cuh"
#include "epilogue.cuh"
#include "gemv_steps.cuh"

__device__ inline float *partials_of_cta(const gemv_scheduler &s)
{
    return (float *)((uint8_t *)smem + gemv_partials_at(s.k_steps, s.tokens));
}

/* The first warp that has steps of a tile. */
__device__ inline int first_warp(const gemv_scheduler &s, const warp_schedule &w, int tile)
{
    return tile * w.k_steps / s.steps_per_warp;
}

/* Where this warp keeps its sums of a tile's first row. */
__device__ inline float *warp_partials(const gemv_scheduler &s, const warp_schedule &w, int tile)
{
    const int split = (int)(threadIdx.x >> 5) - first_warp(s, w, tile);
    return partials_of_cta(s) + (split * s.rows + tile * GEMV_TILE_ROWS) * s.tokens;
}

/* How many warps have sums of a position. */
__device__ inline int splits_of_position(const gemv_scheduler &s, const warp_schedule &w, int position)
{
    const int tile = position / GEMV_TILE_ROWS, last = (tile + 1) * w.k_steps - 1;
    return w.k_steps ? last / s.steps_per_warp - first_warp(s, w, tile) + 1 : 0;
}

__device__ inline uint32_t inbox_mbarrier_address() { return shared_address(&head().inbox_full); }

/* How many rows this CTA has the epilogue of. */
__device__ inline int own_epilogue_rows(const gemv_scheduler &s, const warp_schedule &w)
{
    return max(0, min(s.epilogue_rows, w.positions - w.rank * s.epilogue_rows));
}

/* Tells the other CTAs that the inbox is ready, without waiting for them. As init_inbox() of sm90_gemv_sums.cuh, but
 * for the types: each kernel has shared memory and a scheduler of its own. */
__device__ inline void announce_inbox(const gemv_scheduler &s)
{
    if (s.cluster == 1) return;
    if (threadIdx.x == 0) {
        mbarrier_init(inbox_mbarrier_address(), 1);
        fence_mbarrier_init();
    }
    __syncwarp();
    barrier_cluster_arrive_relaxed_aligned();
}

/* Needs a barrier of the CTA after announce_inbox(). */
__device__ inline void expect_partial_sums(const gemv_scheduler &s, const warp_schedule &w)
{
    if (s.cluster > 1 && threadIdx.x == 0)
        mbarrier_arrive_expect_tx(inbox_mbarrier_address(),
                                  (uint32_t)(own_epilogue_rows(s, w) * s.tokens * s.cluster) * 4);
}

/* at[0] + at[stride] + .., in this order */
__device__ inline float sum_in_order(const float *at, int count, int stride)
{
    float sum = 0;
    for (int i = 0; i < count; i++)
        sum += at[i * stride];
    return sum;
}

__device__ inline void store_sum(const nk_gemm_problem &p, const warp_schedule &w, bool blocked, int token,
                                 int position, float sum)
{
    const int64_t n = gemv_row(w.first + position, blocked);
    const nk_row_scale &scale = p.row_scale;
    if (n >= p.n) return;
    if (scale.data) sum = __fmul_rn(scale.data[w.l * scale.batch_stride + token * scale.stride], sum);
    store_float(output_at(p.d, w.l, token, n), p.d.dtype, scale_and_add(p.alpha, p.bias, n, sum));
}

/* Multiplies sums by `mma_scale`, which the MMA's weights lack. Needs a barrier of the CTA after the last
 * store_partials(). */
template <int ACCESS>
__device__ inline void gemv_epilogue(const nk_gemm_problem &p, const gemv_scheduler &s, const warp_schedule &w,
                                     float mma_scale)
{
    const float *const partials = partials_of_cta(s), *const inbox = partials + s.split_k * s.rows * s.tokens;
    const int split_stride = s.rows * s.tokens, inbox_stride = s.epilogue_rows * s.tokens;
    if (s.cluster > 1) barrier_cluster_wait_aligned(); /* every inbox is ready */
    for (int i = threadIdx.x; i < w.positions * s.tokens; i += blockDim.x) {
        const int position = i / s.tokens, token = i - position * s.tokens;
        const float sum = sum_in_order(partials + i, splits_of_position(s, w, position), split_stride);
        if (s.cluster == 1) {
            store_sum(p, w, ACCESS == BLOCKED, token, position, sum * mma_scale);
        } else {
            const int owner = position / s.epilogue_rows;
            const float *to = inbox + w.rank * inbox_stride + i - owner * inbox_stride;
            st_async(mapa(shared_address(to), owner), sum, mapa(inbox_mbarrier_address(), owner));
        }
    }
    if (s.cluster == 1) return;
    for (int i = threadIdx.x; i < own_epilogue_rows(s, w) * s.tokens; i += blockDim.x) {
        const int row = i / s.tokens;
        mbarrier_wait_cluster(inbox_mbarrier_address(), 0); /* waits in the first round only */
        const float sum = sum_in_order(inbox + i, s.cluster, inbox_stride);
        store_sum(p, w, ACCESS == BLOCKED, i - row * s.tokens, w.rank * s.epilogue_rows + row, sum * mma_scale);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* MMA::stage(p, s, w) brings tokens to shared memory; for the rest see few_tokens_mainloop(). */
template <int ACCESS, typename MMA> __device__ inline void run_few_tokens(const gemv_args &args, float mma_scale)
{
    const nk_gemm_problem &p = args.problem;
    const gemv_scheduler &s = args.scheduler;
    const warp_schedule w = schedule_of_warp(s);
    stage_cursor ahead = {.tile = w.tile, .k_step = w.k_step, .left = w.steps};
    weight_stage stages[STAGES];
    point_at_tile<ACCESS>(p, w, ahead);
    griddepcontrol_launch_dependents();
    if (ACCESS != NARROW) prefetch_steps(p, w, ahead);
    if (!s.early) griddepcontrol_wait(); /* until then nothing but weights may be read */
#pragma unroll
    for (int i = 0; i < STAGES; i++)
        fetch_weight_step<ACCESS>(p, w, ahead, stages[i]);
    if (s.early) griddepcontrol_wait();
    MMA::stage(p, s, w);
    announce_inbox(s);
    __syncthreads();
    expect_partial_sums(s, w);
    MMA mma(s, w);
    few_tokens_mainloop<ACCESS>(p, w, ahead, stages, mma);
    __syncthreads();
    gemv_epilogue<ACCESS>(p, s, w, mma_scale);
}

#define GEMV_KERNEL(row, name, access, MMA, mma_scale)               \
    extern "C" __global__ void __launch_bounds__(32 * GEMV_WARPS, 1) \
        row##_gemv_##name(const __grid_constant__ gemv_args args)    \
    {                                                                \
        run_few_tokens<access, MMA>(args, mma_scale);                \
    }

#define GEMV_KERNELS(row, name, MMA, mma_scale)               \
    GEMV_KERNEL(row, name##_linear, LINEAR, MMA, mma_scale)   \
    GEMV_KERNEL(row, name##_blocked, BLOCKED, MMA, mma_scale) \
    GEMV_KERNEL(row, name##_narrow, NARROW, MMA, mma_scale)

#endif
