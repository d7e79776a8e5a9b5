/* logits[m,n] = alpha[n] * sum_k x[m,k] w[n,k] if tensor cores cannot multiply x and w as they are: one of them is
 * fp32, or they are of two types. And the selection alone, from logits that are given.
 *
 * Work: as in sm80_route.cu, with the fp32 multiply-adds of cuda/route_fma.cuh for mma. Elements are loaded one by one,
 * so K and addresses are any, and converted to fp32 on their way to shared memory.
 *
 * Roles: all warps alike. A thread has TG TV x 4 EG sums.
 *
 * Barriers of the CTA: cuda/route_fma.cuh. Grid barriers: sm80_route_turns.cuh.
 *
 * Shared memory: [2 stages][STEP of K][EXPERTS + 4, TOKENS + 4] floats; later what turns need. */
#include "cuda/ptx/grid.cuh"
#include "cuda/route_fma.cuh"
#include "sm80_route_turns.cuh"

extern __shared__ uint4 smem[];

static_assert(SM80_ROUTE_THREADS == ROUTE_FMA_THREADS, "the threads of fma_tile");

template <typename S> __device__ inline void route_by_fma(const nk_route_problem &p, const sm80_route_params &q)
{
    static_assert(sizeof(S) <= SM80_ROUTE_TURN_BYTES, "the host asks for what is used");
    const tile_token_range at = route_prologue(p, q, S::T);
    const int first = blockIdx.z * q.steps_per_split, steps = min(q.steps - first, q.steps_per_split);
    const int tile0 = blockIdx.y * q.tiles_per_cta;
    for (int tile = tile0; at.count > 0 && tile < tile0 + q.tiles_per_cta; tile++) {
        float acc[S::TG * S::TV][S::EG * 4] = {};
        fma_mainloop(p, by_elements(), by_elements(), *(S *)smem, at.first, (int64_t)tile * S::E, first, steps, acc);
        fma_store_partials<S>(p, q, at.first, (int64_t)tile * S::E, acc);
    }
    __syncthreads();
    route_epilogue(p, q, at, smem);
}

#define PARAMETERS const __grid_constant__ nk_route_problem p, const __grid_constant__ sm80_route_params q
#define ROUTE(name, TOKENS, EXPERTS, CTAS, ...)                                                          \
    extern "C" __global__ void __launch_bounds__(SM80_ROUTE_THREADS, CTAS) sm80_route_##name(PARAMETERS) \
    {                                                                                                    \
        route_by_fma<fma_tile<TOKENS, EXPERTS, SM80_ROUTE_FMA_STEP, __VA_ARGS__>>(p, q);                 \
    }
SM80_ROUTE_FMA_TILES(ROUTE)

extern "C" __global__ void __launch_bounds__(SM80_ROUTE_THREADS, SM80_ROUTE_SELECT_CTAS) sm80_route_select(PARAMETERS)
{
    route_epilogue<true>(p, q, route_prologue(p, q, SM80_ROUTE_WARPS), smem);
}
