/* D[l,m,n] = convert(alpha[n] * sum_k A[l,m,k] B[l,n,k] + bias[n])
 *
 * Work: a tile is 128 features (n) x TILE_M tokens (m) of one batch.
 *
 * Roles, barriers, memory: sm120_gemm.cuh, sm120_mainloop.cuh. */
#include "sm120_gemm.cuh"

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

#define PARAMETERS const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm120_gemm_scheduler q
#define OPERATOR(TILE_M, WARPS_M) sm120_gemm_operator<TILE_M, WARPS_M>(p, q)
#define KERNEL(...) SM120_GEMM_KERNEL(gemm, __VA_ARGS__)

SM120_GEMM_TILES(KERNEL)
