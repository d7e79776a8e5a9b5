/* logits[m,n] = alpha[n] * sum_k x[m,k] w[n,k]; the best experts of each row and their weights; all in one launch.
 *
 * MMA: wgmma.m64nNk16. A (M) is w, 64 experts for each consumer warpgroup; B (N) is x, the tokens of the tile; both
 * come from shared memory (sm90_route_mainloop.cuh). The CTAs of a cluster have the same experts, and each multicasts
 * an equal share of w to all.
 *
 * Epilogue: if one CTA has all experts and all of K of its tokens, a warp takes a token at a time and routes it
 * (cuda/route_topk.cuh; kernels without "scored" in their names take what cuda_route_is_plain() says). Else the sums go
 * to the workspace, and the CTAs with sums of the same tokens arrive at a grid barrier (cuda/grid_barrier.cuh): some
 * wait for the last one, for a while, and share the tokens with it. All warps of a CTA add the partial sums of a turn's
 * logits in the order of K, then each routes a token. The permutation of a single token is written at once, that of
 * more by a second kernel.
 *
 * Roles: warpgroup w < TILE_N / 64: consumer of 64 experts; the last warp: producer, one thread; all warps but that one
 *        route tokens
 *
 * Barriers (mbarriers; "wait" names the parity of the first):
 *   full[STAGES]    producers -> consumers     1 arrival, of this CTA's producer, + the stage's bytes, which   wait 0
 *                                              the producers of all CTAs of the cluster load
 *   empty[STAGES]   consumers -> producers     1 arrival a warp, of all CTAs of the cluster; not before the    wait 0
 *                                              first use of a stage. The producer of a cluster waits for the
 *                                              last ones, too: no CTA exits before the others have arrived
 *   __syncthreads   wgmmas are done -> sums take the pipeline's place -> sums are there; partial sums are written ->
 *                   the grid barrier -> the work range; logits of a turn are there -> routed -> the next turn
 *   cluster         mbarriers are initialised before another CTA arrives at them or multicasts
 *
 * Shared memory: see sm90_route_config.h. */
#include "cuda/grid_barrier.cuh"
#include "cuda/route_sort.cuh"
#include "cuda/route_sums.cuh"
#include "cuda/route_topk.cuh"
#include "sm90_route_mainloop.cuh"

extern __shared__ __align__(1024) uint8_t smem[];

template <class C> __device__ inline void init_stage_barriers(const route_cta<C> &at)
{
    for (int i = 0; i < C::STAGES; i++) {
        mbarrier_init(at.full + 8 * i, 1);
        mbarrier_init(at.empty + 8 * i, 4 * C::CONSUMERS * C::CLUSTER);
    }
    fence_mbarrier_init();
}

/* By a warp: logits of four experts to its scratch. */
__device__ inline void keep_logits(const nk_route_problem &p, const scratch_t &s, int n, const float4 &sum)
{
    float v[4] = {sum.x, sum.y, sum.z, sum.w}, alpha[4] = {p.alpha.value, p.alpha.value, p.alpha.value, p.alpha.value};
    if (p.alpha.data) { /* a branch, since the addresses cost every call otherwise */
#pragma unroll
        for (int j = 0; j < 4; j++)
            alpha[j] = p.alpha.data[min(n + j, (int)p.n - 1) * p.alpha.stride];
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        v[j] = __fmul_rn(alpha[j], v[j]);
    *(float4 *)&s.logits[n] = make_float4(v[0], v[1], v[2], v[3]);
}

/* The barrier of the CTAs with sums of the same tokens. */
__device__ inline grid_barrier barrier_of(const sm90_route_params &q, int turns)
{
    return {q.counters + (int64_t)blockIdx.x * GRID_BARRIER_COUNTERS,
            q.base,
            q.arrivals,
            min(q.waiters, turns),
            q.timeout,
            1ull << (32 - __clz(q.arrivals))};
}

/* Stores the sums of this CTA's tokens to the workspace. */
template <class C>
__device__ inline void publish_sums(const route_cta<C> &at, const nk_route_problem &p, const sm90_route_params &q)
{
    float *partials = q.partials + (blockIdx.z * p.m + at.token) * q.pitch + at.expert;
    const int fours = at.tokens * (C::TILE_N / 4);
#pragma unroll 2
    for (int i = threadIdx.x; i < fours; i += C::THREADS) {
        const int token = i / (C::TILE_N / 4), n = i % (C::TILE_N / 4) * 4;
        *(float4 *)(partials + (int64_t)token * q.pitch + n) = *at.sums(token, n);
    }
}

/* Routes this CTA's share of its tokens, a turn at a time. */
template <class C, bool PLAIN>
__device__ inline void route_turns(const route_cta<C> &at, const nk_route_problem &p, const sm90_route_params &q)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, turns = turns_of(q, at.tokens);
    const bool is_alone = q.arrivals == 1;
    const auto scratch = [&](int i) {
        return scratch_at(smem + SM90_ROUTE_SUM_BYTES(C::TILE_M, C::TILE_N), i, q.scratch_experts);
    };
    int range = 0, ranges = 1;
    if (!is_alone) {
        __syncthreads();
        if (threadIdx.x == 0) {
            const work_range mine = arrive_and_wait(barrier_of(q, turns));
            at.work_range[0] = mine.range < mine.ranges ? mine.range : turns;
            at.work_range[1] = mine.ranges;
        }
        __syncthreads();
        range = at.work_range[0];
        ranges = at.work_range[1];
        if (ranges == 0) return;
    }
#pragma unroll 1
    for (int turn = range; turn < turns; turn += ranges) {
        const int token = turn * q.turn_tokens, count = min(q.turn_tokens, at.tokens - token);
        const int64_t m = at.token + token;
        if (is_alone) {
#pragma unroll
            for (int n = 4 * lane; n < C::TILE_N; n += 128) {
                if (warp < count) keep_logits(p, scratch(warp), n, *at.sums(token + warp, n));
            }
            __syncwarp();
        } else {
            const int fours = min(q.pitch, q.scratch_experts) / 4;
#pragma unroll 1
            for (int i = threadIdx.x; i < count * fours; i += C::THREADS) {
                const int t = i / fours, n = i % fours * 4;
                const float *partials = q.partials + (m + t) * q.pitch + n;
                keep_logits(p, scratch(t), n, sum_splits<C::SPLITS_AT_ONCE>(partials, p.m * q.pitch, q.split_k));
            }
            __syncthreads();
        }
        if (warp < count) {
            const int expert = route_token<PLAIN>(p, m + warp, scratch(warp));
            if (p.sorts && p.m == 1) sort_one_token(p, expert);
        }
        if (is_alone)
            __syncwarp();
        else
            __syncthreads();
    }
    if (!is_alone && threadIdx.x == 0) leave_grid_barrier(barrier_of(q, turns));
}

