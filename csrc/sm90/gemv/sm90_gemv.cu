/* D[l,m,n] = convert(alpha[n] * sum_k X[l,m,k] W[l,n,k] + bias[n]) for up to eight tokens m: W is read once.
 * DUAL: D[l,0,n] = convert(act(alpha[n] * sum_k X[l,0,k] W[l,n,k]) * (alpha2[n] * sum_k X[l,0,k] W2[l,n,k])).
 * Experts: row l of D is of one token, as above, by the matrix of an expert: see sm90_gemv_experts. A bf16 token is
 * multiplied as halves where that is exact (halving_of_token).
 *
 * Work: see sm90_gemv_config.h. A team is one warp. Its tile is two octets of rows of W.
 *
 * Roles: all warps alike; the lanes of the first also ask for the tokens that are copied. A warp fetches whole lines,
 * steps ahead (cp.async), into slots of its own. Lane (g, c) = (lane / 4, lane % 4) takes two chunks of row g of each
 * octet, and decodes them in registers into A of mma.m16n8k16. B, the tokens, comes from shared memory in decode order:
 * any order of K is right if A and B have the same.
 *
 * One token (ONE): the columns of B are blocks. An mma takes a chunk, that is two blocks, of each of four lanes: eight
 * blocks for eight columns. Column 2c has the token's values at lane c's first block and zeros elsewhere; column 2c + 1
 * those at its second block. First and second blocks are multiplied by the same B into two accumulators. Of one only
 * the even columns mean anything, of the other only the odd ones: these are the sums of a lane's own blocks, in its own
 * registers. They are multiplied by W's scale factors as floats, which is exact for NVFP4. One addition for each block
 * rounds.
 *
 * More tokens (FEW): the columns of B are tokens. W times its scale factors is exact in 16 bits, and the accumulators
 * sum over all steps.
 *
 * Barriers (mbarriers; all wait for parity 0, once):
 *   token_arrived[m]  bulk copy of token m -> the warps that pair it   1 arrival, of the lane that asks, + its bytes
 *   sums_arrived      CTAs of the cluster -> all threads               1 arrival, of thread 0, + the bytes of all sums
 *   __syncwarp()      before a warp reads a slot: all its copies have come, and the slot of the step before is free
 *   __syncthreads()   token_arrived is initialised; tokens are in shared memory; partial sums are in shared memory
 *   cluster (bar 0)   where CTAs share rows: sums_arrived is initialised before others send sums
 *
 * Overlap: the kernel waits until the kernels before it have ended (griddepcontrol) before it reads anything, or with
 * `early` before it reads anything but weights; with experts it does not know before whose weights. The next kernel may
 * come as soon as there is room, and waits likewise.
 *
 * Memory: see sm90_gemv_memory.h. ONE: lanes whose values of B are zero read head().zeros. */
#include "cuda/ptx/grid.cuh"
#include "sm90_gemv_experts.cuh"

enum { ONE, FEW };

/* ---------------------------------------------------------------------------------------------------------------- */
/* Products                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Where a lane reads B: the address of chunk 2c of K step 0, and the bytes to the next chunk and to the next K step.
 * FEW: of token g; of the last token for a column that is none. ONE: of the block that is column g, if it is one of
 * this lane's; other lanes read zeros. */
typedef struct reader {
    uint32_t at, chunk_bytes, step_bytes;
} reader;

template <int COUNT> __device__ inline reader reader_of_lane(const sm90_gemv_scheduler &s, int tokens)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
    const uint32_t chunk_bytes = SM90_GEMV_CHUNK * 2;
    if (COUNT == FEW)
        return {token_at(s, min(g, tokens - 1)) + word_at(8 * c), chunk_bytes, SM90_GEMV_TOKEN_STEP_BYTES};
    if (g >> 1 != c) return {shared_address(head().zeros), 0, 0};
    return {token_at(s, 0) + word_at(8 * c + 2 * (g & 1)), chunk_bytes, SM90_GEMV_TOKEN_STEP_BYTES};
}

/* 2^112 twice, in bf16. Codes in bf16 carry 2^-126, and with bare ones small products would underflow fp32. */
#define BFLOAT_UNIT 0x77807780

/* Decodes eight codes to four pairs that carry 2^-14. FEW: multiplies them by the block's scale factor, which both
 * halves of `scale` have. */
template <int KIND, int COUNT> __device__ inline void decode(uint32_t codes, uint32_t scale, uint32_t pairs[4])
{
    if (COUNT == FEW)
        decode_e2m1x8<KIND == BF16>(codes, scale, pairs);
    else if (KIND == BF16)
        decode_e2m1x8<true>(codes, BFLOAT_UNIT, pairs);
    else
        e2m1x8_to_half2x4(codes, pairs);
}

