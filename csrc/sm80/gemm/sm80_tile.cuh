/* A tile as the threads of a CTA see it: which rows of the operands a lane reads, and where its sums go. */
#ifndef NK_SM80_TILE_CUH
#define NK_SM80_TILE_CUH

#include "cuda/epilogue.cuh"
#include "sm80_mainloop.cuh"

/* The first of this lane's rows of a matrix, in tile `n_tile`; its rows are 32 apart. Four warps have ROWS of the
 * matrix's rows. Where these are an atom's 128, the lane has a row quad, whose factors are neighbours if blocked. */
template <int WARPS, int ROWS> __device__ inline int64_t first_row(int64_t n_tile)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    return (n_tile * (WARPS / 4) + warp / 4) * ROWS + warp % 4 * 8 + lane / 4;
}

/* A pair: rows `row` and row + 32. In place of a row beyond N the last row is read; its sums are not stored. */
__device__ inline void point_pair(const nk_operand &b, int64_t l, int64_t row, int64_t n, int64_t k, int pair,
                                  weight_rows &w)
{
    const int64_t present = min(row, n - 1);
    w.row[pair] = b.data + l * b.batch_stride + present * b.row_stride;
    w.row_step[pair] = SF_QUARTER_ROWS * b.row_stride;
    w.sf_step[pair] = SF_QUARTER_ROWS * b.sf_row_stride;
    w.alone[pair] = row + 32 >= n;
    w.k_stride = b.k_stride;
    w.blocked = b.sf_layout == NK_SF_BLOCKED;
    w.apart = false;
    /* An atom is there as a whole if any of its rows is. For an atom that lies wholly beyond N the last one is read. */
    const int64_t last = sf_atom_of_row(n - 1) * SF_ATOM_ROWS + sf_row_in_atom(row);
    w.sf[pair] = sf_at(b, l, w.blocked ? min(row, last) : present, 0, k / NK_SF_VEC);
}

/* The rows row, + 32, + 64, + 96 of one matrix. */
__device__ inline void point_weights(const nk_operand &b, int64_t l, int64_t row, int64_t n, int64_t k, weight_rows &w)
{
    point_pair(b, l, row, n, k, 0, w);
    point_pair(b, l, row + 64, n, k, 1, w);
    w.adjacent = true;
}

/* This lane's rows of the n8 tiles tile, tile + tile_step, .. counted from `token`. In place of tokens from `end` on
 * the last token is read; its sums are not stored. Blocked factors: token t is their row t + sf_row. With `rows` these
 * numbers are rows of the result, and each is read once, for codes and factors. */
template <int TILES_PER_WARP>
__device__ inline void point_tokens(const nk_operand &a, int64_t l, int64_t token, int64_t end, int64_t sf_row,
                                    int64_t k, int tile, int tile_step, const nk_token_rows &rows,
                                    token_rows<TILES_PER_WARP> &x)
{
    x.blocked = a.sf_layout == NK_SF_BLOCKED;
#pragma unroll
    for (int i = 0; i < TILES_PER_WARP; i++) {
        const int64_t row = min(token + (tile + i * tile_step) * 8 + (threadIdx.x & 31) / 4, end - 1);
        const int64_t here = rows.data ? nk_token_of(rows.data[row], rows.per_token, rows.tokens) : row;
        x.row[i] = a.data + l * a.batch_stride + here * a.row_stride;
        x.sf[i] = sf_at(a, l, here + (x.blocked ? sf_row : 0), 0, k / NK_SF_VEC);
    }
}

/* Stages four sums: of this lane's weight rows j and j + 2, for tokens 2 (lane % 4) and the next of n8 tile `n8`. */
template <int TILE_M, int SUMS>
__device__ inline void stage_quad(staged_tile<TILE_M, SUMS> &tile, int n8, int j, float4 v)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int row = warp / 4 * SF_ATOM_ROWS + warp % 4 * 8 + lane / 4 + 32 * j, token = n8 * 8 + lane % 4 * 2;
    float *at = tile.of(token) + row, *next = tile.of(token + 1) + row;
    at[0] = v.x;
    next[0] = v.y;
    at[64] = v.z;
    next[64] = v.w;
}

/* Multiplies the staged sums of the tokens from `token` to `end` by their factors, a column a thread. With `rows` they
 * are rows of the result, as in point_tokens(). Barriers are those of store_tile(). */
template <int TILE_M, int SUMS>
__device__ inline void scale_tokens(staged_tile<TILE_M, SUMS> &tile, const nk_row_scale &scale, int64_t l,
                                    int64_t token, int64_t end, const nk_token_rows &rows)
{
    if (!scale.data) return;
#pragma unroll 1
    for (int i = 0; i < TILE_M && token + i < end; i++) {
        const int64_t row = token + i;
        const int64_t here = rows.data ? nk_token_of(rows.data[row], rows.per_token, rows.tokens) : row;
        float *sum = tile.of(i) + threadIdx.x;
        *sum = __fmul_rn(*sum, scale.data[l * scale.batch_stride + here * scale.stride]);
    }
    __syncthreads();
}

#endif
