/* logits[m,n] = alpha[n] * sum_k x[m,k] w[n,k]; the best experts of each row and their weights; all in one launch.
 *
 * Work: a CTA multiplies a tile of experts by a tile of tokens over a part of K (sm90_route_mainloop.cuh). In a cluster
 * CTAs share experts: each loads a part of w for all.
 * Where one CTA has all experts and all of K of its tokens, a warp takes a token at a time and routes it
 * (cuda/route_topk.cuh). Else the sums go to the workspace, and the CTAs with sums of the same tokens meet
 * (cuda/grid_barrier.cuh): some wait for the very last, for a while, and share the tokens with it. All warps of a CTA
 * add the parts of a turn's logits in the order of K, then each routes a token. The permutation of a single token is
 * written at once, that of more by another kernel.
 *
 * Roles: warpgroup w < EXPERTS / 64: multiplies 64 experts; the last warp: one thread loads; all warps but that one:
 *        route tokens
 *
 * Barriers (mbarriers; "wait" names the parity of the first):
 *   full[SLOTS]   loads -> all who multiply     1 arrival + the slot's bytes, those of others' loads too     wait 0
 *   empty[SLOTS]  who multiplies -> loads       a warp each, of all CTAs that share experts; not for the     wait 0
 *                                               first use of a slot
 *   __syncthreads    products are done -> sums take the ring's place -> they are there; partials are written -> the
 *                    meeting -> what it decided; logits of a turn are there -> routed -> the next turn
 *   cluster, begin   barriers are there before anybody else arrives or copies
 *   cluster, end     nobody's memory goes before others have arrived in it
 *
 * Shared memory: see sm90_route_config.h. */
#include "cuda/grid_barrier.cuh"
#include "cuda/route_sort.cuh"
#include "cuda/route_sums.cuh"
#include "cuda/route_topk.cuh"
#include "sm90_route_mainloop.cuh"

extern __shared__ __align__(1024) uint8_t smem[];

template <class C> __device__ inline void init_barriers(const place<C> &at)
{
    for (int i = 0; i < C::SLOTS; i++) {
        mbarrier_init(at.full + 8 * i, 1);
        mbarrier_init(at.empty + 8 * i, 4 * C::CONSUMERS * C::SHARERS);
    }
    fence_mbarrier_init();
}

/* By a warp: logits of four experts to its scratch. */
__device__ inline void keep_logits(const nk_route_problem &p, const scratch_t &s, int n, const float4 &sum)
{
    float v[4] = {sum.x, sum.y, sum.z, sum.w}, alpha[4] = {p.alpha.value, p.alpha.value, p.alpha.value, p.alpha.value};
    if (p.alpha.data) { /* a branch: else all pay for the addresses */
#pragma unroll
        for (int j = 0; j < 4; j++)
            alpha[j] = p.alpha.data[min(n + j, (int)p.n - 1) * p.alpha.stride];
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        v[j] = __fmul_rn(alpha[j], v[j]);
    *(float4 *)&s.logits[n] = make_float4(v[0], v[1], v[2], v[3]);
}

/* Of those with parts of the same tokens' logits. */
__device__ inline grid_barrier barrier_of(const sm90_route_params &q, int turns)
{
    return {q.counters + (int64_t)blockIdx.x * GRID_BARRIER_COUNTERS,
            q.base,
            q.arrivals,
            min(q.waiters, turns),
            q.timeout,
            1ull << (32 - __clz(q.arrivals))};
}

/* The sums of this CTA's tokens, to the workspace. */
template <class C>
__device__ inline void publish_sums(const place<C> &at, const nk_route_problem &p, const sm90_route_params &q)
{
    float *partials = q.partials + (blockIdx.z * p.m + at.token) * q.pitch + at.expert;
    const int fours = at.tokens * (C::EXPERTS / 4);
#pragma unroll 2
    for (int i = threadIdx.x; i < fours; i += C::THREADS) {
        const int token = i / (C::EXPERTS / 4), n = i % (C::EXPERTS / 4) * 4;
        *(float4 *)(partials + (int64_t)token * q.pitch + n) = *at.sums(token, n);
    }
}

/* A CTA's share of the turns that route its tokens. */
template <class C>
__device__ inline void route_tokens(const place<C> &at, const nk_route_problem &p, const sm90_route_params &q)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, turns = turns_of(q, at.tokens);
    const bool whole = q.arrivals == 1;
    const auto scratch = [&](int i) {
        return scratch_at(smem + SM90_ROUTE_SUM_BYTES(C::TOKENS, C::EXPERTS), i, q.scratch_experts);
    };
    int range = 0, ranges = 1;
    if (!whole) {
        __syncthreads();
        if (threadIdx.x == 0) {
            const work_range mine = arrive_and_wait(barrier_of(q, turns));
            at.duty[0] = mine.range < mine.ranges ? mine.range : turns;
            at.duty[1] = mine.ranges;
        }
        __syncthreads();
        range = at.duty[0];
        ranges = at.duty[1];
        if (ranges == 0) return;
    }
#pragma unroll 1
    for (int turn = range; turn < turns; turn += ranges) {
        const int token = turn * q.turn_tokens, count = min(q.turn_tokens, at.tokens - token);
        const int64_t m = at.token + token;
        if (whole) {
#pragma unroll
            for (int n = 4 * lane; n < C::EXPERTS; n += 128) {
                if (warp < count) keep_logits(p, scratch(warp), n, *at.sums(token + warp, n));
            }
            __syncwarp();
        } else {
            const int fours = min(q.pitch, q.scratch_experts) / 4;
#pragma unroll 1
            for (int i = threadIdx.x; i < count * fours; i += C::THREADS) {
                const int t = i / fours, n = i % fours * 4;
                const float *parts = q.partials + (m + t) * q.pitch + n;
                keep_logits(p, scratch(t), n, sum_splits<C::PARTS_AT_ONCE>(parts, p.m * q.pitch, q.splits));
            }
            __syncthreads();
        }
        if (warp < count) {
            const int expert = route_token(p, m + warp, scratch(warp));
            if (p.sorts && p.m == 1) sort_one_token(p, expert);
        }
        if (whole)
            __syncwarp();
        else
            __syncthreads();
    }
    if (!whole && threadIdx.x == 0) leave_grid_barrier(barrier_of(q, turns));
}

