/* The loop that all matrix products share: acc[weight rows][tokens] += W X^T over a range of K steps.
 *
 * Weights are the A operand of mma.m16n8k16 (16 rows), tokens the B operand (8 columns). Lane (g, c) = (lane / 4, lane
 * % 4) takes chunk c of each of its rows: 16 contiguous bytes. The order of k inside a step is free as long as both
 * operands have the same: word i of a chunk becomes fragments of k16 steps 2i and 2i + 1.
 *
 * Roles: every warp owns 32 weight rows (four per lane: slots 0..3; slots j and j + 2 are rows g and g + 8 of its m16
 * tile j) and all tokens of the CTA. Weights: cp.async into slots that only this thread reads, decoded in registers.
 * Tokens: cp.async into slots of the same kind, decoded once per CTA into fragments in shared memory, one step ahead.
 *
 * Synchronisation, at step s: a thread waits for its own copies of step s + 1 (its private slots need no barrier),
 * decodes its tokens of s + 1 into decoded[(s + 1) % 2], multiplies step s from decoded[s % 2], then one CTA barrier:
 * it ends the reads of decoded[s % 2] before step s + 2 overwrites it, and publishes decoded[(s + 1) % 2]. */
#ifndef NK_SM80_MAINLOOP_CUH
#define NK_SM80_MAINLOOP_CUH

#include "../cuda/nvfp4.cuh"
#include "sm80_gemm_config.h"
#include "sm80_ptx.cuh"

template <int TOKENS, int WARPS, int STAGES, int KIND> struct smem_t {
    uint4 weights[STAGES][WARPS][4][32];
    uint4 weight_sf[STAGES][WARPS][32];
    uint4 tokens[STAGES][TOKENS / 8][SM80_GEMM_TOKEN_QUADS(KIND)][32];
    uint4 decoded[2][TOKENS / 8][SM80_GEMM_WORDS(KIND)][32];
    uint32_t token_sf[STAGES][TOKENS / 8][32];
};

/* This lane's four weight rows, in two pairs 32 rows apart: slots 0 and 1, 2 and 3. */
typedef struct weight_rows {
    const uint8_t *row[2], *sf[2]; /* of the first of each pair */
    int64_t row_step[2];           /* bytes to the second; 0 where that row is not there */
    int64_t sf_step[2];            /* linear: likewise */
    int64_t k_stride;              /* halves only */
    bool blocked;
    bool adjacent; /* blocked: the factors of all four are 16 contiguous bytes, not twice 8 */
} weight_rows;

/* This lane's rows of the n8 tiles warp, warp + WARPS, .. */
template <int ITEMS> struct token_rows_t {
    const uint8_t *row[ITEMS];
    const uint8_t *sf[ITEMS];
    int sf_step; /* bytes from one group of four factors to the next: 4, or an atom */
};

__device__ inline bool is_aligned(const void *at, uint32_t bytes) { return ((uintptr_t)at & (bytes - 1)) == 0; }

__device__ inline int clamped(int value, int most) { return max(0, min(value, most)); }

