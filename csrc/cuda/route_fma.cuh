/* The GEMM of x and w by fp32 multiply-adds, if tensor cores cannot multiply them as they are: each may be fp16, bf16
 * or fp32. An architecture gives a loader, which says how elements come from memory. Additions are in the order of K.
 *
 * Barriers, of the CTA (__syncthreads):
 *   all threads, which stored step s -> all threads, which multiply it, and back, before the stage is stored to again
 */
#ifndef NK_ROUTE_FMA_CUH
#define NK_ROUTE_FMA_CUH

#include "cuda_route.h"
#include "vectors.cuh"

#include <cuda_fp16.h>

/* A thread has TG groups of TV tokens and EG groups of four experts. */
template <int TOKENS, int EXPERTS, int STEP_, int TV_, int TG_, int EG_> struct fma_tile {
    static constexpr int T = TOKENS, E = EXPERTS, STEP = STEP_, TV = TV_, TG = TG_, EG = EG_;
    static constexpr int THREADS = ROUTE_FMA_THREADS;
    static constexpr int ACROSS = E / (4 * EG);         /* threads along experts */
    static constexpr int ROWS_AT_ONCE = THREADS / STEP; /* that all threads load */
    static_assert(T / (TV * TG) * ACROSS == THREADS, "a thread for each piece");
    static_assert(T % ROWS_AT_ONCE == 0 && E % ROWS_AT_ONCE == 0, "threads keep their column");

    float w[2][STEP][E + 4], x[2][STEP][T + 4]; /* the padding keeps vectors aligned, and spreads stores over banks */
};

/* Elements `k` of ROWS rows from `row` on, one row in ROWS_AT_ONCE a thread; zero if there is none. They stay as
 * they are until multiplications have covered the latency of their loads. */
template <typename S, int ROWS, typename B>
__device__ inline void load_row_bits(const nk_operand &o, int64_t row, int64_t rows, int64_t k, int64_t end,
                                     uint32_t bits[ROWS / S::ROWS_AT_ONCE])
{
    row += threadIdx.x / S::STEP;
    k += threadIdx.x % S::STEP;
    const uint8_t *at = o.data + row * o.row_stride + k * sizeof(B);
#pragma unroll
    for (int i = 0; i < ROWS / S::ROWS_AT_ONCE; i++) {
        bits[i] = k < end && row + i * S::ROWS_AT_ONCE < rows ? *(const B *)at : 0;
        at += S::ROWS_AT_ONCE * o.row_stride;
    }
}

__device__ inline float fp32_of_bits(uint32_t bits, nk_dtype dtype)
{
    const float half = __half2float(__ushort_as_half((uint16_t)bits));
    return dtype == NK_F16 ? half : __uint_as_float(dtype == NK_BF16 ? bits << 16 : bits);
}

/* The loader of elements one by one: K and addresses are any. */
struct by_elements {
    template <typename S, int ROWS>
    __device__ void load(const nk_operand &o, int64_t row, int64_t rows, int64_t k, int64_t end,
                         uint32_t bits[ROWS / S::ROWS_AT_ONCE]) const
    {
        if (o.dtype == NK_F32)
            load_row_bits<S, ROWS, uint32_t>(o, row, rows, k, end, bits);
        else
            load_row_bits<S, ROWS, uint16_t>(o, row, rows, k, end, bits);
    }

    /* To shared memory, as fp32; a loader may look at where K ends. */
    template <typename S, int ROWS>
    __device__ void keep(float to[S::STEP][ROWS + 4], nk_dtype dtype, int64_t, int64_t,
                         const uint32_t bits[ROWS / S::ROWS_AT_ONCE]) const
    {
#pragma unroll
        for (int i = 0; i < ROWS / S::ROWS_AT_ONCE; i++)
            to[threadIdx.x % S::STEP][threadIdx.x / S::STEP + i * S::ROWS_AT_ONCE] = fp32_of_bits(bits[i], dtype);
    }
};

/* The first token of this thread's group g, and the first expert. */
template <typename S> __device__ inline int token_of_thread(int g)
{
    return g * (S::T / S::TG) + threadIdx.x / S::ACROSS * S::TV;
}
template <typename S> __device__ inline int expert_of_thread(int g)
{
    return g * (S::E / S::EG) + threadIdx.x % S::ACROSS * 4;
}

template <typename S> __device__ inline void fma_step(const S &s, int stage, float acc[S::TG * S::TV][S::EG * 4])
{
#pragma unroll 4
    for (int k = 0; k < S::STEP; k++) {
        float x[S::TG * S::TV], w[S::EG * 4];
#pragma unroll
        for (int g = 0; g < S::TG; g++)
            load_floats<S::TV>(&s.x[stage][k][token_of_thread<S>(g)], &x[g * S::TV]);
#pragma unroll
        for (int g = 0; g < S::EG; g++)
            load_floats<4>(&s.w[stage][k][expert_of_thread<S>(g)], &w[g * 4]);
#pragma unroll
        for (int i = 0; i < S::TG * S::TV; i++) {
#pragma unroll
            for (int j = 0; j < S::EG * 4; j++)
                acc[i][j] = __fmaf_rn(x[i], w[j], acc[i][j]);
        }
    }
}

/* Sums of steps first .. first + steps - 1. Ends with the CTA's barrier after the last read. */
template <typename S, typename L>
__device__ inline void fma_mainloop(const nk_route_problem &p, const L &of_w, const L &of_x, S &s, int64_t m0,
                                    int64_t n0, int first, int steps, float acc[S::TG * S::TV][S::EG * 4])
{
    uint32_t x[S::T / S::ROWS_AT_ONCE], w[S::E / S::ROWS_AT_ONCE];
#pragma unroll 1
    for (int step = -1; step < steps; step++) {
        const int64_t k = (int64_t)(first + step + 1) * S::STEP;
        if (step + 1 < steps) {
            of_w.template load<S, S::E>(p.w, n0, p.n, k, p.k, w);
            of_x.template load<S, S::T>(p.x, m0, p.m, k, p.k, x);
        }
        if (step >= 0) fma_step(s, step & 1, acc);
        if (step + 1 < steps) {
            of_w.template keep<S, S::E>(s.w[step + 1 & 1], p.w.dtype, k, p.k, w);
            of_x.template keep<S, S::T>(s.x[step + 1 & 1], p.x.dtype, k, p.k, x);
        }
        __syncthreads();
    }
}

/* To q.partials, [splits of K][M][q.pitch]. */
template <typename S, typename Q>
__device__ inline void fma_store_partials(const nk_route_problem &p, const Q &q, int64_t m0, int64_t n0,
                                          const float acc[S::TG * S::TV][S::EG * 4])
{
#pragma unroll
    for (int i = 0; i < S::TG * S::TV; i++) {
        const int64_t m = m0 + token_of_thread<S>(i / S::TV) + i % S::TV;
        float *to = q.partials + (blockIdx.z * p.m + m) * q.pitch + n0;
#pragma unroll
        for (int g = 0; g < S::EG && m < p.m; g++) {
            const float *v = &acc[i][g * 4];
            *(float4 *)(to + expert_of_thread<S>(g)) = make_float4(v[0], v[1], v[2], v[3]);
        }
    }
}

#endif
