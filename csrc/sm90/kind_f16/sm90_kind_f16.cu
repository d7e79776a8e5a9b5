/* Contiguous grouped_gemm of 16-bit weights by wgmma on Hopper
 *   D[m,n] = convert(alpha[g,n] * sum_k A[m,k] B[g,n,k] + bias[g,n]), where offsets[g] <= m < offsets[g+1]
 *
 * Operands are swapped, as in sm90/gemm: weights are A of wgmma and tokens its B, so that tile_m is any multiple of
 * eight tokens. Both are loaded by TMA and read from shared memory. Weights may be K-major or N-major.
 *
 * Tiles: tile_m tokens of one expert x tile_n weight rows. The scheduler is static: CTAs are persistent.
 *
 * Roles: warpgroups 0 .. tile_n / 64 - 1   consumers: warpgroup w multiplies weight rows 64 w .. + 63, and stores
 *        the next warp                     producer: one thread loads
 *
 * Barriers (mbarriers; "wait" is the parity that the first wait is given):
 *   full[STAGES]   producer -> consumers   1 arrival + the stage's bytes   wait 0
 *   empty[STAGES]  consumers -> producer   1 of each warp                  wait 1
 *
 * Shared memory (struct kind_f16_memory):
 *   STAGES x weights, tokens   tile_k elements of K each, in swizzled rows of 128 bytes
 *       K-major weights, and tokens   [64 elements of K][weight row or token][128 bytes]
 *       N-major weights               [64 elements of K][64 weight rows][one of the 64 elements][128 bytes]
 *   barriers; the scan and the list of experts */
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tensor_map.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "sm90/gemm/sm90_gemm_store.cuh"
#include "sm90_kind_f16_config.h"

/* The members that the tile scheduler and the epilogue of sm90/gemm read have the names that sm90_tile_config gives
 * them. */
template <bool BFLOAT_, bool N_MAJOR_, int TILE_M_, int TILE_N_, int TILE_K_, int STAGES_> struct kind_f16_config {
    static constexpr bool BFLOAT = BFLOAT_, N_MAJOR = N_MAJOR_;
    static constexpr bool EXPERTS = true, GROUPED = true, LIST = false, IS_SPLIT_K = false, ACTIVATED = false;
    static constexpr int TILE_M = TILE_M_, TILE_M_STEP = TILE_M_, FEATURES = TILE_N_, CLUSTER = 1;
    static constexpr int LISTED_TILES = 0;
    static constexpr int STAGES = STAGES_, K64S = TILE_K_ / SM90_KIND_F16_SWIZZLE_K, WARPGROUPS = TILE_N_ / 64;
    static constexpr int THREADS = SM90_KIND_F16_THREADS(TILE_N_), ACCUMULATORS = TILE_M_ / 2;
    static constexpr int SMEM = SM90_KIND_F16_SMEM(TILE_M, TILE_N_, TILE_K_, STAGES);
};

template <class C> struct kind_f16_memory {
    struct stage {
        uint8_t weights[C::K64S][C::FEATURES * SM90_KIND_F16_SWIZZLE_BYTES];
        uint8_t tokens[C::K64S][C::TILE_M * SM90_KIND_F16_SWIZZLE_BYTES];
    } stages[C::STAGES];
    uint64_t full[C::STAGES], empty[C::STAGES];
    expert_scan<C::THREADS / 32> scan;
    int2 experts[]; /* see list_experts() */
};

/* By one thread: all stages of all tiles. */
template <class C>
__device__ inline void load_kind_f16_tiles(kind_f16_memory<C> &s, const cuda_tensor_map &weights,
                                           const cuda_tensor_map &tokens, const gemm_tile_scheduler &scheduler)
{
    typedef typename kind_f16_memory<C>::stage stage;
    sm90_pipeline_state r = {0, 0};
    for_each_tile<C>(scheduler, [&](const tile_coord &tile) {
        const int matrix = scheduler.params.one_matrix ? 0 : tile.l;
#pragma unroll 1
        for (int i = 0; i < scheduler.params.k_steps; i++) {
            const uint32_t full = shared_address(&s.full[r.stage]);
            stage &to = s.stages[r.stage];
            mbarrier_wait(shared_address(&s.empty[r.stage]), r.parity ^ 1);
            mbarrier_arrive_expect_tx(full, sizeof to);
#pragma unroll
            for (int k64 = 0; k64 < C::K64S; k64++) {
                const int k = (i * C::K64S + k64) * SM90_KIND_F16_SWIZZLE_K;
                const uint32_t at = shared_address(to.weights[k64]);
                if (C::N_MAJOR) {
#pragma unroll
                    for (int w = 0; w < C::WARPGROUPS; w++) {
                        const int from[3] = {tile.n + 64 * w, k, matrix};
                        cp_async_bulk_tensor_3d(at + w * 64 * SM90_KIND_F16_SWIZZLE_BYTES, &weights, from, full);
                    }
                } else {
                    const int from[3] = {k, tile.n, matrix};
                    cp_async_bulk_tensor_3d(at, &weights, from, full);
                }
                const int from[2] = {k, tile.m};
                cp_async_bulk_tensor_2d(shared_address(to.tokens[k64]), &tokens, from, full);
            }
            advance_pipeline<C::STAGES>(r, 1);
        }
    });
}

template <class C> __device__ inline void release_stage(kind_f16_memory<C> &s, int stage)
{
    __syncwarp();
    mbarrier_arrive_if(threadIdx.x % 32 == 0, shared_address(&s.empty[stage]));
}

