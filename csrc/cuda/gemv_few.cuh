/* D[l,m,n] = convert(alpha[n] * sum_k X[l,m,k] W[l,n,k] + bias[n]) for up to eight tokens, or one of 16 bits, by the
 * mma.sync: W is read once.
 * row_scale, if given: fl(row_scale[l,m] * sum) takes the place of each sum.
 *
 * Math: a weight times its scale factor is exact in 16 bits, and so is an NVFP4 token's element. Hardware converts
 * codes to fp16. To bf16 it does not: bits are moved there (cuda/nvfp4.cuh), and weights lack a factor of 2^14, the
 * mma_scale.
 *
 * MMA: mma.m16n8k16. A (M) is a tile's 16 rows of W, decoded in registers; B (N) is tokens, from shared memory. A
 * lane's elements of both are neighbours along K: any order of K is right if A and B have the same. Columns without a
 * token repeat the last one, and are not stored.
 *
 * Scheduler, roles, barriers, overlap, memory: as in gemv_codes.cuh. */
#ifndef NK_GEMV_FEW_CUH
#define NK_GEMV_FEW_CUH

#include "cuda/ptx/grid.cuh"
#include "gemv_tokens.cuh"
#include "nvfp4.cuh"

#include "gemv_epilogue.cuh"

template <int KIND> struct tokens_mma {
    const gemv_scheduler &s;
    const warp_schedule &w;
    const uint8_t *token; /* the lane's chunk of K step 0, of the token that is its column of B */
    float sums[4];

    __device__ tokens_mma(const gemv_scheduler &s, const warp_schedule &w) : s(s), w(w), sums{0, 0, 0, 0}
    {
        const int column = min((int)(threadIdx.x >> 2 & 7), s.tokens - 1);
        token = (const uint8_t *)(&head() + 1) + column * gemv_token_bytes(s.k_steps) + (threadIdx.x & 3) * CHUNK_BYTES;
    }

    static __device__ void stage(const nk_gemm_problem &p, const gemv_scheduler &s, const warp_schedule &w)
    {
        stage_tokens<KIND, false>(p, s, w);
    }

    /* Eight weights times their scale factor. */
    static __device__ void decode(uint32_t codes, uint32_t scale, uint32_t pairs[4])
    {
        if (KIND == BF16) return decode_e2m1x8<true>(codes, scale, pairs);
        cvt_f16x2_e2m1x2(codes, pairs);
#pragma unroll
        for (int i = 0; i < 4; i++)
            pairs[i] = multiply_pairs<false>(pairs[i], scale);
    }

    __device__ void step(const weight_stage &now, int k_step)
    {
        const uint4 *const chunk = (const uint4 *)(token + k_step * (4 * CHUNK_BYTES));
        uint32_t scales[M8S]; /* of two blocks */
#pragma unroll
        for (int word = 0; word < CODE_WORDS; word++) {
            uint32_t pairs[M8S][4];
#pragma unroll
            for (int o = 0; o < M8S; o++) {
                const uint32_t bytes = now.sf[o] >> (word / 4 * 16) & 0xFFFF;
                if (word % 4 == 0) scales[o] = KIND == BF16 ? e4m3x2_to_bf16x2(bytes) : cvt_f16x2_e4m3x2(bytes);
                decode(now.codes[o][word], __byte_perm(scales[o], 0, word % 4 < 2 ? 0x1010 : 0x3232), pairs[o]);
            }
            const uint4 x = chunk[word];
            const uint32_t first[4] = {pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]},
                           second[4] = {pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3]};
            mma_pairs<KIND == BF16>(sums, first, x.x, x.y);
            mma_pairs<KIND == BF16>(sums, second, x.z, x.w);
        }
    }

    __device__ void store_partials(int tile)
    {
        const int column = (int)(threadIdx.x & 3) * 2;
#pragma unroll
        for (int o = 0; o < M8S; o++) {
            const int row = o * GEMV_M8 + (int)(threadIdx.x >> 2 & 7);
            float *const to = warp_partials(s, w, tile) + row * s.tokens;
            const bool there = tile * GEMV_TILE_ROWS + row < w.positions;
            if (there && column < s.tokens) to[column] = sums[2 * o];
            if (there && column + 1 < s.tokens) to[column + 1] = sums[2 * o + 1];
        }
        sums[0] = sums[1] = sums[2] = sums[3] = 0;
    }
};

#define GEMV_FEW_KERNELS(row)                             \
    GEMV_KERNELS(row, few_codes, tokens_mma<CODES>, 1.0f) \
    GEMV_KERNELS(row, fp16, tokens_mma<FP16>, 1.0f)       \
    GEMV_KERNELS(row, bf16, tokens_mma<BF16>, NVFP4_DECODE_SCALE)

#endif
