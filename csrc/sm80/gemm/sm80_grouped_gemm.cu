/* D_g[m,n] = convert(alpha_g[n] * sum_k A_g[m,k] B_g[n,k] + bias_g[n]) for every group g
 *
 * Work: a tile is WARPS * 32 features (n) x TILE_M tokens (m) of one group, or of one expert. Stream-K divides the
 * steps of all groups evenly among CTAs (cuda/stream_k.cuh), so that no CTA waits for another, however unequal groups
 * and experts are. Contiguous form: a CTA learns by a scan of `offsets` (cuda/expert.cuh) how many tiles there are, and
 * which expert's tile an iteration is. It reads which token a row is made of when it points to the token.
 *
 * Roles, barriers, memory: sm80_gemm.cuh, sm80_mainloop.cuh. */
#include "sm80_groups.cuh"

template <int TILE_M, int WARPS> struct sm80_grouped_gemm_operator : matrix_operator<TILE_M, WARPS> {
    using sm80_grouped_gemm_operator::matrix_operator::matrix_operator;

    template <typename STAGED> __device__ void store(const STAGED &staged, const group_tile &tile, int first) const
    {
        const nk_gemm_problem p = this->output_of(tile);
        this->store_by(scaled_sums{p.alpha, p.bias}, staged, p, tile, first);
    }
};

#define PARAMETERS const __grid_constant__ cuda_groups q
#define OPERATOR(TILE_M, WARPS) sm80_grouped_gemm_operator<TILE_M, WARPS>(q)
#define KERNELS(name, ...)                                                                     \
    SM80_STREAM_K_KERNELS(sm80_grouped_gemm, name, __VA_ARGS__)                                \
    SM80_GEMM_KERNEL(sm80_grouped_gemm_##name##_plain_fp16, __VA_ARGS__, SM80_GEMM_PLAIN_FP16) \
    SM80_GEMM_KERNEL(sm80_grouped_gemm_##name##_plain_bf16, __VA_ARGS__, SM80_GEMM_PLAIN_BF16)

SM80_GEMM_TILES(KERNELS)
