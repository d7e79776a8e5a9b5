/* What all roles of sm100_gemm.cuh know: a tile's sizes, shared memory, where a CTA's tiles are, how rings turn. */
#ifndef NK_SM100_GEMM_PARTS_CUH
#define NK_SM100_GEMM_PARTS_CUH

#include "cuda/expert.cuh"
#include "cuda/operand.cuh"
#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/cluster_memory.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tcgen05.cuh"
#include "cuda/ptx/tensor_map.cuh"
#include "sm100_gemm_config.h"
#include "sm100_list_params.h"

/* What tiles are of. */
enum { OF_BATCHES, OF_EXPERTS, OF_LIST };

template <int MATRICES_, int FORM_, int CTAS_, int COLUMNS_, int PARTS_, int ACCUMULATORS_, int PAIRS_ = 1>
struct config {
    static constexpr bool EXPERTS = FORM_ == OF_EXPERTS, LIST = FORM_ == OF_LIST;
    static constexpr int MATRICES = MATRICES_; /* of the lanes: dual_gemm has gates and ups */
    static constexpr int CTAS = CTAS_, COLUMNS = COLUMNS_, PARTS = PARTS_, ACCUMULATORS = ACCUMULATORS_;
    static constexpr int PAIRS = PAIRS_; /* that share the columns */
    static constexpr bool ASKS = SM100_GEMM_IS_DYNAMIC(PAIRS);
    static constexpr int OPERANDS = MATRICES + 1;
    static constexpr int LANES = CTAS * SM100_GEMM_CTA_M; /* of a tile */
    static constexpr int CLUSTER = CTAS * PARTS * PAIRS;
    static constexpr uint16_t EVERYONE = (1 << CLUSTER) - 1; /* the CTAs of a cluster */
    static constexpr int STAGES = SM100_GEMM_STAGES(CTAS, COLUMNS, PARTS, MATRICES);
    static constexpr int OWN = COLUMNS / PARTS;                      /* columns of the output that a part finishes */
    static constexpr int WINDOW = OWN < 32 ? OWN : 32;               /* columns that a thread has in registers */
    static constexpr int COLUMN_ATOMS = SM100_GEMM_N_ATOMS(COLUMNS); /* rows of atoms, as ATOMS */
    static constexpr int ATOMS = MATRICES + COLUMN_ATOMS;            /* of all operands */
    static constexpr int SUMS = MATRICES * COLUMNS;                  /* columns of an accumulator */
    static constexpr int SF_COLUMN = ACCUMULATORS * SUMS;            /* the first of tensor memory */
    static constexpr int SF_SLOT = ATOMS * SM100_GEMM_SF_COLUMNS;
    static constexpr int SF_ROOM = (SM100_GEMM_TMEM_COLUMNS - SF_COLUMN) / SF_SLOT;
    static constexpr int SF_SLOTS = SF_ROOM < STAGES ? SF_ROOM : STAGES;
    static_assert(CTAS == 1 || CTAS == 2, "a product is of one CTA or of a pair");
    static_assert(PAIRS == 1 || (PAIRS == 2 && CTAS == 2 && PARTS == 1 && FORM_ == OF_BATCHES), "who shares columns");
    static_assert(SM100_GEMM_K_BLOCKS % CLUSTER == 0, "each CTA copies whole atoms of shared columns");
    static_assert(COLUMNS / CTAS / PAIRS % 8 == 0, "the swizzle's pattern spans 8 rows");
    static_assert(COLUMNS % 64 == 0, "scale factors come in atoms of 128 rows, or halves of one");
    static_assert(COLUMNS <= 256, "a product has no more");
    static_assert(OWN % 16 == 0, "a part finishes whole pieces");
    static_assert(SF_SLOTS >= 2, "tensor memory has the scale factors of a step while those of another are copied");
    static_assert(STAGES >= 3, "a stage is filled while another is multiplied");
};

