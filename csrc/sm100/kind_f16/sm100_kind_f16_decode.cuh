/* From codes and scale factors in shared memory to 16-bit weights in tensor memory. */
#ifndef NK_SM100_KIND_F16_DECODE_CUH
#define NK_SM100_KIND_F16_DECODE_CUH

#include "cuda/nvfp4.cuh"
#include "cuda/ptx/narrow.cuh"
#include "sm100_kind_f16_parts.cuh"

/* Eight weights in the order of K, exact; both halves of `factor` hold the scale factor, of bf16 times 2^112. A code's
 * half moved down to the exponent of bf16 is the code times 2^-112. */
template <bool BFLOAT> __device__ inline void decode_word(uint32_t codes, uint32_t factor, uint32_t *weights)
{
    uint32_t halves[4];
    cvt_f16x2_e2m1x2(codes, halves);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t code = BFLOAT ? (halves[i] >> 3 & 0x0FFF0FFF) | (halves[i] & 0x80008000) : halves[i];
        weights[i] = multiply_pairs<BFLOAT>(code, factor);
    }
}

/* Of a row's half step, 64 of K; the row's codes begin at `codes`, swizzled by `row`. */
template <bool BFLOAT>
__device__ inline void decode_row(uint32_t codes, int row, int half, uint32_t factors, uint32_t (&weights)[32])
{
#pragma unroll
    for (int chunk = 0; chunk < 2; chunk++) {
        const uint4 words = ld_shared_v4(codes + ((2 * half + chunk) ^ (row >> 1 & 3)) * 16);
        const uint32_t pair = e4m3x2_to_pair<BFLOAT>(factors >> 16 * chunk);
        const uint32_t first = __byte_perm(pair, 0, 0x1010), second = __byte_perm(pair, 0, 0x3232);
        uint32_t *to = weights + 16 * chunk;
        decode_word<BFLOAT>(words.x, first, to);
        decode_word<BFLOAT>(words.y, first, to + 4);
        decode_word<BFLOAT>(words.z, second, to + 8);
        decode_word<BFLOAT>(words.w, second, to + 12);
    }
}

/* The scale factors of a half step that there are: behind K there may be padding, which may be NaN, beside codes of
 * zero. */
__device__ inline uint32_t factor_mask(int64_t k, int step, int half)
{
    const int64_t rest = k / NK_SF_VEC - ((int64_t)step * SM100_KIND_F16_SF_ATOMS + half) * NK_SF_ATOM_COLS;
    return rest >= NK_SF_ATOM_COLS ? ~0u : rest > 0 ? (1u << 8 * rest) - 1 : 0;
}

/* Of a pair the odd CTA's arrivals say, too, that its tokens are there: who decodes has waited for them. */
template <class C> __device__ inline void arrive_at_issuer(const uint64_t *barrier, const gemm_tiles &tiles)
{
    if constexpr (C::CTAS == 1)
        mbarrier_arrive(shared_address(barrier));
    else
        mbarrier_arrive_cluster(of_issuer<C>(barrier, tiles));
}

/* The warps that decode: a thread has half of a step's K of one row of each matrix. */
template <class C, bool BFLOAT, typename P>
__device__ inline void decode(halves_memory<C> &s, uint32_t tmem, const P &all, const gemm_tiles &tiles)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, quarter = warp % 4;
    const int row = 32 * quarter + lane, half = warp / 4 - 1;
    const uint32_t lanes = tmem + (32 * quarter << 16) + C::DECODED + half * 32;
    ring<C::STAGES> r;
    ring<C::SLOTS> decoded;
    each_tile<C>(tiles, [&](const gemm_tile &t) {
        const int64_t k = problem_of(all, t).k;
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step; step++, r.advance(), decoded.advance()) {
            const auto &stage = s.stages[r.slot];
            const uint32_t mask = factor_mask(k, step, half);
            mbarrier_wait(shared_address(&s.full[r.slot]), r.parity);
            wait_for_tmem(&s.decoded_empty[decoded.slot], decoded.parity ^ 1);
#pragma unroll
            for (int matrix = 0; matrix < C::MATRICES; matrix++) {
                uint32_t weights[32];
                const uint32_t factors = ld_shared(shared_address(stage.sf[matrix][half]) + lane * 16 + quarter * 4);
                decode_row<BFLOAT>(shared_address(stage.weights[matrix]) + row * SM100_KIND_F16_CODE_BYTES, row, half,
                                   factors & mask, weights);
                __syncwarp();
                tcgen05_st_32x32b_x32(lanes + decoded.slot * C::SLOT + matrix * SM100_KIND_F16_DECODED_COLUMNS,
                                      weights);
            }
            tcgen05_wait_st();
            tcgen05_fence_before_thread_sync();
            __syncwarp();
            mbarrier_arrive_if(lane == 0, shared_address(&s.empty[r.slot]));
            if (lane == 0) arrive_at_issuer<C>(&s.decoded_full[decoded.slot], tiles);
        }
    });
#pragma unroll 1
    for (int i = 0; i < C::SLOTS; i++, decoded.advance()) /* the last commits must not find this CTA gone */
        mbarrier_wait_cluster_relaxed(shared_address(&s.decoded_empty[decoded.slot]), decoded.parity ^ 1);
}

#endif
