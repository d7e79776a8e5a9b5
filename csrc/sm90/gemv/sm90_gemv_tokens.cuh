/* Brings up to eight tokens to shared memory, as 16-bit elements in the order in which decoding makes pairs of weights.
 * NVFP4 tokens, and those that are read byte by byte, go through registers. 16-bit tokens are copied (cp.async.bulk),
 * and then put into that order where they lie. One bf16 token is then converted to fp16 if that is exact. */
#ifndef NK_SM90_GEMV_TOKENS_CUH
#define NK_SM90_GEMV_TOKENS_CUH

#include "sm90_gemv_sums.cuh"

enum { CODES, FP16, BF16 };

#define TOKEN_BATCH 4 /* chunks, or words, that a thread loads at once */

template <int KIND> __device__ inline int chunk_words() { return KIND == CODES ? 4 : 1; }

/* The addresses in the first token at which the CTA's K steps begin. */
typedef struct token_source {
    const uint8_t *values, *sf;
} token_source;

/* kept_global(): otherwise the compiler would work this out after the wait for the kernels before this one. */
template <int KIND> __device__ inline token_source token_source_of(const sm90_gemv_args &p, const work_tile_info &w)
{
    const int k = w.first_k_step * SM90_GEMV_STEP;
    const uint8_t *values =
        kept_global(p.a.data + w.l * p.a.batch_stride + w.token * p.a.row_stride + (KIND == CODES ? k / 2 : k * 2));
    if (KIND != CODES) return {values, nullptr};
    return {values, kept_global(sf_at(p.a, w.l, w.token, k / NK_SF_VEC, p.scheduler.all_words / (NK_SF_VEC / 8)))};
}

/* Several tokens lie in the first quarter of an SF atom, since it has 32 rows. */
template <int KIND, int ACCESS>
__device__ inline token_chunk load_token_chunk(const nk_operand &a, const token_source &from, const work_tile_info &w,
                                               int m, int index)
{
    const uint8_t *values = from.values + m * a.row_stride + index * 16;
    token_chunk out = {make_uint4(0, 0, 0, 0), 0};
    const int words = w.words - index * chunk_words<KIND>();
    if (words <= 0) return out;
    out.data = ACCESS == NARROW ? fetch_bytes(values, KIND == CODES ? 4 * words : 16) : *(const uint4 *)values;
    if (KIND != CODES) return out;
    const uint8_t *sf =
        from.sf + (a.sf_layout == NK_SF_BLOCKED ? sf_offset_of_pair(m, index) : m * a.sf_row_stride + index * 2);
    out.sf = ACCESS == NARROW ? load_sf_bytes(sf, min(words, 4)) : *(const uint16_t *)sf;
    return out;
}

/* Where word w of a chunk lies, so that neither stores nor loads of lanes meet in a bank. */
__device__ inline int swizzled(int word, int chunk) { return word ^ (chunk >> 1 & 3); }

/* The address of token m. */
__device__ inline uint32_t token_at(const sm90_gemv_scheduler &s, int m)
{
    return shared_address(smem) + sm90_gemv_tokens_at(false, blockDim.x >> 5) +
           m * (uint32_t)sm90_gemv_token_bytes(s.k_steps);
}

/* The offset of word `index` in a token. */
__device__ inline uint32_t word_at(int index)
{
    const int chunk = index >> 2;
    return (chunk * 4 + swizzled(index & 3, chunk)) * 16;
}

/* Stores the words of a chunk in decode order. NVFP4 becomes fp16, times the scale factors and 2^-14, which is exact.
 */
