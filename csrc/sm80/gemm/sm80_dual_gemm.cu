/* D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k] + bias1[n])
 *                    * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k] + bias2[n]))
 *
 * Work: a tile is WARPS * 16 features (n) x TILE_M tokens (m) of one batch: half of a tile's weight rows are B1's
 * (gates), half are B2's (ups), of the same features. Gates and ups lie side by side in shared memory before they are
 * stored. The activation is applied there, in a loop over tokens: unrolled over a thread's sums it was 110 KB of code.
 *
 * Roles, barriers, memory: sm80_gemm.cuh, sm80_mainloop.cuh. */
#include "sm80_gemm.cuh"

#define RUN (SF_ATOM_ROWS / 2) /* of a token's staged sums 64 are gates, the next 64 their ups */

template <int TILE_M, int WARPS>
struct sm80_dual_gemm_operator : batch_operator<nk_dual_gemm_problem, TILE_M, WARPS, WARPS * 16> {
    using sm80_dual_gemm_operator::batch_operator::batch_operator;

    /* A lane has two features, 32 apart: its first pair of rows are their gates, its second pair their ups. */
    __device__ void point_rows(const batch_tile &tile, weight_rows &w) const
    {
        const nk_dual_gemm_problem &p = this->p;
        const int64_t feature = first_row<WARPS, RUN>(tile.n_tile);
        point_pair(p.b1, tile.l, feature, p.n, p.k, 0, w);
        point_pair(p.b2, tile.l, feature, p.n, p.k, 1, w);
        w.adjacent = false;
    }

    template <typename STAGED> __device__ void store(const STAGED &staged, const batch_tile &tile, int first) const
    {
        const nk_dual_gemm_problem &p = this->p;
        this->store_by(gated_sums<RUN>{p.alpha1, p.alpha2, p.bias1, p.bias2, p.activation}, staged, tile, first);
    }
};

#define PARAMETERS const __grid_constant__ nk_dual_gemm_problem p, const __grid_constant__ sm80_gemm_scheduler q
#define OPERATOR(TILE_M, WARPS) sm80_dual_gemm_operator<TILE_M, WARPS>(p, q)
#define KERNELS(...) SM80_STREAM_K_KERNELS(sm80_dual_gemm, __VA_ARGS__)

SM80_GEMM_TILES(KERNELS)
