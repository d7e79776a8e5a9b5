/* out[m,h] = convert(sum + residual[m,h]), sum = fl(sum + fl(weights[m,j] products[row_of[m k + j],h])) for j = 0 ..
 * k-1 from +0 on. A row of -1, or any that the products do not have, adds nothing.
 *
 * Work: see combine_config.h. A thread makes neighbouring elements of one token, as many as the widest load has 16-bit
 * products. It asks for the row numbers and weights of some selections at once, then for its piece of their rows, and
 * then adds them in the order of j. So neither the grid nor other tokens change a bit.
 *
 * Roles: all threads alike. No barriers, no shared memory. */
#ifndef NK_COMBINE_CUH
#define NK_COMBINE_CUH

#include "combine_config.h"
#include "convert.cuh"
#include "cuda/ptx/global.cuh"
#include "cuda/ptx/grid.cuh"
#include "operand.cuh"
#include "pairs.cuh"
#include "vectors.cuh"

/* Elements of a row. */
template <nk_dtype DTYPE, int ELEMENTS> struct row_elements {
    static constexpr int SIZE = DTYPE == NK_F32 ? 4 : 2, CHUNKS = ELEMENTS * SIZE / 16, IN_CHUNK = 16 / SIZE;
    static constexpr int AT_ONCE = CHUNKS > 2 ? 4 : 8; /* rows that a thread asks for: 256 bytes at most */
    uint4 chunks[CHUNKS];

    /* BYTES: of a load, to which `at` is aligned. */
    template <int BYTES> __device__ void load(const uint8_t *at)
    {
#pragma unroll
        for (int i = 0; i < CHUNKS; i += BYTES / 16) {
            if constexpr (BYTES == 32) {
                uint32_t v[8];
                ld_global_v8(at + 16 * i, v);
                chunks[i] = make_uint4(v[0], v[1], v[2], v[3]);
                chunks[i + 1] = make_uint4(v[4], v[5], v[6], v[7]);
            } else {
                chunks[i] = ((const uint4 *)at)[i];
            }
        }
    }

    __device__ float operator[](int i) const
    {
        const uint4 &chunk = chunks[i / IN_CHUNK];
        if (DTYPE == NK_F32) return __uint_as_float(word_of(chunk, i % IN_CHUNK));
        return float_of<DTYPE == NK_BF16>(word_of(chunk, i % IN_CHUNK / 2), i % 2);
    }
};

/* A weight as it lies in memory, converted only once all loads are under way. */
__device__ inline uint32_t load_weight(const uint8_t *at, nk_dtype dtype)
{
    return dtype == NK_F32 ? *(const uint32_t *)at : *(const uint16_t *)at;
}

__device__ inline float weight_of_bits(uint32_t bits, nk_dtype dtype)
{
    return dtype == NK_F32    ? __uint_as_float(bits)
           : dtype == NK_BF16 ? float_of<true>(bits, 0)
                              : float_of<false>(bits, 0);
}

/* Adds the rows of all selections of token m: ROWS of them at once, since a row's number is one trip to memory and its
 * elements are another. Rows are aligned to BYTES, which a load takes. */
template <nk_dtype DTYPE, int ELEMENTS, int BYTES>
__device__ inline void add_rows(const nk_combine_problem &p, int64_t m, int64_t h, float sum[ELEMENTS])
{
    using elements = row_elements<DTYPE, ELEMENTS>;
    constexpr int ROWS = elements::AT_ONCE;
    const int32_t *row_of = p.row_of + m * p.k;
    const uint8_t *weights = p.weights.data + m * p.weights.row_stride;
    const uint8_t *products = p.products.data + h * elements::SIZE;
#pragma unroll 1
    for (int64_t j0 = 0; j0 < p.k; j0 += ROWS) {
        int32_t rows[ROWS];
        uint32_t bits[ROWS];
        elements pieces[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int64_t j = min(j0 + i, p.k - 1);
            rows[i] = row_of[j];
            bits[i] = load_weight(weights + j * p.weights.k_stride, p.weights.dtype);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            rows[i] = j0 + i < p.k ? nk_row_among(rows[i], p.rows) : -1;
            if (rows[i] >= 0) pieces[i].load<BYTES>(products + rows[i] * p.products.row_stride);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (rows[i] < 0) continue;
            const float weight = weight_of_bits(bits[i], p.weights.dtype);
#pragma unroll
            for (int e = 0; e < ELEMENTS; e++)
                sum[e] = __fadd_rn(sum[e], __fmul_rn(weight, pieces[i][e]));
        }
    }
}

