/* D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k] + bias1[n])
 *                    * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k] + bias2[n]))
 *
 * Work: a tile is 64 features (n) x TILE_M tokens (m) of one batch: the first half of its weight rows are B1's (gates),
 * the other half B2's (ups), of the same features.
 *
 * Roles, barriers, memory: sm120_gemm.cuh, sm120_mainloop.cuh. */
#include "sm120_gemm.cuh"

#define FEATURES (SM120_GEMM_TILE_N / 2)

template <int TILE_M, int WARPS_M>
struct sm120_dual_gemm_operator : sm120_batch_operator<nk_dual_gemm_problem, TILE_M, WARPS_M, FEATURES> {
    using sm120_dual_gemm_operator::sm120_batch_operator::sm120_batch_operator;

    __device__ int weight_sf_step(const sm120_batch_tile &) const { return sf_next_four(this->p.b1); }
    __device__ sm120_row weight(const sm120_batch_tile &tile, int i) const
    {
        return this->weight_of(i < FEATURES ? this->p.b1 : this->p.b2, tile, i % FEATURES);
    }

    template <typename STAGED> __device__ void store(const STAGED &staged, const sm120_batch_tile &tile) const
    {
        const nk_dual_gemm_problem &p = this->p;
        this->store_by(gated_sums<FEATURES>{p.alpha1, p.alpha2, p.bias1, p.bias2, p.activation}, staged, tile);
    }
};

#define PARAMETERS const __grid_constant__ nk_dual_gemm_problem p, const __grid_constant__ sm120_gemm_scheduler q
#define OPERATOR(TILE_M, WARPS_M) sm120_dual_gemm_operator<TILE_M, WARPS_M>(p, q)
#define KERNEL(...) SM120_GEMM_KERNEL(dual_gemm, __VA_ARGS__)

SM120_GEMM_TILES(KERNEL)
