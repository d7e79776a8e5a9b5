/* D[l,n] = convert(alpha[n] * sum_k X[l,k] W[l,n,k] + bias[n]) for one NVFP4 token: W is read once.
 *
 * E2M1 is E4M3 after moving bits, in fewer instructions than it takes to make halves of it; products are wgmma's, from
 * W in registers. Sums of a block are multiples of 1/4 up to 576, exact in its accumulators; the product of both scale
 * factors is exact in a half: one rounded addition for each block.
 *
 * Work: see sm90_gemv_config.h. A step of a team, four warps, is a tile of rows of W, one octet or two for each warp,
 * and a unit of K.
 *
 * Roles: all warps alike. A warp fetches whole lines, steps ahead (cp.async), into slots of its own. Lane (g, c) =
 * (lane / 4, lane % 4) takes two chunks of 32 elements, two blocks each, of row g of each octet. The words of a chunk,
 * one of each octet, are A of one wgmma each: any order of K will do where both sides have it. The columns of B are
 * blocks: column 2c has the token's values where lane c's first block is, 2c + 1 where its second is, zeros elsewhere.
 * First and second blocks are multiplied with the same B into different D, of which only the even and only the odd
 * columns mean anything: the sums of a lane's own blocks, in its own registers.
 *
 * Barriers: a warp's before it reads a slot, which also frees the slot of the step before; a CTA's once the token is in
 * shared memory, for the asynchronous proxy too, and once all partial sums are; where CTAs share rows, a cluster's once
 * their inboxes are ready, and an mbarrier of each that counts the bytes of sums that have come. The kernels before
 * this one have ended when the first thing is read, or the first but weights (griddepcontrol); the next kernel may come
 * as soon as there is room, it waits likewise.
 *
 * Memory: see sm90_gemv_config.h. Of a unit of the token: B [chunk of a lane][word of a block][half][column][16 bytes];
 * behind all units their scale factors as halves [unit][chunk][block]. */
#include "sm90_gemv_sums.cuh"

/* ---------------------------------------------------------------------------------------------------------------- */
/* The token into shared memory                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

#define BATCH 2 /* chunks that a thread has under way */

/* Products of two scale factors, eight significant bits, are exact in halves if one of them is divided by this: they
 * lie between 2^-22 and 12544. */
#define TOKEN_SF_UNIT 16.0f

/* A chunk of the token with its two scale factors. */
typedef struct item {
    uint4 codes;
    uint32_t sf;
} item;

/* The CTA's part of the token. */
typedef struct source {
    const uint8_t *codes, *sf;
    bool blocked;
    int words;
} source;

/* Kept: the compiler would work it out behind the wait for the kernels before this one. */
__device__ inline source source_of(const sm90_gemv_args &p, const share &w)
{
    const int k = w.first_unit * SM90_GEMV_UNIT;
    const uint8_t *sf = sf_at(p.a, w.l, 0, k / NK_SF_VEC, p.work.all_words / (NK_SF_VEC / 8));
    return {kept_global(p.a.data + w.l * p.a.batch_stride + k / 2), kept_global(sf), p.a.sf_layout == NK_SF_BLOCKED,
            w.words};
}

template <int PATH> __device__ inline item load_item(const source &from, int chunk)
{
    item out = {make_uint4(0, 0, 0, 0), 0};
    const int words = from.words - 4 * chunk;
    if (words <= 0) return out;
    const uint8_t *codes = from.codes + chunk * 16,
                  *sf = from.sf + (from.blocked ? (chunk >> 1) * NK_SF_ATOM_BYTES + (chunk & 1) * 2 : chunk * 2);
    out.codes = PATH == NARROW ? fetch_bytes(codes, 4 * words) : *(const uint4 *)codes;
    out.sf = PATH == NARROW ? fetch_factors(sf, min(words, 4)) : *(const uint16_t *)sf;
    return out;
}

/* Four bytes in the place of lane c, zeros in those of the other lanes. */
__device__ inline uint4 alone(uint32_t bytes, int c)
{
    return make_uint4(c == 0 ? bytes : 0, c == 1 ? bytes : 0, c == 2 ? bytes : 0, c == 3 ? bytes : 0);
}

