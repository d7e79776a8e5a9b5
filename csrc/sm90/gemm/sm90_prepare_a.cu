/* The prologue kernel of a GEMM (prepare_a): brings tokens to 16 bits, in the order of K in which the GEMM decodes
 * weights.
 *
 * A lane of the GEMM decodes 32 neighbours of a weight row in a step of 128 elements: chunk c, in words of eight.
 * Element 4 h + j of word i is written to position 32 i + 8 j + 2 c + h, where wgmma reads the B element that belongs
 * to it. Positions beyond K are zeros.
 *
 * Work: a thread loads word i of chunk c of a row, eight elements, which are pairs (j, j + 4). Four neighbours, the
 * chunks, exchange them, so that each has pair j of all four chunks: the 16 bytes that it writes. A CTA has a row, or
 * 4096 bytes of it; kernels for many rows have SM90_PREPARE_A_ROWS, whose loads are in flight together.
 *
 * Rows of no expert are not written: with absent experts most rows may be such.
 *
 * Overlap: this kernel releases the GEMM, which may then start. By default it waits for the previous kernels first, so
 * that a kernel that wrote weights has ended when the GEMM reads them. */
#include "cuda/expert.cuh"
#include "cuda/nvfp4.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/sf_layout.cuh"
#include "sm90_list_params.h"

/* A row of the workspace, and where it comes from. */
typedef struct a_row {
    uint4 *to;           /* NULL: it is not written */
    const uint8_t *data; /* of the operand; NULL: zeros */
    const uint8_t *sf;   /* its scale factors */
} a_row;

/* What a thread loads of each row. */
typedef struct a_word {
    uint32_t step, word, chunk;
} a_word;

__device__ inline a_word word_of_thread()
{
    const uint32_t id = blockIdx.y * blockDim.x + threadIdx.x;
    return {id / 16, id / 4 % 4, id % 4};
}

__device__ inline uint4 *row_of_workspace(const sm90_prepared_a &t, int64_t row)
{
    return (uint4 *)t.data + row * (16 * t.k_steps);
}

__device__ inline a_row row_of_operand(const nk_operand &a, int64_t k, int64_t l, int64_t m, int64_t sf_row, uint4 *to)
{
    return {to, a.data + l * a.batch_stride + m * a.row_stride, sf_at(a, l, sf_row, 0, k / NK_SF_VEC)};
}

__device__ inline void release_and_wait(const sm90_prepared_a &t)
{
    if (t.release_first) griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
}

/* The number in the workspace of a CTA's i-th row. */
__device__ inline uint32_t row_of_cta(int i) { return blockIdx.x + i * gridDim.x; }

__device__ inline a_row find_row(const nk_gemm_problem &p, const sm90_prepared_a &t, const sm90_gemm_experts &e,
                                 uint32_t row)
{
    const uint32_t l = p.l == 1 ? 0 : row / (uint32_t)p.m;
    const nk_token_rows &rows = e.token_rows;
    const int32_t index = rows.data && row < p.m ? rows.data[row] : 0; /* while offsets are on their way */
    const int64_t begin = e.offsets ? clamped_offset(e.offsets, 0, p.m, e.first_row) : 0;
    const int64_t end = e.offsets ? clamped_offset(e.offsets, e.count, p.m, e.first_row) : t.rows_with_spare;
    if (row < begin || row >= end) return {};
    if (row >= p.l * p.m) return {row_of_workspace(t, row)};
    int64_t m = row - l * p.m;
    if (rows.data) m = nk_token_of(index, rows.per_token, rows.tokens);
    return row_of_operand(p.a, p.k, l, m, m, row_of_workspace(t, row));
}

/* A thread for each row, so that all other threads see the same: offsets may change meanwhile. */
template <int ROWS>
__device__ inline void find_rows(const nk_gemm_problem &p, const sm90_prepared_a &t, const sm90_gemm_experts &e,
                                 a_row (&rows)[ROWS])
{
    if (threadIdx.x < ROWS) rows[threadIdx.x] = find_row(p, t, e, row_of_cta(threadIdx.x));
    __syncthreads();
}

/* Pair i of chunk c, of lanes 4 n + c, becomes pair c of chunk i. */
__device__ inline void exchange_pairs(uint32_t (&pairs)[4])
{
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const bool has_bit = threadIdx.x & bit;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit) continue;
            uint32_t &without = pairs[i], &with = pairs[i | bit];
            const uint32_t theirs = __shfl_xor_sync(~0u, has_bit ? without : with, bit);
            without = has_bit ? theirs : without;
            with = has_bit ? with : theirs;
        }
    }
}

/* Eight elements become pairs (j, j + 4): of fp16 and bf16, or of codes with their scale factor. */
typedef struct a_codes {
    uint32_t codes, scale_factor;
} a_codes;

__device__ inline void to_pairs(const uint4 &eight, uint32_t (&pairs)[4])
{
    const uint4 v = in_decode_order(eight);
    pairs[0] = v.x, pairs[1] = v.y, pairs[2] = v.z, pairs[3] = v.w;
}

__device__ inline void to_pairs(const a_codes &eight, uint32_t (&pairs)[4])
{
    decode_e2m1x8<false>(eight.codes, cvt_f16x2_e4m3x2(eight.scale_factor * 0x0101), pairs);
}

__device__ inline void load_eight(const nk_operand &, int64_t k, const a_row &row, const a_word &at, uint4 &eight)
{
    const uint32_t first = at.step * SM90_GEMM_STEP + at.chunk * 32 + at.word * 8;
    eight = make_uint4(0, 0, 0, 0);
    if (row.data && first < k) eight = *(const uint4 *)(row.data + 2 * first);
}

