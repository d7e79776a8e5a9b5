/* What the kernels for one NVFP4 token share: the token as B of wgmma, and the wgmmas of a step. See
 * sm90_gemv_codes.cu.
 *
 * Memory: for each K step of the token, B [chunk of a lane][word of a block][half][column][16 bytes]. Behind all K
 * steps their scale factors in fp16, [K step][chunk][block]. */
#ifndef NK_SM90_GEMV_CODES_CUH
#define NK_SM90_GEMV_CODES_CUH

#include "cuda/ptx/wgmma.cuh"
#include "sm90_gemv_sums.cuh"

/* ---------------------------------------------------------------------------------------------------------------- */
/* The token into shared memory                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

#define CODE_BATCH 2 /* chunks that a thread loads at once */

/* The product of two scale factors has eight significant bits. It is exact in fp16 if one of them is divided by this:
 * then it lies between 2^-22 and 12544. */
#define TOKEN_SF_DIVISOR 16.0f

constexpr int B_BYTES = sizeof(sm90_gemv_b_operand), B_HALF_BYTES = sizeof(sm90_gemv_b_operand::half[0]);

/* The token in global memory, as much of K as the CTA has. */
typedef struct code_source {
    const uint8_t *codes, *sf;
    bool blocked;
    int words;
} code_source;

/* kept_global(): otherwise the compiler would work this out after the wait for the kernels before this one. */
__device__ inline code_source code_source_of(const sm90_gemv_args &p, const work_tile_info &w)
{
    const int k = w.first_k_step * SM90_GEMV_STEP;
    const uint8_t *sf = sf_at(p.a, w.l, 0, k / NK_SF_VEC, p.scheduler.all_words / (NK_SF_VEC / 8));
    return {kept_global(p.a.data + w.l * p.a.batch_stride + k / 2), kept_global(sf), p.a.sf_layout == NK_SF_BLOCKED,
            w.words};
}

template <int ACCESS> __device__ inline token_chunk load_code_chunk(const code_source &from, int chunk)
{
    token_chunk out = {make_uint4(0, 0, 0, 0), 0};
    const int words = from.words - 4 * chunk;
    if (words <= 0) return out;
    const uint8_t *codes = from.codes + chunk * 16,
                  *sf = from.sf + (from.blocked ? sf_offset_of_pair(0, chunk) : chunk * 2);
    out.data = ACCESS == NARROW ? fetch_bytes(codes, 4 * words) : *(const uint4 *)codes;
    out.sf = ACCESS == NARROW ? load_sf_bytes(sf, min(words, 4)) : *(const uint16_t *)sf;
    return out;
}

/* Four bytes as the word of lane c, zeros as the words of the other three lanes. */
__device__ inline uint4 alone(uint32_t bytes, int c)
{
    return make_uint4(c == 0 ? bytes : 0, c == 1 ? bytes : 0, c == 2 ? bytes : 0, c == 3 ? bytes : 0);
}

__device__ inline void store_code_chunk(const token_chunk &v, int chunk, uint32_t values, uint32_t factors)
{
    const uint32_t words[4] = {v.data.x, v.data.y, v.data.z, v.data.w};
    const int c = chunk >> 1 & 3;
    const uint32_t to = values + (chunk / SM90_GEMV_CHUNKS * 4 + (chunk & 1) * 2) * B_BYTES + c * 32;
#pragma unroll
    for (int word = 0; word < 4; word++) {
        uint32_t even, odd;
        e2m1x8_to_e4m3x4(words[word], even, odd);
        const uint32_t row = to + (word & 1) * B_BYTES + (word >> 1) * 16;
        st_shared_v4(row, alone(even, c));
        st_shared_v4(row + B_HALF_BYTES, alone(odd, c));
    }
    const uint32_t scales = cvt_f16x2_e4m3x2(v.sf & 0x7F7F);
    const __half2 small = __hmul2(*(const __half2 *)&scales, __float2half2_rn(1 / TOKEN_SF_DIVISOR));
    st_shared(factors + chunk * 4, *(const uint32_t *)&small);
}

template <int ACCESS>
__device__ inline void load_code_chunks(const code_source &from, int first, token_chunk batch[CODE_BATCH])
{
#pragma unroll
    for (int i = 0; i < CODE_BATCH; i++)
        batch[i] = load_code_chunk<ACCESS>(from, first + i * blockDim.x + threadIdx.x);
}

__device__ inline void store_code_chunks(int first, int chunks, const token_chunk batch[CODE_BATCH], uint32_t values,
                                         uint32_t factors)
{
#pragma unroll
    for (int i = 0; i < CODE_BATCH; i++) {
        const int chunk = first + i * blockDim.x + threadIdx.x;
        if (chunk < chunks) store_code_chunk(batch[i], chunk, values, factors);
    }
}

