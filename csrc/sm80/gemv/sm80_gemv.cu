/* D[l,n] = convert(alpha[n] * sum_k X[l,k] W[l,n,k] + bias[n]): the gemm of one token, at the speed of memory.
 *
 * Work: a CTA takes consecutive row quads of one batch's W: four rows, 32 apart. `split_k` of its eight warps
 * divide K of one quad among them, so that it takes 8 / split_k quads in each turn.
 *
 * Roles: all warps alike. A lane takes chunks of 32 elements (16 bytes of codes) of each of the four rows, multiplies
 * them by the vector in shared memory and adds in fp32. While it multiplies one step, the weights of the next are
 * under way, even if the next step is the next turn's: at the speed of memory nothing else counts.
 *
 * Sums: NVFP4 vector: a lane adds eight products of codes in each half of a pair. They are multiples of a quarter,
 * scaled by 2^-1; the sum is at most 1152 of them, so it is exact in fp16. In fp32, dot * (sfw * sfx) is exact as well,
 * and only its addition rounds. 16-bit vector: fused multiply-adds in fp32, then the block's scale factor.
 *
 * Barriers, all of the CTA (__syncthreads):
 *   threads that read a segment of the vector -> threads that write the next      before it is staged
 *   threads that wrote it -> threads that read it                                 after it is staged
 *   the warps of a quad -> the first of them      once a turn, if split_k > 1; the partial sums of two turns have two
 *                                                 buffers, so that the next turn's writes do not meet this turn's reads
 *
 * Shared memory: see sm80_gemv_config.h. */
#include "cuda/epilogue.cuh"
#include "cuda/nvfp4.cuh"
#include "cuda/sf_layout.cuh"
#include "sm80_gemv_config.h"

enum { X_NVFP4, X_FP16, X_BF16 }; /* what the vector is */

#define THREADS (32 * SM80_GEMV_WARPS)
#define ROWS SM80_GEMV_ROWS

extern __shared__ uint4 smem[];

/* ---------------------------------------------------------------------------------------------------------------- */
/* Fetching: wide if the host found all addresses aligned and K % 32 = 0; else byte by byte, zeros beyond K         */
/* ---------------------------------------------------------------------------------------------------------------- */

__device__ inline uint32_t load_codes_word(const uint8_t *at)
{
    if (((uintptr_t)at & 3) == 0) return __ldg((const uint32_t *)at);
    return at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24;
}

/* The scale factors of blocks 2 chunk and 2 chunk + 1 in the low two bytes; zero beyond K. */
__device__ inline uint32_t fetch_sf_bytes(const nk_operand &o, int64_t l, int64_t row, int64_t chunk, int64_t cols)
{
    const uint8_t *at = sf_at(o, l, row, 2 * chunk, cols);
    if (2 * chunk >= cols) return 0;
    return 2 * chunk + 1 < cols ? at[0] | at[1] << 8 : at[0];
}

/* What a lane multiplies in one step: a chunk of each of its four rows. */
typedef struct weight_chunks {
    uint4 codes[ROWS];
    uint32_t sf[ROWS];
    int chunk; /* of the segment; -1 if the lane has none */
} weight_chunks;

/* The order of a warp's steps. A segment is what shared memory holds of the vector at once. */
typedef struct step_order {
    int64_t end;       /* the CTA's last quad + 1 */
    int total;         /* chunks of a row */
    int chunks, steps; /* of a segment; all segments take as many steps */
    int first, stride; /* this lane's chunks of a segment */
    int at_once;       /* quads of a turn */
} step_order;

/* Which step a warp fetches. Steps go through the segments of a row, then to the next turn's quad. */
typedef struct quad_cursor {
    int64_t quad;
    int segment, step;
    int present; /* rows of the quad that exist; the first is read in place of the rest, whose sums are not stored */
    const uint8_t *codes, *sf;
} quad_cursor;

__device__ inline int64_t row_of(int64_t quad) { return (quad >> 5) * SF_ATOM_ROWS + (quad & 31); }

__device__ inline void enter_quad(const nk_gemm_problem &p, const step_order &order, int64_t l, int64_t quad,
                                  quad_cursor &c)
{
    const int64_t row = row_of(quad), rest = p.n - row;
    c.quad = quad;
    c.segment = c.step = 0;
    c.present = rest > 96 ? 4 : (int)(rest + 31) >> 5;
    c.codes = p.b.data + l * p.b.batch_stride + row * p.b.row_stride;
    c.sf = sf_at(p.b, l, row, 0, p.k / NK_SF_VEC);
}

__device__ inline void advance_cursor(const nk_gemm_problem &p, const step_order &order, int64_t l, quad_cursor &c)
{
    if (++c.step < order.steps) return;
    c.step = 0;
    c.segment += order.chunks;
    if (c.segment >= order.total) enter_quad(p, order, l, c.quad + order.at_once, c);
}

