/* What grouped operators share: all of an OPERATOR (sm80_gemm.cuh) but its weight rows and its epilogue; and what those
 * of one matrix share, all but the epilogue. */
#ifndef NK_SM80_GROUPS_CUH
#define NK_SM80_GROUPS_CUH

#include "cuda/groups.cuh"
#include "sm80_gemm.cuh"

/* Tiles of TILE_N features x TILE_M tokens. */
template <int TILE_M, int WARPS, int TILE_N> struct group_operator : group_tiles<TILE_M, TILE_N, WARPS> {
    __device__ group_operator(const cuda_groups &q) : group_tiles<TILE_M, TILE_N, WARPS>(q, smem) {}

    __device__ int64_t k(const group_tile &tile) const { return this->problem_of(tile).k; }

    __device__ uint32_t k_steps(const group_tile &tile) const { return this->q.group[tile.group].k_steps; }

    __device__ float *partials() const { return this->q.partials; }

    template <int TILES_PER_WARP>
    __device__ void point_tokens(const group_tile &tile, token_rows<TILES_PER_WARP> &x) const
    {
        const nk_gemm_problem &p = this->problem_of(tile);
        ::point_tokens(p.a, 0, tile.token, tile.end, tile.sf_row, p.k, threadIdx.x >> 5, WARPS, this->q.rows, x);
    }

    template <typename STAGED> __device__ void scale(STAGED &staged, const group_tile &tile, int first) const
    {
        scale_tokens(staged, this->problem_of(tile).row_scale, 0, tile.token + first, tile.end, this->q.rows);
    }

    /* `p` is the tile's problem as its output sees it. */
    __device__ tile_out out_of(const nk_gemm_problem &p, const group_tile &tile, int first) const
    {
        return {0, tile.token + first, tile.end, tile.n_tile * TILE_N, p.n, &p.d};
    }

    template <typename STAGED, typename EPILOGUE>
    __device__ void store_by(const EPILOGUE &epilogue, const STAGED &staged, const nk_gemm_problem &p,
                             const group_tile &tile, int first) const
    {
        store_tile<TILE_N, WARPS * 32>(staged, out_of(p, tile, first), epilogue);
    }
};

/* WARPS * 32 features of one matrix. */
template <int TILE_M, int WARPS> struct matrix_operator : group_operator<TILE_M, WARPS, WARPS * 32> {
    using matrix_operator::group_operator::group_operator;

    __device__ void point_rows(const group_tile &tile, weight_rows &w) const
    {
        const nk_gemm_problem &p = this->problem_of(tile);
        point_weights(p.b, tile.expert, first_row<WARPS, SF_ATOM_ROWS>(tile.n_tile), p.n, p.k, w);
    }
};

#endif
