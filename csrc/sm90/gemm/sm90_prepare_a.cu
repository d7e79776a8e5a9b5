/* The prologue kernel of a GEMM (prepare_a): brings tokens to 16 bits, in the order of K in which the GEMM decodes
 * weights.
 *
 * A lane of the GEMM decodes 32 neighbours of a weight row in a step of 128 elements: chunk c, in words of eight.
 * Element 4 h + j of word i is written to position 32 i + 8 j + 2 c + h, where wgmma reads the B element that belongs
 * to it. Positions beyond K are zeros.
 *
 * Work: a thread writes a vector of 16 bytes of a row: pair j of word i of each of the four chunks. Four threads read
 * the same words, which L1 serves. One CTA per row, or per 4096 bytes of it, avoids divisions: the kernel is
 * instruction-bound.
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

/* The 16 bytes that a thread writes: those at [step][word][j] of a row. If rows are gathered, m is the operand's row.
 */
typedef struct a_vector {
    int64_t l, m;
    bool in_bounds; /* not a spare row */
    int step, word, j;
} a_vector;

__device__ inline a_vector vector_of_thread(const nk_gemm_problem &p, const sm90_prepared_a &t)
{
    const uint32_t row = blockIdx.x, l = p.l == 1 ? 0 : row / (uint32_t)p.m;
    const int id = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    const bool in_bounds = row < p.l * p.m;
    int64_t m = row - l * p.m;
    if (t.rows.data && in_bounds) m = nk_token_of(t.rows.data[m], t.rows.per_token, t.rows.tokens);
    return {l, m, in_bounds, id / 16, id / 4 % 4, id % 4};
}

__device__ inline void release_and_wait(const sm90_prepared_a &t)
{
    if (t.release_first) griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
}

__device__ inline void store_vector(const sm90_prepared_a &t, const a_vector &at, const uint32_t pairs[4])
{
    uint4 *row = (uint4 *)t.data + (int64_t)blockIdx.x * (16 * t.k_steps);
    row[at.step * 16 + at.word * 4 + at.j] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

/* NVFP4. Scale factors are those of row sf_row; if that is below 0, the vector is zero. */
__device__ inline void decode_vector(const nk_operand &a, int64_t k, const sm90_prepared_a &t, const a_vector &at,
                                     int64_t sf_row)
{
    const int first = at.step * 64 + at.word * 4,
              valid = sf_row < 0 || !at.in_bounds ? 0 : (int)(k / 2); /* bytes of codes */
    const uint8_t *row = a.data + at.l * a.batch_stride + at.m * a.row_stride + first;
    const uint8_t *sf = sf_at(a, at.l, max(sf_row, (int64_t)0), at.step * 8, k / NK_SF_VEC) + at.word / 2;
    const int next = sf_next_four(a);
    uint32_t codes[4], factor[4], pairs[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const bool inside = first + c * 16 < valid;
        codes[c] = inside ? *(const uint32_t *)(row + c * 16) : 0;
        factor[c] = inside ? sf[c / 2 * next + c % 2 * 2] & 0x7F : 0;
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const uint32_t moved = codes[c] >> 4 * at.j, bits = (moved & 0x00080008) << 12 | (moved & 0x00070007) << 9;
        pairs[c] = multiply_pairs<false>(bits, cvt_f16x2_e4m3x2(factor[c] | factor[c] << 8));
    }
    store_vector(t, at, pairs);
}

/* Whether there are experts, and none has this CTA's row. */
__device__ inline bool is_row_of_nobody(const nk_gemm_problem &p, const sm90_gemm_experts &e)
{
    const int row = (int)blockIdx.x;
    return e.offsets && (row < clamped_offset(e.offsets, 0, p.m, e.first_row) ||
                         row >= clamped_offset(e.offsets, e.count, p.m, e.first_row));
}

extern "C" __global__ void __launch_bounds__(SM90_PREPARE_A_THREADS)
    sm90_prepare_a_codes(const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm90_prepared_a t,
                         const __grid_constant__ sm90_gemm_experts experts)
{
    release_and_wait(t);
    const a_vector at = vector_of_thread(p, t);
    if (at.step < t.k_steps && !is_row_of_nobody(p, experts)) decode_vector(p.a, p.k, t, at, at.m);
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

/* NVFP4 tokens of experts, with blocked scale factors. */
extern "C" __global__ void __launch_bounds__(SM90_PREPARE_A_THREADS)
    sm90_prepare_a_experts(const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm90_prepared_a t,
                           const __grid_constant__ sm90_gemm_experts experts)
{
    __shared__ expert_scan<SM90_PREPARE_A_THREADS / 32> scan;
    __shared__ bool is_nobodys;
    release_and_wait(t);
    const a_vector at = vector_of_thread(p, t);
    if (threadIdx.x == 0) is_nobodys = is_row_of_nobody(p, experts); /* for all: offsets may change meanwhile */
    __syncthreads();
    if (is_nobodys) return;
    const int64_t sf_row = find_sf_row(scan, p, experts, experts.first_row + at.m);
    if (at.step < t.k_steps) decode_vector(p.a, p.k, t, at, sf_row);
}

/* fp16 and bf16. */
__device__ inline void permute_vector(const nk_operand &a, int64_t k, const sm90_prepared_a &t, const a_vector &at)
{
    const int first = at.step * SM90_GEMM_STEP + at.word * 8; /* element */
    const uint8_t *row = a.data + at.l * a.batch_stride + at.m * a.row_stride + 2 * (int64_t)first;
    uint32_t pairs[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (at.in_bounds && first + c * 32 < k) v = *(const uint4 *)(row + c * 64);
        const uint32_t low = at.j & 2 ? v.y : v.x, high = at.j & 2 ? v.w : v.z;
        pairs[c] = __byte_perm(low, high, at.j & 1 ? 0x7632 : 0x5410);
    }
    store_vector(t, at, pairs);
}

extern "C" __global__ void __launch_bounds__(SM90_PREPARE_A_THREADS)
    sm90_prepare_a_16bit(const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm90_prepared_a t,
                         const __grid_constant__ sm90_gemm_experts experts)
{
    release_and_wait(t);
    const a_vector at = vector_of_thread(p, t);
    if (at.step < t.k_steps && !is_row_of_nobody(p, experts)) permute_vector(p.a, p.k, t, at);
}

/* All groups of a list. */
extern "C" __global__ void __launch_bounds__(SM90_PREPARE_A_THREADS)
    sm90_prepare_a_list(const __grid_constant__ sm90_list_prepare_a t)
{
    release_and_wait(t.to);
    const int row = (int)blockIdx.x, lane = threadIdx.x % 32;
    const bool has_begun = lane < t.count && t.group[lane].first_row <= row;
    const sm90_list_rows &g = t.group[__popc(__ballot_sync(~0u, has_begun)) - 1];
    const int id = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    const a_vector at = {0, row - g.first_row, true, id / 16, id / 4 % 4, id % 4};
    if (at.step >= g.k_steps) return;
    if (g.a.dtype == NK_E2M1X2)
        decode_vector(g.a, g.k, t.to, at, at.m);
    else
        permute_vector(g.a, g.k, t.to, at);
}
