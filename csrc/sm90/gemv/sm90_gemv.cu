/* D[l,m,n] = convert(alpha[n] * sum_k X[l,m,k] W[l,n,k] + bias[n]) for up to eight tokens m: W is read once.
 * DUAL: D[l,m,n] = convert(act(alpha[n] * sum_k X[l,m,k] W[l,n,k] + bias[n])
 *                          * (alpha2[n] * sum_k X[l,m,k] W2[l,n,k] + bias2[n])).
 * row_scale, if given: fl(row_scale[l,m] * sum) takes the place of each sum.
 * Experts: row l of D is one token times the matrix of an expert, see sm90_gemv_experts. List: each l has tokens and
 * operands of its own, see sm90_gemv_list. One bf16 token is converted to fp16 if that is exact
 * (fp16_conversion_of_token).
 *
 * MMA: mma.m16n8k16. A (M) is 16 rows of W, decoded in registers. B (N) comes from shared memory, in decode order: any
 * order of K is right if A and B have the same. Lane (g, c) = (lane / 4, lane % 4) has two chunks of row g of each 8
 * rows.
 *
 * One token (ONE): the columns of B are scale-factor blocks. An MMA takes a chunk, that is two blocks, of each of four
 * lanes: eight blocks for eight columns. Column 2c has the token's values at lane c's first block and zeros elsewhere;
 * column 2c + 1 those at its second block. First and second blocks are multiplied by the same B into two accumulators.
 * Accumulator 0 is valid in even columns, accumulator 1 in odd ones: these are the sums of a lane's own blocks, in its
 * own registers. They are multiplied by W's scale factors in fp32, which is exact for NVFP4. One addition for each
 * block rounds.
 *
 * More tokens (FEW): the columns of B are tokens. W times its scale factors is exact in 16 bits, and the accumulators
 * sum over all steps.
 *
 * Scheduler: see sm90_gemv_config.h. A consumer is one warp, and its tile is 16 rows of W.
 *
 * Roles: all warps are consumers. Each fetches whole lines by cp.async into a pipeline of its own, STAGES - 1 steps
 * ahead. The lanes of warp 0 also copy the 16-bit tokens (cp.async.bulk).
 *
 * Barriers (mbarriers; all wait for parity 0, once):
 *   token_full[m]     bulk copy of token m -> warps that reorder it   1 arrival, of the copying lane, + its bytes
 *   inbox_full        CTAs of the cluster -> all threads              1 arrival, of thread 0, + all sums
 *   __syncwarp()      before a warp reads a stage: its copies are complete, and the stage of the step before is free
 *   __syncthreads()   token_full is initialised; tokens are in shared memory; partial sums are in shared memory
 *   cluster (bar 0)   if a cluster splits K: inbox_full is initialised before other CTAs send sums
 *
 * Overlap: the kernel waits until the kernels before it have ended (griddepcontrol) before it reads anything, or with
 * `early` before it reads anything but weights. With experts it does not know before which weights it reads. The next
 * kernel may start as soon as there is room, and waits likewise.
 *
 * Memory: see sm90_gemv_memory.h. ONE: lanes whose values of B are zero read smem_head().zeros. */
#include "cuda/ptx/grid.cuh"
#include "sm90_gemv_experts.cuh"

enum { ONE, FEW };

/* ---------------------------------------------------------------------------------------------------------------- */
/* MMA                                                                                                              */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Where a lane reads B: the address of chunk 2c of K step 0, and the bytes to the next chunk and to the next K step.
 * FEW: of token g, or the last token if there is no token g. ONE: of the block that is column g, if it is one of this
 * lane's; other lanes read zeros. */
typedef struct b_cursor {
    uint32_t at, chunk_bytes, step_bytes;
} b_cursor;

template <int COUNT> __device__ inline b_cursor b_cursor_of_lane(const sm90_gemv_scheduler &s, int tokens)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
    const uint32_t chunk_bytes = SM90_GEMV_CHUNK * 2;
    if (COUNT == FEW)
        return {token_at(s, min(g, tokens - 1)) + word_at(8 * c), chunk_bytes, SM90_GEMV_TOKEN_STEP_BYTES};
    if (g >> 1 != c) return {shared_address(smem_head().zeros), 0, 0};
    return {token_at(s, 0) + word_at(8 * c + 2 * (g & 1)), chunk_bytes, SM90_GEMV_TOKEN_STEP_BYTES};
}