__device__ inline void load_eight(const nk_operand &a, int64_t k, const a_row &row, const a_word &at, a_codes &eight)
{
    const uint32_t first = at.step * SM90_GEMM_STEP + at.chunk * 32 + at.word * 8, next = sf_next_four(a);
    eight = {0, 0};
    if (!row.data || first >= k) return;
    eight.codes = *(const uint32_t *)(row.data + first / 2);
    eight.scale_factor = row.sf[(at.step * 2 + at.chunk / 2) * next + at.chunk % 2 * 2 + at.word / 2] & 0x7F;
}

/* All loads before the first store. */
template <typename EIGHT, int ROWS>
__device__ inline void prepare_rows(const nk_operand &a, int64_t k, uint32_t k_steps, const a_row (&rows)[ROWS])
{
    const a_word at = word_of_thread();
    EIGHT eight[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        load_eight(a, k, rows[i], at, eight[i]);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (!rows[i].to) continue;
        uint32_t pairs[4];
        to_pairs(eight[i], pairs);
        exchange_pairs(pairs);
        if (at.step < k_steps)
            rows[i].to[at.step * 16 + at.word * 4 + at.chunk] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}

template <typename EIGHT, int ROWS>
__device__ inline void prepare_gemm(const nk_gemm_problem &p, const sm90_prepared_a &t, const sm90_gemm_experts &e)
{
    __shared__ a_row rows[ROWS];
    release_and_wait(t);
    find_rows(p, t, e, rows);
    prepare_rows<EIGHT>(p.a, p.k, t.k_steps, rows);
}

/* The row of blocked scale factors of a row of a contiguous grouped GEMM, by all threads: each expert's begin an atom.
 * `row` counts among those of all slices. Below 0 for rows of no expert, and for rows whose scale factors would lie
 * outside the buffer: offsets are not checked, and may change from one read to the next. */
__device__ inline int64_t find_sf_row(expert_scan<SM90_PREPARE_A_THREADS / 32> &scan, const nk_gemm_problem &p,
                                      const sm90_gemm_experts &e, int64_t row)
{
    const int64_t index = row - clamped_offset(e.offsets, 0, e.rows);
    const uint32_t tile = index < 0 ? NO_TILE : (uint32_t)index; /* tiles of one token */
    const expert_tile found = find_expert<1>(scan, e.offsets, e.count, e.rows, tile);
    const int64_t sf_row = found.atom_row * SF_ATOM_ROWS + row - found.begin;
    const int64_t end = nk_sf_padded_rows(sf_row + 1) * nk_sf_padded_cols(p.k / NK_SF_VEC);
    return found.found && sf_row >= 0 && end <= e.token_sf_bytes ? sf_row : -1;
}

template <int ROWS>
__device__ inline void prepare_blocked_experts(const nk_gemm_problem &p, const sm90_prepared_a &t,
                                               const sm90_gemm_experts &e)
{
    __shared__ expert_scan<SM90_PREPARE_A_THREADS / 32> scan;
    __shared__ a_row rows[ROWS];
    release_and_wait(t);
    find_rows(p, t, e, rows);
    for (int i = 0; i < ROWS; i++) {
        if (!rows[i].to) continue;
        const int64_t row = row_of_cta(i), sf_row = find_sf_row(scan, p, e, e.first_row + row);
        if (threadIdx.x > 0) continue;
        rows[i].sf = sf_at(p.a, 0, sf_row, 0, p.k / NK_SF_VEC);
        if (sf_row < 0) rows[i].data = NULL;
    }
    __syncthreads();
    prepare_rows<a_codes>(p.a, p.k, t.k_steps, rows);
}

/* For a row, and for many. `experts`: NVFP4 tokens of experts, with blocked scale factors. */
#define KERNEL(name, f)                                                                            \
    extern "C" __global__ void __launch_bounds__(SM90_PREPARE_A_THREADS)                           \
        name(const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm90_prepared_a t, \
             const __grid_constant__ sm90_gemm_experts experts)                                    \
    {                                                                                              \
        f(p, t, experts);                                                                          \
    }
KERNEL(sm90_prepare_a_16bit, (prepare_gemm<uint4, 1>))
KERNEL(sm90_prepare_a_16bit_many, (prepare_gemm<uint4, SM90_PREPARE_A_ROWS>))
KERNEL(sm90_prepare_a_codes, (prepare_gemm<a_codes, 1>))
KERNEL(sm90_prepare_a_codes_many, (prepare_gemm<a_codes, SM90_PREPARE_A_ROWS>))
KERNEL(sm90_prepare_a_experts, prepare_blocked_experts<1>)
KERNEL(sm90_prepare_a_experts_many, prepare_blocked_experts<SM90_PREPARE_A_ROWS>)

/* All groups of a list. A CTA has one row: they have few. */
extern "C" __global__ void __launch_bounds__(SM90_PREPARE_A_THREADS)
    sm90_prepare_a_list(const __grid_constant__ sm90_list_prepare_a t)
{
    release_and_wait(t.to);
    const int lane = threadIdx.x % 32;
    const bool has_begun = lane < t.count && t.group[lane].first_row <= (int)blockIdx.x;
    const sm90_list_rows &g = t.group[__popc(__ballot_sync(~0u, has_begun)) - 1];
    const int64_t m = (int)blockIdx.x - g.first_row;
    const a_row row[1] = {row_of_operand(g.a, g.k, 0, m, m, row_of_workspace(t.to, (int)blockIdx.x))};
    if (g.a.dtype == NK_E2M1X2)
        prepare_rows<a_codes>(g.a, g.k, g.k_steps, row);
    else
        prepare_rows<uint4>(g.a, g.k, g.k_steps, row);
}
