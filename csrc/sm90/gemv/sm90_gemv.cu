/* D[l,m,n] = convert(alpha[n] * sum_k X[l,m,k] W[l,n,k] + bias[n]) for up to eight tokens m: W is read once.
 *
 * Work: see sm90_gemv_config.h. A step of a warp is a tile of rows of W, two octets, and a unit of K.
 *
 * Roles: all warps alike, but that the first one's lanes ask for the tokens that are copied. A warp fetches whole
 * lines, steps ahead (cp.async), into slots of its own. Lane (g, c) = (lane / 4, lane % 4) takes two chunks of 32
 * elements of row g of each octet, and decodes them in registers into A of mma.m16n8k16; B, the tokens, comes from
 * shared memory in the order of the decode: any order of K will do where both sides have it.
 *
 * One token (ONE): the columns of B are the blocks of the scale factors. A lane's chunk is two blocks, so the four
 * chunks of an mma are eight: column 2c has the token's values where lane c's first block is, 2c + 1 where its second
 * is, zeros elsewhere. First and second blocks are multiplied with the same B into different D, of which only the
 * even and only the odd columns mean anything: the sums of a lane's own blocks, in its own registers. They take W's
 * scale factors as floats: exact for NVFP4, one rounded addition for each block.
 *
 * More tokens (FEW): columns are tokens; W times its scale factors is exact in 16 bits, sums stay in the tensor cores.
 *
 * Barriers (mbarriers; all wait for parity 0, once):
 *   token_arrived[m]  bulk copy of token m -> the warps that pair it   1 arrival, of the lane that asks, + its bytes
 *   sums_arrived      CTAs of the cluster -> all threads               1 arrival, of thread 0, + the bytes of all sums
 *   __syncwarp()      before a warp reads a slot: all its copies have come; the slot of the step before is free
 *   __syncthreads()   token_arrived is initialised; tokens are in shared memory; partial sums are
 *   cluster (bar 0)   where CTAs share rows: sums_arrived is initialised, before others send sums
 *
 * Kernels before and after: griddepcontrol. The kernels before this one have ended when the first thing is read, or the
 * first but weights; the next kernel may come as soon as there is room, it waits likewise.
 *
 * Memory: see sm90_gemv_memory.h. ONE: lanes whose part of B is zero read the zeros at its beginning. */
#include "cuda/ptx/grid.cuh"
#include "sm90_gemv_tokens.cuh"

enum { ONE, FEW };

/* ---------------------------------------------------------------------------------------------------------------- */
/* Products                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Where a lane reads B: chunk 2c of unit 0, and how far on the next chunk and the next unit are. FEW: of token g, or,
 * for a column that nobody asks for, of the last one; ONE: of the block that is column g, where that is one of this
 * lane's. Other lanes read zeros. */
typedef struct reader {
    uint32_t at, chunk_step, unit_step;
} reader;

template <int FORM> __device__ inline reader reader_of_lane(const sm90_gemv_work &s, int tokens)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
    const uint32_t chunk_bytes = SM90_GEMV_CHUNK * 2;
    if (FORM == FEW) return {token_at(s, min(g, tokens - 1)) + word_at(8 * c), chunk_bytes, SM90_GEMV_TOKEN_BYTES};
    if (g >> 1 != c) return {shared_address(head().zeros), 0, 0};
    return {token_at(s, 0) + word_at(8 * c + 2 * (g & 1)), chunk_bytes, SM90_GEMV_TOKEN_BYTES};
}

/* Four pairs of eight codes; FEW: times the block's scale factor, a pair of equal values. */
template <int KIND, int FORM> __device__ inline void decode(uint32_t codes, uint32_t scale, uint32_t pairs[4])
{
    if (FORM == FEW)
        decode_e2m1x8<KIND == BFLOATS>(codes, scale, pairs);
    else
        e2m1x8_to_pairs<KIND == BFLOATS>(codes, pairs);
}

/* One of two halves twice, in the instruction that takes it: __byte_perm would be one of its own. */
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

/* Scale factors as bf16 times 2^112, exact: with the codes' 2^-126 products carry 2^-14, as in fp16. */
__device__ inline uint32_t bfloats_of(uint32_t halves)
{
    const float2 values = __half22float2(*(const __half2 *)&halves);
    return exact_bfloats(values.x * 0x1p112f, values.y * 0x1p112f);
}

/* sums[octet] (ONE) or sums[..] as an mma has them (FEW) += chunk 2c + j times B. */
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
    float blocks[2][4] = {}; /* ONE: of the first and the second blocks */
    uint4 x[4];              /* ONE: two words, which both blocks take */
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
    const share &w;
    const sm90_gemv_work &s;
    float *partials;
    int tokens;
    reader first;
    uint32_t b;
    float sums[4];

    __device__ products(const share &w, const sm90_gemv_work &s, int tokens, float *partials)
        : w(w), s(s), partials(partials), tokens(tokens), first(reader_of_lane<FORM>(s, tokens)), sums{0, 0, 0, 0}
    {
    }

    __device__ void begin_tile(int unit) { b = first.at + unit * first.unit_step; }

    __device__ void step(const weights &now)
    {
        multiply<KIND, FORM>(now, b, 0, sums);
        multiply<KIND, FORM>(now, b + first.chunk_step, 1, sums);
        b += first.unit_step;
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
    const share w = share_of_warp<PATH, TALL, 1>(p);
    constexpr bool COPIED = KIND != CODES && PATH != NARROW;
    constexpr bool FOUND = KIND != CODES; /* with codes the loop would be longer for it */
    const int per_token = w.units * (KIND == CODES ? SM90_GEMV_CHUNKS : SM90_GEMV_WORDS);
    const uint32_t ring = ring_of_warp();
    place items = first_place_of_thread(per_token, tokens);
    cursor ahead;
    item batch[BATCH];
    if (COPIED) prepare_tokens(tokens);
    prepare(w, ahead);
    enter_tile<PATH, TALL, 1>(p, w, w.tile, w.unit, ahead);
    griddepcontrol_launch_dependents();
    prefetch_codes<TALL>(ahead);
    const source from = source_of<KIND>(p, w);
    /* Waits for the kernels before this one, then asks for the tokens; nothing but weights is read before. */
    const auto begin_tokens = [&] {
        griddepcontrol_wait();
        if (COPIED)
            fetch_tokens(p, from, w);
        else
            load_items<KIND, PATH>(p, from, w, items, per_token, batch);
    };
    if (!s.early) {
        begin_tokens();
        fill_ring<PATH, TALL, 1>(p, w, ahead, ring);
    } else { /* code of its own: ptxas makes the loop 3 % longer where it has one for both */
        fill_ring<PATH, TALL, 1>(p, w, ahead, ring);
        begin_tokens();
    }
    ending end = ending_of<FORM == ONE ? 1 : SM90_GEMV_TOKENS>(s, w, tokens);
    prepare_end<PATH, FOUND>(p, w, end);
    float *partials =
        (float *)((uint8_t *)smem + sm90_gemv_tokens_at(false, warps) + tokens * (int)sm90_gemv_token_bytes(s.units));
    prepare_sums(s, tokens, partials);
    if (threadIdx.x < sizeof(sm90_gemv_head::zeros) / 16) smem[threadIdx.x] = make_uint4(0, 0, 0, 0);
    if (COPIED) {
        __syncthreads(); /* the tokens' barriers are ready */
        pair_tokens(s, w, tokens);
    } else {
        for (;;) {
            store_items<KIND>(s, items, per_token, tokens, batch);
            if (items.token >= tokens) break;
            load_items<KIND, PATH>(p, from, w, items, per_token, batch);
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
