/* D_g[m,n] = convert(alpha_g[n] * sum_k A_g[m,k] B_g[n,k] + bias_g[n]) for every group g
 *
 * Work: a tile is WARPS * 32 features (n) x TOKENS tokens (m) of one group, or of one expert. All groups' steps of K,
 * laid end to end, are dealt out evenly to the CTAs (cuda/split.cuh), so that no CTA waits for another, however unequal
 * groups and experts are. Contiguous form: a CTA learns how many tiles there are, and whose tile a unit is, by a scan
 * of `offsets` (cuda/expert.cuh). Which token a row is made of it reads when it points to the token.
 *
 * Roles, barriers, memory: sm80_product.cuh, sm80_mainloop.cuh. */
#include "cuda/groups.cuh"
#include "sm80_product.cuh"

template <int TOKENS, int WARPS> struct grouped_gemm_product : group_tiles<TOKENS, WARPS * 32, WARPS> {
    static constexpr int FEATURES = WARPS * 32;

    __device__ grouped_gemm_product(const cuda_groups &q) : group_tiles<TOKENS, FEATURES, WARPS>(q, smem) {}

    __device__ int64_t k(const group_tile &tile) const { return this->problem_of(tile).k; }

    __device__ uint32_t steps(const group_tile &tile) const { return this->q.group[tile.group].steps; }

    __device__ float *partials() const { return this->q.partials; }

    __device__ void point_rows(const group_tile &tile, weight_rows &w) const
    {
        const nk_gemm_problem &p = this->problem_of(tile);
        point_weights(p.b, tile.expert, first_row<WARPS, NK_SF_ATOM_ROWS>(tile.n_tile), p.n, p.k, w);
    }

    template <int TILES_PER_WARP>
    __device__ void point_tokens(const group_tile &tile, token_rows_t<TILES_PER_WARP> &x) const
    {
        const nk_gemm_problem &p = this->problem_of(tile);
        ::point_tokens(p.a, 0, tile.token, tile.end, tile.sf_row, p.k, threadIdx.x >> 5, WARPS, this->q.rows, x);
    }

    template <typename STAGED> __device__ void store(const STAGED &staged, const group_tile &tile, int first) const
    {
        const nk_gemm_problem p = this->output_of(tile);
        const tile_out out = {0, tile.token + first, tile.end, tile.n_tile * FEATURES, p.n, &p.d};
        store_tile<FEATURES, WARPS * 32>(staged, out, scaled_sums{p.alpha, p.bias});
    }
};

#define PARAMETERS const __grid_constant__ cuda_groups q
#define PRODUCT(TOKENS, WARPS) grouped_gemm_product<TOKENS, WARPS>(q)
#define KERNELS(name, ...)                                                                      \
    SM80_FP4_KERNELS(sm80_grouped_gemm, name, __VA_ARGS__)                                      \
    SM80_MULTIPLY(sm80_grouped_gemm_##name##_plain_halves, __VA_ARGS__, SM80_GEMM_PLAIN_HALVES) \
    SM80_MULTIPLY(sm80_grouped_gemm_##name##_plain_bfloats, __VA_ARGS__, SM80_GEMM_PLAIN_BFLOATS)

SM80_GEMM_TILES(KERNELS)
