/* The tile scheduler of sm100 GEMMs: which tiles a CTA has, in batches, experts or a list of groups, and where their
 * operands lie. Each role enumerates the tiles by itself, by for_each_mma_tile(), which gives all roles the same ones
 * in the same order. With a dynamic scheduler roles read launch control's responses instead of counting. */
#ifndef NK_SM100_GEMM_SCHEDULER_CUH
#define NK_SM100_GEMM_SCHEDULER_CUH

#include "cuda/operand.cuh"
#include "cuda/ptx/cluster_memory.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/sf_layout.cuh"
#include "sm100_gemm_traits.cuh"
#include "sm100_list_params.h"

/* One tile, as one CTA sees it. m and n are rows of operands M and N. */
typedef struct mma_tile {
    const sm100_gemm_params &params;
    int first_step, end_step; /* the CTA's steps of K */
    int group;                /* of a list */
    int64_t l;                /* batch, or expert */
    int64_t m;                /* the CTA's first row of operand M */
    int64_t n, n_end;         /* operand N: the tile's first row; one past the last row of the batch, or expert */
    int64_t row_in_atom;      /* blocked scale factors of operand N: the tile's first row within its atom row */
    int64_t atom_row;         /* the number of that atom row in the buffer of the batch, or of all experts */
    int64_t atom_rows;        /* that the buffer holds: a clamp, whatever offsets say */
} mma_tile;

/* All tiles of a launch, as one CTA sees them. */
typedef struct mma_tile_scheduler {
    const sm100_gemm_params &params;
    const sm100_gemm_expert *experts; /* the CTA's table */
    int64_t expert_count;
    const nk_token_rows &token_rows; /* tokens by index, with experts */
    const sm100_list_params *list;   /* or null */
    int tiles;
    int rank_in_pair;             /* 0: the leader, which issues the MMAs, or a CTA without a pair */
    int split;                    /* which share of K */
    int pair;                     /* with multicast: which pair of the cluster */
    response_pipeline *responses; /* of launch control, if the scheduler is dynamic */
    int64_t n_end, atom_rows;     /* FROM_BATCHES: of every tile; FROM_EXPERTS: atom_rows alone */
} mma_tile_scheduler;

/* ---------------------------------------------------------------------------------------------------------------- */
/* Problems and operands                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

template <typename P> __device__ inline const sm100_list_params *list_params_of(const P &) { return nullptr; }
__device__ inline const sm100_list_params *list_params_of(const sm100_list_params &list) { return &list; }

/* The problem that a tile belongs to. P is nk_gemm_problem, nk_dual_gemm_problem, or sm100_list_params, which has many.
 */
template <typename P> __device__ inline const P &problem_of_tile(const P &p, const mma_tile &) { return p; }
__device__ inline const nk_gemm_problem &problem_of_tile(const sm100_list_params &list, const mma_tile &t)
{
    return list.group[t.group].gemm;
}

/* Rows of an operand, by SM100_GEMM_OPERAND_.. */
template <typename P>
__device__ inline int64_t rows_of_operand(const P &p, const sm100_gemm_params &params, int operand)
{
    return (operand == SM100_GEMM_OPERAND_N) != params.tokens_are_mma_m ? p.m : p.n;
}

__device__ inline const nk_operand &operand_of_mma(const nk_gemm_problem &p, const sm100_gemm_params &params,
                                                   int operand)
{
    return (operand == SM100_GEMM_OPERAND_M) == params.tokens_are_mma_m ? p.a : p.b;
}

__device__ inline const nk_operand &operand_of_mma(const nk_dual_gemm_problem &p, const sm100_gemm_params &,
                                                   int operand)
{
    return operand == SM100_GEMM_OPERAND_N ? p.a : operand == SM100_GEMM_OPERAND_M ? p.b1 : p.b2;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Tiles                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

__device__ inline int group_of_tile(const sm100_list_params &list, int tile)
{
    int group = 0;
    while (group + 1 < list.count && list.group[group + 1].first_tile <= tile)
        group++;
    return group;
}

/* The last expert whose first tile is not behind n_tile: empty experts share the next one's first tile. */
__device__ inline int expert_of_tile(const mma_tile_scheduler &scheduler, int n_tile)
{
    int low = 0, high = (int)scheduler.expert_count;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        const bool is_at_or_after = scheduler.experts[middle].first_tile <= n_tile;
        low = is_at_or_after ? middle : low;
        high = is_at_or_after ? high : middle;
    }
    return low;
}

/* Tile `number`: M runs fastest, so that neighbours share operand N. With multicast the second pair may begin past
 * operand M's last row; then its boxes are zeros and it stores nothing. */