__device__ inline void store_item(const item &v, int chunk, uint32_t values, uint32_t factors)
{
    const uint32_t words[4] = {v.codes.x, v.codes.y, v.codes.z, v.codes.w};
    const int c = chunk >> 1 & 3;
    const uint32_t to = values + (chunk / SM90_GEMV_CHUNKS * 4 + (chunk & 1) * 2) * SM90_GEMV_B_BYTES + c * 32;
#pragma unroll
    for (int word = 0; word < 4; word++) {
        uint32_t even, odd;
        e2m1x8_to_e4m3x4(words[word], even, odd);
        const uint32_t row = to + (word & 1) * SM90_GEMV_B_BYTES + (word >> 1) * 16;
        st_shared_v4(row, alone(even, c));
        st_shared_v4(row + SM90_GEMV_B_BYTES / 2, alone(odd, c));
    }
    const uint32_t scales = cvt_f16x2_e4m3x2(v.sf & 0x7F7F);
    const __half2 small = __hmul2(*(const __half2 *)&scales, __float2half2_rn(1 / TOKEN_SF_UNIT));
    st_shared(factors + chunk * 4, *(const uint32_t *)&small);
}

template <int PATH> __device__ inline void load_items(const source &from, int first, item batch[BATCH])
{
#pragma unroll
    for (int i = 0; i < BATCH; i++)
        batch[i] = load_item<PATH>(from, first + i * blockDim.x + threadIdx.x);
}

__device__ inline void store_items(int first, int chunks, const item batch[BATCH], uint32_t values, uint32_t factors)
{
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        const int chunk = first + i * blockDim.x + threadIdx.x;
        if (chunk < chunks) store_item(batch[i], chunk, values, factors);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Products                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

/* From one unit of the token to the next: of its descriptor, of its scale factors. */
#define UNIT_OF_B (4 * SM90_GEMV_B_BYTES / 16)
#define UNIT_OF_X (SM90_GEMV_UNIT / NK_SF_VEC * 2)

/* Words of a chunk of an octet into A of two wgmma each. */
template <int OCTET> __device__ inline void decode(const uint4 &codes, uint32_t a[4][4])
{
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int word = 0; word < 4; word++)
        e2m1x8_to_e4m3x4(words[word], a[word][OCTET], a[word][OCTET + 2]);
}

/* d[first or second blocks] = chunk j times its B, on its way. */
template <int OCTETS> __device__ inline void begin_products(const weights &w, int j, uint64_t b, float d[2][4])
{
    uint32_t a[4][4] = {};
    decode<0>(w.codes[0][j], a);
    if (OCTETS == TALL) decode<1>(w.codes[1][j], a);
    wgmma_fence(a);
#pragma unroll
    for (int block = 0; block < 2; block++) {
        wgmma_m64n8k32_e4m3<false>(d[block], a[2 * block], b);
        wgmma_m64n8k32_e4m3<true>(d[block], a[2 * block + 1], b + SM90_GEMV_B_BYTES / 16);
    }
    wgmma_commit_group();
}

