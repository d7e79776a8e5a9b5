/* The epilogue of sm90_gemm.cuh: from a warpgroup's sums to elements of the output. In an n8 group, which is eight
 * tokens, lane (g, c) = (lane / 4, lane % 4) has weight rows g and g + 8 of its warp's 16, and tokens 2 c and 2 c + 1.
 */
#ifndef NK_SM90_GEMM_STORE_CUH
#define NK_SM90_GEMM_STORE_CUH

#include "cuda/epilogue.cuh"
#include "sm90_gemm_tile.cuh"

/* Alpha and bias of a lane's two weight rows, of a gate and its up. They are read before the main loop, which hides how
 * long that takes; biases of gates and ups behind it, see read_gated_biases(). */
typedef struct lane_factors {
    float alpha[2], bias[2];
} lane_factors;

/* Whether rows can be stored in vectors of `bytes`: 16-bit elements side by side, aligned, and all or none of a vector
 * in bounds. The answer is the same for all warps: if it were not, the compiler would take no value of the next tile
 * for uniform. */
__device__ inline bool has_vector_rows(const nk_output &d, int64_t n, int bytes)
{
    return d.dtype != NK_F32 && d.col_stride == 2 && n % (bytes / 2) == 0 &&
           (((uintptr_t)d.data | d.row_stride | d.batch_stride) & (bytes - 1)) == 0;
}

/* Two elements of a token, fp16 or bf16. By a select, since a branch would keep groups of tokens apart. */
__device__ inline uint32_t pair_of_dtype(bool half, float first, float second)
{
    return half ? pair_of<false>(first, second) : pair_of<true>(first, second);
}

/* Four 16-bit features of one token: two lanes exchange pairs. */
__device__ inline uint2 row_vector(bool half, const float v[4])
{
    const bool odd = threadIdx.x % 2;
    const uint32_t low = movmatrix_trans(pair_of_dtype(half, v[0], v[1])),
                   high = movmatrix_trans(pair_of_dtype(half, v[2], v[3]));
    const uint32_t other = __shfl_xor_sync(~0u, odd ? low : high, 1);
    return odd ? make_uint2(other, high) : make_uint2(low, other);
}

/* Stores a lane's elements one by one, two weight rows of two tokens in each n8 group, ascending. */
typedef struct lane_stores {
    uint8_t *at[2][2]; /* [weight row][token] */
    bool is_there[2];  /* weight row */
    int64_t next;      /* to the next n8 group */

    __device__ lane_stores(const nk_output &d, int batch, int64_t token, const int64_t (&n)[2], int64_t features)
        : next(8 * d.row_stride)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            at[i / 2][i % 2] = output_at(d, batch, token + 2 * (threadIdx.x % 4) + i % 2, n[i / 2]);
        is_there[0] = n[0] < features;
        is_there[1] = n[1] < features;
    }

    /* Of weight row i; tokens from `valid` on are out of bounds. */
    __device__ void store(int i, nk_dtype dtype, const float v[2], int64_t valid)
    {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (is_there[i] && 2 * (threadIdx.x % 4) + j < valid) store_float(at[i][j], dtype, v[j]);
            at[i][j] += next;
        }
    }
} lane_stores;

/* The most of N sums, whole n8 groups, that are at most MOST and divide N. */
__device__ constexpr int window_of(int n, int most)
{
    int window = most < n ? most : n;
    while (n % window != 0)
        window -= 4;
    return window;
}

/* Calls f(window, its first n8 group) for the sums of `tokens` tokens, some n8 groups at a time. Unrolled code for all
 * of them would be fetched from memory for each tile, which takes longer than moving sums down: registers have no
 * index. */
template <int MOST, int N, typename F> __device__ inline void for_each_window(float (&sums)[N], int64_t tokens, F f)
{
    constexpr int WINDOW = window_of(N, MOST);
    float (&window)[WINDOW] = reinterpret_cast<float (&)[WINDOW]>(sums);
#pragma unroll 1
    for (int i = 0; i < N && 2 * i < tokens; i += WINDOW) {
        f(window, i / 4);
#pragma unroll
        for (int j = 0; j < N - WINDOW; j++)
            sums[j] = sums[j + WINDOW];
    }
}

/* Multiplies sums, of the n8 groups from first_n8 on, by mma_scale and then row_scale, if there is one. Returns what
 * they are yet to be multiplied by. A lane reads the factor of one token in 32. kept(): what depends on the lane would
 * take registers of the main loop. */
