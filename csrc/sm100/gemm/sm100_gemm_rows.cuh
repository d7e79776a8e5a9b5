/* Experts' tokens by index: which token a row is of, and the codes of such rows, which are no box of a tensor map. */
#ifndef NK_SM100_GEMM_ROWS_CUH
#define NK_SM100_GEMM_ROWS_CUH

#include "cuda/ptx/gather.cuh"
#include "sm100_gemm_parts.cuh"

template <class C> __device__ inline bool are_by_index(const gemm_tiles &tiles)
{
    return C::EXPERTS && tiles.rows.data;
}

__device__ inline int64_t token_of(const gemm_tiles &tiles, int64_t row)
{
    return nk_token_of(tiles.rows.data[row], tiles.rows.per_token, tiles.rows.tokens);
}

/* What a thread brings of this CTA's columns: codes of four neighbours. */
struct four_tokens {
    int row[4];
};

template <class C> __device__ constexpr int quads() { return C::COLUMNS / C::CTAS / 4; }

/* Rows behind the expert's last one are no token, so that their codes are zero. */
template <class C> __device__ inline four_tokens tokens_of(const gemm_tiles &tiles, const gemm_tile &t, int quad)
{
    static_assert(quads<C>() <= 32, "a warp brings all of them");
    const int64_t first = t.column + tiles.half * (C::COLUMNS / C::CTAS) + 4 * quad;
    four_tokens tokens;
#pragma unroll
    for (int i = 0; i < 4; i++)
        tokens.row[i] = (int)(first + i < t.column_end ? token_of(tiles, first + i) : tiles.rows.tokens);
    return tokens;
}

__device__ inline void gather_codes(uint8_t *columns, const cuda_tensor_map *map, int step, int quad,
                                    const four_tokens &tokens, const uint64_t *full)
{
    cp_async_bulk_tensor_2d_gather4(shared_address(columns) + quad * 4 * SM100_GEMM_CODE_BYTES, map,
                                    step * SM100_GEMM_CODE_BYTES, tokens.row, shared_address(full));
}

#endif
