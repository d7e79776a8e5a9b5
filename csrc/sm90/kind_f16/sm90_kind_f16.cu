/* Contiguous grouped_gemm of 16-bit weights by wgmma on Hopper
 *   D[m,n] = convert(alpha[g,n] * sum_k A[m,k] B[g,n,k] + bias[g,n]), where offsets[g] <= m < offsets[g+1]
 *
 * Weights, B, are wgmma's operand A and tokens, A, its operand B, as in sm90/gemm: a token is a column, so that a tile
 * has any multiple of eight. Both come by tensor map and are multiplied where they lie. Weights may be contiguous along
 * K or along N.
 *
 * Work: a tile is ROWS weight rows x TOKENS tokens of one expert. CTAs walk over all tiles.
 *
 * Roles: warpgroup w < ROWS / 64: multiplies weight rows 64 w .. + 63 of a tile, and stores
 *        the next warp: one thread loads
 *
 * Barriers (mbarriers; "wait" names the parity of the first):
 *   full[SLOTS]   loads -> consumers    1 arrival + the slot's bytes    wait 0
 *   empty[SLOTS]  consumers -> loads    1 of each warp                  wait 1
 *
 * Shared memory (struct kind_f16_memory): ring of slots, each PANELS x 64 elements of K of weights, then of tokens, in
 * rows of 128 bytes, swizzled; of weights that are contiguous along N a row is 64 of them, and there are 64 rows for
 * each 64 weights. Barriers. The list of experts. */
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tensor_map.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "sm90/gemm/sm90_gemm_store.cuh"
#include "sm90_kind_f16_config.h"

/* What tiles and stores of sm90/gemm want to know is named as there. */
template <bool BFLOAT_, bool ALONG_N_, int TOKENS_, int ROWS_, int TILE_K_, int SLOTS_> struct halves {
    static constexpr bool BFLOAT = BFLOAT_, ALONG_N = ALONG_N_;
    static constexpr bool EXPERTS = true, JOINED = true, LIST = false, IS_DIVIDED = false;
    static constexpr int TOKENS = TOKENS_, FEATURES = ROWS_, BANDS = 1, CLUSTER = 1;
    static constexpr int SLOTS = SLOTS_, PANELS = TILE_K_ / SM90_KIND_F16_SWIZZLE_K, WARPGROUPS = ROWS_ / 64;
    static constexpr int THREADS = SM90_KIND_F16_THREADS(ROWS_), SUMS = TOKENS / 2;
    static constexpr int SMEM = SM90_KIND_F16_SMEM(TOKENS, ROWS_, TILE_K_, SLOTS);
};

template <class C> struct kind_f16_memory {
    struct slot {
        uint8_t weights[C::PANELS][C::FEATURES * SM90_KIND_F16_SWIZZLE_BYTES];
        uint8_t tokens[C::PANELS][C::TOKENS * SM90_KIND_F16_SWIZZLE_BYTES];
    } ring[C::SLOTS];
    uint64_t full[C::SLOTS], empty[C::SLOTS];
    expert_scan<C::THREADS / 32> scan;
    int2 experts[]; /* see list_experts() */
};

/* By one thread: all slots of all tiles. */
template <class C>
__device__ inline void load(kind_f16_memory<C> &s, const cuda_tensor_map &weights, const cuda_tensor_map &tokens,
                            const gemm_tiles &tiles)
{
    typedef typename kind_f16_memory<C>::slot slot;
    ring_at r = {0, 0};
    each_tile<C>(tiles, [&](const gemm_tile &tile) {
        const int matrix = tiles.scheduler.one_matrix ? 0 : tile.l;
#pragma unroll 1
        for (int i = 0; i < tiles.scheduler.k_steps; i++) {
            const uint32_t full = shared_address(&s.full[r.slot]);
            slot &to = s.ring[r.slot];
            mbarrier_wait(shared_address(&s.empty[r.slot]), r.phase ^ 1);
            mbarrier_arrive_expect_tx(full, sizeof to);
#pragma unroll
            for (int panel = 0; panel < C::PANELS; panel++) {
                const int k = (i * C::PANELS + panel) * SM90_KIND_F16_SWIZZLE_K;
                const uint32_t at = shared_address(to.weights[panel]);
                if (C::ALONG_N) {
#pragma unroll
                    for (int w = 0; w < C::WARPGROUPS; w++) {
                        const int from[3] = {tile.row + 64 * w, k, matrix};
                        cp_async_bulk_tensor_3d(at + w * 64 * SM90_KIND_F16_SWIZZLE_BYTES, &weights, from, full);
                    }
                } else {
                    const int from[3] = {k, tile.row, matrix};
                    cp_async_bulk_tensor_3d(at, &weights, from, full);
                }
                const int from[2] = {k, tile.token};
                cp_async_bulk_tensor_2d(shared_address(to.tokens[panel]), &tokens, from, full);
            }
            advance<C::SLOTS>(r, 1);
        }
    });
}

template <class C> __device__ inline void release(kind_f16_memory<C> &s, int slot)
{
    __syncwarp();
    mbarrier_arrive_if(threadIdx.x % 32 == 0, shared_address(&s.empty[slot]));
}

