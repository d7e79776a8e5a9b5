/* logits[m,n] = alpha[n] * sum_k x[m,k] w[n,k] if tensor cores cannot multiply x and w as they are: one of them is
 * fp32, they are of two types, or their rows have no tensor map. Then the best experts of each row and their weights;
 * if logits are given, these alone.
 *
 * Two launches: in the first a CTA multiplies a tile of tokens by a tile of experts over a share of K
 * (cuda/route_fma.cuh). In the second a CTA adds the splits of its tokens' logits in the order of K, and a warp routes
 * a token (cuda/route_topk.cuh).
 *
 * Roles: all warps are alike. Barriers, of the CTA: those of cuda/route_fma.cuh; in the second launch
 *   all threads, which load logits -> the warps that route
 *
 * Shared memory: [2 stages][STEP of K][EXPERTS + 4, TOKENS + 4] floats; in the second launch a scratch_t for each
 * warp. */
#ifndef NK_ROUTE_FMA_KERNELS_CUH
#define NK_ROUTE_FMA_KERNELS_CUH

#include "cuda/ptx/global.cuh"
#include "cuda/ptx/grid.cuh"
#include "route_fma.cuh"
#include "route_fma_config.h"
#include "route_logits.cuh"

extern __shared__ uint4 smem[];

/* Loads eight neighbours of a row at a time if they are aligned and the step is whole, else elements one by one.
 * Neighbouring threads have neighbouring rows, so that stores spread over banks. */
struct by_8_elements {
    bool wide;

    template <typename S, int ROWS>
    __device__ void load(const nk_operand &o, int64_t row, int64_t rows, int64_t k, int64_t end,
                         uint32_t (&bits)[ROWS / S::ROWS_AT_ONCE]) const
    {
        if (!wide || k + S::STEP > end) {
            by_elements().load<S, ROWS>(o, row, rows, k, end, bits);
            return;
        }
        static_assert(ROWS / S::ROWS_AT_ONCE % 8 == 0, "a thread has rows by eight");
        const int size = o.dtype == NK_F32 ? 4 : 2;
#pragma unroll
        for (int i = 0; i < ROWS / S::ROWS_AT_ONCE; i += 8) {
            const int n8 = i / 8 * S::THREADS + (int)threadIdx.x;
            uint32_t v[8] = {};
            const uint8_t *at = o.data + (row + n8 % ROWS) * o.row_stride + (k + n8 / ROWS * 8) * size;
            if (row + n8 % ROWS < rows && o.dtype == NK_F32) {
                ld_global_v8(at, v);
            } else if (row + n8 % ROWS < rows) {
                const uint4 pairs = *(const uint4 *)at;
#pragma unroll
                for (int j = 0; j < 8; j++)
                    v[j] = word_of(pairs, j / 2) >> 16 * (j % 2); /* fp32_of_bits() looks at the lower half */
            }
#pragma unroll
            for (int j = 0; j < 8; j++)
                bits[i + j] = v[j];
        }
    }

    template <typename S, int ROWS>
    __device__ void keep(float to[S::STEP][ROWS + 4], nk_dtype dtype, int64_t k, int64_t end,
                         const uint32_t (&bits)[ROWS / S::ROWS_AT_ONCE]) const
    {
        if (!wide || k + S::STEP > end) {
            by_elements().keep<S, ROWS>(to, dtype, k, end, bits);
            return;
        }
#pragma unroll
        for (int i = 0; i < ROWS / S::ROWS_AT_ONCE; i++) {
            const int n8 = i / 8 * S::THREADS + (int)threadIdx.x;
            to[n8 / ROWS * 8 + i % 8][n8 % ROWS] = fp32_of_bits(bits[i], dtype);
        }
    }
};

template <typename S> __device__ inline void multiply_tile(const nk_route_problem &p, const route_fma_params &q)
{
    const int64_t m0 = (int64_t)blockIdx.x * S::T, n0 = (int64_t)blockIdx.y * S::E;
    const int first = blockIdx.z * q.steps_per_split, steps = min(q.steps - first, q.steps_per_split);
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    float acc[S::TG * S::TV][S::EG * 4] = {};
    fma_mainloop(p, by_8_elements{q.wide_w}, by_8_elements{q.wide_x}, *(S *)smem, m0, n0, first, steps, acc);
    fma_store_partials<S>(p, q, m0, n0, acc);
}

template <bool GIVEN> __device__ inline void select(const nk_route_problem &p, const route_fma_params &q)
{
    const int64_t m = (int64_t)blockIdx.x * q.turn_tokens;
    const int count = (int)min(p.m - m, (int64_t)q.turn_tokens), warp = threadIdx.x / 32;
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    load_logits_of_tokens<GIVEN, ROUTE_SELECT_THREADS>(p, q, m, count, smem, q.scratch_experts);
    __syncthreads();
    if (warp < count) route_token<false>(p, m + warp, scratch_at(smem, warp, q.scratch_experts));
}

#define ROUTE_FMA_PARAMETERS const __grid_constant__ nk_route_problem p, const __grid_constant__ route_fma_params q
#define ROUTE_FMA_MULTIPLY(kernel, TOKENS, EXPERTS, STEP, CTAS, ...)                                   \
    extern "C" __global__ void __launch_bounds__(ROUTE_FMA_THREADS, CTAS) kernel(ROUTE_FMA_PARAMETERS) \
    {                                                                                                  \
        using tile = fma_tile<TOKENS, EXPERTS, STEP, __VA_ARGS__>;                                     \
        static_assert(sizeof(tile) == ROUTE_FMA_SMEM(TOKENS, EXPERTS, STEP), "the host's size");       \
        multiply_tile<tile>(p, q);                                                                     \
    }
#define ROUTE_FMA_SELECT(kernel, GIVEN)                                                                \
    extern "C" __global__ void __launch_bounds__(ROUTE_SELECT_THREADS, 2) kernel(ROUTE_FMA_PARAMETERS) \
    {                                                                                                  \
        select<GIVEN>(p, q);                                                                           \
    }

#define ROUTE_FMA_SELECTS(row)                 \
    ROUTE_FMA_SELECT(row##_route_select, true) \
    ROUTE_FMA_SELECT(row##_route_select_sums, false)

#endif