/* A misaligned source: byte by byte. */
__device__ inline void copy_bytes(void *to, const uint8_t *from, int valid, int bytes)
{
#pragma unroll 1
    for (int i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = i < valid ? from[i] : 0;
}

__device__ inline void copy16(void *to, const uint8_t *from, int valid)
{
    if (is_aligned(from, 16))
        cp_async_cg(to, from, valid);
    else
        copy_bytes(to, from, valid, 16);
}

template <int BYTES> __device__ inline void copy_sf(void *to, const uint8_t *from, int valid)
{
    if (is_aligned(from, BYTES))
        cp_async<BYTES>(to, from, valid);
    else
        copy_bytes(to, from, valid, BYTES);
}

/* Eight halves that do not lie side by side. */
__device__ inline void gather_halves(void *to, const uint8_t *from, int64_t stride, int valid)
{
#pragma unroll 1
    for (int i = 0; i < 8; i++)
        ((uint16_t *)to)[i] = i < valid ? *(const uint16_t *)(from + i * stride) : 0;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Fetching one step: zeros beyond K, for codes, halves and factors alike                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

/* K is counted in blocks of 16 elements: a code chunk is two, a chunk of halves a half. */
template <int TOKENS, int WARPS, int STAGES, int KIND>
__device__ inline void fetch_weights(smem_t<TOKENS, WARPS, STAGES, KIND> &s, int stage, const weight_rows &w, int step,
                                     int blocks)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, chunk = step * 4 + (lane & 3);
    const int valid = SM80_GEMM_PLAIN(KIND) ? (chunk < 2 * blocks ? 16 : 0) : clamped((blocks - 2 * chunk) * 8, 16);
    const int64_t at = valid ? chunk * (SM80_GEMM_PLAIN(KIND) ? 8 * w.k_stride : (int64_t)16) : 0;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        uint4 *to = &s.weights[stage][warp][r][lane];
        const uint8_t *from = w.row[r >> 1] + (r & 1 ? w.row_step[r >> 1] : 0) + at;
        if (SM80_GEMM_PLAIN(KIND) && w.k_stride != 2)
            gather_halves(to, from, w.k_stride, valid / 2);
        else
            copy16(to, from, valid);
    }
    if (SM80_GEMM_PLAIN(KIND)) return;
    const int group = step * 2 + (lane >> 1 & 1), factors = clamped(blocks - group * 4, 4); /* of four factors */
    uint32_t *to = (uint32_t *)&s.weight_sf[stage][warp][lane];
    if (w.blocked) {
        const int64_t atom = factors ? group * (int64_t)NK_SF_ATOM_BYTES : 0;
        if (w.adjacent) {
            copy_sf<16>(to, w.sf[0] + atom, factors ? 16 : 0);
        } else {
            copy_sf<8>(to, w.sf[0] + atom, factors ? 8 : 0);
            copy_sf<8>(to + 2, w.sf[1] + atom, factors ? 8 : 0);
        }
    } else {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const uint8_t *from = w.sf[r >> 1] + (r & 1 ? w.sf_step[r >> 1] : 0);
            copy_sf<4>(to + r, from + (factors ? group * (int64_t)4 : 0), factors);
        }
    }
}