/* sums[octet] += chunk j's sums times the scale factors of W, whose signs do not count, and of the token (x). */
template <int OCTETS>
__device__ inline void add_products(const weights &w, int j, uint32_t x, const float d[2][4], float sums[2])
{
#pragma unroll
    for (int o = 0; o < OCTETS; o++) {
        const uint32_t halves = cvt_f16x2_e4m3x2(w.sf[o] >> 16 * j & 0xFFFF);
        const float2 scale = __half22float2(__hmul2(__habs2(*(const __half2 *)&halves), *(const __half2 *)&x));
        sums[o] = __fmaf_rn(d[0][2 * o], scale.x, sums[o]);
        sums[o] = __fmaf_rn(d[1][2 * o + 1], scale.y, sums[o]);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Steps of a team: where it has as many its part of the token is long, and the ring is full before that is there. */
#define LONG_RUN 8

/* What walk() does with a team's steps. */
template <int OCTETS> struct products {
    const share &w;
    const sm90_gemv_work &s;
    float *partials;
    uint64_t first_b, b;
    uint32_t first_x, x_at;
    float sums[2];

    __device__ products(const share &w, const sm90_gemv_work &s, uint32_t values, uint32_t factors, float *partials)
        : w(w), s(s), partials(partials), first_b(wgmma_b32_descriptor(values)),
          first_x(factors + (threadIdx.x & 3) * 8), sums{0, 0}
    {
    }

    __device__ void begin_tile(int unit)
    {
        b = first_b + unit * UNIT_OF_B;
        x_at = first_x + unit * UNIT_OF_X;
    }

    __device__ void step(const weights &now)
    {
        float d[2][2][4];
        begin_products<OCTETS>(now, 0, b, d[0]);
        begin_products<OCTETS>(now, 1, b + UNIT_OF_B / 2, d[1]);
        const uint2 x = ld_shared_v2(x_at);
        b += UNIT_OF_B;
        x_at += UNIT_OF_X;
        wgmma_wait_group<1>(d[0]);
        add_products<OCTETS>(now, 0, x.x, d[0], sums);
        wgmma_wait_group<0>(d[1]);
        add_products<OCTETS>(now, 1, x.y, d[1], sums);
    }

    __device__ void end_tile(int tile) { keep_row_sums<OCTETS, SM90_GEMV_TEAM>(w, s, tile, sums, partials); }
};

template <int PATH, int OCTETS> __device__ inline void gemv(const sm90_gemv_args &p)
{
    constexpr bool FOUND = OCTETS == TALL; /* where tiles are short the token would be there later for it */
    const sm90_gemv_work &s = p.work;
    const int warps = blockDim.x >> 5;
    const share w = share_of_warp<PATH, OCTETS, SM90_GEMV_TEAM>(p);
    const int chunks = w.units * SM90_GEMV_CHUNKS;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(smem), values = base + sm90_gemv_tokens_at(warps),
                   factors = values + s.units * 4 * SM90_GEMV_B_BYTES, ring = ring_of_warp(base);
    cursor ahead;
    item batch[BATCH];
    prepare(w, ahead);
    enter_tile<PATH, OCTETS, SM90_GEMV_TEAM>(p, w, w.tile, w.unit, ahead);
    griddepcontrol_launch_dependents();
    prefetch_codes<OCTETS>(ahead);
    prefetch_factors<OCTETS>(ahead);
    const source from = source_of(p, w);
    /* Waits for the kernels before this one, then asks for the token; nothing but weights is read before. */
    const auto begin_token = [&] {
        griddepcontrol_wait();
        load_items<PATH>(from, 0, batch);
    };
    if (!s.early) begin_token();
    fill_ring<PATH, OCTETS, SM90_GEMV_TEAM>(p, w, ahead, ring);
    if (s.early) begin_token();
    if (OCTETS == TALL && s.run >= LONG_RUN) { /* memory would idle: one step more than the ring has room for */
        prefetch_codes<OCTETS>(ahead);
        prefetch_factors<OCTETS>(ahead);
    }
    ending end = ending_of<1>(s, w, 1);
    prepare_end<PATH, FOUND>(p, w, end);
    for (int first = 0;;) {
        store_items(first, chunks, batch, values, factors);
        if ((first += BATCH * blockDim.x) >= chunks) break;
        load_items<PATH>(from, first, batch);
    }
    float *partials = (float *)((uint8_t *)smem + sm90_gemv_sums_at(warps, s.units * SM90_GEMV_CODES_BYTES));
    prepare_sums(s, w, 1, partials);
    fence_proxy_async();
    __syncthreads();
    expect_sums(s, w, 1);
    products<OCTETS> of_team(w, s, values, factors, partials);
    walk<PATH, OCTETS, SM90_GEMV_TEAM>(p, w, ahead, ring, of_team);
    __syncthreads();
    finish_sums<PATH, FOUND>(p, w, 1, end, NVFP4_E4M3_UNIT * NVFP4_E4M3_UNIT * TOKEN_SF_UNIT, partials);
}

#define GEMV(name, PATH, OCTETS)                                          \
    extern "C" __global__ void __launch_bounds__(32 * SM90_GEMV_WARPS, 1) \
        sm90_gemv_##name(const __grid_constant__ sm90_gemv_args p)        \
    {                                                                     \
        gemv<PATH, OCTETS>(p);                                            \
    }

GEMV(codes_linear, LINEAR, TALL)
GEMV(codes_blocked, BLOCKED, TALL)
GEMV(codes_short_linear, LINEAR, SHORT)
GEMV(codes_short_blocked, BLOCKED, SHORT)
GEMV(codes_short_narrow, NARROW, SHORT)
