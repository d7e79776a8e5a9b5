/* What all roles of sm100_gemm.cuh know: a tile's sizes, shared memory, where a CTA's tiles are, how rings turn. */
#ifndef NK_SM100_GEMM_PARTS_CUH
#define NK_SM100_GEMM_PARTS_CUH

#include "cuda/operand.cuh"
#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tcgen05.cuh"
#include "cuda/ptx/tensor_map.cuh"
#include "sm100_gemm_config.h"

template <int MATRICES_, int COLUMNS_, int STAGES_, int ACCUMULATORS_> struct config {
    static constexpr int MATRICES = MATRICES_; /* of the lanes: dual_gemm has gates and ups */
    static constexpr int COLUMNS = COLUMNS_, STAGES = STAGES_, ACCUMULATORS = ACCUMULATORS_;
    static constexpr int OPERANDS = MATRICES + 1;
    static constexpr int SUMS = MATRICES * COLUMNS;       /* columns of an accumulator */
    static constexpr int SF_COLUMN = ACCUMULATORS * SUMS; /* the first of tensor memory */
    static constexpr int SF_STAGE = OPERANDS * SM100_GEMM_SF_COLUMNS;
    static_assert(COLUMNS == 64 || COLUMNS == 128, "scale factors come in atoms of 128 rows, or halves of one");
    static_assert(SF_COLUMN + STAGES * SF_STAGE <= SM100_GEMM_TMEM, "tensor memory is full");
};

template <class C> struct memory {
    struct stage {
        uint8_t lanes[C::MATRICES][SM100_GEMM_LANES * SM100_GEMM_CODE_BYTES]; /* swizzled, as columns are */
        uint8_t columns[C::COLUMNS * SM100_GEMM_CODE_BYTES];
        uint8_t sf[C::OPERANDS][SM100_GEMM_SF_BYTES]; /* atoms, by SM100_GEMM_OF_.. */
    } stages[C::STAGES];
    uint64_t full[C::STAGES], empty[C::STAGES];
    uint64_t sums_full[C::ACCUMULATORS], sums_empty[C::ACCUMULATORS];
    uint32_t tmem; /* the address of tensor memory */
};

/* Where in a ring, and the parity of its round. */
template <int SLOTS> struct ring {
    int slot = 0;
    uint32_t parity = 0;

    __device__ void advance()
    {
        const bool turns = slot == SLOTS - 1;
        slot = turns ? 0 : slot + 1;
        parity ^= turns;
    }
};

/* Its batch, its first row of the lanes' operand and of the columns'. */
typedef struct gemm_tile {
    int64_t l, lane, column;
} gemm_tile;

/* Calls f(tile) for each of this CTA's tiles. */
template <class C, typename F> __device__ inline void each_tile(const sm100_gemm_work &work, F f)
{
    const int of_batch = work.lane_tiles * work.column_tiles;
#pragma unroll 1
    for (int t = (int)blockIdx.x; t < work.tiles; t += (int)gridDim.x) {
        const int l = t / of_batch, rest = t - l * of_batch, column = rest / work.lane_tiles;
        f(gemm_tile{l, (int64_t)(rest - column * work.lane_tiles) * SM100_GEMM_LANES, (int64_t)column * C::COLUMNS});
    }
}

/* An operand by SM100_GEMM_OF_.., its rows, and its first row of a tile. */
__device__ inline const nk_operand &operand_of(const nk_gemm_problem &p, const sm100_gemm_work &work, int of)
{
    return (of == SM100_GEMM_OF_LANES) == work.tokens_on_lanes ? p.a : p.b;
}

__device__ inline const nk_operand &operand_of(const nk_dual_gemm_problem &p, const sm100_gemm_work &, int of)
{
    return of == SM100_GEMM_OF_COLUMNS ? p.a : of == SM100_GEMM_OF_LANES ? p.b1 : p.b2;
}

template <typename P> __device__ inline int64_t rows_of(const P &p, const sm100_gemm_work &work, int of)
{
    return (of == SM100_GEMM_OF_COLUMNS) != work.tokens_on_lanes ? p.m : p.n;
}

__device__ inline int64_t first_row(const gemm_tile &t, int of)
{
    return of == SM100_GEMM_OF_COLUMNS ? t.column : t.lane;
}

/* Whether lanes arrange scale factors of any operand. */
template <class C> __device__ inline bool arranges(const sm100_gemm_work &work)
{
    bool copied = true;
    for (int of = 0; of < C::OPERANDS; of++)
        copied = copied && work.copied[of];
    return !copied;
}

/* Tensor memory is handed over: the order comes of the tcgen05 fences alone (PTX ISA, 9.7.16.6.4). */
__device__ inline void wait_for_tmem(const uint64_t *barrier, uint32_t parity)
{
    mbarrier_wait_cluster_relaxed(shared_address(barrier), parity);
    tcgen05_fence_after_thread_sync();
}

#endif
