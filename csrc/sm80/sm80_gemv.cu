/* D[l,n] = convert(alpha[n] * sum_k X[l,k] W[l,n,k] + bias[n]): the gemm of one token, at memory speed.
 *
 * Work:     an item is four rows of W, 32 apart. A CTA takes a contiguous range of all items of all batches; `split` of
 *           its eight warps share a row's K, the others take the next items.
 * Roles:    all warps alike. Lane j of a warp takes chunks of 32 elements (16 bytes of codes) of each of the four rows,
 *           multiplies them with the vector from shared memory and keeps fp32 sums.
 * Sums:     W4A4: products of codes in fp16 pairs, eight to a lane and block: quarters times 2^-1, at most 1152 of the
 *           smallest unit, so exact; then in fp32 dot * (sfw * sfx), which is exact too, and one rounded addition.
 *           Halves: fp32 fused multiply-adds, then the block's scale factor.
 * Barriers: one around each staging of the vector; one per item where warps share a row (partial sums are
 * double-buffered, so that the next item's writes cannot meet this item's reads). Memory:   see sm80_gemv_config.h. */
#include "../cuda/nvfp4.cuh"
#include "sm80_gemv_config.h"

enum { CODES, HALVES, BFLOATS };

#define THREADS (32 * SM80_GEMV_WARPS)
#define ROWS SM80_GEMV_ROWS

extern __shared__ uint4 smem[];

/* ---------------------------------------------------------------------------------------------------------------- */
/* Fetching: wide where the host found every address aligned and K % 32 = 0, else bytes, zeros beyond K             */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The first `valid` of 16 bytes; the rest is zero. */
__device__ inline uint4 fetch_bytes(const uint8_t *at, int64_t valid)
{
    uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; w++) {
        words[w] = 0;
        for (int i = 0; i < 4 && 4 * w + i < valid; i++)
            words[w] |= (uint32_t)at[4 * w + i] << 8 * i;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* The SF of blocks 2 chunk and 2 chunk + 1, in the low two bytes; zero beyond K. */
__device__ inline uint32_t fetch_sf_bytes(const nk_operand &o, int64_t l, int64_t row, int64_t chunk, int64_t cols)
{
    const uint8_t *at = sf_at(o, l, row, 2 * chunk, cols);
    if (2 * chunk >= cols) return 0;
    return 2 * chunk + 1 < cols ? at[0] | at[1] << 8 : at[0];
}

/* A lane's share of four rows. */
typedef struct rows {
    uint4 codes[ROWS];
    uint32_t sf[ROWS];
} rows;

__device__ inline int64_t present(int64_t row, int r, int64_t n)
{
    return row + 32 * r < n ? row + 32 * r : row; /* for a row that is not there any other: it will not be stored */
}

__device__ inline void fetch_wide(const nk_gemm_problem &p, const uint8_t *w, int64_t l, int64_t row, int64_t chunk,
                                  rows &out)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        out.codes[r] = __ldg((const uint4 *)(w + present(row, r, p.n) * p.b.row_stride + chunk * 16));
    }
    if (p.b.sf_layout == NK_SF_BLOCKED) { /* the four rows' factors of 64 elements are neighbours */
        const uint8_t *at = sf_at(p.b, l, row, chunk / 2 * 4, p.k / NK_SF_VEC);
        const uint4 four = __ldg((const uint4 *)at);
        const uint32_t words[ROWS] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            out.sf[r] = words[r] >> chunk % 2 * 16;
    } else {
        const uint8_t *at = p.b.sf + l * p.b.sf_batch_stride + 2 * chunk;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            out.sf[r] = __ldg((const uint16_t *)(at + present(row, r, p.n) * p.b.sf_row_stride));
        }
    }
}

__device__ inline void fetch_narrow(const nk_gemm_problem &p, const uint8_t *w, int64_t l, int64_t row, int64_t chunk,
                                    rows &out)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int64_t n = present(row, r, p.n);
        out.codes[r] = fetch_bytes(w + n * p.b.row_stride + chunk * 16, p.k / 2 - chunk * 16);
        out.sf[r] = fetch_sf_bytes(p.b, l, n, chunk, p.k / NK_SF_VEC);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The vector                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Chunks first .. first + count into shared memory, in the pair order of the decode. */