template <class C, bool PLAIN>
__device__ inline void multiply_and_route(const cuda_tensor_map &w, const cuda_tensor_map &x, const nk_route_problem &p,
                                          const sm90_route_params &q)
{
    static_assert(sizeof(route_stage<C>) == SM90_ROUTE_STAGE_BYTES(C::TILE_M, C::TILE_N, C::PANELS),
                  "what the host asks for");
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / WARPGROUP, 0);
    const bool is_producer = __shfl_sync(~0u, (int)threadIdx.x / 32, 0) == C::WARPS;
    const route_cta<C> at(p, q, smem);
    griddepcontrol_launch_dependents();
    if (threadIdx.x == 32 * C::WARPS) {
        prefetch_tensormap(&w);
        prefetch_tensormap(&x);
    }
    if (threadIdx.x == 0) init_stage_barriers<C>(at);
    __syncthreads();
    if (C::CLUSTER > 1) {
        barrier_cluster_arrive_relaxed_aligned();
        barrier_cluster_wait_aligned();
    }
    if (is_producer) {
        if (elect_sync()) load_stages<C>(at, &w, &x, q.early);
        __syncwarp();
    }
    griddepcontrol_wait();
    if (p.correction_bias && (int64_t)threadIdx.x * 32 < p.n) /* a line of biases, which a selection would wait for */
        prefetch_global_l1(p.correction_bias + threadIdx.x * 32 * p.correction_bias_stride);
    if (q.arrivals > 1 && at.tokens > 0 && threadIdx.x < GRID_BARRIER_COUNTERS)
        init_grid_barrier(barrier_of(q, turns_of(q, at.tokens)), threadIdx.x);
    float sums[C::SUMS];
    const bool is_consumer = warpgroup < C::CONSUMERS && !is_producer;
    if (is_consumer) mma_tile<C>(at, warpgroup, sums);
    __syncthreads();
    if (is_consumer) store_sums_to_smem<C>((float *)smem, warpgroup, sums);
    __syncthreads();
    if (at.tokens > 0) {
        if (q.arrivals > 1) publish_sums(at, p, q);
        route_turns<C, PLAIN>(at, p, q);
    }
    if (C::CLUSTER > 1 && is_producer && elect_sync()) drain_pipeline<C>(at);
}

#define KERNEL(name, PLAIN, BF16, ...)                                                                \
    extern "C" __global__ void __launch_bounds__(route_config<BF16, __VA_ARGS__>::THREADS, 1)         \
        name(const __grid_constant__ cuda_tensor_map w, const __grid_constant__ cuda_tensor_map x,    \
             const __grid_constant__ nk_route_problem p, const __grid_constant__ sm90_route_params q) \
    {                                                                                                 \
        multiply_and_route<route_config<BF16, __VA_ARGS__>, PLAIN>(w, x, p, q);                       \
    }
#define KERNELS(name, ...)                                             \
    KERNEL(sm90_route_##name##_fp16, true, false, __VA_ARGS__)         \
    KERNEL(sm90_route_##name##_bf16, true, true, __VA_ARGS__)          \
    KERNEL(sm90_route_scored_##name##_fp16, false, false, __VA_ARGS__) \
    KERNEL(sm90_route_scored_##name##_bf16, false, true, __VA_ARGS__)

SM90_ROUTE_TILES(KERNELS)
