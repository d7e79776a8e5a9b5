/* What gemm, dual_gemm, grouped_gemm and grouped_dual_gemm do with a tile of 128 weight rows x TILE_M tokens, see
 * sm120_tile.cuh. Tokens are NVFP4 or 16-bit.
 *
 *   gemm:              D[l,m,n] = convert(alpha[n] * sum_k A[l,m,k] B[l,n,k] + bias[n])
 *   dual_gemm:         D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k] + bias1[n])
 *                                         * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k] + bias2[n]))
 *   grouped_gemm:      D_g[m,n] = convert(alpha_g[n] * sum_k A_g[m,k] B_g[n,k] + bias_g[n]) for every group g
 *   grouped_dual_gemm: D[m,n] = convert(act(alpha_g[n] * sum_k A[m,k] B_g[n,k] + bias_g[n])
 *                                       * (alpha_ups_g[n] * sum_k A[m,k] ups_g[n,k] + bias_ups_g[n]))
 *                      for the tokens m of every expert g
 *
 * Behind each operator are its kernels' PARAMETERS and the OPERATOR that they make of them. */
#ifndef NK_SM120_OPERATORS_CUH
#define NK_SM120_OPERATORS_CUH

#include "cuda/epilogue.cuh"
#include "cuda/groups.cuh"
#include "cuda/stream_k.cuh"
#include "sm120_gemm_config.h"
#include "sm120_gemm_params.h"
#include "sm120_rows.cuh"

extern __shared__ __align__(128) uint4 sm120_smem[];

#define SM120_GATED_N (SM120_GEMM_TILE_N / 2)

/* ---------------------------------------------------------------------------------------------------------------- */
/* gemm and dual_gemm                                                                                               */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A tile of a batch. */
typedef struct sm120_batch_tile {
    static constexpr bool found = true;
    static constexpr uint32_t iters = 1;
    uint32_t first_iter;
    uint32_t l, n_tile;
    int64_t token, end;
} sm120_batch_tile;

/* All of an OPERATOR but its weight rows and its epilogue, of FEATURES a tile. Tiles of the same weights are
 * neighbours, so that they find them in L2. */
template <typename PROBLEM, int TILE_M, int WARPS_M, int FEATURES> struct sm120_batch_operator {
    static constexpr bool DIVIDES = false;
    const PROBLEM &p;
    const sm120_gemm_scheduler &q;
    stream_k scheduler;

    __device__ sm120_batch_operator(const PROBLEM &p, const sm120_gemm_scheduler &q) : p(p), q(q), scheduler{q.tiles, 1}
    {
    }

    __device__ sm120_batch_tile tile_of(uint32_t tile) const
    {
        const uint32_t rest = tile / q.m_tiles;
        return {tile, rest / q.n_tiles, rest % q.n_tiles, tile % q.m_tiles * (int64_t)TILE_M, p.m};
    }

    __device__ const nk_operand &tokens(const sm120_batch_tile &) const { return p.a; }
    __device__ int64_t k(const sm120_batch_tile &) const { return p.k; }
    __device__ int token_sf_step(const sm120_batch_tile &) const { return sf_next_four(p.a); }
    __device__ const nk_row_scale &row_scale(const sm120_batch_tile &) const { return p.row_scale; }

    __device__ sm120_row token(const sm120_batch_tile &tile, int i) const
    {
        const int64_t row = min(tile.token + i, p.m - 1);
        return sm120_row_at(p.a, tile.l, row, row, p.k);
    }

    /* In place of a row beyond N the last row is read; its sums are not stored. */
    __device__ sm120_row weight_of(const nk_operand &b, const sm120_batch_tile &tile, int feature) const
    {
        const int64_t row = min(tile.n_tile * (int64_t)FEATURES + feature, p.n - 1);
        return sm120_row_at(b, tile.l, row, row, p.k);
    }

    __device__ int64_t row_scale_at(const sm120_batch_tile &tile, int64_t token) const
    {
        return tile.l * p.row_scale.batch_stride + token * p.row_scale.stride;
    }

    template <typename STAGED, typename EPILOGUE>
    __device__ void store_by(const EPILOGUE &epilogue, const STAGED &staged, const sm120_batch_tile &tile) const
    {
        const tile_out out = {tile.l, tile.token, p.m, tile.n_tile * (int64_t)FEATURES, p.n, &p.d};
        store_tile<FEATURES, SM120_GEMM_THREADS(WARPS_M)>(staged, out, epilogue);
    }
};