template <class C, typename P, int N>
__device__ inline float scale_sums(const P &p, const sm90_gemm_params &params, const nk_token_rows &rows,
                                   const tile_coord &tile, int first_n8, float (&sums)[N])
{
    const nk_row_scale &scale = p.row_scale;
    const int token = tile.m + 8 * first_n8, end = (int)m_end_of<C>(tile, p.m);
    if (!scale.data || token >= end) return params.mma_scale;
#pragma unroll
    for (int first = 0; first < N; first += 16) {
        const int lane = (int)kept(threadIdx.x % 32), row = min(token + 2 * first + lane, end - 1);
        const int64_t from = rows.data ? nk_token_of(rows.data[row], rows.per_token, rows.tokens) : row;
        const float factor = scale.data[batch_of<C>(tile) * scale.batch_stride + from * scale.stride];
#pragma unroll
        for (int i = first; i < first + 16 && i < N; i++)
            sums[i] = __fmul_rn(__shfl_sync(~0u, factor, (i - first) / 4 * 8 + lane % 4 * 2 + i % 2),
                                sums[i] * params.mma_scale);
    }
    return 1;
}

/* The alpha of the tile's expert. */
template <class C> __device__ inline nk_alpha alpha_of(nk_alpha alpha, const tile_coord &tile)
{
    if (C::EXPERTS && alpha.data) alpha.data += tile.l * alpha.group_stride;
    return alpha;
}

template <class C> __device__ inline nk_bias bias_of(nk_bias bias, const tile_coord &tile)
{
    if (C::EXPERTS && bias.data) bias.data += tile.l * bias.group_stride;
    return bias;
}

template <class C>
__device__ inline lane_factors factors_of_lane(const nk_gemm_problem &p, const tile_coord &tile, const consumer &c)
{
    const nk_alpha alpha = alpha_of<C>(p.alpha, tile);
    const nk_bias bias = bias_of<C>(p.bias, tile);
    lane_factors f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int64_t n = min((int64_t)tile.n + 64 * c.warpgroup + 16 * c.warp + c.lane / 4 + 8 * i, p.n - 1);
        f.alpha[i] = alpha_at(alpha, n);
        f.bias[i] = bias_at(bias, n);
    }
    return f;
}

__device__ inline int64_t gated_feature_of_lane(int64_t n, const tile_coord &tile, const consumer &c)
{
    return min((int64_t)tile.n + 32 * c.warpgroup + 8 * c.warp + c.lane / 4, n - 1);
}

template <class C, typename P>
__device__ inline lane_factors factors_of_lane(const P &p, const tile_coord &tile, const consumer &c)
{
    const int64_t n = gated_feature_of_lane(p.n, tile, c);
    return {{alpha_at(alpha_of<C>(p.alpha1, tile), n), alpha_at(alpha_of<C>(p.alpha2, tile), n)}, {}};
}

/* Of gates and ups, behind the main loop: before it they would cost registers that the loop spills. */
template <class C>
__device__ inline void read_gated_biases(const nk_gemm_problem &, const tile_coord &, const consumer &, lane_factors &)
{
}

template <class C, typename P>
__device__ inline void read_gated_biases(const P &p, const tile_coord &tile, const consumer &c, lane_factors &f)
{
    const int64_t n = gated_feature_of_lane(p.n, tile, c);
    f.bias[0] = bias_at(bias_of<C>(p.bias1, tile), n);
    f.bias[1] = bias_at(bias_of<C>(p.bias2, tile), n);
}

/* Of a window of gemm's sums, in place: a switch for each four sums would be long. nk_silu is what codes are made of.
 */
template <int N>
__device__ inline void activate_window(nk_activation_kind kind, bool encodes, float scale, const lane_factors &f,
                                       float (&window)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        window[i] = __fmaf_rn(f.alpha[i % 4 / 2], window[i] * scale, f.bias[i % 4 / 2]);
    if (encodes && kind == NK_SILU)
        each<N>(window, [](float h) { return nk_silu(h); });
    else
        activate_alone<N>(kind, window);
}

