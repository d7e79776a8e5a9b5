/* Tokens into shared memory, as fp16 or bf16 in the order in which weights are decoded. */
#ifndef NK_GEMV_TOKENS_CUH
#define NK_GEMV_TOKENS_CUH

#include "convert.cuh"
#include "cuda/ptx/narrow.cuh"
#include "cuda/ptx/registers.cuh"
#include "gemv_steps.cuh"
#include "pairs.cuh"

enum { CODES, FP16, BF16 };

#define BATCH 4 /* words that a thread loads before it stores them */

constexpr int CHUNK_BYTES = sizeof(gemv_token_chunk), STEP_WORDS = GEMV_STEP / 8;

/* Eight elements of a token; zeros beyond K. */
typedef struct raw_token_word {
    uint4 raw; /* codes are in x alone */
    uint32_t sf;
} raw_token_word;

template <int KIND>
__device__ inline raw_token_word load_token_word(const nk_gemm_problem &p, int64_t l, int token, int64_t k)
{
    raw_token_word out = {make_uint4(0, 0, 0, 0), 0};
    const uint8_t *row = p.a.data + l * p.a.batch_stride + token * p.a.row_stride;
    if (k >= p.k) return out; /* K % 16 = 0: all of it or nothing */
    if (KIND == CODES) {
        const uint8_t *at = row + k / 2;
        out.raw.x = is_aligned(at, 4) ? *(const uint32_t *)at : fetch_bytes(at, 4).x;
        out.sf = *sf_at(p.a, l, token, k / NK_SF_VEC, p.k / NK_SF_VEC) & 0x7F;
        return out;
    }
    const uint8_t *at = row + k * p.a.k_stride;
    if (p.a.k_stride == 2 && is_aligned(at, 16)) {
        out.raw = *(const uint4 *)at;
        return out;
    }
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        pairs[i] = *(const uint16_t *)(at + 2 * i * p.a.k_stride) |
                   (uint32_t)*(const uint16_t *)(at + (2 * i + 1) * p.a.k_stride) << 16;
    out.raw = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    return out;
}

/* ALONE: the scale factors of codes stay beside them. Otherwise codes are multiplied by them, which is exact in fp16.
 */
template <int KIND, bool ALONE> __device__ inline void store_word(const raw_token_word &v, uint8_t *token, int word)
{
    uint8_t *const chunk = token + word / CODE_WORDS * CHUNK_BYTES;
    uint4 elements = KIND == BF16 ? in_decode_order(v.raw) : v.raw;
    if (KIND == CODES) {
        uint32_t pairs[4];
        cvt_f16x2_e2m1x2(v.raw.x, pairs);
        if (!ALONE) {
            const uint32_t scale = cvt_f16x2_e4m3x2(v.sf * 0x0101);
#pragma unroll
            for (int i = 0; i < 4; i++)
                pairs[i] = multiply_pairs<false>(pairs[i], scale);
        } else if (word % 2 == 0) {
            ((gemv_token_chunk *)chunk)->sf[word % CODE_WORDS / 2] = e4m3_to_float(v.sf);
        }
        elements = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    ((uint4 *)chunk)[word % CODE_WORDS] = elements;
}

/* As much of K of all tokens as the CTA has, by all its threads. */
template <int KIND, bool ALONE>
__device__ inline void stage_tokens(const nk_gemm_problem &p, const gemv_scheduler &s, const warp_schedule &w)
{
    uint8_t *const tokens = (uint8_t *)(&head() + 1);
    const int words = w.k_steps * STEP_WORDS, pitch = gemv_token_bytes(s.k_steps);
    const int all = words * (ALONE ? 1 : s.tokens);
    const int64_t first_k = (int64_t)w.first_k_step * GEMV_STEP;
    for (int first = threadIdx.x; first < all; first += BATCH * blockDim.x) {
        raw_token_word batch[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int at = first + i * blockDim.x, token = ALONE ? 0 : at / words;
            if (at < all) batch[i] = load_token_word<KIND>(p, w.l, token, first_k + (at - token * words) * 8);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int at = first + i * blockDim.x, token = ALONE ? 0 : at / words;
            if (at < all) store_word<KIND, ALONE>(batch[i], tokens + token * pitch, at - token * words);
        }
    }
}

#endif
