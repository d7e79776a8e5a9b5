/* From the sums of warps to elements of D. Every sum is added in one order: the parts of a tile's K, then, where CTAs
 * of a cluster share rows, those of the CTAs. */
#ifndef NK_SM100_GEMV_SUMS_CUH
#define NK_SM100_GEMV_SUMS_CUH

#include "cuda/epilogue.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared.cuh"
#include "sm100_gemv.cuh"

__device__ inline float *partials_of(const sm100_gemv_work &s)
{
    return (float *)((uint8_t *)smem + sm100_gemv_sums_at(s.k_steps, s.tokens));
}

/* The first warp that has steps of a tile. */
__device__ inline int first_warp(const sm100_gemv_work &s, const warp_work &w, int tile)
{
    return tile * w.k_steps / s.steps_per_warp;
}

/* Where this warp keeps its sums of a tile's first row. */
__device__ inline float *part_of(const sm100_gemv_work &s, const warp_work &w, int tile)
{
    const int part = (int)(threadIdx.x >> 5) - first_warp(s, w, tile);
    return partials_of(s) + (part * s.rows + tile * SM100_GEMV_ROWS) * s.tokens;
}

/* How many parts the sums of a position have. */
__device__ inline int parts_of(const sm100_gemv_work &s, const warp_work &w, int position)
{
    const int tile = position / SM100_GEMV_ROWS, last = (tile + 1) * w.k_steps - 1;
    return w.k_steps ? last / s.steps_per_warp - first_warp(s, w, tile) + 1 : 0;
}

__device__ inline uint32_t inbox_barrier() { return shared_address(&head().sums_arrived); }

/* Rows that this CTA ends. */
__device__ inline int rows_to_end(const sm100_gemv_work &s, const warp_work &w)
{
    return max(0, min(s.ends, w.positions - w.rank * s.ends));
}

/* Tells the other CTAs that the inbox is ready, without waiting for them. As in sm90_gemv_sums.cuh, but for the types:
 * each kernel has shared memory and work of its own. */
__device__ inline void prepare_inbox(const sm100_gemv_work &s)
{
    if (s.cluster == 1) return;
    if (threadIdx.x == 0) {
        mbarrier_init(inbox_barrier(), 1);
        fence_mbarrier_init();
    }
    __syncwarp();
    barrier_cluster_arrive_relaxed_aligned();
}

/* Behind a barrier of the CTA. */
__device__ inline void expect_sums(const sm100_gemv_work &s, const warp_work &w)
{
    if (s.cluster > 1 && threadIdx.x == 0)
        mbarrier_arrive_expect_tx(inbox_barrier(), (uint32_t)(rows_to_end(s, w) * s.tokens * s.cluster) * 4);
}

/* at[0] + at[stride] + .., in this order */
__device__ inline float sum_of(const float *at, int count, int stride)
{
    float sum = 0;
    for (int i = 0; i < count; i++)
        sum += at[i * stride];
    return sum;
}

__device__ inline void store_sum(const nk_gemm_problem &p, const warp_work &w, bool blocked, int token, int position,
                                 float sum)
{
    const int64_t n = sm100_gemv_row(w.first + position, blocked);
    if (n >= p.n) return;
    store_float(output_at(p.d, w.l, token, n), p.d.dtype, scale_and_add(p.alpha, p.bias, n, sum));
}

/* Sums are multiplied by `unit`, which the products lack. A barrier of the CTA lies before it. */
template <int ACCESS>
__device__ inline void finish_sums(const nk_gemm_problem &p, const sm100_gemv_work &s, const warp_work &w, float unit)
{
    const float *const partials = partials_of(s), *const inbox = partials + s.parts * s.rows * s.tokens;
    const int part_stride = s.rows * s.tokens, inbox_stride = s.ends * s.tokens;
    if (s.cluster > 1) barrier_cluster_wait_aligned(); /* every inbox is ready */
    for (int i = threadIdx.x; i < w.positions * s.tokens; i += blockDim.x) {
        const int position = i / s.tokens, token = i - position * s.tokens;
        const float sum = sum_of(partials + i, parts_of(s, w, position), part_stride);
        if (s.cluster == 1) {
            store_sum(p, w, ACCESS == BLOCKED, token, position, sum * unit);
        } else {
            const int owner = position / s.ends;
            const float *to = inbox + w.rank * inbox_stride + i - owner * inbox_stride;
            st_async(mapa(shared_address(to), owner), sum, mapa(inbox_barrier(), owner));
        }
    }
    if (s.cluster == 1) return;
    for (int i = threadIdx.x; i < rows_to_end(s, w) * s.tokens; i += blockDim.x) {
        const int row = i / s.tokens;
        mbarrier_wait_cluster(inbox_barrier(), 0); /* waits in the first round only */
        const float sum = sum_of(inbox + i, s.cluster, inbox_stride);
        store_sum(p, w, ACCESS == BLOCKED, i - row * s.tokens, w.rank * s.ends + row, sum * unit);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* STAGE(p, s, w) brings tokens to shared memory. PRODUCTS: see main_loop(). */
template <int ACCESS, typename PRODUCTS> __device__ inline void gemv(const sm100_gemv_args &args, float unit)
{
    const nk_gemm_problem &p = args.problem;
    const sm100_gemv_work &s = args.work;
    const warp_work w = work_of_warp(s);
    cursor ahead = {.tile = w.tile, .k_step = w.k_step, .left = w.steps};
    weights ring[AHEAD];
    enter_tile<ACCESS>(p, w, ahead);
    griddepcontrol_launch_dependents();
    if (ACCESS != NARROW) prefetch(p, w, ahead);
    if (!s.early) griddepcontrol_wait(); /* before, nothing but weights may be read */
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        fetch<ACCESS>(p, w, ahead, ring[i]);
    if (s.early) griddepcontrol_wait();
    PRODUCTS::stage(p, s, w);
    prepare_inbox(s);
    __syncthreads();
    expect_sums(s, w);
    PRODUCTS products(s, w);
    main_loop<ACCESS>(p, w, ahead, ring, products);
    __syncthreads();
    finish_sums<ACCESS>(p, s, w, unit);
}

#define GEMV_KERNEL(name, access, PRODUCTS, unit)                          \
    extern "C" __global__ void __launch_bounds__(32 * SM100_GEMV_WARPS, 1) \
        sm100_gemv_##name(const __grid_constant__ sm100_gemv_args args)    \
    {                                                                      \
        gemv<access, PRODUCTS>(args, unit);                                \
    }

#define GEMV_KERNELS(name, PRODUCTS, unit)               \
    GEMV_KERNEL(name##_linear, LINEAR, PRODUCTS, unit)   \
    GEMV_KERNEL(name##_blocked, BLOCKED, PRODUCTS, unit) \
    GEMV_KERNEL(name##_narrow, NARROW, PRODUCTS, unit)

#endif