template <int KIND> __device__ inline void stage_vector(const nk_gemm_problem &p, int64_t l, int64_t first, int count)
{
    const uint8_t *x = p.a.data + l * p.a.batch_stride;
    for (int i = threadIdx.x; i < 4 * count; i += THREADS) {
        int word = i & 3, slot = i >> 2;
        int64_t k = (first + slot) * SM80_GEMV_CHUNK + word * 8;
        uint32_t pairs[4];
        if (KIND == CODES) {
            uint4 bytes = fetch_bytes(x + k / 2, k < p.k ? 4 : 0); /* K % 16 = 0: all four or none */
            e2m1x8_to_half2x4(bytes.x, pairs);
            const __half2 to_value = __half2half2(__ushort_as_half(0x7400)),
                          to_unit = __half2half2(__ushort_as_half(0x7000));
#pragma unroll
            for (int j = 0; j < 4;
                 j++) { /* times 2^14, then 2^13: sums of products stay fp16 integers of small units */
                __half2 value = __hmul2(__hmul2(*(__half2 *)&pairs[j], to_value), to_unit);
                pairs[j] = *(uint32_t *)&value;
            }
        } else {
            uint32_t v[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                v[j] = k < p.k ? *(const uint16_t *)(x + (k + j) * p.a.k_stride) : 0;
#pragma unroll
            for (int j = 0; j < 4; j++)
                pairs[j] = v[j] | v[j + 4] << 16;
        }
        smem[word * count + slot] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        if (KIND == CODES && word == 0) {
            uint32_t sf = fetch_sf_bytes(p.a, l, 0, first + slot, p.k / NK_SF_VEC);
            ((float2 *)(smem + 4 * count))[slot] = make_float2(e4m3_to_float(sf), e4m3_to_float(sf >> 8));
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Products                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

__device__ inline float2 pair_to_float2(uint32_t pair, int kind)
{
    if (kind == BFLOATS) return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000));
    return __half22float2(*(__half2 *)&pair);
}

/* A lane's 32 elements of one row; x[word] and sfx are the vector's. */
template <int KIND> __device__ inline float dot_chunk(uint4 codes, uint32_t sf, const uint4 x[4], float2 sfx, float sum)
{
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int block = 0; block < 2; block++) {
        float scale = e4m3_to_float(block ? sf >> 8 : sf);
        uint32_t w[8];
        e2m1x8_to_half2x4(words[2 * block], w);
        e2m1x8_to_half2x4(words[2 * block + 1], w + 4);
        const uint4 low = x[2 * block], high = x[2 * block + 1];
        const uint32_t v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        if (KIND == CODES) {
            __half2 dot = __hmul2(*(__half2 *)&w[0], *(const __half2 *)&v[0]);
#pragma unroll
            for (int i = 1; i < 8; i++)
                dot = __hfma2(*(__half2 *)&w[i], *(const __half2 *)&v[i], dot);
            float2 halves = __half22float2(dot);
            /* The products carry 2^-14 * 2^13. */
            sum = __fmaf_rn(halves.x + halves.y, 2.0f * scale * (block ? sfx.y : sfx.x), sum);
        } else {
            float dot = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float2 a = __half22float2(*(__half2 *)&w[i]), b = pair_to_float2(v[i], KIND);
                dot = __fmaf_rn(a.x, b.x, dot);
                dot = __fmaf_rn(a.y, b.y, dot);
            }
            sum = __fmaf_rn(dot, NVFP4_UNIT * scale, sum);
        }
    }
    return sum;
}

