/* D[m,n] = convert(act(alpha_g[n] * sum_k A[m,k] B_g[n,k] + bias_g[n])
 *                  * (alpha_ups_g[n] * sum_k A[m,k] ups_g[n,k] + bias_ups_g[n]))
 * for the tokens m of every expert g
 *
 * Work: a tile is 64 features (n) x TILE_M tokens (m) of one expert: the first half of its weight rows are gates, the
 * other half the ups of the same features, N rows or one row further in the same matrix.
 *
 * Roles, barriers, memory: sm120_gemm.cuh, sm120_mainloop.cuh. */
#include "sm120_gemm.cuh"

#define FEATURES (SM120_GEMM_TILE_N / 2)

template <int TILE_M, int WARPS_M>
struct sm120_grouped_dual_gemm_operator : sm120_group_operator<TILE_M, WARPS_M, FEATURES> {
    const sm120_gating &gating;

    __device__ sm120_grouped_dual_gemm_operator(const cuda_groups &q, const sm120_gating &gating)
        : sm120_group_operator<TILE_M, WARPS_M, FEATURES>(q), gating(gating)
    {
    }

    /* Blocked ups are rows of the gates' matrix behind them, in whose atoms they may begin anywhere. */
    __device__ sm120_row weight(const group_tile &tile, int i) const
    {
        const nk_gemm_problem &p = this->problem_of(tile);
        const int64_t feature = min(tile.n_tile * FEATURES + i % FEATURES, p.n - 1);
        const bool is_up = i >= FEATURES, blocked = p.b.sf_layout == NK_SF_BLOCKED;
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
        this->store_by(gated_sums<FEATURES>{p.alpha, ups, p.bias, bias_ups, gating.activation}, staged, p, tile);
    }
};

#define PARAMETERS const __grid_constant__ cuda_groups q, const __grid_constant__ sm120_gating gating
#define OPERATOR(TILE_M, WARPS_M) sm120_grouped_dual_gemm_operator<TILE_M, WARPS_M>(q, gating)
#define KERNEL(...) SM120_GEMM_KERNEL(grouped_dual_gemm, __VA_ARGS__)

SM120_GEMM_TILES(KERNEL)