/* One of two halves, twice. The compiler merges this into the next instruction, which it would not do with __byte_perm.
 */
__device__ inline uint32_t twice(uint32_t halves, int which)
{
    const __half2 both = *(const __half2 *)&halves, one = which ? __high2half2(both) : __low2half2(both);
    return *(const uint32_t *)&one;
}

__device__ inline uint32_t magnitudes(uint32_t halves)
{
    const __half2 positive = __habs2(*(const __half2 *)&halves);
    return *(const uint32_t *)&positive;
}

/* Scale factors as bf16, times 2^112: exact. Codes carry 2^-126, so that products carry 2^-14, as in fp16. */
__device__ inline uint32_t bfloats_of(uint32_t halves)
{
    const float2 values = __half22float2(*(const __half2 *)&halves);
    return exact_bfloats(values.x * 0x1p112f, values.y * 0x1p112f);
}

/* sums += chunk 2c + j times B. ONE: sums[octet]; FEW: sums is an accumulator of mma. */
template <int KIND, int COUNT> __device__ inline void multiply(const weights &w, uint32_t b, int j, float sums[4])
{
    const uint32_t low[4] = {w.codes[0][j].x, w.codes[0][j].y, w.codes[0][j].z, w.codes[0][j].w};
    const uint32_t high[4] = {w.codes[1][j].x, w.codes[1][j].y, w.codes[1][j].z, w.codes[1][j].w};
    uint32_t scales[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t halves = magnitudes(cvt_f16x2_e4m3x2(w.sf[r] >> 16 * j));
        scales[r] = KIND == BF16 && COUNT == FEW ? bfloats_of(halves) : halves;
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
        decode<KIND, COUNT>(low[word], twice(scales[0], word >> 1), p);
        decode<KIND, COUNT>(high[word], twice(scales[1], word >> 1), q);
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

/* What main_loop() does with the steps of a warp. */
template <int KIND, int COUNT> struct products {
    const team_work &w;
    const sm90_gemv_scheduler &s;
    float *partials;
    int tokens;
    reader first;
    uint32_t b;
    float sums[4];

    __device__ products(const team_work &w, const sm90_gemv_scheduler &s, int tokens, float *partials)
        : w(w), s(s), partials(partials), tokens(tokens), first(reader_of_lane<COUNT>(s, tokens)), sums{0, 0, 0, 0}
    {
    }

    __device__ void begin_tile(int k_step) { b = first.at + k_step * first.step_bytes; }

    __device__ void step(const weights &now)
    {
        multiply<KIND, COUNT>(now, b, 0, sums);
        multiply<KIND, COUNT>(now, b + first.chunk_bytes, 1, sums);
        b += first.step_bytes;
    }

    __device__ void end_tile(int tile)
    {
        if (COUNT == ONE)
            keep_row_sums<TALL, 1>(w, s, tile, sums, partials);
        else
            keep_token_sums(w, s, tile, tokens, sums, partials);
    }
};

template <int KIND, int COUNT, int ACCESS, bool EXPERTS>
__device__ inline void gemv(const sm90_gemv_args &p, const sm90_gemv_experts *experts)
{
    const sm90_gemv_scheduler &s = p.scheduler;
    const int warps = blockDim.x >> 5, tokens = COUNT == ONE ? 1 : s.tokens;
    team_work w = work_of_team<ACCESS, TALL, 1>(p);
    constexpr bool COPIED = KIND != CODES && ACCESS != NARROW;
    constexpr bool FOUND = KIND != CODES; /* with codes it would make the loop longer */
    constexpr bool HALVED = EXPERTS && KIND == BF16;
    const int per_token = w.k_steps * (KIND == CODES ? SM90_GEMV_CHUNKS : SM90_GEMV_WORDS);
    const uint32_t ring = ring_of_warp();
    chunk_of_token at = first_chunk_of_thread(per_token, tokens);
    cursor ahead;
    token_chunk batch[BATCH];
    halving as_halves = {false, 1, 1};
    if (COPIED) prepare_tokens(tokens);
    prepare(w, ahead);
    if (EXPERTS) {
        griddepcontrol_wait();
        if (!enter_row(*experts, w)) return;
    }
    enter_tile<ACCESS, TALL, 1>(p, w, w.tile, w.k_step, ahead);
    griddepcontrol_launch_dependents();
    prefetch_codes<TALL>(ahead);
    const source from = source_of<KIND>(p, w);
    /* Waits for the kernels before this one, then asks for the tokens. Before, nothing but weights may be read. */
    const auto begin_tokens = [&] {
        if (!EXPERTS) griddepcontrol_wait();
        if (COPIED)
            fetch_tokens(p, from, w);
        else
            load_chunks<KIND, ACCESS>(p, from, w, at, per_token, batch);
    };
    if (EXPERTS || !s.early) {
        begin_tokens();
        fill_ring<ACCESS, TALL, 1>(p, w, ahead, ring);
    } else { /* a second copy: with one for both, ptxas makes the loop 3 % longer */
        fill_ring<ACCESS, TALL, 1>(p, w, ahead, ring);
        begin_tokens();
    }
    ending end = ending_of<COUNT == ONE ? 1 : SM90_GEMV_MAX_TOKENS>(s, w, tokens);
    if (ACCESS != DUAL) prepare_end<ACCESS, FOUND>(p, w, end);
    float *partials =
        (float *)((uint8_t *)smem + sm90_gemv_tokens_at(false, warps) + tokens * (int)sm90_gemv_token_bytes(s.k_steps));
    prepare_sums(s, tokens, partials);
    if (threadIdx.x < sizeof(sm90_gemv_head::zeros) / 16) smem[threadIdx.x] = make_uint4(0, 0, 0, 0);
    if (COPIED) {
        __syncthreads(); /* token_arrived is initialised */
        if constexpr (!HALVED) {
            pair_tokens(s, w, tokens);
        } else {
            as_halves = halving_of_token(s, w);
            pair_tokens(s, w, tokens,
                        [&](const uint4 &v) { return as_halves.is_exact ? halves_of(v, as_halves.scale) : v; });
        }
    } else {
        for (;;) {
            store_chunks<KIND>(s, at, per_token, tokens, batch);
            if (at.token >= tokens) break;
            load_chunks<KIND, ACCESS>(p, from, w, at, per_token, batch);
        }
    }
    __syncthreads();
    expect_sums(s, w, s.cluster * tokens);
    const auto multiply_all = [&](auto of_warp) { main_loop<ACCESS, TALL, 1>(p, w, ahead, ring, of_warp); };
    if (HALVED && as_halves.is_exact)
        multiply_all(products<FP16, COUNT>(w, s, tokens, partials));
    else
        multiply_all(products<KIND, COUNT>(w, s, tokens, partials));
    __syncthreads();
    const float product_scale = KIND == CODES ? NVFP4_UNIT * NVFP4_UNIT : NVFP4_UNIT * as_halves.inverse;
    if constexpr (ACCESS == DUAL) {
        if (EXPERTS && experts->encoded.wanted)
            return encode_pairs(p, experts->encoded, w, end, product_scale, partials);
        return finish_pairs(p, w, end, product_scale, partials);
    }
    finish_sums<ACCESS, FOUND>(p, w, tokens, end, product_scale, partials);
}

#define GEMV(name, KIND, COUNT, ACCESS)                                   \
    extern "C" __global__ void __launch_bounds__(32 * SM90_GEMV_WARPS, 1) \
        sm90_gemv_##name(const __grid_constant__ sm90_gemv_args p)        \
    {                                                                     \
        gemv<KIND, COUNT, ACCESS, false>(p, nullptr);                     \
    }
#define GEMVS(name, KIND, COUNT)               \
    GEMV(name##_linear, KIND, COUNT, LINEAR)   \
    GEMV(name##_blocked, KIND, COUNT, BLOCKED) \
    GEMV(name##_narrow, KIND, COUNT, NARROW)

GEMVS(fp16, FP16, ONE)
GEMVS(bf16, BF16, ONE)
GEMV(fp16_dual, FP16, ONE, DUAL)
GEMV(bf16_dual, BF16, ONE, DUAL)

#define EXPERTS(name, KIND, ACCESS)                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * SM90_GEMV_WARPS, 1) sm90_gemv_experts_##name(  \
        const __grid_constant__ sm90_gemv_args p, const __grid_constant__ sm90_gemv_experts experts) \
    {                                                                                                \
        gemv<KIND, ONE, ACCESS, true>(p, &experts);                                                  \
    }
#define EXPERTS_OF(name, KIND)             \
    EXPERTS(name##_linear, KIND, LINEAR)   \
    EXPERTS(name##_blocked, KIND, BLOCKED) \
    EXPERTS(name##_dual, KIND, DUAL)

EXPERTS_OF(codes, CODES)
EXPERTS_OF(fp16, FP16)
EXPERTS_OF(bf16, BF16)
GEMVS(few_codes, CODES, FEW)
GEMVS(few_fp16, FP16, FEW)
GEMVS(few_bf16, BF16, FEW)