/* The token in shared memory. */
typedef struct token_buffer {
    int chunks;
    uint32_t values, factors;
} token_buffer;

__device__ inline token_buffer token_buffer_at(int at, const sm90_gemv_scheduler &s, const work_tile_info &w)
{
    const uint32_t values = shared_address(smem) + at;
    return {w.k_steps * SM90_GEMV_CHUNKS, values, values + s.k_steps * (int)sizeof(sm90_gemv_token_step)};
}

/* Stores all of the token. Its first batch has been loaded. */
template <int ACCESS>
__device__ inline void store_token(const code_source &from, token_chunk batch[CODE_BATCH], const token_buffer &to)
{
    for (int first = 0;;) {
        store_code_chunks(first, to.chunks, batch, to.values, to.factors);
        if ((first += CODE_BATCH * blockDim.x) >= to.chunks) break;
        load_code_chunks<ACCESS>(from, first, batch);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* MMA                                                                                                              */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Decodes a chunk of 8 of the 16 rows: each word becomes half of A of a wgmma. */
template <int M8> __device__ inline void decode_to_e4m3(const uint4 &codes, uint32_t a[4][4])
{
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int word = 0; word < 4; word++)
        e2m1x8_to_e4m3x4(words[word], a[word][M8], a[word][M8 + 2]);
}

/* Issues d[block] = chunk j times its B, for the first and the second blocks. */
template <int M8S> __device__ inline void issue_wgmma(const weight_fragment &w, int j, uint64_t b, float d[2][4])
{
    uint32_t a[4][4] = {};
    decode_to_e4m3<0>(w.codes[0][j], a);
    if (M8S == TALL) decode_to_e4m3<1>(w.codes[1][j], a);
    wgmma_fence(a);
#pragma unroll
    for (int block = 0; block < 2; block++) {
        wgmma_e4m3(d[block], a[2 * block], b, false);
        wgmma_e4m3(d[block], a[2 * block + 1], b + B_BYTES / 16, true);
    }
    wgmma_commit_group();
}

/* sums[8 rows] += the sums of chunk j times the scale factors of W, without their signs, and of the token (x). */
template <int M8S>
__device__ inline void scale_and_add(const weight_fragment &w, int j, uint32_t x, const float d[2][4], float sums[2])
{
#pragma unroll
    for (int m8 = 0; m8 < M8S; m8++) {
        const uint32_t pair = cvt_f16x2_e4m3x2(w.sf[m8] >> 16 * j & 0xFFFF);
        const float2 scale = __half22float2(__hmul2(__habs2(*(const __half2 *)&pair), *(const __half2 *)&x));
        sums[m8] = __fmaf_rn(d[0][2 * m8], scale.x, sums[m8]);
        sums[m8] = __fmaf_rn(d[1][2 * m8 + 1], scale.y, sums[m8]);
    }
}

/* From one K step of the token to the next: of B's descriptor, of the scale factors in bytes. */
constexpr int STEP_OF_B = sizeof(sm90_gemv_token_step) / 16, STEP_OF_X = SM90_GEMV_TOKEN_STEP_SF_BYTES;

/* The steps of a warpgroup. A lane sums its own blocks of one row in each 8. */
template <int M8S> struct warpgroup_mma {
    uint64_t first_b, b;
    uint32_t first_x, x_at;
    float sums[2];

    __device__ warpgroup_mma(uint32_t values, uint32_t factors)
        : first_b(wgmma_descriptor(values, B_HALF_BYTES, B_BYTES, WGMMA_NO_SWIZZLE)),
          first_x(factors + (threadIdx.x & 3) * 8), sums{0, 0}
    {
    }

    __device__ void begin_tile(int k_step)
    {
        b = first_b + k_step * STEP_OF_B;
        x_at = first_x + k_step * STEP_OF_X;
    }

    __device__ void step(const weight_fragment &now)
    {
        float d[2][2][4];
        issue_wgmma<M8S>(now, 0, b, d[0]);
        issue_wgmma<M8S>(now, 1, b + STEP_OF_B / 2, d[1]);
        const uint2 x = ld_shared_v2(x_at);
        b += STEP_OF_B;
        x_at += STEP_OF_X;
        wgmma_wait_group<1>(d[0]);
        scale_and_add<M8S>(now, 0, x.x, d[0], sums);
        wgmma_wait_group<0>(d[1]);
        scale_and_add<M8S>(now, 1, x.y, d[1], sums);
    }
};

/* A sum of decoded values must be multiplied by this. */
#define PRODUCT_SCALE (NVFP4_E4M3_DECODE_SCALE * NVFP4_E4M3_DECODE_SCALE * TOKEN_SF_DIVISOR)

#endif