/* Adds the products of a warp's chunks `first`, + stride, .. of a segment to its four rows' sums. */
template <int KIND, bool WIDE>
__device__ inline void dot_rows(const nk_gemm_problem &p, int64_t l, int64_t row, int64_t segment, int count, int first,
                                int stride, float sums[ROWS])
{
    const uint8_t *w = p.b.data + l * p.b.batch_stride;
#pragma unroll(WIDE ? 2 : 1)
    for (int slot = first; slot < count; slot += stride) {
        rows w4;
        uint4 x[4];
        float2 sfx = make_float2(1, 1);
        if (WIDE)
            fetch_wide(p, w, l, row, segment + slot, w4);
        else
            fetch_narrow(p, w, l, row, segment + slot, w4);
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = smem[i * count + slot];
        if (KIND == CODES) sfx = ((const float2 *)(smem + 4 * count))[slot];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            sums[r] = dot_chunk<KIND>(w4.codes[r], w4.sf[r], x, sfx, sums[r]);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

__device__ inline void store_row(const nk_gemm_problem &p, int64_t l, int64_t n, float sum)
{
    if (n < p.n) store_float(output_at(p.d, l, 0, n), p.d.dtype, scale_and_add(p.alpha, p.bias, n, sum));
}

/* `items_per_cta` is a multiple of the items that a CTA has in hand at once, WARPS / split. `chunks` are staged at
 * once. */
template <int KIND, bool WIDE>
__device__ inline void gemv(const nk_gemm_problem &p, int split, int chunks, int64_t items_per_cta)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, at_once = SM80_GEMV_WARPS / split;
    const int64_t groups = sm80_gemv_groups(p.n), total = nk_ceil_div(p.k, SM80_GEMV_CHUNK);
    float *partials = (float *)((char *)smem + (int64_t)chunks * SM80_GEMV_CHUNK_BYTES);
    int64_t item = blockIdx.x * items_per_cta, end = min(item + items_per_cta, p.l * groups), staged = -1;
    for (int turn = 0; item < end; item += at_once, turn ^= 1) {
        const int64_t mine = item + warp / split;
        float sums[ROWS] = {0, 0, 0, 0};
        /* Items of two batches may be in hand at once, so each batch among them is a pass of its own. */
        const int64_t last = (min(item + at_once, end) - 1) / groups;
        for (int64_t l = item / groups; l <= last; l++) {
            for (int64_t segment = 0; segment < total; segment += chunks) {
                const int count = (int)min((int64_t)chunks, total - segment);
                if (staged != l * total + segment) {
                    __syncthreads();
                    stage_vector<KIND>(p, l, segment, count);
                    staged = l * total + segment;
                    __syncthreads();
                }
                if (mine >= end || mine / groups != l) continue;
                const int64_t group = mine % groups, row = group / 32 * NK_SF_ATOM_ROWS + group % 32;
                dot_rows<KIND, WIDE>(p, l, row, segment, count, warp % split * 32 + lane, split * 32, sums);
            }
        }
        /* Lane 8 r of a warp ends with row r. */
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int distance = 16; distance; distance >>= 1)
                sums[r] += __shfl_xor_sync(~0u, sums[r], distance);
        }
        float sum = lane == 0 ? sums[0] : lane == 1 ? sums[1] : lane == 2 ? sums[2] : sums[3];
        if (split > 1) {
            float *mates = partials + (turn * SM80_GEMV_WARPS + warp / split * split) * ROWS;
            if (lane < ROWS) mates[warp % split * ROWS + lane] = sum;
            __syncthreads();
            sum = 0;
            for (int i = 0; i < split && lane < ROWS; i++)
                sum += mates[i * ROWS + lane];
        }
        if (mine < end && warp % split == 0 && lane < ROWS) {
            const int64_t group = mine % groups, row = group / 32 * NK_SF_ATOM_ROWS + group % 32;
            store_row(p, mine / groups, row + 32 * lane, sum);
        }
    }
}

#define GEMV(name, KIND, WIDE)                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                      \
        sm80_gemv_##name(const __grid_constant__ nk_gemm_problem p, int split, int chunks, int64_t items_per_cta) \
    {                                                                                                             \
        gemv<KIND, WIDE>(p, split, chunks, items_per_cta);                                                        \
    }

GEMV(codes, CODES, true)
GEMV(halves, HALVES, true)
GEMV(bfloats, BFLOATS, true)
GEMV(codes_narrow, CODES, false)
GEMV(halves_narrow, HALVES, false)
GEMV(bfloats_narrow, BFLOATS, false)
