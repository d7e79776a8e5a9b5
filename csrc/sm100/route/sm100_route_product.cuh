/* A CTA's sums in tensor memory: one thread fills a ring by tensor map, another one issues products. */
#ifndef NK_SM100_ROUTE_PRODUCT_CUH
#define NK_SM100_ROUTE_PRODUCT_CUH

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/cluster_memory.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tcgen05.cuh"
#include "cuda/ptx/tensor_map.cuh"
#include "sm100_route_config.h"

typedef struct barriers_t {
    uint64_t full[SM100_ROUTE_MOST_STAGES], empty[SM100_ROUTE_MOST_STAGES];
    uint64_t sums_full;
    uint32_t tmem; /* the address of tensor memory */
} barriers_t;

/* Where a CTA is, and what it has. */
typedef struct place {
    const sm100_route_work &work;
    uint8_t *memory;
    barriers_t &barriers;
    int rank, part, expert; /* in the cluster; of K; the first of its experts */
    int64_t token;          /* the tile's first */
    int tokens;             /* of the tile that are there */
    int first_step, end_step;
} place;

__device__ inline place place_of(const nk_route_problem &p, const sm100_route_work &work, uint8_t *memory)
{
    const int cluster = work.expert_tiles * work.parts, rank = cluster == 1 ? 0 : (int)cluster_ctarank();
    const int part = rank / work.expert_tiles;
    const int64_t token = (int64_t)((int)blockIdx.x / cluster) * work.tokens;
    return {.work = work,
            .memory = memory,
            .barriers = *(barriers_t *)(memory + work.barriers_at),
            .rank = rank,
            .part = part,
            .expert = rank % work.expert_tiles * work.experts,
            .token = token,
            .tokens = (int)min(p.m - token, (int64_t)work.tokens),
            .first_step = (int)((int64_t)part * work.steps / work.parts),
            .end_step = (int)((int64_t)(part + 1) * work.steps / work.parts)};
}

__device__ inline int columns_of(const sm100_route_work &work)
{
    return work.tokens_on_lanes ? work.experts : work.tokens;
}

/* Where in the ring, and the parity of its round. */
struct ring_at {
    int slot = 0;
    uint32_t parity = 0;

    __device__ void advance(int slots)
    {
        const bool turns = slot == slots - 1;
        slot = turns ? 0 : slot + 1;
        parity ^= turns;
    }
};

__device__ inline uint32_t stage_at(const place &at, int slot)
{
    return shared_address(at.memory) + slot * SM100_ROUTE_STAGE_BYTES(columns_of(at.work));
}

__device__ inline void init_barriers(const place &at)
{
    for (int i = 0; i < at.work.stages; i++) {
        mbarrier_init(shared_address(&at.barriers.full[i]), 1);
        mbarrier_init(shared_address(&at.barriers.empty[i]), 1);
    }
    mbarrier_init(shared_address(&at.barriers.sums_full), 1);
    fence_mbarrier_init();
}

/* A box of rows: those on lanes come first in a stage. */
__device__ inline void load_rows(const place &at, const cuda_tensor_map *map, bool on_lanes, int64_t row, int slot,
                                 int step)
{
    const uint32_t to = stage_at(at, slot) + (on_lanes ? 0 : SM100_ROUTE_LANES * SM100_ROUTE_ROW_BYTES);
    cp_async_bulk_tensor_2d(to, map, {step * SM100_ROUTE_STEP, (int)row}, shared_address(&at.barriers.full[slot]));
}

__device__ inline void load_weights(const place &at, const cuda_tensor_map *w, int slot, int step)
{
    mbarrier_arrive_expect_tx(shared_address(&at.barriers.full[slot]), SM100_ROUTE_STAGE_BYTES(columns_of(at.work)));
    load_rows(at, w, !at.work.tokens_on_lanes, at.expert, slot, step);
}

/* One thread. What a box has outside its operand is zero, and its bytes count in full. */
__device__ inline void load(const place &at, const cuda_tensor_map *w, const cuda_tensor_map *x)
{
    const int early = min(at.work.early, at.end_step - at.first_step);
#pragma unroll 1
    for (int i = 0; i < early; i++)
        load_weights(at, w, i, at.first_step + i);
    griddepcontrol_wait();
    ring_at r;
#pragma unroll 1
    for (int step = at.first_step; step < at.end_step; step++, r.advance(at.work.stages)) {
        if (step - at.first_step >= early) {
            mbarrier_wait(shared_address(&at.barriers.empty[r.slot]), r.parity ^ 1);
            load_weights(at, w, r.slot, step);
        }
        load_rows(at, x, at.work.tokens_on_lanes, at.token, r.slot, step);
    }
}

/* Rows of 128 bytes: the span of the swizzle. */
__device__ inline uint64_t rows_at(uint32_t at)
{
    return tcgen05_descriptor(at, 8 * SM100_ROUTE_ROW_BYTES, TCGEN05_SWIZZLE_128B);
}

/* One thread. */
__device__ inline void multiply(const place &at, uint32_t tmem)
{
    ring_at r;
#pragma unroll 1
    for (int step = at.first_step; step < at.end_step; step++, r.advance(at.work.stages)) {
        mbarrier_wait(shared_address(&at.barriers.full[r.slot]), r.parity);
        const uint32_t stage = stage_at(at, r.slot);
        const uint64_t lanes = rows_at(stage), columns = rows_at(stage + SM100_ROUTE_LANES * SM100_ROUTE_ROW_BYTES);
#pragma unroll
        for (int i = 0; i < SM100_ROUTE_STEP / 16; i++) /* 32 bytes of a row each, in units of 16 */
            tcgen05_mma_f16<1>(tmem, lanes + 2 * i, columns + 2 * i, at.work.instruction,
                               step > at.first_step || i > 0);
        if (step + at.work.stages < at.end_step) /* nobody waits for the last ones */
            tcgen05_commit<1>(shared_address(&at.barriers.empty[r.slot]));
    }
    tcgen05_commit<1>(shared_address(&at.barriers.sums_full));
}

/* The sums of a lane in 16 columns. For whole warps. */
__device__ inline void load_sums(uint32_t tmem, int column, float (&v)[16])
{
    uint32_t bits[16];
    __syncwarp();
    tcgen05_ld_32x32b_x16(tmem + column, bits);
    tcgen05_wait_ld();
#pragma unroll
    for (int i = 0; i < 16; i++)
        v[i] = __uint_as_float(bits[i]);
}

/* To shared memory, [tokens][pitch]: a lane's row, or its column. `tmem` is that of the warp's lanes. */
__device__ inline void stage_sums(const place &at, uint32_t tmem)
{
    const int pitch = SM100_ROUTE_PITCH(at.work.experts), lane = (int)threadIdx.x;
    float *sums = (float *)at.memory + (at.work.tokens_on_lanes ? lane * pitch : lane);
#pragma unroll 1
    for (int column = 0; column < columns_of(at.work); column += 16) {
        float v[16];
        load_sums(tmem, column, v);
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            if (at.work.tokens_on_lanes) {
                *(float4 *)&sums[column + i] = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
                continue;
            }
#pragma unroll
            for (int j = i; j < i + 4; j++)
                sums[(column + j) * pitch] = v[j];
        }
    }
}

#endif
