/* Grouped GEMM, list and contiguous: which tile of which group, or of which expert, an iteration of stream-K is. */
#ifndef NK_GROUPS_CUH
#define NK_GROUPS_CUH

#include "cuda_groups.h"
#include "expert.cuh"
#include "sf_layout.cuh"
#include "stream_k.cuh"

/* A tile of a group. */
typedef struct group_tile {
    int group;                  /* of the parameters */
    bool found;                 /* false: nothing to do */
    uint32_t first_iter, iters; /* see cuda/stream_k.cuh */
    int64_t expert;             /* contiguous: which weights, alpha and bias */
    int64_t n_tile;             /* its number along N */
    int64_t token, end;         /* its first token; the end of the group's, or of the expert's */
    int64_t sf_row;             /* blocked sfa: a token's row in it, less the token; 0 if rows name tokens */
} group_tile;

/* Tiles of TILE_M tokens x TILE_N features, by all threads of CTAs of WARPS warps. */
template <int TILE_M, int TILE_N, int WARPS> struct group_tiles {
    const cuda_groups &q;
    expert_scan<WARPS> &scan; /* shared memory, free at every call */
    uint32_t token_tiles;     /* contiguous: of all experts */
    stream_k scheduler;

    static_assert(sizeof(expert_scan<WARPS>) <= CUDA_EXPERT_SCAN_BYTES, "what the host asks for");

    __device__ group_tiles(const cuda_groups &q, void *shared)
        : q(q), scan(*(expert_scan<WARPS> *)shared), token_tiles(0), scheduler{q.iters, 0}
    {
        if (q.offsets) {
            token_tiles = expert_of(NO_TILE).tiles;
            const cuda_group &g = q.group[0];
            scheduler.iters = token_tiles * (uint32_t)nk_ceil_div(g.gemm.n, TILE_N) * g.iters_per_tile;
        }
        scheduler.iters_per_cta = (scheduler.iters + q.ctas - 1) / q.ctas;
    }

    __device__ expert_tile expert_of(uint32_t token_tile) const
    {
        return find_expert<TILE_M>(scan, q.offsets, q.experts, q.group[0].gemm.m, token_tile);
    }

    /* List: the group that has iteration `iter`. */
    __device__ int group_of(uint32_t iter) const
    {
        int low = 0, high = q.count - 1;
        while (low < high) {
            const int middle = (low + high + 1) / 2;
            if (q.group[middle].first_iter <= iter)
                low = middle;
            else
                high = middle - 1;
        }
        return low;
    }

    /* Blocked factors of all experts' tokens, each expert's from a new atom on. False if the buffer has fewer: the
     * offsets are unchecked. */
    __device__ bool find_sf_row(const expert_tile &e, group_tile &at) const
    {
        const nk_gemm_problem &p = q.group[0].gemm;
        if (q.rows.data || !p.a.sf || p.a.sf_layout != NK_SF_BLOCKED) return true;
        at.sf_row = e.atom_row * SF_ATOM_ROWS - e.begin;
        const int64_t atom_rows = e.atom_row + nk_ceil_div(e.end - e.begin, SF_ATOM_ROWS);
        return atom_rows * nk_sf_padded_cols(p.k / NK_SF_VEC) * SF_ATOM_ROWS <= q.a_sf_bytes;
    }

    /* The tile that has iteration `iter`; the same answer in all threads of the CTA. */
    __device__ group_tile tile_of(uint32_t iter) const
    {
        group_tile at = {};
        at.group = q.offsets ? 0 : group_of(iter);
        const cuda_group &g = q.group[at.group];
        const uint32_t tile = (iter - g.first_iter) / g.iters_per_tile;
        at.first_iter = g.first_iter + tile * g.iters_per_tile;
        at.iters = g.iters_per_tile;
        if (!q.offsets) {
            const uint32_t m_tiles = (uint32_t)nk_ceil_div(g.gemm.m, TILE_M);
            at.n_tile = tile / m_tiles;
            at.token = tile % m_tiles * (int64_t)TILE_M;
            at.end = g.gemm.m;
            at.found = true;
            return at;
        }
        const expert_tile e = expert_of(tile % token_tiles);
        at.expert = e.expert;
        at.n_tile = tile / token_tiles;
        at.token = e.first;
        at.end = e.end;
        at.found = e.found && find_sf_row(e, at);
        return at;
    }

    __device__ const nk_gemm_problem &problem_of(const group_tile &at) const { return q.group[at.group].gemm; }

    /* The group's problem as its output sees it: alpha and bias are the expert's. */
    __device__ nk_gemm_problem output_of(const group_tile &at) const
    {
        nk_gemm_problem p = q.group[at.group].gemm;
        if (p.alpha.data) p.alpha.data += at.expert * p.alpha.group_stride;
        if (p.bias.data) p.bias.data += at.expert * p.bias.group_stride;
        return p;
    }
};

#endif