/* Launch control's ring. */
typedef struct launch_ring {
    uint4 responses[SM100_GEMM_SCHEDULER_STAGES];
    uint64_t full[SM100_GEMM_SCHEDULER_STAGES], empty[SM100_GEMM_SCHEDULER_STAGES];
} launch_ring;

template <class C> struct memory {
    struct stage {
        uint8_t lanes[C::MATRICES][SM100_GEMM_CTA_M * SM100_GEMM_CODE_BYTES]; /* swizzled, as columns are */
        uint8_t columns[C::COLUMNS / C::CTAS * SM100_GEMM_CODE_BYTES];
        uint8_t sf[C::ATOMS][SM100_GEMM_SF_BYTES]; /* of each matrix of lanes, then of the columns */
    } stages[C::STAGES];
    float4 inbox[C::PARTS - 1][C::MATRICES][C::OWN / 4][SM100_GEMM_CTA_M]; /* the other parts' sums, in their order */
    launch_ring launch[C::ASKS ? 1 : 0];
    uint64_t full[C::STAGES], empty[C::STAGES];
    uint64_t sums_full[C::ACCUMULATORS], sums_empty[C::ACCUMULATORS];
    uint64_t inbox_full, inbox_empty;
    uint32_t tmem; /* the address of tensor memory */
    expert_scan<SM100_GEMM_THREADS / 32> scan[C::EXPERTS ? 1 : 0];
    alignas(16) sm100_gemm_expert experts[]; /* one is read as a whole */
};

/* The rows of atoms of an operand, by SM100_GEMM_OF_..: how many, and the first in a stage. */
template <class C> __device__ constexpr int atoms_of(int of)
{
    return of == SM100_GEMM_OPERAND_N ? C::COLUMN_ATOMS : 1;
}

template <class C> __device__ constexpr int first_atom_of(int of)
{
    return of == SM100_GEMM_OPERAND_N ? C::MATRICES : of / SM100_GEMM_OPERAND_UP;
}

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

/* A tile: how its product is divided, and this CTA's steps of K; its group, its batch or expert; this CTA's first row
 * of the lanes' operand, and the first of the columns'; the end of the latter, or of the expert's tokens. The columns'
 * scale factors: rows from the first one of their atoms to the tile, which row of atoms these are, and how many rows of
 * atoms there are, whatever offsets say. */
typedef struct gemm_tile {
    const sm100_gemm_scheduler &work;
    int first_step, end_step;
    int group; /* of a list */
    int64_t l, lane, column, column_end;
    int64_t into_atom, atom_row, atom_rows;
} gemm_tile;

/* All tiles. */
typedef struct gemm_tiles {
    const sm100_gemm_scheduler &work;
    const sm100_gemm_expert *experts; /* their list */
    int64_t expert_count;
    const nk_token_rows &rows;     /* of experts */
    const sm100_list_params *list; /* of groups, or null */
    int count;
    int half;                      /* of a pair: 0 is the CTA that issues products */
    int part;                      /* of K */
    int pair;                      /* of those that share columns */
    launch_ring *launch;           /* where clusters ask for tiles */
    int64_t column_end, atom_rows; /* of all batches; of experts atom_rows alone */
} gemm_tiles;

template <typename P> __device__ inline const sm100_list_params *list_of(const P &) { return nullptr; }
__device__ inline const sm100_list_params *list_of(const sm100_list_params &list) { return &list; }

__device__ inline int group_of(const sm100_list_params &list, int number)
{
    int group = 0;
    while (group + 1 < list.count && list.group[group + 1].first_tile <= number)
        group++;
    return group;
}

/* The problem that a tile is of. */
template <typename P> __device__ inline const P &problem_of(const P &p, const gemm_tile &) { return p; }
__device__ inline const nk_gemm_problem &problem_of(const sm100_list_params &list, const gemm_tile &t)
{
    return list.group[t.group].gemm;
}

