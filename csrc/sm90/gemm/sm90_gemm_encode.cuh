/* The epilogues of grouped_gemm and grouped_dual_gemm that write NVFP4: from a warpgroup's sums to codes and scale
 * factors.
 *
 * Of grouped_gemm a warp has 16 features of a token: a block. Of grouped_dual_gemm it has eight, half a block. Each of
 * two warps computes the scale factor that its half needs, and the larger one is the block's. They exchange these
 * through sm90_gemm_memory::half_block_sf. Two barriers of the pair, BARRIER_PAIRS + pair of 64 threads, frame every
 * exchange: after the first one the peer has read the bytes of the previous window, after the second one it has written
 * those of this window.
 *
 * No stage is used, so the producers go on loading the next tile. */
#ifndef NK_SM90_GEMM_ENCODE_CUH
#define NK_SM90_GEMM_ENCODE_CUH

#include "cuda/encode.cuh"
#include "cuda/ptx/barrier.cuh"
#include "sm90_gemm_store.cuh"

/* Transposes the 8x8 floats of a warp, of which a lane holds two of row lane / 4. */
__device__ inline void transpose_8x8(float v[2])
{
    const uint32_t first = __float_as_uint(v[0]), second = __float_as_uint(v[1]);
    const uint32_t low = movmatrix_trans(__byte_perm(first, second, 0x5410)),
                   high = movmatrix_trans(__byte_perm(first, second, 0x7632));
    v[0] = __uint_as_float(__byte_perm(low, high, 0x5410));
    v[1] = __uint_as_float(__byte_perm(low, high, 0x7632));
}

/* Activates the sums of a window times `scale`, in place of the gates: two of each n8 group. */
template <int N>
__device__ inline void activate_gated_window(const nk_activation &activation, float scale, const lane_factors &f,
                                             float (&window)[N])
{
    float h[N / 2], u[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        h[i] = __fmaf_rn(f.alpha[0], window[4 * (i / 2) + i % 2] * scale, f.bias[0]);
        u[i] = __fmaf_rn(f.alpha[1], window[4 * (i / 2) + 2 + i % 2] * scale, f.bias[1]);
    }
    activate_to_encode<N / 2>(activation, h, u);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        window[4 * (i / 2) + i % 2] = h[i];
}

/* Codes and scale factors of fl(nk_silu(h) * u), or with C::ACTIVATED of any activation, of all tokens of the tile.
 * Once transposed, a lane has two features of token lane / 4 of each n8 group. Byte i of `factors` is the scale factor
 * in n8 group i of the window. */
