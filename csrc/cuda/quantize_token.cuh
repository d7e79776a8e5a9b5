/* The quantize kernels where every row has a global scale of its own, and all kernels of a row of the backend table.
 *
 * Work: a CTA for each position of quantize.cuh. Its threads take the blocks of the row in turn: they find the largest
 * finite magnitude together, and then encode. A thread's first block stays in registers, the others are read again.
 *
 * Roles: all threads alike.
 *
 * Barriers, all of the CTA (__syncthreads): warps that found maxima -> all warps, which take the largest.
 *
 * Memory: blocks after the first 256 of a row are read twice, the second time from L1 or L2. Shared memory: a number
 * for each warp. */
#ifndef NK_QUANTIZE_TOKEN_CUH
#define NK_QUANTIZE_TOKEN_CUH

#include "quantize.cuh"

/* Block `col` of a row, as it is encoded. */
template <nk_dtype DTYPE, bool WIDE, bool GATED>
__device__ inline auto block_of_row(const uint8_t *x, const uint8_t *up, int64_t col)
{
    block<DTYPE> from, factors;
    load_block<DTYPE, WIDE>(x + col * sizeof from.words, from);
    if constexpr (GATED) {
        load_block<DTYPE, WIDE>(up + col * sizeof from.words, factors);
        return gated_block(from, factors);
    } else {
        return from;
    }
}

/* The bits of the largest finite magnitude as a float. */
template <nk_dtype DTYPE> __device__ inline uint32_t finite_amax_bits(const block<DTYPE> &x)
{
    uint32_t amax = 0;
#pragma unroll
    for (int i = 0; i < x.WORDS; i += 4)
        amax = finite_max<DTYPE>(amax, x.words + i);
    if (DTYPE == NK_F32) return amax;
    return max(__float_as_uint(pair_half<DTYPE>(amax, 0)), __float_as_uint(pair_half<DTYPE>(amax, 1)));
}

template <typename CONVERT, nk_dtype DTYPE, bool WIDE, bool GATED, typename RECIPE>
__device__ inline void quantize_token(const nk_quantize_problem &p, const cuda_quantize_params &q)
{
    const uint32_t l = cuda_divide(blockIdx.x, q.tiles.row_tiles);
    const int64_t position = blockIdx.x - (int64_t)l * q.tiles.row_tiles.value;
    const tile_rows rows = tile_rows_of(p, q, position);
    const bool present = is_present(rows, 0), blocked = p.layout == NK_SF_BLOCKED;
    const uint8_t *x = p.x + l * p.x_batch_stride + rows.first * p.x_row_stride;
    const uint8_t *up = p.up + l * p.up_batch_stride + rows.first * p.up_row_stride;
    const int64_t cols = present ? q.cols : 0;

    block<GATED ? NK_F32 : DTYPE> first;
    uint32_t amax = 0;
    for (int64_t col = threadIdx.x; col < cols; col += CUDA_TILE_THREADS) {
        const auto in = block_of_row<DTYPE, WIDE, GATED>(x, up, col);
        amax = max(amax, finite_amax_bits(in));
        if (col == threadIdx.x) first = in;
    }
    float s2;
    const RECIPE recipe(__uint_as_float(max_of_cta<CUDA_TILE_THREADS>(amax)), &s2);
    if (present && threadIdx.x == 0) p.amax_out[l * p.amax_batch_stride + rows.first * p.amax_row_stride] = s2;

    uint8_t *codes_of_row = p.codes + l * p.codes_batch_stride + rows.first * p.codes_row_stride;
    uint8_t *sf_of_row = p.sf + l * p.sf_batch_stride;
    sf_of_row += blocked ? sf_bytes_of_atoms(sf_atom_of_row(position) * q.col_atoms) +
                               sf_offset_in_atom((uint32_t)sf_row_in_atom(position), 0u)
                         : position * p.sf_row_stride;
    for (int64_t col = threadIdx.x; col < q.scale_cols; col += CUDA_TILE_THREADS) {
        uint32_t codes[2], sf = 0; /* of padding */
        if (col < cols) {
            const auto in = col == threadIdx.x ? first : block_of_row<DTYPE, WIDE, GATED>(x, up, col);
            sf = recipe.template encode<CONVERT>(p.smallest_scale, in, codes);
            store_codes<WIDE>(codes_of_row + col * (NK_SF_VEC / 2), codes);
        }
        const int64_t atom = blocked ? sf_atom_of_col(col) : 0;
        if (rows.scales > 0) sf_of_row[sf_bytes_of_atoms(atom) + col - atom * SF_ATOM_COLS] = (uint8_t)sf;
    }
}

/* All kernels of a row whose instructions CONVERT is, see quantize_encode.cuh. */
#define QUANTIZE_KERNEL(name, THREADS, ...)                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                   \
        name(const __grid_constant__ nk_quantize_problem p, const __grid_constant__ cuda_quantize_params q) \
    {                                                                                                       \
        __VA_ARGS__(p, q);                                                                                  \
    }

#define QUANTIZE_ENCODERS(row, CONVERT, name, DTYPE, WIDE, GATED, RECIPE)                                    \
    QUANTIZE_KERNEL(row##_quantize_##name, CUDA_TILE_THREADS, quantize<CONVERT, DTYPE, WIDE, GATED, RECIPE>) \
    QUANTIZE_KERNEL(row##_quantize_token_##name, CUDA_TILE_THREADS, quantize_token<CONVERT, DTYPE, WIDE, GATED, RECIPE>)

#define QUANTIZE_BY_AMAX(row, CONVERT, name, DTYPE, WIDE, GATED)                                \
    QUANTIZE_KERNEL(row##_quantize_amax_##name, CUDA_AMAX_THREADS, amax_of<DTYPE, WIDE, GATED>) \
    QUANTIZE_ENCODERS(row, CONVERT, name, DTYPE, WIDE, GATED, amax_recipe)

#define QUANTIZE_OF(row, CONVERT, name, DTYPE)                                            \
    QUANTIZE_BY_AMAX(row, CONVERT, name, DTYPE, true, false)                              \
    QUANTIZE_BY_AMAX(row, CONVERT, name##_narrow, DTYPE, false, false)                    \
    QUANTIZE_BY_AMAX(row, CONVERT, gated_##name, DTYPE, true, true)                       \
    QUANTIZE_BY_AMAX(row, CONVERT, gated_##name##_narrow, DTYPE, false, true)             \
    QUANTIZE_ENCODERS(row, CONVERT, four_six_##name, DTYPE, true, false, four_six_recipe) \
    QUANTIZE_ENCODERS(row, CONVERT, four_six_##name##_narrow, DTYPE, false, false, four_six_recipe)

#define QUANTIZE_KERNELS(row, CONVERT)                                           \
    QUANTIZE_KERNEL(row##_quantize_experts, CUDA_EXPERT_THREADS, find_atom_rows) \
    QUANTIZE_OF(row, CONVERT, fp16, NK_F16)                                      \
    QUANTIZE_OF(row, CONVERT, bf16, NK_BF16)                                     \
    QUANTIZE_OF(row, CONVERT, fp32, NK_F32)

#endif
