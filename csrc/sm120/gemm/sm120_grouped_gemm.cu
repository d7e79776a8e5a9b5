/* D_g[m,n] = convert(alpha_g[n] * sum_k A_g[m,k] B_g[n,k] + bias_g[n]) for every group g
 *
 * Work: a tile is 128 features (n) x TILE_M tokens (m) of one group, or of one expert, which a CTA finds by a scan of
 * `offsets` (cuda/expert.cuh). It reads which token a row is made of when it points to the token.
 *
 * Roles, barriers, memory: sm120_gemm.cuh, sm120_mainloop.cuh. */
#include "sm120_gemm.cuh"

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

#define PARAMETERS const __grid_constant__ cuda_groups q
#define OPERATOR(TILE_M, WARPS_M) sm120_grouped_gemm_operator<TILE_M, WARPS_M>(q)
#define KERNEL(...) SM120_GEMM_KERNEL(grouped_gemm, __VA_ARGS__)

SM120_GEMM_TILES(KERNEL)
