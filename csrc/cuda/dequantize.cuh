/* out = convert(fl32(e2m1 * sf) * s2); the product in brackets is exact.
 *
 * Work: see quantize_tiles.h. A thread makes 16 bytes of output in each of up to four rows, whose codes it fetches
 * at once. The threads of a warp lie along K, or along rows if the output's rows are neighbours in memory.
 *
 * Roles: all threads alike. No barriers, no shared memory.
 *
 * An architecture says by CONVERT::values_of(codes, sf, global_scale, v) how codes become the elements v, before they
 * are converted. */
#ifndef NK_DEQUANTIZE_CUH
#define NK_DEQUANTIZE_CUH

#include "epilogue.cuh"
#include "quantize_tiles.h"

/* What a thread makes of a row: 16 bytes. */
template <nk_dtype DTYPE> struct chunk {
    static constexpr int ELEMENTS = DTYPE == NK_F32 ? 4 : 8;
};

/* BYTES of codes, the first in the lowest bits. */
template <int BYTES> __device__ inline uint32_t load_codes(const uint8_t *at, bool wide)
{
    if (wide) return BYTES == 4 ? __ldg((const uint32_t *)at) : __ldg((const uint16_t *)at);
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < BYTES; i++)
        codes |= (uint32_t)__ldg(at + i) << 8 * i;
    return codes;
}

template <nk_dtype DTYPE> __device__ inline uint4 vector_of(const float *v)
{
    if (DTYPE == NK_F32)
        return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
    else
        return pack_eight<DTYPE == NK_BF16>(v);
}

template <typename CONVERT, nk_dtype DTYPE>
__device__ inline void dequantize(const nk_dequantize_problem &p, const cuda_tiles &t, bool wide_codes, bool wide_out)
{
    constexpr int ELEMENTS = chunk<DTYPE>::ELEMENTS, TURNS = CUDA_TILE_MAX_TURNS;
    const uint32_t row_tile = cuda_divide(blockIdx.x, t.col_tiles), l = cuda_divide(row_tile, t.row_tiles);
    const int apart = CUDA_TILE_THREADS >> t.column_bits, column = threadIdx.x & ((1 << t.column_bits) - 1);
    const int64_t col_tile = blockIdx.x - row_tile * t.col_tiles.value, cols = p.k / NK_SF_VEC;
    const int64_t k = ((col_tile << t.column_bits) + column) * ELEMENTS;
    const int64_t first =
        (int64_t)(row_tile - l * t.row_tiles.value) * (t.turns * apart) + (threadIdx.x >> t.column_bits);
    if (k >= p.k) return;
    const uint8_t *from = p.q.data + l * p.q.batch_stride + k / 2;
    const nk_alpha &scale = p.global_scale;

    uint32_t codes[TURNS], sf[TURNS];
    float s2[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int64_t row = first + turn * apart;
        if (turn >= t.turns || row >= p.rows) continue;
        codes[turn] = load_codes<ELEMENTS / 2>(from + row * p.q.row_stride, wide_codes);
        sf[turn] = __ldg(sf_at(p.q, l, row, k / NK_SF_VEC, cols));
        s2[turn] = scale.data ? scale.data[l * scale.group_stride + row * scale.stride] : scale.value;
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int64_t row = first + turn * apart;
        if (turn >= t.turns || row >= p.rows) continue;
        float values[ELEMENTS];
        CONVERT::values_of(codes[turn], sf[turn], s2[turn], values);
        uint8_t *to = output_at(p.out, l, row, k);
        if (wide_out) {
            *(uint4 *)to = vector_of<DTYPE>(values);
        } else {
#pragma unroll
            for (int i = 0; i < ELEMENTS; i++)
                store_float(to + i * p.out.col_stride, DTYPE, values[i]);
        }
    }
}

/* All kernels of a row. */
#define DEQUANTIZE_OF(row, CONVERT, name, DTYPE)                                                        \
    extern "C" __global__ void __launch_bounds__(CUDA_TILE_THREADS)                                     \
        row##_dequantize_##name(const __grid_constant__ nk_dequantize_problem p,                        \
                                const __grid_constant__ cuda_tiles tiles, int wide_codes, int wide_out) \
    {                                                                                                   \
        dequantize<CONVERT, DTYPE>(p, tiles, wide_codes, wide_out);                                     \
    }

#define DEQUANTIZE_KERNELS(row, CONVERT)       \
    DEQUANTIZE_OF(row, CONVERT, fp16, NK_F16)  \
    DEQUANTIZE_OF(row, CONVERT, bf16, NK_BF16) \
    DEQUANTIZE_OF(row, CONVERT, fp32, NK_F32)

#endif
