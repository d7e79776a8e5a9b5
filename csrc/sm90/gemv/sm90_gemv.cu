/* D[l,m,n] = convert(alpha[n] * sum_k X[l,m,k] W[l,n,k] + bias[n]) for up to eight tokens m: W is read once.
 *
 * Work: see sm90_gemv_config.h. A warp's step is a tile of W (two octets of rows) in one K step.
 *
 * Roles: all warps do the same. The lanes of the first warp also ask for the tokens that are copied. A warp fetches its
 * weights steps ahead, in whole lines, into slots of its own (cp.async). Lane (g, c) = (lane / 4, lane % 4) takes two
 * chunks of 32 elements of row g of each octet. It decodes them in registers into A of mma.m16n8k16. B is the tokens,
 * which lie in shared memory in the order of the decode. Any order of K is right where both operands have it.
 *
 * One token (ONE): the columns of B are blocks. A lane's chunk is two blocks, so the four chunks of an mma are eight.
 * Column 2c has the token's values in lane c's first block, column 2c + 1 in its second; elsewhere they are zero. First
 * and second blocks are multiplied by the same B into different D. Only the even columns of the one and the odd columns
 * of the other mean anything: they are the sums of a lane's own blocks, in its own registers. These sums take W's scale
 * factors as floats, with one rounded addition for each block, and are exact before it for NVFP4.
 *
 * More tokens (FEW): columns are tokens. W times its scale factors is exact in 16 bits, so sums stay in the tensor
 * cores.
 *
 * Barriers (mbarriers; all wait for parity 0, once):
 *   token_arrived[m]  bulk copy of token m -> the warps that pair it   1 arrival, of the lane that asks, + its bytes
 *   sums_arrived      CTAs of the cluster -> all threads               1 arrival, of thread 0, + the bytes of all sums
 *   __syncwarp()      before a warp reads a slot: all its copies have come; the slot of the step before is free
 *   __syncthreads()   token_arrived is initialised; tokens are in shared memory; partial sums are
 *   cluster (bar 0)   where CTAs share rows: sums_arrived is initialised, before others send sums
 *
 * Kernels before and after (griddepcontrol): this kernel waits until those before it have ended, then reads. Where
 * early reading is permitted, only weights are read before the wait. The next kernel may come as soon as there is room.
 *
 * Memory: see sm90_gemv_memory.h. ONE: lanes whose columns of B are zero read the zeros of the head. */
#include "cuda/ptx/grid.cuh"
#include "sm90_gemv_tokens.cuh"

enum { ONE, FEW };

/* ---------------------------------------------------------------------------------------------------------------- */
/* Products                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Where a lane reads B: the address of chunk 2c in K step 0, and the bytes to the next chunk and the next K step. FEW:
 * a lane reads token g; where there is no token g it reads the last one, and nobody stores that column. ONE: a lane
 * reads the block that is column g where that block is its own, else zeros. */
typedef struct reader {
    uint32_t at, chunk_step, k_step_bytes;
} reader;

template <int FORM> __device__ inline reader reader_of_lane(const sm90_gemv_work &s, int tokens)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
    const uint32_t chunk_bytes = SM90_GEMV_CHUNK * 2;
    if (FORM == FEW) return {token_at(s, min(g, tokens - 1)) + word_at(8 * c), chunk_bytes, SM90_GEMV_TOKEN_BYTES};
    if (g >> 1 != c) return {shared_address(head().zeros), 0, 0};
    return {token_at(s, 0) + word_at(8 * c + 2 * (g & 1)), chunk_bytes, SM90_GEMV_TOKEN_BYTES};
}

/* Decodes eight codes to four pairs. FEW: multiplies them by the block's scale factor, a pair of equal values. */
template <int KIND, int FORM> __device__ inline void decode(uint32_t codes, uint32_t scale, uint32_t pairs[4])
{
    if (FORM == FEW)
        decode_e2m1x8<KIND == BFLOATS>(codes, scale, pairs);
    else
        e2m1x8_to_pairs<KIND == BFLOATS>(codes, pairs);
}

