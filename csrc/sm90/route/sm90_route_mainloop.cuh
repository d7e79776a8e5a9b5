/* The main loop of Hopper's router: one thread fills a pipeline by tensor map (TMA), consumer warpgroups run wgmma. */
#ifndef NK_SM90_ROUTE_MAINLOOP_CUH
#define NK_SM90_ROUTE_MAINLOOP_CUH

#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/cluster_memory.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tensor_map.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "sm90_route_config.h"

#define WARPGROUP 128
#define PANEL_ROW_BYTES (2 * SM90_ROUTE_PANEL)

template <bool BF16_, int TILE_M_, int TILE_N_, int CLUSTER_, int PANELS_, int STAGES_, int WARPS_>
struct route_config {
    static constexpr bool BF16 = BF16_;
    static constexpr int TILE_M = TILE_M_, TILE_N = TILE_N_, CLUSTER = CLUSTER_, PANELS = PANELS_, STAGES = STAGES_,
                         WARPS = WARPS_;
    static constexpr int THREADS = SM90_ROUTE_THREADS(WARPS);
    static constexpr int CONSUMERS = TILE_N / 64;   /* warpgroups */
    static constexpr int LOADED = TILE_N / CLUSTER; /* rows of w that a CTA loads */
    static constexpr int SPLITS_AT_ONCE = SM90_ROUTE_SPLITS_AT_ONCE(WARPS);
    static constexpr int PITCH = SM90_ROUTE_PITCH(TILE_N), SUMS = TILE_M / 2;
    static_assert(TILE_N % 64 == 0 && CONSUMERS * 4 <= WARPS, "whole warpgroups");
    static_assert(TILE_M % 8 == 0 && LOADED % 8 == 0, "whole rows of a swizzle");
};

template <class C> struct route_stage {
    uint8_t w[C::PANELS][C::TILE_N * PANEL_ROW_BYTES], x[C::PANELS][C::TILE_M * PANEL_ROW_BYTES];
};

/* A CTA's tile, its K tiles and its shared memory. */
template <class C> struct route_cta {
    int cluster_rank;   /* in its cluster */
    int64_t token;      /* first of its tile */
    int tokens, expert; /* tokens of the tile; its first expert */
    int begin, end;     /* K tiles */
    uint8_t *smem;
    uint32_t pipeline, full, empty;
    int *work_range; /* see route_turns() */

    __device__ route_cta(const nk_route_problem &p, const sm90_route_params &q, uint8_t *memory)
    {
        cluster_rank = C::CLUSTER == 1 ? 0 : (int)cluster_ctarank();
        token = (int64_t)blockIdx.x * C::TILE_M;
        tokens = (int)max(min(p.m - token, (int64_t)C::TILE_M), (int64_t)0);
        expert = blockIdx.y * C::TILE_N;
        begin = min((int)blockIdx.z * q.k_tiles_per_cta, q.k_tiles);
        end = min(begin + q.k_tiles_per_cta, q.k_tiles);
        smem = memory;
        pipeline = shared_address(smem);
        full = pipeline + q.barriers_at;
        empty = full + 8 * C::STAGES;
        work_range = (int *)(smem + q.barriers_at + 16 * C::STAGES);
    }

    __device__ uint32_t stage(int i) const { return pipeline + i * (uint32_t)sizeof(route_stage<C>); }

    /* Of experts n .. n + 3 of the tile, after store_sums_to_smem(). */
    __device__ const float4 *sums(int of_token, int n) const
    {
        return (const float4 *)&smem[(of_token * C::PITCH + n) * 4];
    }
};

typedef struct route_pipeline_state {
    int stage;
    uint32_t phase;
} route_pipeline_state;

template <int STAGES> __device__ inline void advance_stage(route_pipeline_state &r)
{
    r.stage++;
    if (r.stage == STAGES) {
        r.stage = 0;
        r.phase ^= 1;
    }
}

template <class C>
__device__ inline void load_w_stage(const route_cta<C> &at, const cuda_tensor_map *w, int i, int k_tile)
{
    const uint32_t full = at.full + 8 * i, to = at.stage(i);
    const uint16_t all = (1 << C::CLUSTER) - 1;
    mbarrier_arrive_expect_tx(full, sizeof(route_stage<C>));
#pragma unroll
    for (int panel = 0; panel < C::PANELS; panel++) {
        const int from[2] = {(k_tile * C::PANELS + panel) * SM90_ROUTE_PANEL,
                             at.expert + (C::CLUSTER > 1 ? at.cluster_rank * C::LOADED : 0)};
        const uint32_t rows = to + panel * (uint32_t)sizeof(route_stage<C>::w[0]) +
                              (C::CLUSTER > 1 ? at.cluster_rank * C::LOADED * PANEL_ROW_BYTES : 0);
        if (C::CLUSTER > 1)
            cp_async_bulk_tensor_2d_multicast(rows, w, from, full, all);
        else
            cp_async_bulk_tensor_2d(rows, w, from, full);
    }
}

