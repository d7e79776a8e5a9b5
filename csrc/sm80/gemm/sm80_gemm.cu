/* D[l,m,n] = convert(alpha[n] * sum_k A[l,m,k] B[l,n,k] + bias[n])
 *
 * Work: a tile is WARPS * 32 features (n) x TOKENS tokens (m) of one batch. A CTA makes one, or an even share of all
 * tiles' steps of K (cuda/split.cuh).
 *
 * Roles, barriers, memory: sm80_product.cuh, sm80_mainloop.cuh. */
#include "sm80_product.cuh"

template <int TOKENS, int WARPS> struct gemm_product : batch_tiles {
    static constexpr int THREADS = WARPS * 32, FEATURES = WARPS * 32;
    const nk_gemm_problem &p;

    __device__ gemm_product(const nk_gemm_problem &p, const sm80_gemm_params &q) : batch_tiles(q), p(p) {}

    __device__ int64_t k(const batch_tile &) const { return p.k; }

    __device__ void point_rows(const batch_tile &tile, weight_rows &w) const
    {
        point_weights(p.b, tile.l, first_row<WARPS, NK_SF_ATOM_ROWS>(tile.n_tile), p.n, p.k, w);
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
        store_tile<FEATURES, THREADS>(staged, out, scaled_sums{p.alpha, p.bias});
    }
};

#define PARAMETERS const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm80_gemm_params q
#define PRODUCT(TOKENS, WARPS) gemm_product<TOKENS, WARPS>(p, q)
#define KERNELS(...) SM80_FP4_KERNELS(sm80_gemm, __VA_ARGS__)

SM80_GEMM_TILES(KERNELS)