template <class C, int N>
__device__ inline void encode_gated_tile(sm90_gemm_memory<C> &s, const gemm_gated &p, const tile_coord &tile,
                                         const consumer &c, const lane_factors &f, float scale, float (&sums)[N])
{
    const int cta_warp = 4 * (C::WARPGROUPS * c.consumer_group + c.warpgroup) + c.warp,
              pair = BARRIER_PAIRS + cta_warp / 2;
    const int64_t first = tile.n + 32 * c.warpgroup + 8 * c.warp;
    const int64_t row = tile.m + c.lane / 4;
    const encoder e = encoder_of(encode_scale_of(p.encoded.global_scale));
    const uint32_t ours = shared_address(&s.half_block_sf[cta_warp][c.lane / 4]),
                   theirs = shared_address(&s.half_block_sf[cta_warp ^ 1][c.lane / 4]);
    uint8_t *codes = p.encoded.codes + row * p.encoded.codes_row_stride + first / 2 + c.lane % 4;
    uint8_t *sf = p.encoded.sf + row * p.encoded.sf_row_stride + first / NK_SF_VEC;
    for_each_window<16>(sums, tile.m_end - tile.m, [&](auto &window, int done) {
        constexpr int N8S = (int)(sizeof window / 16);
        uint32_t factors = 0;
        if constexpr (C::ACTIVATED) activate_gated_window(p.activation, scale, f, window);
#pragma unroll
        for (int i = 0; i < N8S; i++) {
            float *v = window + 4 * i;
#pragma unroll
            for (int j = 0; j < 2 && !C::ACTIVATED; j++)
                v[j] = gated_value(__fmaf_rn(f.alpha[0], v[j] * scale, f.bias[0]),
                                   __fmaf_rn(f.alpha[1], v[2 + j] * scale, f.bias[1]));
            transpose_8x8(v);
            const uint32_t amax = max(__float_as_uint(fabsf(v[0])), __float_as_uint(fabsf(v[1])));
            factors |= sf_of_amax(e, quad_max(amax)) << 8 * i;
        }
        bar_sync<64>(pair);
        if (c.lane % 4 == 0) st_shared(ours, factors);
        bar_sync<64>(pair);
        factors = __vmaxu4(factors, ld_shared(theirs));
#pragma unroll
        for (int i = 0; i < N8S; i++) {
            const float *v = window + 4 * i;
            const uint32_t factor = factors >> 8 * i & 0xFF;
            const float to_code = code_factor(e, factor);
            const uint32_t both = code_of(v[0], to_code) | code_of(v[1], to_code) << 4;
            if (first < p.n && row + 8 * (done + i) < tile.m_end) {
                *codes = has_codes(factor) ? (uint8_t)both : 0;
                if (c.warp % 2 == 0 && c.lane % 4 == 0) *sf = (uint8_t)factor;
            }
            codes += 8 * p.encoded.codes_row_stride;
            sf += 8 * p.encoded.sf_row_stride;
        }
    });
}

/* Codes and scale factors of grouped_gemm's activated sums. Once transposed, a lane has features 2 c, 2 c + 1, 2 c + 8
 * and 2 c + 9, c = lane % 4, of token lane / 4 of each n8 group. */
template <class C, int N>
__device__ inline void encode_tile(const nk_encoded_output &to, const nk_gemm_problem &p,
                                   const sm90_gemm_params &params, const tile_coord &tile, const consumer &c,
                                   const lane_factors &f, float scale, float (&sums)[N])
{
    const int64_t first = tile.n + 64 * c.warpgroup + 16 * c.warp, row = tile.m + c.lane / 4;
    const encoder e = encoder_of(encode_scale_of(to.global_scale));
    uint8_t *codes = to.codes + row * to.codes_row_stride + first / 2 + c.lane % 4;
    uint8_t *sf = to.sf + row * to.sf_row_stride + first / NK_SF_VEC;
    for_each_window<8>(sums, tile.m_end - tile.m, [&](auto &window, int done) {
        activate_window((nk_activation_kind)params.activation, true, scale, f, window);
#pragma unroll
        for (int i = 0; i < (int)(sizeof window / 16); i++) {
            float (&low)[2] = *(float (*)[2])(window + 4 * i), (&high)[2] = *(float (*)[2])(window + 4 * i + 2);
            transpose_8x8(low);
            transpose_8x8(high);
            uint32_t amax = 0;
#pragma unroll
            for (int j = 0; j < 4; j++)
                amax = max(amax, __float_as_uint(fabsf(window[4 * i + j])));
            const uint32_t factor = sf_of_amax(e, quad_max(amax));
            const float to_code = code_factor(e, factor);
            if (first < p.n && row + 8 * (done + i) < tile.m_end) {
                const bool has = has_codes(factor);
                codes[0] = has ? (uint8_t)(code_of(low[0], to_code) | code_of(low[1], to_code) << 4) : 0;
                codes[4] = has ? (uint8_t)(code_of(high[0], to_code) | code_of(high[1], to_code) << 4) : 0;
                if (c.lane % 4 == 0) *sf = (uint8_t)factor;
            }
            codes += 8 * to.codes_row_stride;
            sf += 8 * to.sf_row_stride;
        }
    });
}

#endif