/* A tile is 128 features (n) x TILE_M tokens (m) of one batch. */
template <int TILE_M, int WARPS_M>
struct sm120_gemm_operator : sm120_batch_operator<nk_gemm_problem, TILE_M, WARPS_M, SM120_GEMM_TILE_N> {
    using sm120_gemm_operator::sm120_batch_operator::sm120_batch_operator;

    __device__ int weight_sf_step(const sm120_batch_tile &) const { return sf_next_four(this->p.b); }
    __device__ sm120_row weight(const sm120_batch_tile &tile, int i) const
    {
        return this->weight_of(this->p.b, tile, i);
    }

    template <typename STAGED> __device__ void store(const STAGED &staged, const sm120_batch_tile &tile) const
    {
        this->store_by(scaled_sums{this->p.alpha, this->p.bias}, staged, tile);
    }
};

#define SM120_GEMM_PARAMETERS const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm120_gemm_scheduler q
#define SM120_GEMM_OPERATOR(TILE_M, WARPS_M) sm120_gemm_operator<TILE_M, WARPS_M>(p, q)

/* A tile is 64 features (n) x TILE_M tokens (m) of one batch: the first half of its weight rows are B1's (gates), the
 * other half B2's (ups), of the same features. */
template <int TILE_M, int WARPS_M>
struct sm120_dual_gemm_operator : sm120_batch_operator<nk_dual_gemm_problem, TILE_M, WARPS_M, SM120_GATED_N> {
    using sm120_dual_gemm_operator::sm120_batch_operator::sm120_batch_operator;

    __device__ int weight_sf_step(const sm120_batch_tile &) const { return sf_next_four(this->p.b1); }
    __device__ sm120_row weight(const sm120_batch_tile &tile, int i) const
    {
        return this->weight_of(i < SM120_GATED_N ? this->p.b1 : this->p.b2, tile, i % SM120_GATED_N);
    }

    template <typename STAGED> __device__ void store(const STAGED &staged, const sm120_batch_tile &tile) const
    {
        const nk_dual_gemm_problem &p = this->p;
        this->store_by(gated_sums<SM120_GATED_N>{p.alpha1, p.alpha2, p.bias1, p.bias2, p.activation}, staged, tile);
    }
};

#define SM120_DUAL_GEMM_PARAMETERS \
    const __grid_constant__ nk_dual_gemm_problem p, const __grid_constant__ sm120_gemm_scheduler q
#define SM120_DUAL_GEMM_OPERATOR(TILE_M, WARPS_M) sm120_dual_gemm_operator<TILE_M, WARPS_M>(p, q)

/* ---------------------------------------------------------------------------------------------------------------- */
/* grouped_gemm and grouped_dual_gemm                                                                               */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The same for tiles of groups or experts. */
template <int TILE_M, int WARPS_M, int FEATURES>
struct sm120_group_operator : group_tiles<TILE_M, FEATURES, 4 * WARPS_M> {
    static constexpr bool DIVIDES = false;

    __device__ sm120_group_operator(const cuda_groups &q) : group_tiles<TILE_M, FEATURES, 4 * WARPS_M>(q, sm120_smem) {}

    __device__ const nk_operand &tokens(const group_tile &tile) const { return this->problem_of(tile).a; }
    __device__ int64_t k(const group_tile &tile) const { return this->problem_of(tile).k; }
    __device__ int token_sf_step(const group_tile &tile) const { return sf_next_four(this->problem_of(tile).a); }
    __device__ int weight_sf_step(const group_tile &tile) const { return sf_next_four(this->problem_of(tile).b); }
    __device__ const nk_row_scale &row_scale(const group_tile &tile) const { return this->problem_of(tile).row_scale; }

    /* The token that a row of the result is made of. */
    __device__ int64_t token_of(int64_t row) const
    {
        const nk_token_rows &rows = this->q.rows;
        return rows.data ? nk_token_of(rows.data[row], rows.per_token, rows.tokens) : row;
    }

    __device__ sm120_row token(const group_tile &tile, int i) const
    {
        const nk_gemm_problem &p = this->problem_of(tile);
        const int64_t row = token_of(min(tile.token + i, tile.end - 1));
        return sm120_row_at(p.a, 0, row, p.a.sf_layout == NK_SF_BLOCKED ? row + tile.sf_row : row, p.k);
    }