template <bool WIDE>
__device__ inline void fetch_weights(const nk_gemm_problem &p, const step_order &order, const quad_cursor &c, int64_t l,
                                     weight_chunks &out)
{
    const int of_segment = order.first + c.step * order.stride;
    const bool at_work = c.quad < order.end && of_segment < order.chunks && c.segment + of_segment < order.total;
    out.chunk = at_work ? of_segment : -1;
    if (!at_work) return;
    const int chunk = c.segment + of_segment;
    if (WIDE && p.b.sf_layout == NK_SF_BLOCKED) { /* the quad's factors of 64 elements are neighbours */
        const uint4 four = __ldg((const uint4 *)(c.sf + sf_bytes_of_atoms<int64_t>((uint32_t)chunk / 2)));
        const uint32_t words[ROWS] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            out.sf[r] = words[r] >> (chunk & 1) * 16;
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = r < c.present ? r : 0;
        const uint8_t *codes = c.codes + row * (32 * p.b.row_stride) + (int64_t)chunk * 16;
        if (WIDE) {
            out.codes[r] = __ldg((const uint4 *)codes);
            if (p.b.sf_layout == NK_SF_LINEAR) {
                out.sf[r] = __ldg((const uint16_t *)(c.sf + row * (32 * p.b.sf_row_stride) + 2 * (int64_t)chunk));
            }
        } else {
            out.codes[r] = fetch_bytes(codes, p.k / 2 - (int64_t)chunk * 16);
            out.sf[r] = fetch_sf_bytes(p.b, l, row_of(c.quad) + 32 * row, chunk, p.k / NK_SF_VEC);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The vector                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Chunks first .. first + count of the vector into shared memory, in the order in which weights are decoded. */
template <int KIND> __device__ inline void stage_vector(const nk_gemm_problem &p, int64_t l, int64_t first, int count)
{
    const uint8_t *x = p.a.data + l * p.a.batch_stride;
    for (int i = threadIdx.x; i < 4 * count; i += THREADS) {
        int word = i & 3, chunk = i >> 2;
        int64_t k = (first + chunk) * SM80_GEMV_CHUNK + word * 8;
        uint32_t pairs[4];
        if (KIND == X_NVFP4) {
            e2m1x8_to_f16x2(k < p.k ? load_codes_word(x + k / 2) : 0, pairs); /* K % 16 = 0: all of it or nothing */
            /* By 2^14 to the value, then by 2^13: the matrix has 2^-14, so products have 2^-1, and their sums are exact
             * in fp16. */
            const uint32_t to_value = 0x74007400, up = 0x70007000;
#pragma unroll
            for (int j = 0; j < 4; j++)
                pairs[j] = multiply_pairs<false>(multiply_pairs<false>(pairs[j], to_value), up);
        } else {
            uint32_t v[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                v[j] = k < p.k ? *(const uint16_t *)(x + (k + j) * p.a.k_stride) : 0;
#pragma unroll
            for (int j = 0; j < 4; j++)
                pairs[j] = v[j] | v[j + 4] << 16;
        }
        smem[word * count + chunk] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        if (KIND == X_NVFP4 && word == 0) {
            uint32_t sf = fetch_sf_bytes(p.a, l, 0, first + chunk, p.k / NK_SF_VEC);
            ((float2 *)(smem + 4 * count))[chunk] = make_float2(2 * e4m3_to_float(sf), 2 * e4m3_to_float(sf >> 8));
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Dot products                                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

template <bool BF16> __device__ inline float2 float2_of(uint32_t pair)
{
    return make_float2(float_of<BF16>(pair, 0), float_of<BF16>(pair, 1));
}

/* Adds a lane's chunk of one row, 32 elements, to `sum`. x[word] and sfx are the vector's; sfx holds the power of two
 * that the products lack. */
template <int KIND> __device__ inline float dot_chunk(uint4 codes, uint32_t sf, const uint4 x[4], float2 sfx, float sum)
{
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w}, scales = e4m3x2_to_f16x2(sf);
    const float2 sfw = __half22float2(*(const __half2 *)&scales);
#pragma unroll
    for (int block = 0; block < 2; block++) {
        const float scale = (block ? sfw.y : sfw.x) * (block ? sfx.y : sfx.x);
        uint32_t w[8];
        e2m1x8_to_f16x2(words[2 * block], w);
        e2m1x8_to_f16x2(words[2 * block + 1], w + 4);
        const uint4 low = x[2 * block], high = x[2 * block + 1];
        const uint32_t v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        if (KIND == X_NVFP4) {
            __half2 dot = __hmul2(*(__half2 *)&w[0], *(const __half2 *)&v[0]);
#pragma unroll
            for (int i = 1; i < 8; i++)
                dot = __hfma2(*(__half2 *)&w[i], *(const __half2 *)&v[i], dot);
            float2 pair = __half22float2(dot);
            sum = __fmaf_rn(pair.x + pair.y, scale, sum);
        } else {
            float dot = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float2 a = float2_of<false>(w[i]), b = float2_of<KIND == X_BF16>(v[i]);
                dot = __fmaf_rn(a.x, b.x, dot);
                dot = __fmaf_rn(a.y, b.y, dot);
            }
            sum = __fmaf_rn(dot, scale, sum);
        }
    }
    return sum;
}

/* Adds a step, of which `count` chunks of the vector are in shared memory. */
template <int KIND> __device__ inline void dot_rows(const weight_chunks &w, int count, float sums[ROWS])
{
    if (w.chunk < 0) return;
    uint4 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = smem[i * count + w.chunk];
    float2 sfx = KIND == X_NVFP4 ? ((const float2 *)(smem + 4 * count))[w.chunk]
                                 : make_float2(NVFP4_DECODE_SCALE, NVFP4_DECODE_SCALE);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        sums[r] = dot_chunk<KIND>(w.codes[r], w.sf[r], x, sfx, sums[r]);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The kernel                                                                                                       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The sums of a quad over the `split_k` warps that have it: lanes 8r .. 8r + 7 of the first of them get row r's. */
__device__ inline float split_k_sum(const float sums[ROWS], int split_k, float *partials)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const bool upper = lane & 16, odd = lane & 8;
    /* Each half of the warp keeps two rows and gives two to the other half; then each quarter keeps one. */
    float even_row = (upper ? sums[2] : sums[0]) + __shfl_xor_sync(~0u, upper ? sums[0] : sums[2], 16);
    float odd_row = (upper ? sums[3] : sums[1]) + __shfl_xor_sync(~0u, upper ? sums[1] : sums[3], 16);
    float sum = (odd ? odd_row : even_row) + __shfl_xor_sync(~0u, odd ? even_row : odd_row, 8);
#pragma unroll
    for (int distance = 4; distance; distance >>= 1)
        sum += __shfl_xor_sync(~0u, sum, distance);
    if (split_k == 1) return sum;
    float *mates = partials + warp / split_k * split_k * ROWS + lane / 8;
    if (lane % 8 == 0) mates[warp % split_k * ROWS] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < split_k; i++)
        sum += mates[i * ROWS];
    return sum;
}

/* Batch l has the `ctas_per_batch` CTAs from ctas_per_batch * l on. A segment has `chunks` chunks. */
template <int KIND, bool WIDE>
__device__ inline void gemv_of_quads(const nk_gemm_problem &p, int split_k, int chunks, int ctas_per_batch,
                                     int64_t quads_per_cta)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, member = warp % split_k;
    const int64_t l = blockIdx.x / ctas_per_batch, first = blockIdx.x % ctas_per_batch * quads_per_cta;
    const step_order order = {.end = min(first + quads_per_cta, sm80_gemv_row_quads(p.n)),
                              .total = (int)nk_ceil_div(p.k, SM80_GEMV_CHUNK),
                              .chunks = chunks,
                              .steps = (chunks + 32 * split_k - 1) / (32 * split_k),
                              .first = member * 32 + lane,
                              .stride = 32 * split_k,
                              .at_once = SM80_GEMV_WARPS / split_k};
    float *partials = (float *)((char *)smem + (int64_t)chunks * SM80_GEMV_CHUNK_BYTES);
    quad_cursor ahead;
    weight_chunks next;
    enter_quad(p, order, l, first + warp / split_k, ahead);
    fetch_weights<WIDE>(p, order, ahead, l, next);
    int staged = -1;
    for (int turn = 0; first + (int64_t)turn * order.at_once < order.end; turn++) {
        float sums[ROWS] = {0, 0, 0, 0};
        const int64_t quad = first + (int64_t)turn * order.at_once + warp / split_k;
        for (int segment = 0; segment < order.total; segment += chunks) {
            const int count = min(chunks, order.total - segment);
            if (staged != segment) {
                __syncthreads();
                stage_vector<KIND>(p, l, segment, count);
                staged = segment;
                __syncthreads();
            }
            for (int step = 0; step < order.steps; step++) {
                const weight_chunks current = next;
                advance_cursor(p, order, l, ahead);
                fetch_weights<WIDE>(p, order, ahead, l, next);
                dot_rows<KIND>(current, count, sums);
            }
        }
        float sum = split_k_sum(sums, split_k, partials + turn % 2 * SM80_GEMV_WARPS * ROWS);
        const int64_t n = row_of(quad) + lane / 8 * 32;
        if (quad < order.end && member == 0 && lane % 8 == 0 && n < p.n) {
            if (p.row_scale.data) sum = __fmul_rn(sum, p.row_scale.data[l * p.row_scale.batch_stride]);
            store_float(output_at(p.d, l, 0, n), p.d.dtype, scale_and_add(p.alpha, p.bias, n, sum));
        }
    }
}

#define GEMV(name, KIND, WIDE)                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, SM80_GEMV_CTAS_PER_SM) sm80_gemv_##name(                     \
        const __grid_constant__ nk_gemm_problem p, int split_k, int chunks, int ctas_per_batch, int64_t quads_per_cta) \
    {                                                                                                                  \
        gemv_of_quads<KIND, WIDE>(p, split_k, chunks, ctas_per_batch, quads_per_cta);                                  \
    }

GEMV(nvfp4, X_NVFP4, true)
GEMV(fp16, X_FP16, true)
GEMV(bf16, X_BF16, true)
GEMV(nvfp4_narrow, X_NVFP4, false)
GEMV(fp16_narrow, X_FP16, false)
GEMV(bf16_narrow, X_BF16, false)
