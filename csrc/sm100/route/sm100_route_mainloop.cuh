/* The main loop of Blackwell's router: one thread fills a pipeline of stages by tensor map, another one issues MMAs,
 * whose sums lie in tensor memory. Operands M and N are those of the MMA, see sm100_route_config.h. */
#ifndef NK_SM100_ROUTE_MAINLOOP_CUH
#define NK_SM100_ROUTE_MAINLOOP_CUH

#include "cuda/pipeline_state.cuh"
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

typedef struct route_barriers {
    uint64_t full[SM100_ROUTE_MAX_STAGES], empty[SM100_ROUTE_MAX_STAGES];
    uint64_t sums_full;
    uint32_t tmem; /* the address of tensor memory */
} route_barriers;

/* What a CTA has. */
typedef struct route_cta_tile {
    const sm100_route_params &params;
    uint8_t *memory;
    route_barriers &barriers;
    int rank, split, expert; /* in the cluster; which share of K; its first expert */
    int64_t token;           /* the tile's first */
    int tokens;              /* of the tile that exist */
    int first_step, end_step;
} route_cta_tile;

__device__ inline route_cta_tile route_cta_tile_of(const nk_route_problem &p, const sm100_route_params &params,
                                                   uint8_t *memory)
{
    const int cluster = params.expert_tiles * params.split_k, rank = cluster == 1 ? 0 : (int)cluster_ctarank();
    const int split = rank / params.expert_tiles;
    const int64_t token = (int64_t)((int)blockIdx.x / cluster) * params.tokens;
    return {.params = params,
            .memory = memory,
            .barriers = *(route_barriers *)(memory + params.barriers_at),
            .rank = rank,
            .split = split,
            .expert = rank % params.expert_tiles * params.experts,
            .token = token,
            .tokens = (int)min(p.m - token, (int64_t)params.tokens),
            .first_step = (int)((int64_t)split * params.steps / params.split_k),
            .end_step = (int)((int64_t)(split + 1) * params.steps / params.split_k)};
}

__device__ inline uint32_t stage_at(const route_cta_tile &at, int stage)
{
    return shared_address(at.memory) + stage * SM100_ROUTE_STAGE_BYTES(sm100_route_mma_n(&at.params));
}

__device__ inline void init_route_barriers(const route_cta_tile &at)
{
    for (int i = 0; i < at.params.stages; i++) {
        mbarrier_init(shared_address(&at.barriers.full[i]), 1);
        mbarrier_init(shared_address(&at.barriers.empty[i]), 1);
    }
    mbarrier_init(shared_address(&at.barriers.sums_full), 1);
    fence_mbarrier_init();
}

/* A box of rows: operand M comes first in a stage. */
__device__ inline void load_operand(const route_cta_tile &at, const cuda_tensor_map *map, bool is_m, int64_t row,
                                    int stage, int step)
{
    const uint32_t to = stage_at(at, stage) + (is_m ? 0 : SM100_ROUTE_MMA_M * SM100_ROUTE_ROW_BYTES);
    cp_async_bulk_tensor_2d(to, map, {step * SM100_ROUTE_TILE_K, (int)row}, shared_address(&at.barriers.full[stage]));
}

__device__ inline void load_expert_rows(const route_cta_tile &at, const cuda_tensor_map *w, int stage, int step)
{
    mbarrier_arrive_expect_tx(shared_address(&at.barriers.full[stage]),
                              SM100_ROUTE_STAGE_BYTES(sm100_route_mma_n(&at.params)));
    load_operand(at, w, !at.params.tokens_are_mma_m, at.expert, stage, step);
}

/* One thread. A box has zeros where it lies outside its operand, and its bytes count in full. */
__device__ inline void produce_route_stages(const route_cta_tile &at, const cuda_tensor_map *w,
                                            const cuda_tensor_map *x)
{
    const int early = min(at.params.early, at.end_step - at.first_step);
#pragma unroll 1
    for (int i = 0; i < early; i++)
        load_expert_rows(at, w, i, at.first_step + i);
    griddepcontrol_wait();
    pipeline_state load;
#pragma unroll 1
    for (int step = at.first_step; step < at.end_step; step++, load.advance(at.params.stages)) {
        if (step - at.first_step >= early) {
            mbarrier_wait(shared_address(&at.barriers.empty[load.stage]), load.parity ^ 1);
            load_expert_rows(at, w, load.stage, step);
        }
        load_operand(at, x, at.params.tokens_are_mma_m, at.token, load.stage, step);
    }
}

/* Rows of 128 bytes, the swizzle's span. */
__device__ inline uint64_t rows_descriptor(uint32_t at)
{
    return tcgen05_descriptor(at, 8 * SM100_ROUTE_ROW_BYTES, TCGEN05_SWIZZLE_128B);
}

/* One thread. */
__device__ inline void issue_route_mmas(const route_cta_tile &at, uint32_t tmem)
{
    pipeline_state load;
#pragma unroll 1
    for (int step = at.first_step; step < at.end_step; step++, load.advance(at.params.stages)) {
        mbarrier_wait(shared_address(&at.barriers.full[load.stage]), load.parity);
        const uint32_t stage = stage_at(at, load.stage);
        const uint64_t operand_m = rows_descriptor(stage),
                       operand_n = rows_descriptor(stage + SM100_ROUTE_MMA_M * SM100_ROUTE_ROW_BYTES);
#pragma unroll
        for (int i = 0; i < SM100_ROUTE_TILE_K / 16; i++) /* 32 bytes of a row each, in units of 16 */
            tcgen05_mma_f16<1>(tmem, operand_m + 2 * i, operand_n + 2 * i, at.params.instruction,
                               step > at.first_step || i > 0);
        if (step + at.params.stages < at.end_step) /* no one waits for the last ones */
            tcgen05_commit<1>(shared_address(&at.barriers.empty[load.stage]));
    }
    tcgen05_commit<1>(shared_address(&at.barriers.sums_full));
}

/* A lane's sums in 16 columns. For whole warps. */
__device__ inline void load_16_sums(uint32_t tmem, int column, float (&v)[16])
{
    uint32_t bits[16];
    __syncwarp();
    tcgen05_ld_32x32b_x16(tmem + column, bits);
    tcgen05_wait_ld();
#pragma unroll
    for (int i = 0; i < 16; i++)
        v[i] = __uint_as_float(bits[i]);
}

/* To shared memory, [tokens][pitch]: a lane is a row of that, or a column. `tmem` is the address of the warp's lanes.
 */
__device__ inline void store_sums_to_smem(const route_cta_tile &at, uint32_t tmem)
{
    const int pitch = SM100_ROUTE_PITCH(at.params.experts), lane = (int)threadIdx.x;
    float *sums = (float *)at.memory + (at.params.tokens_are_mma_m ? lane * pitch : lane);
#pragma unroll 1
    for (int column = 0; column < sm100_route_mma_n(&at.params); column += 16) {
        float v[16];
        load_16_sums(tmem, column, v);
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            if (at.params.tokens_are_mma_m) {
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