template <int TOKENS, int WARPS, int STAGES, int KIND, int ITEMS>
__device__ inline void fetch_tokens(smem_t<TOKENS, WARPS, STAGES, KIND> &s, int stage, const token_rows_t<ITEMS> &x,
                                    int step, int blocks)
{
    constexpr int QUADS = SM80_GEMM_TOKEN_QUADS(KIND);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, chunk = step * 4 + (lane & 3);
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const int tile = warp + i * WARPS;
        if (ITEMS == 1 && tile >= TOKENS / 8) return;
        if (KIND == SM80_GEMM_CODES) {
            const int group = step * 2 + (lane >> 1 & 1), factors = clamped(blocks - group * 4, 4);
            const int valid = clamped((blocks - 2 * chunk) * 8, 16);
            copy16(&s.tokens[stage][tile][0][lane], x.row[i] + (valid ? chunk * (int64_t)16 : 0), valid);
            /* A blocked row's four factors are always there, padding included. */
            copy_sf<4>(&s.token_sf[stage][tile][lane], x.sf[i] + (factors ? group * (int64_t)x.sf_step : 0), factors);
        } else {
#pragma unroll
            for (int q = 0; q < QUADS; q++) {
                const int eighth = chunk * QUADS + q, valid = eighth < 2 * blocks ? 16 : 0;
                copy16(&s.tokens[stage][tile][q][lane], x.row[i] + (valid ? eighth * (int64_t)16 : 0), valid);
            }
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Decoding                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

__device__ inline uint32_t word_of(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

/* The factors of blocks 2 chunk and 2 chunk + 1 in the low two bytes, zero beyond K: padding may be anything. */
__device__ inline uint32_t sf_pair(uint32_t four, int chunk, int blocks)
{
    const int rest = blocks - 2 * chunk;
    return four >> (chunk & 1) * 16 & (rest >= 2 ? 0xFFFF : rest == 1 ? 0xFF : 0);
}

/* Eight codes times the factor in the low half of `sf`, times 2^-14: fp16 or bf16 pairs (0,4), (1,5), (2,6), (3,7). */
template <bool BFLOAT> __device__ inline void decode_word(uint32_t codes, uint32_t sf, uint32_t pairs[4])
{
    const uint32_t both = __byte_perm(sf, 0, 0x1010);
    if (BFLOAT)
        e2m1x8_to_bfloat2x4(codes, pairs);
    else
        e2m1x8_to_half2x4(codes, pairs);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (BFLOAT) {
            const __nv_bfloat162 v = __hmul2(*(__nv_bfloat162 *)&pairs[i], *(const __nv_bfloat162 *)&both);
            pairs[i] = *(const uint32_t *)&v;
        } else {
            const __half2 v = __hmul2(*(__half2 *)&pairs[i], *(const __half2 *)&both);
            pairs[i] = *(const uint32_t *)&v;
        }
    }
}

template <int TOKENS, int WARPS, int STAGES, int KIND, int ITEMS>
__device__ inline void decode_tokens(smem_t<TOKENS, WARPS, STAGES, KIND> &s, int stage, int buffer, int step,
                                     int blocks)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const int tile = warp + i * WARPS;
        if (ITEMS == 1 && tile >= TOKENS / 8) return;
        if (KIND == SM80_GEMM_CODES) {
            const uint32_t pair = sf_pair(s.token_sf[stage][tile][lane], step * 4 + (lane & 3), blocks);
            const uint32_t sf = e4m3x2_to_half2(pair);
            const uint4 codes = s.tokens[stage][tile][0][lane];
#pragma unroll
            for (int word = 0; word < 4; word++) {
                uint32_t pairs[4];
                decode_word<false>(word_of(codes, word), sf >> word / 2 * 16, pairs);
                s.decoded[buffer][tile][word % SM80_GEMM_WORDS(KIND)][lane] =
                    make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
            }
        } else {
#pragma unroll
            for (int q = 0; q < SM80_GEMM_WORDS(KIND); q++) {
                const uint4 v = s.tokens[stage][tile][q % SM80_GEMM_TOKEN_QUADS(KIND)][lane];
                const uint4 paired = make_uint4(__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632),
                                                __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632));
                s.decoded[buffer][tile][q][lane] = SM80_GEMM_PLAIN(KIND) ? v : paired;
            }
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Multiplying one step                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

template <int KIND> __device__ inline void mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    if (KIND == SM80_GEMM_BFLOATS || KIND == SM80_GEMM_PLAIN_BFLOATS)
        mma_m16n8k16_bf16(d, a, b0, b1);
    else
        mma_m16n8k16_f16(d, a, b0, b1);
}

/* One word of every row against all tokens: two k16 steps. pairs[r] are row r's eight elements. */
template <int KIND, int TILES>
__device__ inline void multiply_word(const uint32_t pairs[4][4], const uint4 (*decoded)[SM80_GEMM_WORDS(KIND)][32],
                                     int word, float acc[2][TILES][4])
{
    uint32_t a[2][2][4]; /* [k16 step][m16 tile] */
#pragma unroll
    for (int r = 0; r < 4; r++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            a[half][r & 1][r >> 1] = pairs[r][2 * half];
            a[half][r & 1][2 + (r >> 1)] = pairs[r][2 * half + 1];
        }
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        const uint4 b = decoded[tile][word][threadIdx.x & 31];
        mma<KIND>(acc[0][tile], a[0][0], b.x, b.y);
        mma<KIND>(acc[1][tile], a[0][1], b.x, b.y);
        mma<KIND>(acc[0][tile], a[1][0], b.z, b.w);
        mma<KIND>(acc[1][tile], a[1][1], b.z, b.w);
    }
}

