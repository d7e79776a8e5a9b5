/* The sums of a CTA's tile by wgmma, from a ring in shared memory that one thread fills by tensor map. */
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

template <bool BFLOAT_, int TOKENS_, int EXPERTS_, int SHARERS_, int PANELS_, int SLOTS_, int WARPS_> struct config {
    static constexpr bool BFLOAT = BFLOAT_;
    static constexpr int TOKENS = TOKENS_, EXPERTS = EXPERTS_, SHARERS = SHARERS_, PANELS = PANELS_, SLOTS = SLOTS_,
                         WARPS = WARPS_;
    static constexpr int THREADS = SM90_ROUTE_THREADS(WARPS);
    static constexpr int CONSUMERS = EXPERTS / 64;   /* warpgroups */
    static constexpr int LOADED = EXPERTS / SHARERS; /* rows of w that a CTA loads */
    static constexpr int PARTS_AT_ONCE = SM90_ROUTE_PARTS_AT_ONCE(WARPS);
    static constexpr int PITCH = SM90_ROUTE_PITCH(EXPERTS), SUMS = TOKENS / 2;
    static_assert(EXPERTS % 64 == 0 && CONSUMERS * 4 <= WARPS, "whole warpgroups");
    static_assert(TOKENS % 8 == 0 && LOADED % 8 == 0, "whole rows of a swizzle");
};

template <class C> struct slot_t {
    uint8_t w[C::PANELS][C::EXPERTS * PANEL_ROW_BYTES], x[C::PANELS][C::TOKENS * PANEL_ROW_BYTES];
};

/* Where a CTA is, and what it has. */
template <class C> struct place {
    int sharer;         /* in its cluster */
    int64_t token;      /* first of its tile */
    int tokens, expert; /* how many of them there are; the tile's first expert */
    int begin, end;     /* slots of K */
    uint8_t *smem;
    uint32_t ring, full, empty;
    int *duty; /* see route_tokens() */

    __device__ place(const nk_route_problem &p, const sm90_route_params &q, uint8_t *memory)
    {
        sharer = C::SHARERS == 1 ? 0 : (int)cluster_ctarank();
        token = (int64_t)blockIdx.x * C::TOKENS;
        tokens = (int)max(min(p.m - token, (int64_t)C::TOKENS), (int64_t)0);
        expert = blockIdx.y * C::EXPERTS;
        begin = min((int)blockIdx.z * q.slots_per_cta, q.slots);
        end = min(begin + q.slots_per_cta, q.slots);
        smem = memory;
        ring = shared_address(smem);
        full = ring + q.barriers_at;
        empty = full + 8 * C::SLOTS;
        duty = (int *)(smem + q.barriers_at + 16 * C::SLOTS);
    }

    __device__ uint32_t slot(int i) const { return ring + i * (uint32_t)sizeof(slot_t<C>); }

    /* Of experts n .. n + 3 of the tile, once they take the ring's place. */
    __device__ const float4 *sums(int of_token, int n) const
    {
        return (const float4 *)&smem[(of_token * C::PITCH + n) * 4];
    }
};

typedef struct ring_at {
    int slot;
    uint32_t phase;
} ring_at;

template <int SLOTS> __device__ inline void advance(ring_at &r)
{
    r.slot++;
    if (r.slot == SLOTS) {
        r.slot = 0;
        r.phase ^= 1;
    }
}

template <class C>
__device__ inline void load_weights(const place<C> &at, const cuda_tensor_map *w, int i, int slot_of_k)
{
    const uint32_t full = at.full + 8 * i, to = at.slot(i);
    const uint16_t all = (1 << C::SHARERS) - 1;
    mbarrier_arrive_expect_tx(full, sizeof(slot_t<C>));
#pragma unroll
    for (int panel = 0; panel < C::PANELS; panel++) {
        const int from[2] = {(slot_of_k * C::PANELS + panel) * SM90_ROUTE_PANEL,
                             at.expert + (C::SHARERS > 1 ? at.sharer * C::LOADED : 0)};
        const uint32_t rows = to + panel * (uint32_t)sizeof(slot_t<C>::w[0]) +
                              (C::SHARERS > 1 ? at.sharer * C::LOADED * PANEL_ROW_BYTES : 0);
        if (C::SHARERS > 1)
            cp_async_bulk_tensor_2d_multicast(rows, w, from, full, all);
        else
            cp_async_bulk_tensor_2d(rows, w, from, full);
    }
}