    __device__ int64_t row_scale_at(const group_tile &tile, int64_t row) const
    {
        return token_of(row) * this->problem_of(tile).row_scale.stride;
    }

    template <typename STAGED, typename EPILOGUE>
    __device__ void store_by(const EPILOGUE &epilogue, const STAGED &staged, const nk_gemm_problem &p,
                             const group_tile &tile) const
    {
        const tile_out out = {0, tile.token, tile.end, tile.n_tile * FEATURES, p.n, &p.d};
        store_tile<FEATURES, SM120_GEMM_THREADS(WARPS_M)>(staged, out, epilogue);
    }
};

/* A tile is 128 features (n) x TILE_M tokens (m) of one group, or of one expert, which a CTA finds by a scan of
 * `offsets` (cuda/expert.cuh). It reads which token a row is made of when it points to the token. */
template <int TILE_M, int WARPS_M>
struct sm120_grouped_gemm_operator : sm120_group_operator<TILE_M, WARPS_M, SM120_GEMM_TILE_N> {
    using sm120_grouped_gemm_operator::sm120_group_operator::sm120_group_operator;

    __device__ sm120_row weight(const group_tile &tile, int i) const
    {
        const nk_gemm_problem &p = this->problem_of(tile);
        const int64_t row = min(tile.n_tile * SM120_GEMM_TILE_N + i, p.n - 1);
        return sm120_row_at(p.b, tile.expert, row, row, p.k);
    }

    template <typename STAGED> __device__ void store(const STAGED &staged, const group_tile &tile) const
    {
        const nk_gemm_problem p = this->output_of(tile);
        this->store_by(scaled_sums{p.alpha, p.bias}, staged, p, tile);
    }
};

#define SM120_GROUPED_GEMM_PARAMETERS const __grid_constant__ cuda_groups q
#define SM120_GROUPED_GEMM_OPERATOR(TILE_M, WARPS_M) sm120_grouped_gemm_operator<TILE_M, WARPS_M>(q)

/* A tile is 64 features (n) x TILE_M tokens (m) of one expert: the first half of its weight rows are gates, the other
 * half the ups of the same features, N rows or one row further in the same matrix. */
template <int TILE_M, int WARPS_M>
struct sm120_grouped_dual_gemm_operator : sm120_group_operator<TILE_M, WARPS_M, SM120_GATED_N> {
    const sm120_gating &gating;

    __device__ sm120_grouped_dual_gemm_operator(const cuda_groups &q, const sm120_gating &gating)
        : sm120_group_operator<TILE_M, WARPS_M, SM120_GATED_N>(q), gating(gating)
    {
    }

    /* Blocked ups are rows of the gates' matrix behind them, in whose atoms they may begin anywhere. */
    __device__ sm120_row weight(const group_tile &tile, int i) const
    {
        const nk_gemm_problem &p = this->problem_of(tile);
        const int64_t feature = min(tile.n_tile * SM120_GATED_N + i % SM120_GATED_N, p.n - 1);
        const bool is_up = i >= SM120_GATED_N, blocked = p.b.sf_layout == NK_SF_BLOCKED;
        const int64_t row = is_up && blocked ? p.n + feature : feature;
        return sm120_row_at(is_up && !blocked ? gating.ups : p.b, tile.expert, row, row, p.k);
    }

    template <typename STAGED> __device__ void store(const STAGED &staged, const group_tile &tile) const
    {
        const nk_gemm_problem p = this->output_of(tile);
        nk_alpha ups = gating.alpha_ups;
        nk_bias bias_ups = gating.bias_ups;
        if (ups.data) ups.data += tile.expert * ups.group_stride;
        if (bias_ups.data) bias_ups.data += tile.expert * bias_ups.group_stride;
        this->store_by(gated_sums<SM120_GATED_N>{p.alpha, ups, p.bias, bias_ups, gating.activation}, staged, p, tile);
    }
};

#define SM120_GROUPED_DUAL_GEMM_PARAMETERS \
    const __grid_constant__ cuda_groups q, const __grid_constant__ sm120_gating gating
#define SM120_GROUPED_DUAL_GEMM_OPERATOR(TILE_M, WARPS_M) sm120_grouped_dual_gemm_operator<TILE_M, WARPS_M>(q, gating)

#endif