/* Of an operand by SM100_GEMM_OF_... */
template <typename P> __device__ inline int64_t rows_of(const P &p, const sm100_gemm_scheduler &work, int of)
{
    return (of == SM100_GEMM_OPERAND_N) != work.tokens_are_mma_m ? p.m : p.n;
}

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

/* Tiles of the same columns are neighbours. Pairs that share them have lanes beside each other; behind the last one
 * there may be none, and boxes are zeros, which nobody stores. */
template <class C> __device__ inline gemm_tile tile_of(const gemm_tiles &tiles, int number)
{
    const int group = C::LIST ? group_of(*tiles.list, number) : 0;
    const sm100_gemm_scheduler &work = C::LIST ? tiles.list->group[group].scheduler : tiles.work;
    if constexpr (C::LIST) number -= tiles.list->group[group].first_tile;
    const int column_tile = number / work.mma_m_tiles;
    gemm_tile t = {work, tiles.part * work.k_steps / C::PARTS, (tiles.part + 1) * work.k_steps / C::PARTS, group};
    int64_t first = 0, first_atom = 0;
    t.lane = (int64_t)(number - column_tile * work.mma_m_tiles) * (C::PAIRS * C::LANES) + tiles.pair * C::LANES +
             tiles.half * SM100_GEMM_CTA_M;
    t.atom_rows = tiles.atom_rows;
    if constexpr (C::EXPERTS) {
        t.l = expert_of(tiles, column_tile);
        const sm100_gemm_expert &expert = tiles.experts[t.l];
        first = expert.first_row, first_atom = expert.first_atom;
        t.column = (int64_t)(column_tile - expert.first_tile) * C::COLUMNS;
        t.column_end = tiles.experts[t.l + 1].first_row;
    } else if constexpr (C::LIST) {
        t.column = (int64_t)column_tile * C::COLUMNS;
        t.column_end = rows_of(tiles.list->group[group].gemm, work, SM100_GEMM_OPERAND_N);
        t.atom_rows = nk_ceil_div(t.column_end, NK_SF_ATOM_ROWS);
    } else {
        t.l = column_tile / work.mma_n_tiles;
        t.column = (column_tile - t.l * work.mma_n_tiles) * C::COLUMNS;
        t.column_end = tiles.column_end;
    }
    t.into_atom = t.column % NK_SF_ATOM_ROWS;
    t.atom_row = first_atom + t.column / NK_SF_ATOM_ROWS;
    t.column += first;
    return t;
}

/* The number of a tile whose cluster shall not start, or `count`, where all have. The last roles are a thread each, the
 * others whole warps. */
template <class C> __device__ inline int take_tile(const gemm_tiles &tiles, ring<SM100_GEMM_SCHEDULER_STAGES> &r)
{
    const bool is_thread = threadIdx.x / 32 >= SM100_GEMM_PRODUCER_WARP;
    uint32_t block;
    mbarrier_wait_cluster(shared_address(&tiles.launch->full[r.slot]), r.parity);
    const bool taken = clusterlaunchcontrol_query_cancel(shared_address(&tiles.launch->responses[r.slot]), block);
    fence_proxy_async(); /* the next response overwrites this one */
    if (!is_thread) __syncwarp();
    if (is_thread || threadIdx.x % 32 == 0)
        mbarrier_arrive_cluster(mapa(shared_address(&tiles.launch->empty[r.slot]), 0));
    r.advance();
    return taken ? (int)(block / C::CLUSTER) : tiles.count;
}

