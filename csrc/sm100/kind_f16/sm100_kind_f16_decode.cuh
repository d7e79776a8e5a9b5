/* From codes and scale factors in shared memory to 16-bit weights in tensor memory. BF16: bf16, else fp16. */
#ifndef NK_SM100_KIND_F16_DECODE_CUH
#define NK_SM100_KIND_F16_DECODE_CUH

#include "cuda/nvfp4_narrow.cuh"
#include "sm100_kind_f16_traits.cuh"

/* 64 weights: half a step of a row, whose codes begin at `codes`, swizzled by the row. */
template <bool BF16>
__device__ inline void decode_half_row(uint32_t codes, int row, int half, uint32_t factors, uint32_t (&weights)[32])
{
#pragma unroll
    for (int chunk = 0; chunk < 2; chunk++) {
        const uint4 words = ld_shared_v4(codes + ((2 * half + chunk) ^ (row >> 1 & 3)) * 16);
        const uint32_t pair = e4m3x2_to_pair<BF16>(factors >> 16 * chunk);
        const uint32_t first = __byte_perm(pair, 0, 0x1010), second = __byte_perm(pair, 0, 0x3232);
        uint32_t *to = weights + 16 * chunk;
        decode_8_weights<BF16>(words.x, first, to);
        decode_8_weights<BF16>(words.y, first, to + 4);
        decode_8_weights<BF16>(words.z, second, to + 8);
        decode_8_weights<BF16>(words.w, second, to + 12);
    }
}

/* Which bytes of half a step's four scale factors are before K's end: beyond it there may be padding, which may be NaN,
 * beside codes of zero. */
__device__ inline uint32_t valid_sf_mask(int64_t k, int step, int half)
{
    const int64_t rest = k / NK_SF_VEC - ((int64_t)step * SM100_KIND_F16_SF_ATOMS + half) * SF_ATOM_COLS;
    return rest >= SF_ATOM_COLS ? ~0u : rest > 0 ? (1u << 8 * rest) - 1 : 0;
}

/* The decode warps: a thread has half a step of one row of each matrix. */
template <class C, bool BF16, typename P>
__device__ inline void decode_weights_to_tmem(kind_f16_smem<C> &s, uint32_t tmem, const P &launch,
                                              const mma_tile_scheduler &scheduler)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, quarter = warp % 4;
    const int row = 32 * quarter + lane, half = warp / 4 - 1;
    const uint32_t lanes = tmem + (32 * quarter << 16) + C::DECODED_COLUMN + half * 32;
    pipeline_state load, decoded;
    for_each_mma_tile<C>(scheduler, [&](const mma_tile &t) {
        const int64_t k = problem_of_tile(launch, t).k;
#pragma unroll 1
        for (int step = t.first_step; step < t.end_step;
             step++, load.advance(C::STAGES), decoded.advance(C::DECODED_STAGES)) {
            const auto &stage = s.stages[load.stage];
            const uint32_t mask = valid_sf_mask(k, step, half);
            mbarrier_wait(shared_address(&s.full[load.stage]), load.parity);
            wait_tmem(&s.decoded_empty[decoded.stage], decoded.parity ^ 1);
#pragma unroll
            for (int matrix = 0; matrix < C::MATRICES; matrix++) {
                uint32_t weights[32];
                const uint32_t factors = ld_shared(shared_address(stage.sf[matrix][half]) + sf_offset_in_atom(lane, 0) +
                                                   sf_offset_of_quarter(quarter));
                decode_half_row<BF16>(shared_address(stage.weights[matrix]) + row * SM100_KIND_F16_CODE_BYTES, row,
                                      half, factors & mask, weights);
                __syncwarp();
                tcgen05_st_32x32b_x32(lanes + decoded.stage * C::DECODED_STAGE_COLUMNS +
                                          matrix * SM100_KIND_F16_DECODED_COLUMNS,
                                      weights);
            }
            tcgen05_wait_st();
            tcgen05_fence_before_thread_sync();
            __syncwarp();
            mbarrier_arrive_if(lane == 0, shared_address(&s.empty[load.stage]));
            /* A follower's tokens, too, are there: its warps have waited for them. */
            if (lane == 0) arrive_at_leader<C>(&s.decoded_full[decoded.stage], scheduler);
        }
    });
    drain_pipeline<C::DECODED_STAGES>(s.decoded_empty, decoded);
}

#endif
