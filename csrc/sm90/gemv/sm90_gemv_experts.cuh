/* What the kernels for few tokens add for experts: a row of D finds its expert, and may be encoded. */
#ifndef NK_SM90_GEMV_EXPERTS_CUH
#define NK_SM90_GEMV_EXPERTS_CUH

#include "cuda/encode.cuh"
#include "sm90_gemv_tokens.cuh"

/* Offsets that a lane loads at once. */
#define EXPERT_BATCH 8

/* The expert of a row of D, or `experts` if it has none: the first one that ends behind the row. Offsets count as if
 * they never fell, so any numbers in them name an existing expert. By all lanes of a warp. */
__device__ inline int expert_of_row(const int32_t *offsets, int experts, int row)
{
    const int lane = threadIdx.x & 31, first = offsets[0];
    int found = experts;
    for (int base = 0; base < experts && found == experts; base += 32 * EXPERT_BATCH) {
#pragma unroll
        for (int i = 0; i < EXPERT_BATCH; i++) {
            const int expert = base + 32 * i + lane;
            if (expert < experts && offsets[expert + 1] > row) found = min(found, expert);
        }
        found = __reduce_min_sync(~0u, found);
    }
    return first > row ? experts : found;
}

/* Sets the expert, the token and the row of the CTA. False if its row has no expert, and is not written. Offsets may
 * change while they are read, so one warp reads them for all. */
__device__ inline bool find_expert_of_cta(const sm90_gemv_experts &e, work_tile_info &w)
{
    const int row = blockIdx.z;
    if (warp_index() == 0) {
        const int token = e.rows.data ? (int)nk_token_of(e.rows.data[row], e.rows.per_token, e.rows.tokens) : row;
        const int expert = expert_of_row(e.offsets, e.experts, row);
        if (threadIdx.x == 0) {
            smem_head().expert = expert;
            smem_head().token = token;
        }
    }
    __syncthreads();
    w.l = 0;
    w.row = row;
    w.token = smem_head().token;
    w.matrix = w.expert = smem_head().expert;
    return w.expert < e.experts;
}

/* As epilogue_store_dual(), to codes and scale factors of fl(nk_silu(h) * u). Half a warp has the features of a
 * scale-factor block. CTAs have whole blocks. */
__device__ inline void epilogue_encode_dual(const sm90_gemv_args &p, const nk_encoded_output &to,
                                            const work_tile_info &w, const thread_outputs &end, float product_scale,
                                            const float *partials)
{
    const int split_k = p.scheduler.split_k, stride = p.scheduler.rows, half = threadIdx.x & 16;
    const int first = dual_position(w.first_row);
    const nk_alpha gates = expert_alpha(p.alpha, w), ups = expert_alpha(p.dual.alpha, w);
    const nk_bias bias = expert_bias(p.bias, w), bias_ups = expert_bias(p.dual.bias, w);
    const float factor = token_factor(p, w, 0);
    const encoder e = encoder_of(encode_scale_of(to.global_scale));
    uint8_t *codes = to.codes + w.row * to.codes_row_stride, *sf = to.sf + w.row * to.sf_row_stride;
#pragma unroll 1
    for (int row = threadIdx.x; 2 * row < end.rows; row += blockDim.x) {
        const float *at = partials + (row >> 3 << 4 | (row & 7));
        const int n = first + row;
        const float sum = sum_strided(at, split_k, stride) * product_scale,
                    sum_of_up = sum_strided(at + SM90_GEMV_M8, split_k, stride) * product_scale;
        const float value = gated_value(__fmaf_rn(alpha_at(gates, n), factor * sum, bias_at(bias, n)),
                                        __fmaf_rn(alpha_at(ups, n), factor * sum_of_up, bias_at(bias_ups, n)));
        uint32_t amax = __float_as_uint(fabsf(value));
#pragma unroll
        for (int distance = 8; distance > 0; distance /= 2)
            amax = max(amax, __shfl_xor_sync(0xFFFFu << half, amax, distance));
        const uint32_t sf_byte = sf_of_amax(e, amax);
        const uint32_t code = has_codes(sf_byte) ? code_of(value, code_factor(e, sf_byte)) : 0;
        const uint32_t next = __shfl_xor_sync(0xFFFFu << half, code, 1);
        if (n % 2 == 0) codes[n / 2] = (uint8_t)(code | next << 4);
        if (n % NK_SF_VEC == 0) sf[n / NK_SF_VEC] = (uint8_t)sf_byte;
    }
}

#endif
