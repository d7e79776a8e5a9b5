/* The first kernel of a GEMM: brings tokens to 16 bits, in the order of K in which the product decodes weights.
 *
 * Of a step of 128 elements a lane of the product decodes 32 neighbours of a weight row, chunk c, word after word of
 * eight. Element 4 h + j of word i comes to place 32 i + 8 j + 2 c + h, which is where wgmma looks for the token's
 * partner of it. Beyond K there are zeros.
 *
 * Work: a thread makes 16 bytes, pairs j of word i of the four chunks. Four threads read the same words, which the L1
 * serves.
 *
 * Overlap: the product may start once this kernel has released it. By default that is after this kernel's own wait, so
 * that whoever wrote weights has ended when the product reads them. */
#include "cuda/expert.cuh"
#include "cuda/nvfp4.cuh"
#include "cuda/ptx/grid.cuh"
#include "sm90_gemm_config.h"

/* What a thread makes: 16 bytes at [row][step][word][j]. */
typedef struct piece {
    int64_t l, row;
    int step, word, j;
} piece;

__device__ inline bool find_piece(const nk_gemm_problem &p, const sm90_gemm_tokens &t, piece &out)
{
    const int64_t id = (int64_t)blockIdx.x * SM90_GEMM_TOKEN_THREADS + threadIdx.x, row = id / (16 * t.steps);
    const int rest = (int)(id - row * 16 * t.steps);
    out = {row / p.m, row % p.m, rest / 16, rest / 4 % 4, rest % 4};
    return row < p.l * p.m;
}

__device__ inline void order_launches(const sm90_gemm_tokens &t)
{
    if (t.release_first) griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
}

__device__ inline void store_piece(const sm90_gemm_tokens &t, const piece &at, const uint32_t pairs[4])
{
    uint8_t *to = t.at + at.l * t.batch_bytes + at.row * t.row_bytes;
    *(uint4 *)(to + at.step * 256 + at.word * 64 + at.j * 16) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

/* NVFP4; the scale factors are those of row sf_row, none where that is below 0. */
__device__ inline void decode_piece(const nk_gemm_problem &p, const sm90_gemm_tokens &t, const piece &at,
                                    int64_t sf_row)
{
    const int64_t cols = p.k / NK_SF_VEC;
    const uint8_t *row = p.a.data + at.l * p.a.batch_stride + at.row * p.a.row_stride;
    uint32_t pairs[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const int64_t byte = (int64_t)at.step * 64 + c * 16 + at.word * 4;
        const bool inside = byte < p.k / 2 && sf_row >= 0;
        const uint32_t codes = inside ? *(const uint32_t *)(row + byte) >> 4 * at.j : 0;
        const uint32_t factor = inside ? *sf_at(p.a, at.l, sf_row, byte / 8, cols) & 0x7F : 0;
        const uint32_t bits = (codes & 0x00080008) << 12 | (codes & 0x00070007) << 9;
        pairs[c] = multiply_pairs<false>(bits, e4m3x2_to_half2(factor | factor << 8));
    }
    store_piece(t, at, pairs);
}

extern "C" __global__ void __launch_bounds__(SM90_GEMM_TOKEN_THREADS)
    sm90_gemm_tokens_codes(const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm90_gemm_tokens t)
{
    order_launches(t);
    piece at;
    if (find_piece(p, t, at)) decode_piece(p, t, at, at.row);
}

/* Where a row of a contiguous grouped GEMM has its blocked scale factors, by all threads: each expert's begin an atom.
 * Below 0 for rows of no expert, and for those whose factors would lie behind the buffer: nobody has checked the
 * offsets. */
__device__ inline int64_t find_sf_row(expert_scan<SM90_GEMM_TOKEN_THREADS / 32> &scan, const nk_gemm_problem &p,
                                      const sm90_gemm_experts &e, int64_t row)
{
    const int64_t index = row - clamped_offset(e.offsets, 0, p.m);
    const uint32_t tile = index < 0 ? NO_TILE : (uint32_t)index; /* tiles of one token */
    const expert_tile found = find_expert<1>(scan, e.offsets, e.count, p.m, tile);
    const int64_t atom_rows = found.atom_row + nk_ceil_div(found.end - found.begin, NK_SF_ATOM_ROWS);
    if (!found.found || atom_rows * nk_sf_padded_cols(p.k / NK_SF_VEC) * NK_SF_ATOM_ROWS > e.token_sf_bytes) return -1;
    return found.atom_row * NK_SF_ATOM_ROWS + row - found.begin;
}

/* NVFP4 tokens of experts, with blocked scale factors. */
extern "C" __global__ void __launch_bounds__(SM90_GEMM_TOKEN_THREADS)
    sm90_gemm_tokens_experts(const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm90_gemm_tokens t,
                             const __grid_constant__ sm90_gemm_experts experts)
{
    __shared__ expert_scan<SM90_GEMM_TOKEN_THREADS / 32> scan;
    order_launches(t);
    piece at;
    const bool is_there = find_piece(p, t, at);
    const int64_t first = (int64_t)blockIdx.x * SM90_GEMM_TOKEN_THREADS / (16 * t.steps);
    const int64_t last = ((int64_t)(blockIdx.x + 1) * SM90_GEMM_TOKEN_THREADS - 1) / (16 * t.steps);
    int64_t sf_row = -1;
    for (int64_t row = first; row <= min(last, p.m - 1); row++) {
        const int64_t found = find_sf_row(scan, p, experts, row);
        if (row == at.row) sf_row = found;
    }
    if (is_there) decode_piece(p, t, at, sf_row);
}

/* fp16 and bf16 */
extern "C" __global__ void __launch_bounds__(SM90_GEMM_TOKEN_THREADS)
    sm90_gemm_tokens_halves(const __grid_constant__ nk_gemm_problem p, const __grid_constant__ sm90_gemm_tokens t)
{
    order_launches(t);
    piece at;
    if (!find_piece(p, t, at)) return;
    const uint8_t *row = p.a.data + at.l * p.a.batch_stride + at.row * p.a.row_stride;
    uint32_t pairs[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const int64_t element = (int64_t)at.step * SM90_GEMM_STEP + c * 32 + at.word * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (element < p.k) v = *(const uint4 *)(row + 2 * element);
        const uint32_t low = at.j & 2 ? v.y : v.x, high = at.j & 2 ? v.w : v.z;
        pairs[c] = __byte_perm(low, high, at.j & 1 ? 0x7632 : 0x5410);
    }
    store_piece(t, at, pairs);
}