template <class C> __device__ inline mma_tile mma_tile_at(const mma_tile_scheduler &scheduler, int number)
{
    const int group = C::LIST ? group_of_tile(*scheduler.list, number) : 0;
    const sm100_gemm_params &params = C::LIST ? scheduler.list->group[group].params : scheduler.params;
    if constexpr (C::LIST) number -= scheduler.list->group[group].first_tile;
    const int n_tile = number / params.mma_m_tiles;
    mma_tile t = {params, scheduler.split * params.k_steps / C::SPLIT_K,
                  (scheduler.split + 1) * params.k_steps / C::SPLIT_K, group};
    int64_t first = 0, first_atom = 0;
    t.m = (int64_t)(number - n_tile * params.mma_m_tiles) * (C::PAIRS * C::MMA_M) + scheduler.pair * C::MMA_M +
          scheduler.rank_in_pair * SM100_GEMM_CTA_M;
    t.atom_rows = scheduler.atom_rows;
    if constexpr (C::EXPERTS) {
        t.l = expert_of_tile(scheduler, n_tile);
        const sm100_gemm_expert &expert = scheduler.experts[t.l];
        first = expert.first_row, first_atom = expert.first_atom;
        t.n = (int64_t)(n_tile - expert.first_tile) * C::MMA_N;
        t.n_end = scheduler.experts[t.l + 1].first_row;
    } else if constexpr (C::LIST) {
        t.n = (int64_t)n_tile * C::MMA_N;
        t.n_end = rows_of_operand(scheduler.list->group[group].gemm, params, SM100_GEMM_OPERAND_N);
        t.atom_rows = sf_atoms_of_rows(t.n_end);
    } else {
        t.l = n_tile / params.mma_n_tiles;
        t.n = (n_tile - t.l * params.mma_n_tiles) * C::MMA_N;
        t.n_end = scheduler.n_end;
    }
    t.row_in_atom = sf_row_in_atom(t.n);
    t.atom_row = first_atom + sf_atom_of_row(t.n);
    t.n += first;
    return t;
}

/* The tile of a cluster that launch control cancelled for us before it started, or `tiles` if none was left. Roles from
 * warp 8 on are one thread each, other roles whole warps: each role's warp arrives once. */
template <class C> __device__ inline int next_dynamic_tile(const mma_tile_scheduler &scheduler, pipeline_state &state)
{
    const bool is_thread = threadIdx.x / 32 >= SM100_GEMM_PRODUCER_WARP;
    uint32_t block;
    mbarrier_wait_cluster(shared_address(&scheduler.responses->full[state.stage]), state.parity);
    const bool taken =
        clusterlaunchcontrol_query_cancel(shared_address(&scheduler.responses->responses[state.stage]), block);
    fence_proxy_async(); /* the next response overwrites this one */
    if (!is_thread) __syncwarp();
    if (is_thread || threadIdx.x % 32 == 0)
        mbarrier_arrive_remote(mapa(shared_address(&scheduler.responses->empty[state.stage]), 0));
    state.advance(SM100_GEMM_SCHEDULER_STAGES);
    return taken ? (int)(block / C::CLUSTER) : scheduler.tiles;
}

/* Calls f(tile) for each tile of this cluster. Three orders:
 *   static: every clusters-th tile, from the cluster's own number on
 *   list:   likewise, but every other round backwards, since tiles are sorted by their length
 *   dynamic (multicast): the cluster's own tile, then those of clusters that have not started */
template <class C, typename F> __device__ inline void for_each_mma_tile(const mma_tile_scheduler &scheduler, F f)
{
    const int clusters = (int)gridDim.x / C::CLUSTER;
    int tile = (int)blockIdx.x / C::CLUSTER;
    if constexpr (C::LIST) {
#pragma unroll 1
        for (int first = 0; first < scheduler.tiles; first += clusters, tile = clusters - 1 - tile)
            if (first + tile < scheduler.tiles) f(mma_tile_at<C>(scheduler, first + tile));
    } else if constexpr (C::DYNAMIC) {
        pipeline_state state;
#pragma unroll 1
        for (; tile < scheduler.tiles; tile = next_dynamic_tile<C>(scheduler, state))
            f(mma_tile_at<C>(scheduler, tile));
    } else {
#pragma unroll 1
        for (; tile < scheduler.tiles; tile += clusters)
            f(mma_tile_at<C>(scheduler, tile));
    }
}

/* One thread of warp 10 in each CTA, with a dynamic scheduler. Each CTA expects a response for each tile that it
 * begins; rank 0 asks for it. At most SCHEDULER_STAGES responses are unread. Rank 0 alone waits for `empty`: no
 * response comes before it asks. */
