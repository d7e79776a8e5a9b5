/* Experts' tokens by index: which token a row is, and the codes of such rows, which no box of a tensor map holds. */
#ifndef NK_SM100_GEMM_GATHER_CUH
#define NK_SM100_GEMM_GATHER_CUH

#include "cuda/ptx/gather.cuh"
#include "sm100_gemm_scheduler.cuh"

template <class C> __device__ inline bool has_tokens_by_index(const mma_tile_scheduler &scheduler)
{
    return C::EXPERTS && scheduler.token_rows.data;
}

__device__ inline int64_t token_of_row(const mma_tile_scheduler &scheduler, int64_t row)
{
    return nk_token_of(scheduler.token_rows.data[row], scheduler.token_rows.per_token, scheduler.token_rows.tokens);
}

/* Four neighbouring rows of operand N: what one thread brings by one copy. */
struct gathered_tokens {
    int token[4];
};

/* gather4 copies for this CTA's rows of operand N, one each by a lane of warp 4. */
template <class C> __device__ constexpr int gather4_copies() { return C::CTA_N / 4; }

/* Rows past the expert's end get token number `tokens`, outside the map, which reads as zeros. */
template <class C>
__device__ inline gathered_tokens tokens_to_gather(const mma_tile_scheduler &scheduler, const mma_tile &t, int copy)
{
    static_assert(gather4_copies<C>() <= 32, "one warp brings all of them");
    const int64_t first = t.n + scheduler.rank_in_pair * C::CTA_N + 4 * copy;
    gathered_tokens tokens;
#pragma unroll
    for (int i = 0; i < 4; i++)
        tokens.token[i] = (int)(first + i < t.n_end ? token_of_row(scheduler, first + i) : scheduler.token_rows.tokens);
    return tokens;
}

__device__ inline void gather_codes(uint8_t *operand_n, const cuda_tensor_map *map, int step, int copy,
                                    const gathered_tokens &tokens, const uint64_t *full)
{
    cp_async_bulk_tensor_2d_gather4(shared_address(operand_n) + copy * 4 * SM100_GEMM_CODE_BYTES, map,
                                    step * SM100_GEMM_CODE_BYTES, tokens.token, shared_address(full));
}

#endif
