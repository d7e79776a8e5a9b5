/* D_g[m,n] = convert(act(alpha_g[n] * sum_k A_g[m,k] B_g[n,k] + bias_g[n])) for every group g; or in the contiguous
 * form codes and scale factors of act(..) in place of convert, with nk_silu for silu
 *
 * Work: as in sm80_grouped_gemm.cu, in both forms, but a tile is one CTA's. Staged sums are activated in place: one
 * copy of an activation's instructions serves rows and columns of the output. The kernels are others because those
 * without an activation shall have no register and no instruction more.
 *
 * Roles, barriers, memory: sm80_gemm.cuh, sm80_mainloop.cuh. */
#include "sm80_encode.cuh"
#include "sm80_groups.cuh"

/* An EPILOGUE of cuda/epilogue.cuh: what is staged, as it is. */
struct staged_values {
    template <int COUNT> struct columns {
        int first;

        __device__ columns(const staged_values &, const tile_out &, int column) : first(column) {}

        __device__ void apply(const float *values, float v[COUNT]) const { load_floats<COUNT>(values + first, v); }
    };
};

#define AT_ONCE 2 /* tokens: more are more instructions */

template <int TILE_M, int WARPS> struct sm80_activated_grouped_gemm_operator : matrix_operator<TILE_M, WARPS> {
    const sm80_gating &gating;

    __device__ sm80_activated_grouped_gemm_operator(const cuda_groups &q, const sm80_gating &gating)
        : matrix_operator<TILE_M, WARPS>(q), gating(gating)
    {
    }

    /* A thread has a feature. */
    template <typename STAGED> __device__ void store(STAGED &staged, const group_tile &tile, int first) const
    {
        const nk_gemm_problem p = this->output_of(tile);
        const tile_out out = this->out_of(p, tile, first);
        const int64_t n = min(out.feature + (int64_t)threadIdx.x, out.feature_end - 1);
        const float alpha = alpha_at(p.alpha, n), bias = bias_at(p.bias, n);
        const bool encodes_silu = gating.encoded.wanted && gating.activation.kind == NK_SILU;
#pragma unroll 1
        for (int token = 0; token < TILE_M && out.token + token < out.token_end; token += AT_ONCE) {
            float v[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                v[i] = __fmaf_rn(alpha, staged.of(token + i)[threadIdx.x], bias);
            if (encodes_silu)
                each<AT_ONCE>(v, [](float h) { return nk_silu(h); });
            else
                activate_alone<AT_ONCE>(gating.activation.kind, v);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                staged.of(token + i)[threadIdx.x] = v[i];
        }
        __syncthreads();
        if (gating.encoded.wanted)
            encode_tile<WARPS * 32, WARPS * 32>(staged, out, staged_values(), gating.encoded);
        else
            this->store_by(staged_values(), staged, p, tile, first);
    }
};

#define PARAMETERS const __grid_constant__ cuda_groups q, const __grid_constant__ sm80_gating gating
#define OPERATOR(TILE_M, WARPS) sm80_activated_grouped_gemm_operator<TILE_M, WARPS>(q, gating)
#define KERNELS(name, ...)                                                                               \
    SM80_GEMM_FP4_KERNELS(sm80_activated_grouped_gemm, name, __VA_ARGS__)                                \
    SM80_GEMM_KERNEL(sm80_activated_grouped_gemm_##name##_plain_fp16, __VA_ARGS__, SM80_GEMM_PLAIN_FP16) \
    SM80_GEMM_KERNEL(sm80_activated_grouped_gemm_##name##_plain_bf16, __VA_ARGS__, SM80_GEMM_PLAIN_BF16)

SM80_T32_TILE(KERNELS)
