/* From a staged tile of gates and ups to codes and scale factors: four features a thread, a block four neighbours. */
#ifndef NK_SM80_ENCODE_CUH
#define NK_SM80_ENCODE_CUH

#include "cuda/encode.cuh"

/* TILE_N columns, by all THREADS of the CTA. Sums lie as gated_sums<RUN> has them, barriers as for store_tile().
 * Whole warps go through all tokens: lanes of one that is not there help their neighbours. */
template <int TILE_N, int THREADS, int RUN, int TILE_M, int SUMS>
__device__ inline void encode_tile(const staged_tile<TILE_M, SUMS> &tile, const tile_out &o,
                                   const gated_sums<RUN> &gating, const nk_encoded_output &to)
{
    constexpr int QUADS = TILE_N / 4, AT_ONCE = THREADS / QUADS;
    static_assert(QUADS % 4 == 0 && RUN % 16 == 0, "a block is four threads of one token");
    static_assert(THREADS % QUADS == 0 && TILE_M % AT_ONCE == 0, "a thread keeps its columns, all have as many tokens");
    const int column = threadIdx.x % QUADS * 4;
    const int64_t n = o.feature + column;
    const encoder e = encoder_of(encode_scale_of(to.global_scale));
    const typename gated_sums<RUN>::template columns<4> columns(gating, o, column);
#pragma unroll 1
    for (int token = threadIdx.x / QUADS; token < TILE_M; token += AT_ONCE) {
        const float *sums = tile.of(token) + columns.first;
        float v[4], up[4];
        uint32_t amax = 0, codes = 0;
        load_floats<4>(sums, v);
        load_floats<4>(sums + RUN, up);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = __fmaf_rn(columns.alpha1[i], v[i], columns.bias1[i]);
            up[i] = __fmaf_rn(columns.alpha2[i], up[i], columns.bias2[i]);
        }
        activate_to_encode<4>(columns.activation, v, up);
#pragma unroll
        for (int i = 0; i < 4; i++)
            amax = max(amax, __float_as_uint(fabsf(v[i])));
        const uint32_t sf = sf_of_amax(e, quad_max(amax));
        if (has_codes(sf)) {
            const float factor = code_factor(e, sf);
#pragma unroll
            for (int i = 0; i < 4; i++)
                codes |= code_of(v[i], factor) << 4 * i;
        }
        const int64_t row = o.token + token;
        if (n >= o.feature_end || row >= o.token_end) continue;
        uint8_t *at = to.codes + row * to.codes_row_stride + n / 2;
        at[0] = (uint8_t)codes; /* at any address */
        at[1] = (uint8_t)(codes >> 8);
        if (n % NK_SF_VEC == 0) to.sf[row * to.sf_row_stride + n / NK_SF_VEC] = (uint8_t)sf;
    }
}

#endif