/* The same for `count` elements at any address. */
template <int ELEMENTS>
__device__ inline void add_rows_narrow(const nk_combine_problem &p, int64_t m, int64_t h, int count,
                                       float sum[ELEMENTS])
{
    const uint8_t *weights = p.weights.data + m * p.weights.row_stride;
#pragma unroll 1
    for (int64_t j = 0; j < p.k; j++) {
        const int32_t row = nk_row_among(p.row_of[m * p.k + j], p.rows);
        if (row < 0) continue;
        const float weight = load_float(weights + j * p.weights.k_stride, p.weights.dtype);
        const uint8_t *at = p.products.data + row * p.products.row_stride + h * p.products.k_stride;
#pragma unroll
        for (int e = 0; e < ELEMENTS; e++) {
            if (e >= count) continue;
            const float value = load_float(at + e * p.products.k_stride, p.products.dtype);
            sum[e] = __fadd_rn(sum[e], __fmul_rn(weight, value));
        }
    }
}

/* It is read once for k rows, so element by element. */
template <int ELEMENTS>
__device__ inline void add_residual(const nk_operand &r, int64_t m, int64_t h, int count, float sum[ELEMENTS])
{
    const uint8_t *at = r.data + m * r.row_stride + h * r.k_stride;
#pragma unroll
    for (int e = 0; e < ELEMENTS; e++) {
        if (e < count) sum[e] = __fadd_rn(sum[e], load_float(at + e * r.k_stride, r.dtype));
    }
}

/* Sixteen neighbours, to 32 aligned bytes each. */
__device__ inline void store_sixteen(uint8_t *at, nk_dtype dtype, const float *v)
{
    uint32_t words[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        words[i] = __float_as_uint(v[i]);
    if (dtype == NK_F32) st_global_v8(at + 32, words + 8);
#pragma unroll
    for (int i = 0; i < 8 && dtype != NK_F32; i++)
        words[i] = dtype == NK_F16 ? pair_of<false>(v[2 * i], v[2 * i + 1]) : pair_of<true>(v[2 * i], v[2 * i + 1]);
    st_global_v8(at, words);
}

template <int ELEMENTS>
__device__ inline void store_combined(const nk_output &out, int64_t m, int64_t h, int count, int aligned,
                                      const float *v)
{
    uint8_t *at = output_at(out, 0, m, h);
    if (!aligned || count < ELEMENTS) {
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            if (i < count) store_float(at + i * out.col_stride, out.dtype, v[i]);
        }
    } else if (ELEMENTS == 16 && aligned == 32) {
        store_sixteen(at, out.dtype, v);
    } else if (out.dtype == NK_F32) {
#pragma unroll
        for (int i = 0; i < ELEMENTS / 4; i++)
            ((float4 *)at)[i] = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    } else if (out.dtype == NK_F16) {
#pragma unroll
        for (int i = 0; i < ELEMENTS; i += 8)
            *(uint4 *)(at + 2 * i) = pack_eight<false>(v + i);
    } else {
#pragma unroll
        for (int i = 0; i < ELEMENTS; i += 8)
            *(uint4 *)(at + 2 * i) = pack_eight<true>(v + i);
    }
}

/* BYTES: what a load takes at most. */
template <nk_dtype DTYPE, int BYTES>
__device__ inline void combine(const nk_combine_problem &p, const combine_aligned &aligned)
{
    constexpr int ELEMENTS = COMBINE_ELEMENTS(BYTES);
    const int64_t m = blockIdx.x, h = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * ELEMENTS;
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    if (h >= p.h) return;
    const int count = (int)min(p.h - h, (int64_t)ELEMENTS);
    float sum[ELEMENTS] = {};
    if (BYTES > 16 && aligned.products == BYTES && count == ELEMENTS)
        add_rows<DTYPE, ELEMENTS, BYTES>(p, m, h, sum);
    else if (aligned.products && count == ELEMENTS)
        add_rows<DTYPE, ELEMENTS, 16>(p, m, h, sum);
    else
        add_rows_narrow<ELEMENTS>(p, m, h, count, sum);
    if (p.residual.data) add_residual<ELEMENTS>(p.residual, m, h, count, sum);
    store_combined<ELEMENTS>(p.out, m, h, count, aligned.out, sum);
}

#define COMBINE_KERNEL(name, DTYPE, BYTES)                                                                  \
    extern "C" __global__ void __launch_bounds__(COMBINE_MOST_THREADS)                                      \
        name(const __grid_constant__ nk_combine_problem p, const __grid_constant__ combine_aligned aligned) \
    {                                                                                                       \
        combine<DTYPE, BYTES>(p, aligned);                                                                  \
    }

/* A row's. */
#define COMBINE_KERNELS(row, BYTES)                    \
    COMBINE_KERNEL(row##_combine_fp16, NK_F16, BYTES)  \
    COMBINE_KERNEL(row##_combine_bf16, NK_BF16, BYTES) \
    COMBINE_KERNEL(row##_combine_fp32, NK_F32, BYTES)

#endif
