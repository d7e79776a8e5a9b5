/* The epilogue: from sums in fp32 to elements of the output.
 *
 * One sum: scale_and_add, or alpha_at and bias_at if they are loaded before the sum is there. A tile: its sums are
 * staged in shared memory [token][weight row] (staged_tile), because the threads that hold them are not the ones that
 * can store whole rows; store_tile() then applies an EPILOGUE (scaled_sums, gated_sums) and stores rows of the output,
 * or columns if tokens are neighbours in memory. */
#ifndef NK_EPILOGUE_CUH
#define NK_EPILOGUE_CUH

#include "activation.cuh"
#include "convert.cuh"
#include "operand.cuh"
#include "pairs.cuh"
#include "vectors.cuh"

__device__ inline float alpha_at(const nk_alpha &alpha, int64_t n)
{
    return alpha.data ? alpha.data[n * alpha.stride] : alpha.value;
}

/* -0 if there is no bias: added to any sum, it leaves the sum as it is. */
__device__ inline float bias_at(const nk_bias &bias, int64_t n)
{
    return bias.data ? load_float(bias.data + n * bias.stride, bias.dtype) : -0.0f;
}

/* alpha[n] * sum + bias[n], rounded once */
__device__ inline float scale_and_add(const nk_alpha &alpha, const nk_bias &bias, int64_t n, float sum)
{
    if (!bias.data) return __fmul_rn(alpha_at(alpha, n), sum);
    return __fmaf_rn(alpha_at(alpha, n), sum, load_float(bias.data + n * bias.stride, bias.dtype));
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* A tile                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A tile's sums. The padding spreads the values that a warp holds of an mma's result over all banks. */
template <int TILE_M, int SUMS> struct staged_tile {
    static constexpr int PITCH = SUMS + 4;
    float sums[TILE_M * PITCH];

    __device__ float *of(int token) { return sums + token * PITCH; }
    __device__ const float *of(int token) const { return sums + token * PITCH; }
};

/* What a tile is of the output: tokens and features from `token` and `feature` on, up to token_end and feature_end. */
typedef struct tile_out {
    int64_t l, token, token_end, feature, feature_end;
    const nk_output *d;
} tile_out;

/* An EPILOGUE makes COUNT neighbouring elements of a token's row from the token's sums. Its `columns` hold what a
 * thread loads once for its columns and uses for every token. */

/* alpha[n] * sum + bias[n] */
struct scaled_sums {
    const nk_alpha &alpha;
    const nk_bias &bias;

    template <int COUNT> struct columns {
        float alpha[COUNT], bias[COUNT];
        int first; /* of the tile's */

        __device__ columns(const scaled_sums &e, const tile_out &o, int column) : first(column)
        {
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const int64_t n = min(o.feature + column + i, o.feature_end - 1);
                alpha[i] = alpha_at(e.alpha, n);
                bias[i] = bias_at(e.bias, n);
            }
        }

        __device__ void apply(const float *sums, float v[COUNT]) const
        {
            load_floats<COUNT>(sums + first, v);
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                v[i] = __fmaf_rn(alpha[i], v[i], bias[i]);
        }
    };
};

/* act(alpha1[n] * gate + bias1[n]) * (alpha2[n] * up + bias2[n]). Of a token's sums RUN are gates, the next RUN are the
 * ups of the same features, then come the next gates. */
template <int RUN> struct gated_sums {
    const nk_alpha &alpha1, &alpha2;
    const nk_bias &bias1, &bias2;
    nk_activation activation;

    template <int COUNT> struct columns {
        float alpha1[COUNT], alpha2[COUNT], bias1[COUNT], bias2[COUNT];
        nk_activation activation;
        int first; /* gate, of the sums */

        __device__ columns(const gated_sums &e, const tile_out &o, int column)
            : activation(e.activation), first(column / RUN * (2 * RUN) + column % RUN)
        {
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const int64_t n = min(o.feature + column + i, o.feature_end - 1);
                alpha1[i] = alpha_at(e.alpha1, n);
                alpha2[i] = alpha_at(e.alpha2, n);
                bias1[i] = bias_at(e.bias1, n);
                bias2[i] = bias_at(e.bias2, n);
            }
        }

        __device__ void apply(const float *sums, float v[COUNT]) const
        {
            float up[COUNT];
            load_floats<COUNT>(sums + first, v);
            load_floats<COUNT>(sums + first + RUN, up);
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                v[i] = __fmaf_rn(alpha1[i], v[i], bias1[i]);
                up[i] = __fmaf_rn(alpha2[i], up[i], bias2[i]);
            }
            activate<COUNT>(activation, v, up);
        }
    };
};

