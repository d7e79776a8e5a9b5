/* D[l,m,n] = convert(alpha[n] * sum_k A[l,m,k] B[l,n,k] + bias[n])
 *
 * Work: a tile is WARPS * 32 features (n) x TILE_M tokens (m) of one batch. A CTA takes one tile, or by stream-K as
 * many steps as every other CTA (cuda/stream_k.cuh).
 *
 * Roles, barriers, memory: sm80_gemm.cuh, sm80_mainloop.cuh. */
#include "sm80_gemm.cuh"

template <int TILE_M, int WARPS>
struct sm80_gemm_operator : batch_operator<nk_gemm_problem, TILE_M, WARPS, WARPS * 32> {
    using sm80_gemm_operator::batch_operator::batch_operator;

    __device__ void point_rows(const batch_tile &tile, weight_rows &w) const
    {
        const int64_t row = first_row<WARPS, SF_ATOM_ROWS>(tile.n_tile);
        point_weights(this->p.b, tile.l, row, this->p.n, this->p.k, w);
    }

    template <typename STAGED> __device__ void store(const STAGED &staged, const batch_tile &tile, int first) const
    {
        this->store_by(scaled_sums{this->p.alpha, this->p.bias}, staged, tile, first);
    }
};

#define PARAMETERS const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm80_gemm_scheduler q
#define OPERATOR(TILE_M, WARPS) sm80_gemm_operator<TILE_M, WARPS>(p, q)
#define KERNELS(...) SM80_STREAM_K_KERNELS(sm80_gemm, __VA_ARGS__)

SM80_GEMM_TILES(KERNELS)