template <int TOKENS, int WARPS, int STAGES, int KIND>
__device__ inline void multiply(smem_t<TOKENS, WARPS, STAGES, KIND> &s, int stage, int buffer, int step, int blocks,
                                float acc[2][TOKENS / 8][4])
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    constexpr bool BFLOAT = KIND == SM80_GEMM_BFLOATS;
    uint32_t pairs[4][4];
    if (SM80_GEMM_PLAIN(KIND)) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const uint4 raw = s.weights[stage][warp][r][lane];
            pairs[r][0] = raw.x, pairs[r][1] = raw.y, pairs[r][2] = raw.z, pairs[r][3] = raw.w;
        }
        multiply_word<KIND, TOKENS / 8>(pairs, s.decoded[buffer], 0, acc);
        return;
    }
    const uint4 factors = s.weight_sf[stage][warp][lane];
    uint32_t sf[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const uint32_t pair = sf_pair(word_of(factors, r), step * 4 + (lane & 3), blocks);
        sf[r] = BFLOAT ? e4m3x2_to_bfloat2(pair) : e4m3x2_to_half2(pair);
    }
    /* Not unrolled: half the code, and registers for one block of 16 at a time. */
#pragma unroll 1
    for (int block = 0; block < 2; block++) {
        uint2 raw[4];
#pragma unroll
        for (int r = 0; r < 4; r++)
            raw[r] = ((const uint2 *)&s.weights[stage][warp][r][lane])[block];
#pragma unroll
        for (int word = 0; word < 2; word++) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
                decode_word<BFLOAT>(word ? raw[r].y : raw[r].x, block ? sf[r] >> 16 : sf[r], pairs[r]);
            }
            multiply_word<KIND, TOKENS / 8>(pairs, s.decoded[buffer], 2 * block + word, acc);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */

/* What a sum of products must be multiplied by: the 2^-14 of each decoded operand. */
template <int KIND> __device__ inline float product_unit()
{
    return KIND == SM80_GEMM_CODES ? 0x1p28f : SM80_GEMM_PLAIN(KIND) ? 1.0f : 0x1p14f;
}

/* Adds `steps` steps from `first` on. All threads of the CTA; it may be called again after a barrier of the caller's.
 */
template <int TOKENS, int WARPS, int STAGES, int KIND, int ITEMS>
__device__ inline void accumulate(smem_t<TOKENS, WARPS, STAGES, KIND> &s, const weight_rows &w,
                                  const token_rows_t<ITEMS> &x, int blocks, int first, int steps,
                                  float acc[2][TOKENS / 8][4])
{
    static_assert(STAGES >= 2, "a step is fetched while another is multiplied");
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ahead++) {
        if (ahead < steps) {
            fetch_weights(s, ahead, w, first + ahead, blocks);
            fetch_tokens(s, ahead, x, first + ahead, blocks);
        }
        cp_async_commit_group();
    }
    cp_async_wait_group<STAGES - 2>();
    if (steps > 0) decode_tokens<TOKENS, WARPS, STAGES, KIND, ITEMS>(s, 0, 0, first, blocks);
    __syncthreads();
    int stage = 0, next = STAGES > 1 ? 1 : 0, last = STAGES - 1;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        if (step + STAGES - 1 < steps) {
            fetch_weights(s, last, w, first + step + STAGES - 1, blocks);
            fetch_tokens(s, last, x, first + step + STAGES - 1, blocks);
        }
        cp_async_commit_group();
        cp_async_wait_group<STAGES - 2>();
        if (step + 1 < steps) {
            decode_tokens<TOKENS, WARPS, STAGES, KIND, ITEMS>(s, next, (step + 1) & 1, first + step + 1, blocks);
        }
        multiply(s, stage, step & 1, first + step, blocks, acc);
        __syncthreads();
        last = stage;
        stage = next;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
}

#endif