template <int KIND> __device__ inline void store_token_chunk(const token_chunk &v, int index, uint32_t token)
{
    if (KIND != CODES) return st_shared_v4(token + word_at(index), in_decode_order(v.data));
    const uint32_t words[4] = {v.data.x, v.data.y, v.data.z, v.data.w}, scales = cvt_f16x2_e4m3x2(v.sf & 0x7F7F);
#pragma unroll
    for (int word = 0; word < 4; word++) {
        uint32_t pairs[4];
        e2m1x8_to_f16x2(words[word], pairs);
        const uint32_t both = __byte_perm(scales, 0, word < 2 ? 0x1010 : 0x3232);
#pragma unroll
        for (int i = 0; i < 4; i++)
            pairs[i] = multiply_pairs<false>(pairs[i], both);
        st_shared_v4(token + word_at(4 * index + word), make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
    }
}

/* Which chunk: a thread has every blockDim.x-th chunk of all tokens. */
typedef struct chunk_of_token {
    int token, index;
} chunk_of_token;

__device__ inline void carry(chunk_of_token &at, int per_token, int tokens)
{
    while (at.index >= per_token && at.token < tokens) {
        at.index -= per_token;
        at.token++;
    }
}

__device__ inline chunk_of_token first_chunk_of_thread(int per_token, int tokens)
{
    chunk_of_token at = {0, (int)threadIdx.x};
    carry(at, per_token, tokens);
    return at;
}

__device__ inline void next_chunk(chunk_of_token &at, int per_token, int tokens)
{
    at.index += blockDim.x;
    carry(at, per_token, tokens);
}

/* Loads the next batch of chunks, from `at` on. */
template <int KIND, int ACCESS>
__device__ inline void load_token_chunks(const sm90_gemv_args &p, const token_source &from, const work_tile_info &w,
                                         chunk_of_token at, int per_token, token_chunk batch[TOKEN_BATCH])
{
#pragma unroll
    for (int i = 0; i < TOKEN_BATCH; i++, next_chunk(at, per_token, p.scheduler.tokens))
        if (at.token < p.scheduler.tokens) batch[i] = load_token_chunk<KIND, ACCESS>(p.a, from, w, at.token, at.index);
}

/* Stores a batch, and moves `at` to the next one. */
template <int KIND>
__device__ inline void store_token_chunks(const sm90_gemv_scheduler &s, chunk_of_token &at, int per_token, int tokens,
                                          const token_chunk batch[TOKEN_BATCH])
{
#pragma unroll
    for (int i = 0; i < TOKEN_BATCH; i++, next_chunk(at, per_token, tokens))
        if (at.token < tokens) store_token_chunk<KIND>(batch[i], at.index, token_at(s, at.token));
}

/* Tokens of 16-bit elements are copied by cp.async.bulk. One lane copies each, and the token's mbarrier counts the
 * bytes. */
__device__ inline uint32_t token_barrier(int m) { return shared_address(&smem_head().token_full[m]); }

/* For warp 0, which copies. Other warps need a barrier of the CTA before they wait. */
__device__ inline void init_token_barriers(int tokens)
{
    if (threadIdx.x < tokens) {
        mbarrier_init(token_barrier(threadIdx.x), 1);
        fence_mbarrier_init();
    }
    __syncwarp();
}

__device__ inline void copy_tokens(const sm90_gemv_args &p, const token_source &from, const work_tile_info &w)
{
    const int m = threadIdx.x;
    const uint32_t bytes = max(w.words, 0) * 16;
    if (m >= p.scheduler.tokens) return;
    mbarrier_arrive_expect_tx(token_barrier(m), bytes);
    if (bytes) cp_async_bulk(token_at(p.scheduler, m), from.values + m * p.a.row_stride, bytes, token_barrier(m));
}

/* Puts the words of a token into decode order once it is there, with zeros beyond K. A warp has one token, or none if
 * their number is no power of two. The warps of a token take its K steps in turn, TOKEN_BATCH at once. `convert` maps a
 * word to the one that is stored. */
template <typename F>
__device__ inline void reorder_tokens(const sm90_gemv_scheduler &s, const work_tile_info &w, int tokens, F convert)
{
    const int log_tokens = log2_ceil(tokens), warps = blockDim.x >> 5, warp = warp_index();
    const int token = warp & ((1 << log_tokens) - 1), step = warps >> log_tokens, lane = threadIdx.x & 31;
    const uint32_t from = token_at(s, token) + lane * 16, to = token_at(s, token) + word_at(lane);
    if (token >= tokens) return;
    mbarrier_wait(token_barrier(token), 0);
    for (int first = warp >> log_tokens; first < w.k_steps; first += TOKEN_BATCH * step) {
        uint4 words[TOKEN_BATCH];
#pragma unroll
        for (int i = 0; i < TOKEN_BATCH; i++) {
            const int k_step = first + i * step;
            words[i] = make_uint4(0, 0, 0, 0);
            if (k_step * SM90_GEMV_WORDS + lane < w.words)
                words[i] = ld_shared_v4(from + k_step * SM90_GEMV_TOKEN_STEP_BYTES);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < TOKEN_BATCH; i++) {
            const int k_step = first + i * step;
            if (k_step < w.k_steps)
                st_shared_v4(to + k_step * SM90_GEMV_TOKEN_STEP_BYTES, in_decode_order(convert(words[i])));
        }
    }
}

__device__ inline void reorder_tokens(const sm90_gemv_scheduler &s, const work_tile_info &w, int tokens)
{
    reorder_tokens(s, w, tokens, [](const uint4 &v) { return v; });
}

/* A bf16 token in fp16, times a power of two: exact if the exponents of its elements lie close. Weights are then
 * decoded in 11 instructions a word instead of 20. */
typedef struct fp16_conversion {
    bool is_exact;
    float scale, inverse; /* the power of two */
} fp16_conversion;

enum { BF16_MAGNITUDE = 0x7FFF, BF16_INFINITY = 0x7F80, BF16_EXPONENT_SHIFT = 7 };

/* Of the token in shared memory, by all threads. Let F and f be the largest and the least exponent. Times 2^(142 - F)
 * all elements are below 65504, and the last bit of each is a multiple of 2^(8 + f - F); the last bit of fp16 is 2^-24.
 */
__device__ inline fp16_conversion fp16_conversion_of_token(const sm90_gemv_scheduler &s, const work_tile_info &w)
{
    uint32_t largest = 0, least = ~0u; /* magnitudes; nonzero magnitudes less 1 */
    mbarrier_wait(token_barrier(0), 0);
    for (int word = threadIdx.x; word < w.words; word += blockDim.x) {
        const uint4 v = ld_shared_v4(token_at(s, 0) + word * 16);
        const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t low = pairs[i] & BF16_MAGNITUDE, high = pairs[i] >> 16 & BF16_MAGNITUDE;
            largest = max(largest, max(low, high));
            least = min(least, min(low - 1, high - 1));
        }
    }
    largest = __reduce_max_sync(~0u, largest);
    least = __reduce_min_sync(~0u, least);
    if ((threadIdx.x & 31) == 0) {
        atomicMax(&smem_head().largest, largest);
        atomicMax(&smem_head().largest_complement, ~least);
    }
    __syncthreads();
    const int most = smem_head().largest >> BF16_EXPONENT_SHIFT,
              fewest = (~smem_head().largest_complement + 1) >> BF16_EXPONENT_SHIFT;
    if (most < 16 || smem_head().largest >= BF16_INFINITY || most - fewest > 32) return {false, 1, 1};
    return {true, __uint_as_float((142 - most + 127) << 23), __uint_as_float((most - 142 + 127) << 23)};
}

__device__ inline uint32_t bf16_to_fp16(uint32_t pair, float scale)
{
    const float low = __uint_as_float(pair << 16) * scale, high = __uint_as_float(pair & 0xFFFF0000) * scale;
    return pair_of<false>(low, high);
}

__device__ inline uint4 bf16_to_fp16(const uint4 &v, float scale)
{
    return make_uint4(bf16_to_fp16(v.x, scale), bf16_to_fp16(v.y, scale), bf16_to_fp16(v.z, scale),
                      bf16_to_fp16(v.w, scale));
}

#endif
