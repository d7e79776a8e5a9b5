/* D[l,m,n] = convert(alpha[n] * sum_k A[l,m,k] B[l,n,k] + bias[n])
 *
 * Work: a tile is WARPS * 32 features (n) x TOKENS tokens (m) of one batch. A CTA takes one
 * tile, or as many steps of K as every other (cuda/split.cuh).
 *
 * Roles, barriers, memory: sm80_product.cuh, sm80_mainloop.cuh. */
#include "sm80_product.cuh"

template <int TOKENS, int WARPS> struct gemm_product : batch_product<nk_gemm_problem, TOKENS, WARPS, WARPS * 32> {
    using gemm_product::batch_product::batch_product;

    __device__ void point_rows(const batch_tile &tile, weight_rows &w) const
    {
        const int64_t row = first_row<WARPS, NK_SF_ATOM_ROWS>(tile.n_tile);
        point_weights(this->p.b, tile.l, row, this->p.n, this->p.k, w);
    }

    template <typename STAGED> __device__ void store(const STAGED &staged, const batch_tile &tile, int first) const
    {
        this->store_by(scaled_sums{this->p.alpha, this->p.bias}, staged, tile, first);
    }
};

#define PARAMETERS const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm80_gemm_params q
#define PRODUCT(TOKENS, WARPS) gemm_product<TOKENS, WARPS>(p, q)
#define KERNELS(...) SM80_FP4_KERNELS(sm80_gemm, __VA_ARGS__)

SM80_GEMM_TILES(KERNELS)