/* 2^112 twice, in bf16. Codes in bf16 carry 2^-126, and their products with small values would underflow fp32. */
#define BF16_2_112 0x77807780

/* Decodes eight codes to four pairs that carry 2^-14. FEW: multiplies them by the block's scale factor, twice in
 * `scale`. */
template <int KIND, int COUNT> __device__ inline void decode_to_16bit(uint32_t codes, uint32_t scale, uint32_t pairs[4])
{
    if (COUNT == FEW)
        decode_e2m1x8<KIND == BF16>(codes, scale, pairs);
    else if (KIND == BF16)
        decode_e2m1x8<true>(codes, BF16_2_112, pairs);
    else
        e2m1x8_to_f16x2(codes, pairs);
}

/* One of two fp16, twice. The compiler merges this into the next instruction, which it would not do with __byte_perm.
 */
__device__ inline uint32_t broadcast_f16(uint32_t pair, int which)
{
    const __half2 both = *(const __half2 *)&pair, one = which ? __high2half2(both) : __low2half2(both);
    return *(const uint32_t *)&one;
}

__device__ inline uint32_t abs_f16x2(uint32_t pair)
{
    const __half2 positive = __habs2(*(const __half2 *)&pair);
    return *(const uint32_t *)&positive;
}

/* Scale factors in bf16, times 2^112: exact. Codes carry 2^-126, so products carry 2^-14, as in fp16. */
__device__ inline uint32_t sf_to_bf16x2(uint32_t pair)
{
    const float2 values = __half22float2(*(const __half2 *)&pair);
    return exact_bf16x2(values.x * 0x1p112f, values.y * 0x1p112f);
}

