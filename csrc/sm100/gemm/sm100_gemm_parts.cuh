/* What all roles of sm100_gemm.cuh know: a tile's sizes, shared memory, where a CTA's tiles are, how rings turn. */
#ifndef NK_SM100_GEMM_PARTS_CUH
#define NK_SM100_GEMM_PARTS_CUH

#include "cuda/expert.cuh"
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

template <int MATRICES_, bool EXPERTS_, int COLUMNS_, int STAGES_, int ACCUMULATORS_> struct config {
    static constexpr bool EXPERTS = EXPERTS_;
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
    expert_scan<SM100_GEMM_THREADS / 32> scan[C::EXPERTS ? 1 : 0];
    sm100_gemm_expert experts[];
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

/* A tile: its batch, or its expert; its first row of the lanes' operand, and of the columns'; the end of the latter, or
 * of the expert's tokens. The columns' scale factors: rows from the first one of their atoms to the tile, and which row
 * of atoms these are. */
typedef struct gemm_tile {
    int64_t l, lane, column, column_end;
    int64_t into_atom, atom_row;
} gemm_tile;

/* All tiles. */
typedef struct gemm_tiles {
    const sm100_gemm_work &work;
    const sm100_gemm_expert *experts; /* their list */
    int64_t expert_count;
    int count;
    int64_t column_end; /* without experts */
    int64_t atom_rows;  /* that the columns' blocked scale factors have, whatever offsets say */
} gemm_tiles;

__device__ inline int expert_of(const gemm_tiles &tiles, int column_tile)
{
    int low = 0, high = (int)tiles.expert_count;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        const bool is_behind = tiles.experts[middle].first_tile <= column_tile;
        low = is_behind ? middle : low;
        high = is_behind ? high : middle;
    }
    return low;
}

/* Tiles of the same columns are neighbours. */
template <class C> __device__ inline gemm_tile tile_of(const gemm_tiles &tiles, int number)
{
    const int lane_tiles = tiles.work.lane_tiles, column_tile = number / lane_tiles;
    gemm_tile t = {.lane = (int64_t)(number - column_tile * lane_tiles) * SM100_GEMM_LANES};
    int64_t first = 0, first_atom = 0;
    if constexpr (C::EXPERTS) {
        t.l = expert_of(tiles, column_tile);
        const sm100_gemm_expert &expert = tiles.experts[t.l];
        first = expert.first_row, first_atom = expert.first_atom;
        t.column = (int64_t)(column_tile - expert.first_tile) * C::COLUMNS;
        t.column_end = tiles.experts[t.l + 1].first_row;
    } else {
        t.l = column_tile / tiles.work.column_tiles;
        t.column = (column_tile - t.l * tiles.work.column_tiles) * C::COLUMNS;
        t.column_end = tiles.column_end;
    }
    t.into_atom = t.column % NK_SF_ATOM_ROWS;
    t.atom_row = min(first_atom + t.column / NK_SF_ATOM_ROWS, tiles.atom_rows - 1);
    t.column += first;
    return t;
}

/* Calls f(tile) for each of this CTA's tiles. */
template <class C, typename F> __device__ inline void each_tile(const gemm_tiles &tiles, F f)
{
#pragma unroll 1
    for (int number = (int)blockIdx.x; number < tiles.count; number += (int)gridDim.x)
        f(tile_of<C>(tiles, number));
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

/* The scale factors of a tile's operand: whole atoms, whose row 0 is row `first` of the matrix. */
typedef struct tile_factors {
    const nk_operand &of;
    int64_t l, first, end, atom_row;
} tile_factors;

/* Of experts all tokens are one batch. */
template <class C, typename P>
__device__ inline tile_factors factors_of(const P &p, const sm100_gemm_work &work, const gemm_tile &t, int of)
{
    const nk_operand &operand = operand_of(p, work, of);
    if (of == SM100_GEMM_OF_COLUMNS)
        return {operand, C::EXPERTS ? 0 : t.l, t.column - t.into_atom, t.column_end, t.atom_row};
    return {operand, t.l, t.lane, rows_of(p, work, of), t.lane / NK_SF_ATOM_ROWS};
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