/* Four neighbouring elements; the address is aligned to their size. */
__device__ inline void store_four(uint8_t *at, nk_dtype dtype, const float v[4])
{
    if (dtype == NK_F32)
        *(float4 *)at = make_float4(v[0], v[1], v[2], v[3]);
    else if (dtype == NK_F16)
        *(uint2 *)at = make_uint2(pair_of<false>(v[0], v[1]), pair_of<false>(v[2], v[3]));
    else
        *(uint2 *)at = make_uint2(pair_of<true>(v[0], v[1]), pair_of<true>(v[2], v[3]));
}

/* Rows of the output, four columns a thread. */
template <int TILE_N, int THREADS, int TILE_M, int SUMS, typename EPILOGUE>
__device__ inline void store_rows(const staged_tile<TILE_M, SUMS> &tile, const tile_out &o, const EPILOGUE &epilogue)
{
    constexpr int QUADS = TILE_N / 4;
    static_assert(THREADS % QUADS == 0 || QUADS % THREADS == 0, "a thread keeps its columns");
    const int column = threadIdx.x % QUADS * 4;
    const int64_t n = o.feature + column;
    const int64_t size = o.d->dtype == NK_F32 ? 4 : 2;
    const uint8_t *base = output_at(*o.d, o.l, 0, n);
    const bool wide = n + 4 <= o.feature_end && o.d->col_stride == size &&
                      (((uintptr_t)base | o.d->row_stride) & (4 * size - 1)) == 0;
    if (n >= o.feature_end) return;
    const typename EPILOGUE::template columns<4> columns(epilogue, o, column);
#pragma unroll 1
    for (int token = threadIdx.x / QUADS; token < TILE_M && o.token + token < o.token_end; token += THREADS / QUADS) {
        float v[4];
        columns.apply(tile.of(token), v);
        uint8_t *at = output_at(*o.d, o.l, o.token + token, n);
        if (wide) {
            store_four(at, o.d->dtype, v);
            continue;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (n + i < o.feature_end) store_float(at + i * o.d->col_stride, o.d->dtype, v[i]);
        }
    }
}

/* Columns of the output, if tokens are neighbours in memory. */
template <int TILE_N, int THREADS, int TILE_M, int SUMS, typename EPILOGUE>
__device__ inline void store_columns(const staged_tile<TILE_M, SUMS> &tile, const tile_out &o, const EPILOGUE &epilogue)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < TILE_M * TILE_N; i += THREADS) {
        const int token = i % TILE_M, column = i / TILE_M;
        const int64_t m = o.token + token, n = o.feature + column;
        if (m >= o.token_end || n >= o.feature_end) continue;
        float v[1];
        typename EPILOGUE::template columns<1>(epilogue, o, column).apply(tile.of(token), v);
        store_float(output_at(*o.d, o.l, m, n), o.d->dtype, v[0]);
    }
}

/* TILE_N columns of the output from a staged tile, by all THREADS of the CTA. The caller has a barrier before it,
 * since all threads stage sums, and one behind it before `tile` is written again. */
template <int TILE_N, int THREADS, int TILE_M, int SUMS, typename EPILOGUE>
__device__ inline void store_tile(const staged_tile<TILE_M, SUMS> &tile, const tile_out &o, const EPILOGUE &epilogue)
{
    if (o.d->row_stride < o.d->col_stride)
        store_columns<TILE_N, THREADS>(tile, o, epilogue);
    else
        store_rows<TILE_N, THREADS>(tile, o, epilogue);
}

#endif