/* sums += chunk 2c + j times B. ONE: a sum for each 8 rows. FEW: an accumulator of the MMA. */
template <int KIND, int COUNT>
__device__ inline void mma_chunk(const weight_fragment &w, uint32_t b, int j, float sums[4])
{
    const uint32_t low[4] = {w.codes[0][j].x, w.codes[0][j].y, w.codes[0][j].z, w.codes[0][j].w};
    const uint32_t high[4] = {w.codes[1][j].x, w.codes[1][j].y, w.codes[1][j].z, w.codes[1][j].w};
    uint32_t scales[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t pair = abs_f16x2(cvt_f16x2_e4m3x2(w.sf[r] >> 16 * j));
        scales[r] = KIND == BF16 && COUNT == FEW ? sf_to_bf16x2(pair) : pair;
    }
    float blocks[2][4] = {}; /* ONE: accumulators of the first and of the second blocks */
    uint4 x[4];              /* ONE: two words serve both blocks */
#pragma unroll
    for (int word = 0; word < (COUNT == ONE ? 2 : 4); word++)
        x[word] = ld_shared_v4(b ^ word << 4);
#pragma unroll
    for (int word = 0; word < 4; word++) {
        const uint4 v = x[COUNT == ONE ? word & 1 : word];
        uint32_t p[4], q[4];
        decode_to_16bit<KIND, COUNT>(low[word], broadcast_f16(scales[0], word >> 1), p);
        decode_to_16bit<KIND, COUNT>(high[word], broadcast_f16(scales[1], word >> 1), q);
        const uint32_t first[4] = {p[0], q[0], p[1], q[1]}, second[4] = {p[2], q[2], p[3], q[3]};
        float *d = COUNT == ONE ? blocks[word >> 1] : sums;
        mma_pairs<KIND == BF16>(d, first, v.x, v.y);
        mma_pairs<KIND == BF16>(d, second, v.z, v.w);
    }
#pragma unroll
    for (int r = 0; r < (COUNT == ONE ? 2 : 0); r++) {
        const float2 scale = __half22float2(*(__half2 *)&scales[r]);
        sums[r] = __fmaf_rn(blocks[0][2 * r], scale.x, sums[r]);
        sums[r] = __fmaf_rn(blocks[1][2 * r + 1], scale.y, sums[r]);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The steps of a warp, for gemv_mainloop(). */
template <int KIND, int COUNT> struct warp_mma {
    const work_tile_info &w;
    const sm90_gemv_scheduler &s;
    float *partials;
    int tokens;
    b_cursor first;
    uint32_t b;
    float sums[4];

    __device__ warp_mma(const work_tile_info &w, const sm90_gemv_scheduler &s, int tokens, float *partials)
        : w(w), s(s), partials(partials), tokens(tokens), first(b_cursor_of_lane<COUNT>(s, tokens)), sums{0, 0, 0, 0}
    {
    }

    __device__ void begin_tile(int k_step) { b = first.at + k_step * first.step_bytes; }

    __device__ void step(const weight_fragment &now)
    {
        mma_chunk<KIND, COUNT>(now, b, 0, sums);
        mma_chunk<KIND, COUNT>(now, b + first.chunk_bytes, 1, sums);
        b += first.step_bytes;
    }

    __device__ void store_partials(int tile)
    {
        if (COUNT == ONE)
            store_row_partials<TALL, 1>(w, s, tile, sums, partials);
        else
            store_token_partials(w, s, tile, tokens, sums, partials);
    }
};

template <int KIND, int COUNT, int ACCESS, bool EXPERTS>
__device__ inline void run_16bit_gemv(const sm90_gemv_args &p, const sm90_gemv_experts *experts)
{
    constexpr bool COPIED = KIND != CODES && ACCESS != NARROW;
    constexpr bool EARLY_OUTPUT = KIND != CODES; /* with codes it would make the loop longer */
    constexpr bool CONVERTED = KIND == BF16 && COUNT == ONE && COPIED;
    const sm90_gemv_scheduler &s = p.scheduler;
    const int warps = blockDim.x >> 5, tokens = COUNT == ONE ? 1 : s.tokens;
    work_tile_info w = initial_work_tile_info<ACCESS, TALL, 1>(p);
    const int per_token = w.k_steps * (KIND == CODES ? SM90_GEMV_CHUNKS : SM90_GEMV_WORDS);
    const uint32_t pipeline = pipeline_of_warp();
    chunk_of_token at = first_chunk_of_thread(per_token, tokens);
    weight_cursor ahead;
    token_chunk batch[TOKEN_BATCH];
    fp16_conversion as_fp16 = {false, 1, 1};
    if (COPIED) init_token_barriers(tokens);
    cursor_init(w, ahead);
    if (EXPERTS) {
        griddepcontrol_wait();
        if (!find_expert_of_cta(*experts, w)) return;
    }
    cursor_to_tile<ACCESS, TALL, 1>(p, w, w.tile, w.k_step, ahead);
    griddepcontrol_launch_dependents();
    prefetch_codes<TALL>(ahead);
    const token_source from = token_source_of<KIND>(p, w);
    /* Waits for the kernels before this one, then loads the tokens. Before, nothing but weights may be read. */
    const auto begin_tokens = [&] {
        if (!EXPERTS) griddepcontrol_wait();
        if (COPIED)
            copy_tokens(p, from, w);
        else
            load_token_chunks<KIND, ACCESS>(p, from, w, at, per_token, batch);
    };
    if (EXPERTS || !s.early) {
        begin_tokens();
        fill_pipeline<ACCESS, TALL, 1>(p, w, ahead, pipeline);
    } else { /* a second copy: with one for both, ptxas makes the loop 3 % longer */
        fill_pipeline<ACCESS, TALL, 1>(p, w, ahead, pipeline);
        begin_tokens();
    }
    thread_outputs outputs = thread_outputs_of<COUNT == ONE ? 1 : SM90_GEMV_MAX_TOKENS>(s, w, tokens);
    if (!is_dual<ACCESS>) prepare_epilogue<ACCESS, EARLY_OUTPUT>(p, w, outputs);
    float *partials =
        (float *)((uint8_t *)smem + sm90_gemv_tokens_at(false, warps) + tokens * (int)sm90_gemv_token_bytes(s.k_steps));
    clear_partials(s, tokens, partials);
    if (threadIdx.x < offsetof(sm90_gemv_head, inbox_full) / 16) smem[threadIdx.x] = make_uint4(0, 0, 0, 0);
    if (COPIED) {
        __syncthreads(); /* token_full is initialised */
        if constexpr (!CONVERTED) {
            reorder_tokens(s, w, tokens);
        } else {
            as_fp16 = fp16_conversion_of_token(s, w);
            reorder_tokens(s, w, tokens,
                           [&](const uint4 &v) { return as_fp16.is_exact ? bf16_to_fp16(v, as_fp16.scale) : v; });
        }
    } else {
        for (;;) {
            store_token_chunks<KIND>(s, at, per_token, tokens, batch);
            if (at.token >= tokens) break;
            load_token_chunks<KIND, ACCESS>(p, from, w, at, per_token, batch);
        }
    }
    __syncthreads();
    expect_inbox(s, w, s.cluster * tokens);
    const auto run_mainloop = [&](auto mma) { gemv_mainloop<ACCESS, TALL, 1>(p, w, ahead, pipeline, mma); };
    if (CONVERTED && as_fp16.is_exact)
        run_mainloop(warp_mma<FP16, COUNT>(w, s, tokens, partials));
    else
        run_mainloop(warp_mma<KIND, COUNT>(w, s, tokens, partials));
    __syncthreads();
    if (EXPERTS) w.token = smem_head().token; /* the main loop has no register for it */
    const float product_scale =
        KIND == CODES ? NVFP4_DECODE_SCALE * NVFP4_DECODE_SCALE : NVFP4_DECODE_SCALE * as_fp16.inverse;
    if constexpr (is_dual<ACCESS>) {
        if (EXPERTS && experts->encoded.wanted)
            return epilogue_encode_dual(p, experts->encoded, w, outputs, product_scale, partials);
        return epilogue_store_dual<ACCESS>(p, w, tokens, outputs, product_scale, partials);
    }
    epilogue_store<ACCESS, EARLY_OUTPUT>(p, w, tokens, outputs, product_scale, partials);
}

#define GEMV(name, KIND, COUNT, ACCESS)                                   \
    extern "C" __global__ void __launch_bounds__(32 * SM90_GEMV_WARPS, 1) \
        sm90_gemv_##name(const __grid_constant__ sm90_gemv_args p)        \
    {                                                                     \
        run_16bit_gemv<KIND, COUNT, ACCESS, false>(p, nullptr);           \
    }
#define GEMVS(name, KIND, COUNT)               \
    GEMV(name##_linear, KIND, COUNT, LINEAR)   \
    GEMV(name##_blocked, KIND, COUNT, BLOCKED) \
    GEMV(name##_narrow, KIND, COUNT, NARROW)

GEMVS(fp16, FP16, ONE)
GEMVS(bf16, BF16, ONE)

#define EXPERTS(name, KIND, ACCESS)                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * SM90_GEMV_WARPS, 1) sm90_gemv_experts_##name(  \
        const __grid_constant__ sm90_gemv_args p, const __grid_constant__ sm90_gemv_experts experts) \
    {                                                                                                \
        run_16bit_gemv<KIND, ONE, ACCESS, true>(p, &experts);                                        \
    }
#define EXPERTS_OF(name, KIND)                     \
    EXPERTS(name##_linear, KIND, LINEAR)           \
    EXPERTS(name##_blocked, KIND, BLOCKED)         \
    EXPERTS(name##_dual_linear, KIND, DUAL_LINEAR) \
    EXPERTS(name##_dual_blocked, KIND, DUAL_BLOCKED)

EXPERTS_OF(codes, CODES)
EXPERTS_OF(fp16, FP16)
EXPERTS_OF(bf16, BF16)
GEMVS(few_codes, CODES, FEW)
GEMVS(few_fp16, FP16, FEW)
GEMVS(few_bf16, BF16, FEW)

#define LIST(name, KIND, ACCESS)                                                \
    extern "C" __global__ void __launch_bounds__(32 * SM90_GEMV_WARPS, 1)       \
        sm90_gemv_list_##name(const __grid_constant__ sm90_gemv_list p)         \
    {                                                                           \
        run_16bit_gemv<KIND, FEW, ACCESS, false>(p.group[blockIdx.z], nullptr); \
    }
#define LISTS(name, KIND)             \
    LIST(name##_linear, KIND, LINEAR) \
    LIST(name##_blocked, KIND, BLOCKED)

LISTS(codes, CODES)
LISTS(fp16, FP16)
LISTS(bf16, BF16)

#define GEMVS_DUAL(name, KIND, COUNT)                  \
    GEMV(name##_dual_linear, KIND, COUNT, DUAL_LINEAR) \
    GEMV(name##_dual_blocked, KIND, COUNT, DUAL_BLOCKED)

GEMVS_DUAL(codes, CODES, ONE)
GEMVS_DUAL(fp16, FP16, ONE)
GEMVS_DUAL(bf16, BF16, ONE)
GEMVS_DUAL(few_codes, CODES, FEW)
GEMVS_DUAL(few_fp16, FP16, FEW)
GEMVS_DUAL(few_bf16, BF16, FEW)