/* Sums of a tile's 64 weight rows of this warpgroup, laid out as sm90_gemm_store.cuh has them. */
template <class C>
__device__ inline void multiply(kind_f16_memory<C> &s, int steps, int warpgroup, ring_at &r, float (&sums)[C::SUMS])
{
    typedef typename kind_f16_memory<C>::slot slot;
    const uint64_t weights =
        wgmma_descriptor(shared_address(s.ring[0].weights) + warpgroup * 64 * SM90_KIND_F16_SWIZZLE_BYTES, 16,
                         8 * SM90_KIND_F16_SWIZZLE_BYTES, WGMMA_SWIZZLE_128B);
    const uint64_t tokens =
        wgmma_descriptor(shared_address(s.ring[0].tokens), 16, 8 * SM90_KIND_F16_SWIZZLE_BYTES, WGMMA_SWIZZLE_128B);
    constexpr int NEXT_K16 = C::ALONG_N ? 16 * SM90_KIND_F16_SWIZZLE_BYTES : 16 * 2; /* bytes of weights */
    int before = -1;
#pragma unroll
    for (int i = 0; i < C::SUMS; i++)
        sums[i] = 0;
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        const uint32_t at = r.slot * (uint32_t)(sizeof(slot) / 16);
        mbarrier_wait(shared_address(&s.full[r.slot]), r.phase);
        wgmma_fence();
#pragma unroll
        for (int panel = 0; panel < C::PANELS; panel++) {
#pragma unroll
            for (int k16 = 0; k16 < SM90_KIND_F16_SWIZZLE_K / 16; k16++) {
                const uint64_t a = weights + at + (panel * (uint32_t)sizeof(slot::weights[0]) + k16 * NEXT_K16) / 16;
                const uint64_t b = tokens + at + (panel * (uint32_t)sizeof(slot::tokens[0]) + k16 * 32) / 16;
                if (C::ALONG_N && C::BFLOAT)
                    wgmma_bf16_along_m(sums, a, b, true);
                else if (C::ALONG_N)
                    wgmma_f16_along_m(sums, a, b, true);
                else if (C::BFLOAT)
                    wgmma_bf16(sums, a, b, true);
                else
                    wgmma_f16(sums, a, b, true);
            }
        }
        wgmma_commit_group();
        wgmma_wait_group<1>(sums);
        if (before >= 0) release(s, before);
        before = r.slot;
        advance<C::SLOTS>(r, 1);
    }
    wgmma_wait_group<0>(sums);
    release(s, before);
}

template <class C>
__device__ inline void run(const cuda_tensor_map &weights, const cuda_tensor_map &tokens, const nk_gemm_problem &p,
                           const sm90_gemm_scheduler &scheduler, const sm90_gemm_experts &experts)
{
    extern __shared__ __align__(1024) uint8_t raw[];
    kind_f16_memory<C> &s = *(kind_f16_memory<C> *)raw;
    static_assert(sizeof(kind_f16_memory<C>) <= C::SMEM, "what the host asks");
    const int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / WARPGROUP, 0);
    griddepcontrol_launch_dependents();
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::SLOTS; i++) {
            mbarrier_init(shared_address(&s.full[i]), 1);
            mbarrier_init(shared_address(&s.empty[i]), 4 * C::WARPGROUPS);
        }
        fence_mbarrier_init();
    }
    griddepcontrol_wait(); /* of all threads: the next kernel relies on it */
    list_experts<C::TOKENS>(s.scan, experts.offsets, experts.count, p.m, s.experts);
    const gemm_tiles tiles = {scheduler, s.experts, experts.count, s.experts[experts.count].x * scheduler.n_tiles,
                              nullptr};
    if (warpgroup == C::WARPGROUPS) {
        if (elect_sync()) load<C>(s, weights, tokens, tiles);
        return;
    }
    const int thread = threadIdx.x % WARPGROUP;
    const consumer c = {0, warpgroup, thread, thread / 32, thread % 32};
    ring_at r = {0, 0};
    each_tile<C>(tiles, [&](const gemm_tile &tile) {
        float sums[C::SUMS];
        multiply<C>(s, scheduler.k_steps, warpgroup, r, sums);
        store<C>(p, scheduler, tile, c, 0, sums);
    });
}

#define KERNEL(name, BFLOAT, ALONG_N, ...)                                                                     \
    extern "C" __global__ void __launch_bounds__(halves<BFLOAT, ALONG_N, __VA_ARGS__>::THREADS, 1)             \
        name(const __grid_constant__ cuda_tensor_map weights, const __grid_constant__ cuda_tensor_map tokens,  \
             const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm90_gemm_scheduler scheduler, \
             const __grid_constant__ sm90_gemm_experts experts)                                                \
    {                                                                                                          \
        run<halves<BFLOAT, ALONG_N, __VA_ARGS__>>(weights, tokens, p, scheduler, experts);                     \
    }
#define KERNELS(name, ...)                                                 \
    KERNEL(sm90_kind_f16_##name##_fp16_k_major, false, false, __VA_ARGS__) \
    KERNEL(sm90_kind_f16_##name##_fp16_n_major, false, true, __VA_ARGS__)  \
    KERNEL(sm90_kind_f16_##name##_bf16_k_major, true, false, __VA_ARGS__)  \
    KERNEL(sm90_kind_f16_##name##_bf16_n_major, true, true, __VA_ARGS__)

SM90_KIND_F16_TILES(KERNELS)
