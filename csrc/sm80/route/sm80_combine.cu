/* out[m,h] = convert(sum + residual[m,h]), sum = fl(sum + fl(weights[m,j] products[row_of[m k + j],h])) for j = 0 ..
 * k-1 from +0 on. A row of -1, or any that the products do not have, adds nothing.
 *
 * Work: see sm80_combine_config.h. A thread makes eight neighbouring elements of one token. It asks for the row numbers
 * and weights of eight selections at once, then for its piece of their rows, and then adds them in the order of j. So
 * neither the grid nor other tokens change a bit.
 *
 * Roles: all threads alike. No barriers, no shared memory. */
#include "cuda/convert.cuh"
#include "cuda/operand.cuh"
#include "cuda/pairs.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/vectors.cuh"
#include "sm80_combine_config.h"

#define ELEMENTS SM80_COMBINE_ELEMENTS
#define ROWS SM80_COMBINE_ROWS

/* Eight elements of a row. */
template <nk_dtype DTYPE> struct piece {
    static constexpr int SIZE = DTYPE == NK_F32 ? 4 : 2, CHUNKS = ELEMENTS * SIZE / 16, IN_CHUNK = 16 / SIZE;
    uint4 chunks[CHUNKS];

    __device__ void load(const uint8_t *at)
    {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            chunks[i] = ((const uint4 *)at)[i];
    }

    __device__ float operator[](int i) const
    {
        const uint4 &chunk = chunks[i / IN_CHUNK];
        if (DTYPE == NK_F32) return __uint_as_float(word_of(chunk, i % IN_CHUNK));
        return float_of<DTYPE == NK_BF16>(word_of(chunk, i % IN_CHUNK / 2), i % 2);
    }
};

/* A weight as it lies in memory, converted only once all loads are under way. */
__device__ inline uint32_t load_bits(const uint8_t *at, nk_dtype dtype)
{
    return dtype == NK_F32 ? *(const uint32_t *)at : *(const uint16_t *)at;
}

__device__ inline float float_of_bits(uint32_t bits, nk_dtype dtype)
{
    return dtype == NK_F32    ? __uint_as_float(bits)
           : dtype == NK_BF16 ? float_of<true>(bits, 0)
                              : float_of<false>(bits, 0);
}

/* Adds the rows of all selections of token m: ROWS of them at once, since a row's number is one trip to memory and its
 * elements are another. */
template <nk_dtype DTYPE>
__device__ inline void add_rows(const nk_combine_problem &p, int64_t m, int64_t h, float sum[ELEMENTS])
{
    const int32_t *row_of = p.row_of + m * p.k;
    const uint8_t *weights = p.weights.data + m * p.weights.row_stride;
    const uint8_t *products = p.products.data + h * piece<DTYPE>::SIZE;
#pragma unroll 1
    for (int64_t j0 = 0; j0 < p.k; j0 += ROWS) {
        int32_t rows[ROWS];
        uint32_t bits[ROWS];
        piece<DTYPE> pieces[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int64_t j = min(j0 + i, p.k - 1);
            rows[i] = row_of[j];
            bits[i] = load_bits(weights + j * p.weights.k_stride, p.weights.dtype);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            rows[i] = j0 + i < p.k ? nk_row_among(rows[i], p.rows) : -1;
            if (rows[i] >= 0) pieces[i].load(products + rows[i] * p.products.row_stride);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (rows[i] < 0) continue;
            const float weight = float_of_bits(bits[i], p.weights.dtype);
#pragma unroll
            for (int e = 0; e < ELEMENTS; e++)
                sum[e] = __fadd_rn(sum[e], __fmul_rn(weight, pieces[i][e]));
        }
    }
}

/* The same for `count` elements at any address. */
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
__device__ inline void add_residual(const nk_operand &r, int64_t m, int64_t h, int count, float sum[ELEMENTS])
{
    const uint8_t *at = r.data + m * r.row_stride + h * r.k_stride;
#pragma unroll
    for (int e = 0; e < ELEMENTS; e++) {
        if (e < count) sum[e] = __fadd_rn(sum[e], load_float(at + e * r.k_stride, r.dtype));
    }
}

__device__ inline void store_sums(const nk_output &out, int64_t m, int64_t h, int count, bool wide, const float *v)
{
    uint8_t *at = output_at(out, 0, m, h);
    if (!wide || count < ELEMENTS) {
#pragma unroll
        for (int i = 0; i < ELEMENTS; i++) {
            if (i < count) store_float(at + i * out.col_stride, out.dtype, v[i]);
        }
    } else if (out.dtype == NK_F32) {
        ((float4 *)at)[0] = make_float4(v[0], v[1], v[2], v[3]);
        ((float4 *)at)[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else if (out.dtype == NK_F16) {
        *(uint4 *)at = make_uint4(pair_of<false>(v[0], v[1]), pair_of<false>(v[2], v[3]), pair_of<false>(v[4], v[5]),
                                  pair_of<false>(v[6], v[7]));
    } else {
        *(uint4 *)at = make_uint4(pair_of<true>(v[0], v[1]), pair_of<true>(v[2], v[3]), pair_of<true>(v[4], v[5]),
                                  pair_of<true>(v[6], v[7]));
    }
}

template <nk_dtype DTYPE> __device__ inline void combine(const nk_combine_problem &p, const sm80_combine_wide &wide)
{
    const int64_t m = blockIdx.x, h = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * ELEMENTS;
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    if (h >= p.h) return;
    const int count = (int)min(p.h - h, (int64_t)ELEMENTS);
    float sum[ELEMENTS] = {};
    if (wide.products && count == ELEMENTS)
        add_rows<DTYPE>(p, m, h, sum);
    else
        add_rows_narrow(p, m, h, count, sum);
    if (p.residual.data) add_residual(p.residual, m, h, count, sum);
    store_sums(p.out, m, h, count, wide.out, sum);
}

#define COMBINE(name, DTYPE)                                                                          \
    extern "C" __global__ void __launch_bounds__(SM80_COMBINE_MOST_THREADS) sm80_combine_##name(      \
        const __grid_constant__ nk_combine_problem p, const __grid_constant__ sm80_combine_wide wide) \
    {                                                                                                 \
        combine<DTYPE>(p, wide);                                                                      \
    }

COMBINE(halves, NK_F16)
COMBINE(bfloats, NK_BF16)
COMBINE(floats, NK_F32)
