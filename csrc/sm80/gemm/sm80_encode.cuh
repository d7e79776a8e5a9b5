/* From a staged tile to codes and scale factors: four features a thread, a block four neighbours. */
#ifndef NK_SM80_ENCODE_CUH
#define NK_SM80_ENCODE_CUH

#include "cuda/encode.cuh"

/* An EPILOGUE of cuda/epilogue.cuh: gated_sums, to be encoded. */
template <int RUN> struct encoded_gated_sums : gated_sums<RUN> {
    static_assert(RUN % 16 == 0, "a block's gates are neighbours");

    template <int COUNT> struct columns : gated_sums<RUN>::template columns<COUNT> {
        using of_floats = typename gated_sums<RUN>::template columns<COUNT>;
        using of_floats::of_floats;

        __device__ void apply(const float *sums, float v[COUNT]) const
        {
            float up[COUNT];
            load_floats<COUNT>(sums + this->first, v);
            load_floats<COUNT>(sums + this->first + RUN, up);
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                v[i] = __fmaf_rn(this->alpha1[i], v[i], this->bias1[i]);
                up[i] = __fmaf_rn(this->alpha2[i], up[i], this->bias2[i]);
            }
            activate_to_encode<COUNT>(this->activation, v, up);
        }
    };
};

/* TILE_N columns, by all THREADS of the CTA, of what an EPILOGUE makes of the sums. Barriers are those of store_tile().
 * Whole warps go through all tokens: lanes of one that is not there help their neighbours. */
template <int TILE_N, int THREADS, int TILE_M, int SUMS, typename EPILOGUE>
__device__ inline void encode_tile(const staged_tile<TILE_M, SUMS> &tile, const tile_out &o, const EPILOGUE &epilogue,
                                   const nk_encoded_output &to)
{
    constexpr int QUADS = TILE_N / 4, AT_ONCE = THREADS / QUADS;
    static_assert(QUADS % 4 == 0, "a block is four threads of one token");
    static_assert(THREADS % QUADS == 0 && TILE_M % AT_ONCE == 0, "a thread keeps its columns, all have as many tokens");
    const int column = threadIdx.x % QUADS * 4;
    const int64_t n = o.feature + column;
    const encoder e = encoder_of(encode_scale_of(to.global_scale));
    const typename EPILOGUE::template columns<4> columns(epilogue, o, column);
#pragma unroll 1
    for (int token = threadIdx.x / QUADS; token < TILE_M; token += AT_ONCE) {
        float v[4];
        uint32_t amax = 0, codes = 0;
        columns.apply(tile.of(token), v);
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
