/* D[l,m,n] = convert(act(alpha1[n] * sum_k A[l,m,k] B1[l,n,k]) * (alpha2[n] * sum_k A[l,m,k] B2[l,n,k]))
 *
 * Work: a tile is WARPS * 16 features (n) x TOKENS tokens (m) of one batch: half of a tile's weight rows are B1's
 * (gates), half are B2's (ups), of the same features. Gates and ups lie side by side in shared memory before they are
 * stored. The activation is applied there, in a loop over tokens: unrolled over a thread's sums it was 110 KB of code.
 *
 * Roles, barriers, memory: sm80_product.cuh, sm80_mainloop.cuh. */
#include "sm80_product.cuh"

#define RUN (NK_SF_ATOM_ROWS / 2) /* of a token's staged sums 64 are gates, the next 64 their ups */

template <int TOKENS, int WARPS> struct dual_gemm_product : batch_tiles {
    static constexpr int THREADS = WARPS * 32, FEATURES = WARPS * 16;
    const nk_dual_gemm_problem &p;

    __device__ dual_gemm_product(const nk_dual_gemm_problem &p, const sm80_gemm_params &q) : batch_tiles(q), p(p) {}

    __device__ int64_t k(const batch_tile &) const { return p.k; }

    /* A lane's features are this one and the 32nd after it: two of an SF atom's four row quarters. */
    __device__ void point_rows(const batch_tile &tile, weight_rows &w) const
    {
        const int64_t feature = first_row<WARPS, RUN>(tile.n_tile);
        point_pair(p.b1, tile.l, feature, p.n, p.k, 0, w);
        point_pair(p.b2, tile.l, feature, p.n, p.k, 1, w);
        w.adjacent = false;
    }

    template <int ITEMS> __device__ void point_tokens(const batch_tile &tile, token_rows_t<ITEMS> &x) const
    {
        ::point_tokens(p.a, tile.l, tile.m_tile * (int64_t)TOKENS, p.m, 0, p.k, threadIdx.x >> 5, WARPS, x);
    }

    template <int STAGED>
    __device__ void store(const staged_tile<STAGED, THREADS> &staged, const batch_tile &tile, int first) const
    {
        const tile_out out = {tile.l, tile.m_tile * (int64_t)TOKENS + first, p.m, tile.n_tile * (int64_t)FEATURES, p.n,
                              &p.d};
        store_tile<FEATURES, THREADS>(staged, out, gated_sums<RUN>{p});
    }
};

#define PARAMETERS const __grid_constant__ nk_dual_gemm_problem p, const __grid_constant__ sm80_gemm_params q
#define PRODUCT(TOKENS, WARPS) dual_gemm_product<TOKENS, WARPS>(p, q)
#define KERNELS(...) SM80_FP4_KERNELS(sm80_dual_gemm, __VA_ARGS__)

SM80_GEMM_TILES(KERNELS)