template <class C> __device__ inline void query_launch_control(const mma_tile_scheduler &scheduler)
{
    const bool asks = scheduler.rank_in_pair == 0 && scheduler.pair == 0;
    pipeline_state state;
    for_each_mma_tile<C>(scheduler, [&](const mma_tile &) {
        const uint32_t full = shared_address(&scheduler.responses->full[state.stage]);
        if (asks) mbarrier_wait_cluster(shared_address(&scheduler.responses->empty[state.stage]), state.parity ^ 1);
        mbarrier_arrive_expect_tx(full, sizeof scheduler.responses->responses[0]);
        if (asks) clusterlaunchcontrol_try_cancel(shared_address(&scheduler.responses->responses[state.stage]), full);
        state.advance(SM100_GEMM_SCHEDULER_STAGES);
    });
    if (asks) drain_pipeline<SM100_GEMM_SCHEDULER_STAGES>(scheduler.responses->empty, state);
}

/* The rank of the leader CTA, which issues this CTA's MMAs. */
template <class C> __device__ inline int leader_rank(const mma_tile_scheduler &scheduler)
{
    return (C::PAIRS > 1 ? scheduler.pair : scheduler.split) * C::CTA_GROUP;
}

/* The address of the leader's barrier of the same name. */
template <class C>
__device__ inline uint32_t leader_barrier(const uint64_t *barrier, const mma_tile_scheduler &scheduler)
{
    return C::CTA_GROUP == 1 ? shared_address(barrier)
                             : mapa(shared_address(barrier), (uint32_t)leader_rank<C>(scheduler));
}

/* Tells the leader's MMA thread of what its MMAs read in this CTA, which no thread of the leader loads itself:
 *   boxes and bulk copies     their bytes were counted at a barrier here, for which the arriving thread waited
 *   scale factors of threads  each of them had fence.proxy.async behind its stores, before it arrived here: they are in
 *                             this CTA's shared memory, as this CTA's tensor core will read it
 *   tensor memory             tcgen05 fences on both sides order it, whatever the barrier's order
 * CUTLASS and DeepGEMM arrive at a pair's leader in the same way. */
template <class C> __device__ inline void arrive_at_leader(const uint64_t *barrier, const mma_tile_scheduler &scheduler)
{
    if constexpr (C::CTA_GROUP == 1)
        mbarrier_arrive(shared_address(barrier));
    else
        mbarrier_arrive_remote(leader_barrier<C>(barrier, scheduler));
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Setup                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

template <class C, typename SMEM>
__device__ inline void tabulate_experts(SMEM &s, const sm100_gemm_experts &experts, int64_t rows)
{
    if (threadIdx.x == 0) s.experts[experts.count] = {0, 0, 0, 0}; /* there may be none */
    scan_experts<C::MMA_N>(s.scan[0], experts.offsets, experts.count, rows, 0, NO_TILE, [&](const scanned_expert &e) {
        s.experts[e.expert] = {(int)e.first_tile, e.begin, e.first_atom, 0};
        if (e.expert == experts.count - 1) s.experts[e.expert + 1] = {(int)(e.first_tile + e.tiles), e.end, 0, 0};
    });
}

/* From the leader of a pair, rank 0, to its follower. */
template <typename SMEM> __device__ inline void copy_expert_table(SMEM &s, int64_t experts)
{
    for (int i = (int)threadIdx.x; i <= experts; i += (int)blockDim.x)
        *(float4 *)&s.experts[i] = ld_shared_cluster_v4(mapa(shared_address(&s.experts[i]), 0));
}

/* All threads. Offsets may change while they are read, and a pair that disagrees about them would wait for ever, so the
 * leader reads them for both. */
template <class C, typename SMEM, typename P>
__device__ inline mma_tile_scheduler make_scheduler(SMEM &s, const P &p, const sm100_gemm_params &params,
                                                    const sm100_gemm_experts &experts, int rank)
{
    const int split = C::PAIRS > 1 ? 0 : rank / C::CTA_GROUP, pair = C::PAIRS > 1 ? rank / C::CTA_GROUP : 0;
    mma_tile_scheduler scheduler = {
        params, s.experts, experts.count, experts.token_rows, list_params_of(p), params.tiles, rank % C::CTA_GROUP,
        split,  pair};
    if constexpr (C::DYNAMIC) scheduler.responses = s.responses;
    if constexpr (!C::LIST) {
        scheduler.n_end = rows_of_operand(p, params, SM100_GEMM_OPERAND_N);
        scheduler.atom_rows = C::EXPERTS ? experts.atom_rows : sf_atoms_of_rows(scheduler.n_end);
    }
    if constexpr (C::EXPERTS) {
        if (rank == 0) tabulate_experts<C>(s, experts, p.m);
        if constexpr (C::CLUSTER > 1) {
            __syncwarp();
            barrier_cluster_arrive_aligned();
            barrier_cluster_wait_aligned();
            if (rank != 0) copy_expert_table(s, experts.count);
        }
        __syncthreads();
        scheduler.tiles = s.experts[experts.count].first_tile * params.mma_m_tiles;
    }
    return scheduler;
}

#endif