/* By one thread. */
template <class C>
__device__ inline void load(const place<C> &at, const cuda_tensor_map *w, const cuda_tensor_map *x, int early)
{
    early = min(early, at.end - at.begin);
#pragma unroll 1
    for (int i = 0; i < early; i++)
        load_weights<C>(at, w, i, at.begin + i);
    griddepcontrol_wait();
    ring_at r = {0, 0};
#pragma unroll 1
    for (int i = 0; i < at.end - at.begin; i++) {
        if (i >= early) {
            if (i >= C::SLOTS) mbarrier_wait(at.empty + 8 * r.slot, r.phase ^ 1);
            load_weights<C>(at, w, r.slot, at.begin + i);
        }
#pragma unroll
        for (int panel = 0; panel < C::PANELS; panel++) {
            const int from[2] = {((at.begin + i) * C::PANELS + panel) * SM90_ROUTE_PANEL, (int)at.token};
            const uint32_t to =
                at.slot(r.slot) + (uint32_t)offsetof(slot_t<C>, x) + panel * (uint32_t)sizeof(slot_t<C>::x[0]);
            cp_async_bulk_tensor_2d(to, x, from, at.full + 8 * r.slot);
        }
        advance<C::SLOTS>(r);
    }
}

/* A warp gives a slot back to all who write to it. */
template <class C> __device__ inline void release(const place<C> &at, int slot)
{
    const int lane = threadIdx.x % 32;
    __syncwarp();
    if (C::SHARERS == 1) {
        mbarrier_arrive_if(lane == 0, at.empty + 8 * slot);
    } else if (lane < C::SHARERS) {
        mbarrier_arrive_read(mapa(at.empty + 8 * slot, lane));
    }
}

/* Sums of 64 experts from `block` on: sums[4 j + r] of a thread are of expert lane / 4 + 8 (r / 2) of its warp's 16 and
 * of token 8 j + 2 (lane % 4) + r % 2. */
template <class C> __device__ inline void multiply(const place<C> &at, int block, float (&sums)[C::SUMS])
{
    const uint64_t w = wgmma_descriptor(at.ring + block * 64 * PANEL_ROW_BYTES, 16, 8 * 128, WGMMA_SWIZZLE_128B);
    const uint64_t x = wgmma_descriptor(at.ring + (uint32_t)offsetof(slot_t<C>, x), 16, 8 * 128, WGMMA_SWIZZLE_128B);
    ring_at r = {0, 0};
    int before = -1;
#pragma unroll
    for (int i = 0; i < C::SUMS; i++)
        sums[i] = 0;
#pragma unroll 1
    for (int i = at.begin; i < at.end; i++) {
        const uint32_t slot = r.slot * (uint32_t)(sizeof(slot_t<C>) / 16);
        mbarrier_wait(at.full + 8 * r.slot, r.phase);
        wgmma_fence();
#pragma unroll
        for (int panel = 0; panel < C::PANELS; panel++) {
#pragma unroll
            for (int k16 = 0; k16 < SM90_ROUTE_PANEL / 16; k16++) {
                const uint64_t a = w + slot + panel * (uint32_t)(sizeof(slot_t<C>::w[0]) / 16) + k16 * 2;
                const uint64_t b = x + slot + panel * (uint32_t)(sizeof(slot_t<C>::x[0]) / 16) + k16 * 2;
                if (C::BFLOAT)
                    wgmma_bf16(sums, a, b, true);
                else
                    wgmma_f16(sums, a, b, true);
            }
        }
        wgmma_commit_group();
        wgmma_wait_group<1>(sums);
        if (before >= 0) release<C>(at, before);
        before = r.slot;
        advance<C::SLOTS>(r);
    }
    wgmma_wait_group<0>(sums);
}

/* To shared memory: [token][PITCH]. */
template <class C> __device__ inline void stage_sums(float *to, int block, const float (&sums)[C::SUMS])
{
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    to += lane % 4 * 2 * C::PITCH + block * 64 + warp * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < C::TOKENS / 8; j++) {
#pragma unroll
        for (int r = 0; r < 4; r++)
            to[(8 * j + r % 2) * C::PITCH + r / 2 * 8] = sums[4 * j + r];
    }
}

#endif