/* gemm: `sums` are of the n8 groups from first_n8 on, and are to be multiplied by `scale`. */
template <class C, int N>
__device__ inline void store_gemm_tile(const nk_gemm_problem &p, const sm90_gemm_params &params, const tile_coord &tile,
                                       const consumer &c, const lane_factors &f, float scale, int first_n8,
                                       float (&sums)[N])
{
    const int64_t first = tile.n + 64 * c.warpgroup + 16 * c.warp;
    const int64_t end = m_end_of<C>(tile, p.m), token = tile.m + 8 * first_n8;
    const int batch = batch_of<C>(tile);
    const nk_output &d = p.d;
    const bool vectors = has_vector_rows(d, p.n, 8), half = d.dtype == NK_F16;
    auto values = [&](const float *sums4, float v[4]) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = C::ACTIVATED ? sums4[j] : __fmaf_rn(f.alpha[j / 2], sums4[j] * scale, f.bias[j / 2]);
    };
    if (vectors) {
        constexpr int MOST = C::ACTIVATED ? 8 : C::EXPERTS ? 32 : N;
        const int64_t feature = first + (c.lane & 1) * 8 + c.lane % 4 / 2 * 4;
        uint8_t *at = output_at(d, batch, token + c.lane / 4, feature);
        for_each_window<MOST>(sums, end - token, [&](auto &window, int done) {
            if constexpr (C::ACTIVATED) activate_window((nk_activation_kind)params.activation, false, scale, f, window);
#pragma unroll
            for (int i = 0; i < (int)(sizeof window / 16); i++, at += 8 * d.row_stride) {
                float v[4];
                values(window + 4 * i, v);
                const uint2 four = row_vector(half, v);
                if (feature < p.n && token + 8 * (done + i) + c.lane / 4 < end) *(uint2 *)at = four;
            }
        });
        return;
    }
    lane_stores out(d, batch, token, {first + c.lane / 4, first + c.lane / 4 + 8}, p.n);
    for_each_window<C::ACTIVATED ? 8 : 16>(sums, end - token, [&](auto &window, int done) {
        if constexpr (C::ACTIVATED) activate_window((nk_activation_kind)params.activation, false, scale, f, window);
#pragma unroll
        for (int i = 0; i < (int)(sizeof window / 16); i++) {
            const int64_t remaining = end - token - 8 * (done + i);
            float v[4];
            values(window + 4 * i, v);
            out.store(0, d.dtype, v, remaining);
            out.store(1, d.dtype, v + 2, remaining);
        }
    });
}

/* dual_gemm, grouped_dual_gemm: a warp has eight features, so a lane stores a vector of two. */
template <class C, typename P, int N>
__device__ inline void store_gemm_tile(const P &p, const sm90_gemm_params &params, const tile_coord &tile,
                                       const consumer &c, const lane_factors &f, float scale, int first_n8,
                                       float (&sums)[N])
{
    const int64_t first = tile.n + 32 * c.warpgroup + 8 * c.warp, n = first + c.lane / 4;
    const int64_t end = m_end_of<C>(tile, p.m), token = tile.m + 8 * first_n8;
    const int batch = batch_of<C>(tile);
    const nk_output &d = p.d;
    const bool vectors = has_vector_rows(d, p.n, 4), half = d.dtype == NK_F16;
    const int64_t feature = first + 2 * (c.lane % 4);
    uint8_t *at = output_at(d, batch, token + c.lane / 4, feature);
    lane_stores out(d, batch, token, {n, n}, p.n);
    for_each_window<C::EXPERTS ? 16 : 32>(sums, end - token, [&](const auto &window, int done) {
        constexpr int N8S = (int)(sizeof window / 16);
        float v[2 * N8S], up[2 * N8S]; /* of all groups, so that one's latency hides in the others */
#pragma unroll
        for (int i = 0; i < 2 * N8S; i++) {
            v[i] = __fmaf_rn(f.alpha[0], window[4 * (i / 2) + i % 2] * scale, f.bias[0]);
            up[i] = __fmaf_rn(f.alpha[1], window[4 * (i / 2) + 2 + i % 2] * scale, f.bias[1]);
        }
        activate<2 * N8S>(p.activation, v, up);
        if (vectors) {
#pragma unroll
            for (int i = 0; i < N8S; i++, at += 8 * d.row_stride) {
                const uint32_t pair = movmatrix_trans(pair_of_dtype(half, v[2 * i], v[2 * i + 1]));
                if (feature < p.n && token + 8 * (done + i) + c.lane / 4 < end) *(uint32_t *)at = pair;
            }
        } else {
#pragma unroll
            for (int i = 0; i < N8S; i++)
                out.store(0, d.dtype, v + 2 * i, end - token - 8 * (done + i));
        }
    });
}

#endif