/* Sums of a tile's 64 weight rows of this warpgroup, laid out as sm90_gemm_store.cuh has them. */
template <class C>
__device__ inline void kind_f16_mainloop(kind_f16_memory<C> &s, int k_tiles, int warpgroup, sm90_pipeline_state &r,
                                         float (&sums)[C::ACCUMULATORS])
{
    typedef typename kind_f16_memory<C>::stage stage;
    const uint64_t weights =
        wgmma_descriptor(shared_address(s.stages[0].weights) + warpgroup * 64 * SM90_KIND_F16_SWIZZLE_BYTES, 16,
                         8 * SM90_KIND_F16_SWIZZLE_BYTES, WGMMA_SWIZZLE_128B);
    const uint64_t tokens =
        wgmma_descriptor(shared_address(s.stages[0].tokens), 16, 8 * SM90_KIND_F16_SWIZZLE_BYTES, WGMMA_SWIZZLE_128B);
    constexpr int NEXT_K16 = C::N_MAJOR ? 16 * SM90_KIND_F16_SWIZZLE_BYTES : 16 * 2; /* bytes of weights */
    int before = -1;                                                                 /* the previous stage */
#pragma unroll
    for (int i = 0; i < C::ACCUMULATORS; i++)
        sums[i] = 0;
#pragma unroll 1
    for (int i = 0; i < k_tiles; i++) {
        const uint32_t at = r.stage * (uint32_t)(sizeof(stage) / 16);
        mbarrier_wait(shared_address(&s.full[r.stage]), r.parity);
        wgmma_fence();
#pragma unroll
        for (int k64 = 0; k64 < C::K64S; k64++) {
#pragma unroll
            for (int k16 = 0; k16 < SM90_KIND_F16_SWIZZLE_K / 16; k16++) {
                const uint64_t a = weights + at + (k64 * (uint32_t)sizeof(stage::weights[0]) + k16 * NEXT_K16) / 16;
                const uint64_t b = tokens + at + (k64 * (uint32_t)sizeof(stage::tokens[0]) + k16 * 32) / 16;
                if (C::N_MAJOR && C::BFLOAT)
                    wgmma_bf16_along_m(sums, a, b, true);
                else if (C::N_MAJOR)
                    wgmma_f16_along_m(sums, a, b, true);
                else if (C::BFLOAT)
                    wgmma_bf16(sums, a, b, true);
                else
                    wgmma_f16(sums, a, b, true);
            }
        }
        wgmma_commit_group();
        wgmma_wait_group<1>(sums);
        if (before >= 0) release_stage(s, before);
        before = r.stage;
        advance_pipeline<C::STAGES>(r, 1);
    }
    wgmma_wait_group<0>(sums);
    release_stage(s, before);
}

template <class C>
__device__ inline void run_kind_f16(const cuda_tensor_map &weights, const cuda_tensor_map &tokens,
                                    const nk_gemm_problem &p, const sm90_gemm_params &params,
                                    const sm90_gemm_experts &experts)
{
    extern __shared__ __align__(1024) uint8_t raw[];
    kind_f16_memory<C> &s = *(kind_f16_memory<C> *)raw;
    static_assert(sizeof(kind_f16_memory<C>) <= C::SMEM, "what the host asks");
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / WARPGROUP, 0);
    griddepcontrol_launch_dependents();
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(shared_address(&s.full[i]), 1);
            mbarrier_init(shared_address(&s.empty[i]), 4 * C::WARPGROUPS);
        }
        fence_mbarrier_init();
    }
    griddepcontrol_wait(); /* by all threads: the next kernel relies on it */
    list_experts<C::TILE_M>(s.scan, experts.offsets, experts.count, p.m, 0, s.experts);
    const gemm_tile_scheduler scheduler = {
        params, s.experts, experts.count, s.experts[experts.count].x * params.n_tiles, nullptr, nullptr};
    if (warpgroup == C::WARPGROUPS) {
        if (elect_sync()) load_kind_f16_tiles<C>(s, weights, tokens, scheduler);
        return;
    }
    const int thread = threadIdx.x % WARPGROUP;
    const consumer c = {0, warpgroup, thread, thread / 32, thread % 32};
    sm90_pipeline_state r = {0, 0};
    for_each_tile<C>(scheduler, [&](const tile_coord &tile) {
        float sums[C::ACCUMULATORS];
        kind_f16_mainloop<C>(s, params.k_steps, warpgroup, r, sums);
        const float scale = scale_sums<C>(p, params, {}, tile, 0, sums);
        store_gemm_tile<C>(p, params, tile, c, factors_of_lane<C>(p, tile, c), scale, 0, sums);
    });
}

#define KERNEL(name, BFLOAT, N_MAJOR, ...)                                                                    \
    extern "C" __global__ void __launch_bounds__(kind_f16_config<BFLOAT, N_MAJOR, __VA_ARGS__>::THREADS, 1)   \
        name(const __grid_constant__ cuda_tensor_map weights, const __grid_constant__ cuda_tensor_map tokens, \
             const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm90_gemm_params params,      \
             const __grid_constant__ sm90_gemm_experts experts)                                               \
    {                                                                                                         \
        run_kind_f16<kind_f16_config<BFLOAT, N_MAJOR, __VA_ARGS__>>(weights, tokens, p, params, experts);     \
    }
#define KERNELS(name, ...)                                                 \
    KERNEL(sm90_kind_f16_##name##_fp16_k_major, false, false, __VA_ARGS__) \
    KERNEL(sm90_kind_f16_##name##_fp16_n_major, false, true, __VA_ARGS__)  \
    KERNEL(sm90_kind_f16_##name##_bf16_k_major, true, false, __VA_ARGS__)  \
    KERNEL(sm90_kind_f16_##name##_bf16_n_major, true, true, __VA_ARGS__)

SM90_KIND_F16_TILES(KERNELS)