/* The producer, one thread: loads every K tile of the CTA. */
template <class C>
__device__ inline void load_stages(const route_cta<C> &at, const cuda_tensor_map *w, const cuda_tensor_map *x,
                                   int early)
{
    early = min(early, at.end - at.begin);
#pragma unroll 1
    for (int i = 0; i < early; i++)
        load_w_stage<C>(at, w, i, at.begin + i);
    griddepcontrol_wait();
    route_pipeline_state r = {0, 0};
#pragma unroll 1
    for (int i = 0; i < at.end - at.begin; i++) {
        if (i >= early) {
            if (i >= C::STAGES) mbarrier_wait(at.empty + 8 * r.stage, r.phase ^ 1);
            load_w_stage<C>(at, w, r.stage, at.begin + i);
        }
#pragma unroll
        for (int panel = 0; panel < C::PANELS; panel++) {
            const int from[2] = {((at.begin + i) * C::PANELS + panel) * SM90_ROUTE_PANEL, (int)at.token};
            const uint32_t to = at.stage(r.stage) + (uint32_t)offsetof(route_stage<C>, x) +
                                panel * (uint32_t)sizeof(route_stage<C>::x[0]);
            cp_async_bulk_tensor_2d(to, x, from, at.full + 8 * r.stage);
        }
        advance_stage<C::STAGES>(r);
    }
}

/* The same thread: until all CTAs of the cluster have given back every stage that this CTA loaded for them. None of
 * them arrives at its mbarriers after that. */
template <class C> __device__ inline void drain_pipeline(const route_cta<C> &at)
{
    const int loaded = at.end - at.begin;
    route_pipeline_state r = {loaded % C::STAGES, (uint32_t)(loaded / C::STAGES % 2)};
#pragma unroll 1
    for (int i = 0; i < C::STAGES; i++) {
        mbarrier_wait(at.empty + 8 * r.stage, r.phase ^ 1);
        advance_stage<C::STAGES>(r);
    }
}

/* A consumer warp tells all CTAs that write to a stage that it is empty. */
template <class C> __device__ inline void release_stage(const route_cta<C> &at, int stage)
{
    const int lane = threadIdx.x % 32;
    __syncwarp();
    if (C::CLUSTER == 1) {
        mbarrier_arrive_if(lane == 0, at.empty + 8 * stage);
    } else if (lane < C::CLUSTER) {
        mbarrier_arrive_remote(mapa(at.empty + 8 * stage, lane));
    }
}

/* The consumer: sums of 64 experts from 64 `block` on. sums[4 j + r] of a thread are of expert lane / 4 + 8 (r / 2) of
 * its warp's 16 and of token 8 j + 2 (lane % 4) + r % 2. */
template <class C> __device__ inline void mma_tile(const route_cta<C> &at, int block, float (&sums)[C::SUMS])
{
    const uint64_t w = wgmma_descriptor(at.pipeline + block * 64 * PANEL_ROW_BYTES, 16, 8 * 128, WGMMA_SWIZZLE_128B);
    const uint64_t x =
        wgmma_descriptor(at.pipeline + (uint32_t)offsetof(route_stage<C>, x), 16, 8 * 128, WGMMA_SWIZZLE_128B);
    route_pipeline_state r = {0, 0};
    int before = -1;
#pragma unroll
    for (int i = 0; i < C::SUMS; i++)
        sums[i] = 0;
#pragma unroll 1
    for (int i = at.begin; i < at.end; i++) {
        const uint32_t stage = r.stage * (uint32_t)(sizeof(route_stage<C>) / 16);
        mbarrier_wait(at.full + 8 * r.stage, r.phase);
        wgmma_fence();
#pragma unroll
        for (int panel = 0; panel < C::PANELS; panel++) {
#pragma unroll
            for (int k16 = 0; k16 < SM90_ROUTE_PANEL / 16; k16++) {
                const uint64_t a = w + stage + panel * (uint32_t)(sizeof(route_stage<C>::w[0]) / 16) + k16 * 2;
                const uint64_t b = x + stage + panel * (uint32_t)(sizeof(route_stage<C>::x[0]) / 16) + k16 * 2;
                if (C::BF16)
                    wgmma_bf16(sums, a, b, true);
                else
                    wgmma_f16(sums, a, b, true);
            }
        }
        wgmma_commit_group();
        wgmma_wait_group<1>(sums);
        if (before >= 0) release_stage<C>(at, before);
        before = r.stage;
        advance_stage<C::STAGES>(r);
    }
    wgmma_wait_group<0>(sums);
    if (C::CLUSTER > 1 && before >= 0) release_stage<C>(at, before); /* see drain_pipeline() */
}

/* Stores sums to shared memory, [token][PITCH], where the pipeline was. */
template <class C> __device__ inline void store_sums_to_smem(float *to, int block, const float (&sums)[C::SUMS])
{
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    to += lane % 4 * 2 * C::PITCH + block * 64 + warp * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < C::TILE_M / 8; j++) {
#pragma unroll
        for (int r = 0; r < 4; r++)
            to[(8 * j + r % 2) * C::PITCH + r / 2 * 8] = sums[4 * j + r];
    }
}

#endif