template <class C>
__device__ inline void route(const cuda_tensor_map &w, const cuda_tensor_map &x, const nk_route_problem &p,
                             const sm90_route_params &q)
{
    static_assert(sizeof(slot_t<C>) == SM90_ROUTE_SLOT_BYTES(C::TOKENS, C::EXPERTS, C::PANELS), "what the host asks");
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / WARPGROUP, 0);
    const bool loads = __shfl_sync(~0u, (int)threadIdx.x / 32, 0) == C::WARPS;
    const place<C> at(p, q, smem);
    griddepcontrol_launch_dependents();
    if (threadIdx.x == 32 * C::WARPS) {
        prefetch_tensormap(&w);
        prefetch_tensormap(&x);
    }
    if (threadIdx.x == 0) init_barriers<C>(at);
    __syncthreads();
    if (C::SHARERS > 1) {
        barrier_cluster_arrive_relaxed_aligned();
        barrier_cluster_wait_aligned();
    }
    if (loads) {
        if (elect_sync()) load<C>(at, &w, &x, q.early);
        __syncwarp();
    }
    griddepcontrol_wait();
    if (p.correction_bias && (int64_t)threadIdx.x * 32 < p.n) /* a line of biases, which a selection would wait for */
        prefetch_global_l1(p.correction_bias + threadIdx.x * 32 * p.correction_bias_stride);
    if (q.arrivals > 1 && at.tokens > 0 && threadIdx.x < GRID_BARRIER_COUNTERS)
        init_grid_barrier(barrier_of(q, turns_of(q, at.tokens)), threadIdx.x);
    float sums[C::SUMS];
    const bool multiplies = warpgroup < C::CONSUMERS && !loads;
    if (multiplies) multiply<C>(at, warpgroup, sums);
    __syncthreads();
    if (multiplies) stage_sums<C>((float *)smem, warpgroup, sums);
    if (C::SHARERS > 1) barrier_cluster_arrive_aligned();
    __syncthreads();
    if (at.tokens > 0) {
        if (q.arrivals > 1) publish_sums(at, p, q);
        route_tokens(at, p, q);
    }
    if (C::SHARERS > 1) {
        __syncwarp();
        barrier_cluster_wait_aligned();
    }
}

#define KERNEL(name, BFLOAT, ...)                                                                     \
    extern "C" __global__ void __launch_bounds__(config<BFLOAT, __VA_ARGS__>::THREADS, 1)             \
        name(const __grid_constant__ cuda_tensor_map w, const __grid_constant__ cuda_tensor_map x,    \
             const __grid_constant__ nk_route_problem p, const __grid_constant__ sm90_route_params q) \
    {                                                                                                 \
        route<config<BFLOAT, __VA_ARGS__>>(w, x, p, q);                                               \
    }
#define KERNELS(name, ...)                               \
    KERNEL(sm90_route_##name##_fp16, false, __VA_ARGS__) \
    KERNEL(sm90_route_##name##_bf16, true, __VA_ARGS__)

SM90_ROUTE_TILES(KERNELS)
