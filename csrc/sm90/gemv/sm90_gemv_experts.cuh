/* What the kernels for few tokens do besides where each row of the result has an expert of its own. */
#ifndef NK_SM90_GEMV_EXPERTS_CUH
#define NK_SM90_GEMV_EXPERTS_CUH

#include "cuda/encode.cuh"
#include "sm90_gemv_tokens.cuh"

/* Offsets that a lane loads at once. */
#define EXPERT_BATCH 8

/* The expert of a row of the result, or `experts` where it has none. It is the first one that ends behind the row:
 * offsets count as if they never fell, and any numbers in them name an expert that there is. By all lanes of a warp. */
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

/* Sets the work's expert, token and row. False where the CTA's row has no expert: it stays as it is. One warp reads
 * what may change while it is read, so that all have the same. */
__device__ inline bool enter_row(const sm90_gemv_experts &e, team_work &w)
{
    const int row = blockIdx.z;
    if (warp_index() == 0) {
        const int token = e.rows.data ? (int)nk_token_of(e.rows.data[row], e.rows.per_token, e.rows.tokens) : row;
        const int expert = expert_of_row(e.offsets, e.experts, row);
        if (threadIdx.x == 0) {
            head().expert = expert;
            head().token = token;
            head().largest = 0;
            head().least = ~0u;
        }
    }
    __syncthreads();
    w.l = 0;
    w.row = row;
    w.token = head().token;
    w.matrix = w.expert = head().expert;
    return w.expert < e.experts;
}

/* A bf16 token as halves times a power of two: exact where the exponents of its elements lie close. Weights are then
 * decoded in 11 instructions a word instead of 20. */
typedef struct halving {
    bool is_exact;
    float scale, inverse; /* the power of two */
} halving;

enum { BFLOAT_MAGNITUDE = 0x7FFF, BFLOAT_INFINITY = 0x7F80, BFLOAT_EXPONENT_AT = 7 };

/* Of the token that has come, by all threads. With F and f the largest and the least exponent, times 2^(142 - F) all
 * elements are below 65504, and the last bit of each is a multiple of 2^(8 + f - F), where halves have 2^-24. */
__device__ inline halving halving_of_token(const sm90_gemv_scheduler &s, const team_work &w)
{
    uint32_t largest = 0, least = ~0u; /* magnitudes; those that are not 0, less 1 */
    mbarrier_wait(token_barrier(0), 0);
    for (int word = threadIdx.x; word < w.words; word += blockDim.x) {
        const uint4 v = ld_shared_v4(token_at(s, 0) + word * 16);
        const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t low = pairs[i] & BFLOAT_MAGNITUDE, high = pairs[i] >> 16 & BFLOAT_MAGNITUDE;
            largest = max(largest, max(low, high));
            least = min(least, min(low - 1, high - 1));
        }
    }
    largest = __reduce_max_sync(~0u, largest);
    least = __reduce_min_sync(~0u, least);
    if ((threadIdx.x & 31) == 0) {
        atomicMax(&head().largest, largest);
        atomicMin(&head().least, least);
    }
    __syncthreads();
    const int most = head().largest >> BFLOAT_EXPONENT_AT, fewest = (head().least + 1) >> BFLOAT_EXPONENT_AT;
    if (most < 16 || head().largest >= BFLOAT_INFINITY || most - fewest > 32) return {false, 1, 1};
    return {true, __uint_as_float((142 - most + 127) << 23), __uint_as_float((most - 142 + 127) << 23)};
}

__device__ inline uint32_t halves_of(uint32_t bfloats, float scale)
{
    const float low = __uint_as_float(bfloats << 16) * scale, high = __uint_as_float(bfloats & 0xFFFF0000) * scale;
    return pair_of<false>(low, high);
}

__device__ inline uint4 halves_of(const uint4 &v, float scale)
{
    return make_uint4(halves_of(v.x, scale), halves_of(v.y, scale), halves_of(v.z, scale), halves_of(v.w, scale));
}

/* As finish_pairs(), to codes and scale factors of fl(nk_silu(h) * u). A half of a warp has the features of a block.
 * CTAs have whole blocks. */
__device__ inline void encode_pairs(const sm90_gemv_args &p, const nk_encoded_output &to, const team_work &w,
                                    const ending &end, float product_scale, const float *partials)
{
    const int parts = p.scheduler.split_k, stride = p.scheduler.rows, half = threadIdx.x & 16;
    const int first = paired_row(w.first_row);
    const nk_alpha gates = alpha_of(p.alpha, w), ups = alpha_of(p.pair.alpha, w);
    const encoder e = encoder_of(encode_scale_of(to.global_scale));
    uint8_t *codes = to.codes + w.row * to.codes_row_stride, *sf = to.sf + w.row * to.sf_row_stride;
#pragma unroll 1
    for (int row = threadIdx.x; 2 * row < end.rows; row += blockDim.x) {
        const float *at = partials + (row >> 3 << 4 | (row & 7));
        const int n = first + row;
        const float value = gated_value(alpha_at(gates, n), sum_of(at, parts, stride) * product_scale, alpha_at(ups, n),
                                        sum_of(at + SM90_GEMV_M8, parts, stride) * product_scale);
        uint32_t amax = __float_as_uint(fabsf(value));
#pragma unroll
        for (int distance = 8; distance > 0; distance /= 2)
            amax = max(amax, __shfl_xor_sync(0xFFFFu << half, amax, distance));
        const uint32_t factor = sf_of_amax(e, amax);
        const uint32_t code = has_codes(factor) ? code_of(value, code_factor(e, factor)) : 0;
        const uint32_t next = __shfl_xor_sync(0xFFFFu << half, code, 1);
        if (n % 2 == 0) codes[n / 2] = (uint8_t)(code | next << 4);
        if (n % NK_SF_VEC == 0) sf[n / NK_SF_VEC] = (uint8_t)factor;
    }
}

#endif