/* Calls f(tile) for each tile of this cluster. A list's go forth and back: who had a long tile has a short one next. */
template <class C, typename F> __device__ inline void each_tile(const gemm_tiles &tiles, F f)
{
    const int clusters = (int)gridDim.x / C::CLUSTER;
    int place = (int)blockIdx.x / C::CLUSTER;
    if constexpr (C::LIST) {
#pragma unroll 1
        for (int first = 0; first < tiles.count; first += clusters, place = clusters - 1 - place)
            if (first + place < tiles.count) f(tile_of<C>(tiles, first + place));
    } else if constexpr (C::ASKS) {
        ring<SM100_GEMM_SCHEDULER_STAGES> r;
#pragma unroll 1
        for (; place < tiles.count; place = take_tile<C>(tiles, r))
            f(tile_of<C>(tiles, place));
    } else {
#pragma unroll 1
        for (; place < tiles.count; place += clusters)
            f(tile_of<C>(tiles, place));
    }
}

/* An operand by SM100_GEMM_OF_... */
__device__ inline const nk_operand &operand_of(const nk_gemm_problem &p, const sm100_gemm_scheduler &work, int of)
{
    return (of == SM100_GEMM_OPERAND_M) == work.tokens_are_mma_m ? p.a : p.b;
}

__device__ inline const nk_operand &operand_of(const nk_dual_gemm_problem &p, const sm100_gemm_scheduler &, int of)
{
    return of == SM100_GEMM_OPERAND_N ? p.a : of == SM100_GEMM_OPERAND_M ? p.b1 : p.b2;
}

/* A row of atoms of a tile's operand: its row 0 is row `first` of the matrix, and of blocked scale factors `sf_row`. */
typedef struct tile_factors {
    const nk_operand &of;
    int64_t l, first, end, sf_row;
} tile_factors;

/* Row `atom` of them, the last one where there are fewer: their rows are not there. Of experts all tokens are one
 * batch. */
template <class C, typename P>
__device__ inline tile_factors factors_of(const P &p, const gemm_tile &t, int of, int atom)
{
    const nk_operand &operand = operand_of(p, t.work, of);
    if (of == SM100_GEMM_OPERAND_N)
        return {operand, C::EXPERTS ? 0 : t.l, t.column - t.into_atom + atom * NK_SF_ATOM_ROWS, t.column_end,
                min(t.atom_row + atom, t.atom_rows - 1) * NK_SF_ATOM_ROWS};
    const int64_t rows = rows_of(p, t.work, of), into = of == SM100_GEMM_OPERAND_UP ? t.work.up_row_in_atom : 0;
    return {operand, t.l, t.lane, rows, min(t.lane, rows - 1) / NK_SF_ATOM_ROWS * NK_SF_ATOM_ROWS + into};
}

/* Whether lanes arrange scale factors of any operand. */
template <class C> __device__ inline bool arranges(const sm100_gemm_scheduler &work)
{
    bool copied = true;
    for (int of = 0; of < C::OPERANDS; of++)
        copied = copied && work.sf_by_bulk_copy[of];
    return !copied;
}

/* For what this CTA's threads and copies have written; of a pair, the other one's, too. */
template <class C> __device__ inline void wait_for(const uint64_t *barrier, uint32_t parity)
{
    if constexpr (C::CTAS == 1)
        mbarrier_wait(shared_address(barrier), parity);
    else
        mbarrier_wait_cluster(shared_address(barrier), parity);
}

/* The rank of the CTA that issues this one's products. */
template <class C> __device__ inline int issuer_of(const gemm_tiles &tiles)
{
    return (C::PAIRS > 1 ? tiles.pair : tiles.part) * C::CTAS;
}

/* Where that CTA has a barrier of this one's. */
template <class C> __device__ inline uint32_t of_issuer(const uint64_t *barrier, const gemm_tiles &tiles)
{
    return C::CTAS == 1 ? shared_address(barrier) : mapa(shared_address(barrier), (uint32_t)issuer_of<C>(tiles));
}

/* Tensor memory is handed over: the order comes of the tcgen05 fences alone (PTX ISA, 9.7.16.6.4). */
__device__ inline void wait_for_tmem(const uint64_t *barrier, uint32_t parity)
{
    mbarrier_wait_cluster_relaxed(shared_address(barrier), parity);
    tcgen05_fence_after_thread_sync();
}

#endif