/* One of two halves, twice. The compiler makes it part of the instruction that takes it; __byte_perm would be an
 * instruction of its own. */
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

/* Scale factors as bf16 times 2^112, which is exact. Codes are decoded to 2^-126 of their values, so that products
 * carry 2^-14, as in fp16. */
__device__ inline uint32_t bfloats_of(uint32_t halves)
{
    const float2 values = __half22float2(*(const __half2 *)&halves);
    return exact_bfloats(values.x * 0x1p112f, values.y * 0x1p112f);
}

/* Adds chunk 2c + j times B. ONE: to sums[octet]. FEW: to the sums in the order of an mma's D. */
template <int KIND, int FORM> __device__ inline void multiply(const weights &w, uint32_t b, int j, float sums[4])
{
    const uint32_t low[4] = {w.codes[0][j].x, w.codes[0][j].y, w.codes[0][j].z, w.codes[0][j].w};
    const uint32_t high[4] = {w.codes[1][j].x, w.codes[1][j].y, w.codes[1][j].z, w.codes[1][j].w};
    uint32_t scales[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t halves = magnitudes(cvt_f16x2_e4m3x2(w.sf[r] >> 16 * j));
        scales[r] = KIND == BFLOATS ? bfloats_of(halves) : halves;
    }
    float blocks[2][4] = {}; /* ONE: the sums of first and of second blocks */
    uint4 x[4];              /* ONE: both blocks take the same two words */
#pragma unroll
    for (int word = 0; word < (FORM == ONE ? 2 : 4); word++)
        x[word] = ld_shared_v4(b ^ word << 4);
#pragma unroll
    for (int word = 0; word < 4; word++) {
        const uint4 v = x[FORM == ONE ? word & 1 : word];
        uint32_t p[4], q[4];
        decode<KIND, FORM>(low[word], twice(scales[0], word >> 1), p);
        decode<KIND, FORM>(high[word], twice(scales[1], word >> 1), q);
        const uint32_t first[4] = {p[0], q[0], p[1], q[1]}, second[4] = {p[2], q[2], p[3], q[3]};
        float *d = FORM == ONE ? blocks[word >> 1] : sums;
        mma_pairs<KIND == BFLOATS>(d, first, v.x, v.y);
        mma_pairs<KIND == BFLOATS>(d, second, v.z, v.w);
    }
#pragma unroll
    for (int r = 0; r < (FORM == ONE ? 2 : 0); r++) {
        const float2 scale = __half22float2(*(__half2 *)&scales[r]);
        sums[r] = __fmaf_rn(blocks[0][2 * r], scale.x, sums[r]);
        sums[r] = __fmaf_rn(blocks[1][2 * r + 1], scale.y, sums[r]);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* What walk() does with a warp's steps. */
template <int KIND, int FORM> struct products {
    const team_work &w;
    const sm90_gemv_work &s;
    float *partials;
    int tokens;
    reader first;
    uint32_t b;
    float sums[4];

    __device__ products(const team_work &w, const sm90_gemv_work &s, int tokens, float *partials)
        : w(w), s(s), partials(partials), tokens(tokens), first(reader_of_lane<FORM>(s, tokens)), sums{0, 0, 0, 0}
    {
    }

    __device__ void begin_tile(int k_step) { b = first.at + k_step * first.k_step_bytes; }

    __device__ void step(const weights &now)
    {
        multiply<KIND, FORM>(now, b, 0, sums);
        multiply<KIND, FORM>(now, b + first.chunk_step, 1, sums);
        b += first.k_step_bytes;
    }

    __device__ void end_tile(int tile)
    {
        if (FORM == ONE)
            keep_row_sums<TALL, 1>(w, s, tile, sums, partials);
        else
            keep_token_sums(w, s, tile, tokens, sums, partials);
    }
};

template <int KIND, int FORM, int PATH> __device__ inline void gemv(const sm90_gemv_args &p)
{
    const sm90_gemv_work &s = p.work;
    const int warps = blockDim.x >> 5, tokens = FORM == ONE ? 1 : s.tokens;
    const team_work w = work_of_team<PATH, TALL, 1>(p);
    constexpr bool COPIED = KIND != CODES && PATH != NARROW;
    constexpr bool FOUND = KIND != CODES; /* with codes it would make the loop longer */
    const int per_token = w.k_steps * (KIND == CODES ? SM90_GEMV_CHUNKS : SM90_GEMV_WORDS);
    const uint32_t ring = ring_of_warp();
    chunk_number next_chunk_at = first_chunk_of_thread(per_token, tokens);
    cursor ahead;
    token_chunk batch[BATCH];
    if (COPIED) prepare_tokens(tokens);
    prepare(w, ahead);
    enter_tile<PATH, TALL, 1>(p, w, w.tile, w.k_step, ahead);
    griddepcontrol_launch_dependents();
    prefetch_codes<TALL>(ahead);
    const source from = source_of<KIND>(p, w);
    /* Waits for the kernels before this one, then asks for the tokens. */
    const auto begin_tokens = [&] {
        griddepcontrol_wait();
        if (COPIED)
            fetch_tokens(p, from, w);
        else
            load_token_chunks<KIND, PATH>(p, from, w, next_chunk_at, per_token, batch);
    };
    if (!s.early) {
        begin_tokens();
        fill_ring<PATH, TALL, 1>(p, w, ahead, ring);
    } else { /* apart, since one code for both orders makes ptxas's loop 3 % longer */
        fill_ring<PATH, TALL, 1>(p, w, ahead, ring);
        begin_tokens();
    }
    ending end = ending_of<FORM == ONE ? 1 : SM90_GEMV_TOKENS>(s, w, tokens);
    prepare_end<PATH, FOUND>(p, w, end);
    float *partials =
        (float *)((uint8_t *)smem + sm90_gemv_tokens_at(false, warps) + tokens * (int)sm90_gemv_token_bytes(s.k_steps));
    prepare_sums(s, tokens, partials);
    if (threadIdx.x < sizeof(sm90_gemv_head::zeros) / 16) smem[threadIdx.x] = make_uint4(0, 0, 0, 0);
    if (COPIED) {
        __syncthreads(); /* token_arrived is initialised */
        pair_tokens(s, w, tokens);
    } else {
        for (;;) {
            store_token_chunks<KIND>(s, next_chunk_at, per_token, tokens, batch);
            if (next_chunk_at.token >= tokens) break;
            load_token_chunks<KIND, PATH>(p, from, w, next_chunk_at, per_token, batch);
        }
    }
    __syncthreads();
    expect_sums(s, w, s.cluster * tokens);
    products<KIND, FORM> of_warp(w, s, tokens, partials);
    walk<PATH, TALL, 1>(p, w, ahead, ring, of_warp);
    __syncthreads();
    finish_sums<PATH, FOUND>(p, w, tokens, end, KIND == CODES ? NVFP4_UNIT * NVFP4_UNIT : NVFP4_UNIT, partials);
}

#define GEMV(name, KIND, FORM, PATH)                                      \
    extern "C" __global__ void __launch_bounds__(32 * SM90_GEMV_WARPS, 1) \
        sm90_gemv_##name(const __grid_constant__ sm90_gemv_args p)        \
    {                                                                     \
        gemv<KIND, FORM, PATH>(p);                                        \
    }
#define GEMVS(name, KIND, FORM)               \
    GEMV(name##_linear, KIND, FORM, LINEAR)   \
    GEMV(name##_blocked, KIND, FORM, BLOCKED) \
    GEMV(name##_narrow, KIND, FORM, NARROW)

GEMVS(halves, HALVES, ONE)
GEMVS(few_codes, CODES, FEW)
GEMVS(few_halves, HALVES, FEW)
GEMVS(few_bfloats, BFLOATS, FEW)
