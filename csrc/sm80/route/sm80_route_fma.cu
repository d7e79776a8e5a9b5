/* logits[m,n] = alpha[n] * sum_k x[m,k] w[n,k] where tensor cores cannot multiply x and w as they are: one of them is
 * fp32, or they are of two types. And the selection alone, from logits that are given.
 *
 * Work: as in sm80_route.cu, with fp32 multiply-adds for mma. Elements are loaded one by one, so K and
 * addresses are any, and converted to fp32 on their way to shared memory. Additions are in the order of K.
 *
 * Roles: all warps alike. A thread has TG TV x 4 EG sums.
 *
 * Barriers, of the CTA (__syncthreads):
 *   all who stored step s -> all who multiply it, and all who multiplied step s - 1 -> all who store to its stage
 * Meetings of CTAs: sm80_route_turns.cuh.
 *
 * Shared memory: [2 stages][STEP of K][EXPERTS + 4, TOKENS + 4] floats; later what turns need. */
#include "cuda/ptx/grid.cuh"
#include "sm80_route_turns.cuh"

extern __shared__ uint4 smem[];

#define STEP SM80_ROUTE_FMA_STEP
#define THREADS SM80_ROUTE_THREADS

/* A thread has TG groups of TV tokens and EG groups of four experts. */
template <int TOKENS, int EXPERTS, int TV_, int TG_, int EG_> struct fma_tile {
    static constexpr int T = TOKENS, E = EXPERTS, TV = TV_, TG = TG_, EG = EG_;
    static constexpr int ACROSS = E / (4 * EG);         /* threads along experts */
    static constexpr int ROWS_AT_ONCE = THREADS / STEP; /* that all threads load */
    static_assert(T / (TV * TG) * ACROSS == THREADS, "a thread for each piece");
    static_assert(T % ROWS_AT_ONCE == 0 && E % ROWS_AT_ONCE == 0, "threads keep their column");

    float w[2][STEP][E + 4], x[2][STEP][T + 4]; /* the padding keeps vectors aligned, and spreads stores over banks */
};

/* Elements `k` of ROWS rows from `row` on, one row in ROWS_AT_ONCE a thread; zero where there is none. They stay as
 * they are until multiplications have covered the latency of their loads. */
template <typename S, int ROWS, typename B>
__device__ inline void load_bits(const nk_operand &o, int64_t row, int64_t rows, int64_t k, int64_t end,
                                 uint32_t bits[ROWS / S::ROWS_AT_ONCE])
{
    row += threadIdx.x / STEP;
    k += threadIdx.x % STEP;
    const uint8_t *at = o.data + row * o.row_stride + k * sizeof(B);
#pragma unroll
    for (int i = 0; i < ROWS / S::ROWS_AT_ONCE; i++) {
        bits[i] = k < end && row + i * S::ROWS_AT_ONCE < rows ? *(const B *)at : 0;
        at += S::ROWS_AT_ONCE * o.row_stride;
    }
}

template <typename S, int ROWS>
__device__ inline void load_elements(const nk_operand &o, int64_t row, int64_t rows, int64_t k, int64_t end,
                                     uint32_t bits[ROWS / S::ROWS_AT_ONCE])
{
    if (o.dtype == NK_F32)
        load_bits<S, ROWS, uint32_t>(o, row, rows, k, end, bits);
    else
        load_bits<S, ROWS, uint16_t>(o, row, rows, k, end, bits);
}

__device__ inline float float_of(uint32_t bits, nk_dtype dtype)
{
    const float half = __half2float(__ushort_as_half((uint16_t)bits));
    return dtype == NK_F16 ? half : __uint_as_float(dtype == NK_BF16 ? bits << 16 : bits);
}

template <typename S, int ROWS, int PITCH>
__device__ inline void keep_elements(float to[STEP][PITCH], nk_dtype dtype, const uint32_t bits[ROWS / S::ROWS_AT_ONCE])
{
#pragma unroll
    for (int i = 0; i < ROWS / S::ROWS_AT_ONCE; i++)
        to[threadIdx.x % STEP][threadIdx.x / STEP + i * S::ROWS_AT_ONCE] = float_of(bits[i], dtype);
}

/* The first token of this thread's group g, and the first expert. */
template <typename S> __device__ inline int token_of(int g)
{
    return g * (S::T / S::TG) + threadIdx.x / S::ACROSS * S::TV;
}
template <typename S> __device__ inline int expert_of_thread(int g)
{
    return g * (S::E / S::EG) + threadIdx.x % S::ACROSS * 4;
}

template <typename S> __device__ inline void multiply(const S &s, int stage, float acc[S::TG * S::TV][S::EG * 4])
{
#pragma unroll 4
    for (int k = 0; k < STEP; k++) {
        float x[S::TG * S::TV], w[S::EG * 4];
#pragma unroll
        for (int g = 0; g < S::TG; g++)
            load_floats<S::TV>(&s.x[stage][k][token_of<S>(g)], &x[g * S::TV]);
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
template <typename S>
__device__ inline void accumulate(const nk_route_problem &p, S &s, int64_t m0, int64_t n0, int first, int steps,
                                  float acc[S::TG * S::TV][S::EG * 4])
{
    uint32_t x[S::T / S::ROWS_AT_ONCE], w[S::E / S::ROWS_AT_ONCE];
#pragma unroll 1
    for (int step = -1; step < steps; step++) {
        const int64_t k = (int64_t)(first + step + 1) * STEP;
        if (step + 1 < steps) {
            load_elements<S, S::E>(p.w, n0, p.n, k, p.k, w);
            load_elements<S, S::T>(p.x, m0, p.m, k, p.k, x);
        }
        if (step >= 0) multiply(s, step & 1, acc);
        if (step + 1 < steps) {
            keep_elements<S, S::E, S::E + 4>(s.w[step + 1 & 1], p.w.dtype, w);
            keep_elements<S, S::T, S::T + 4>(s.x[step + 1 & 1], p.x.dtype, x);
        }
        __syncthreads();
    }
}

template <typename S>
__device__ inline void store_sums(const nk_route_problem &p, const sm80_route_params &q, int64_t m0, int64_t n0,
                                  const float acc[S::TG * S::TV][S::EG * 4])
{
#pragma unroll
    for (int i = 0; i < S::TG * S::TV; i++) {
        const int64_t m = m0 + token_of<S>(i / S::TV) + i % S::TV;
        float *to = q.partials + (blockIdx.z * p.m + m) * q.pitch + n0;
#pragma unroll
        for (int g = 0; g < S::EG && m < p.m; g++) {
            const float *v = &acc[i][g * 4];
            *(float4 *)(to + expert_of_thread<S>(g)) = make_float4(v[0], v[1], v[2], v[3]);
        }
    }
}

template <typename S> __device__ inline void route(const nk_route_problem &p, const sm80_route_params &q)
{
    static_assert(sizeof(S) <= SM80_ROUTE_TURN_BYTES, "the host asks for what is used");
    const tile_tokens at = begin_tile(p, q, S::T);
    const int first = blockIdx.z * q.steps_per_split, steps = min(q.steps - first, q.steps_per_split);
    const int tile0 = blockIdx.y * q.tiles_per_cta;
    for (int tile = tile0; at.count > 0 && tile < tile0 + q.tiles_per_cta; tile++) {
        float acc[S::TG * S::TV][S::EG * 4] = {};
        accumulate(p, *(S *)smem, at.first, (int64_t)tile * S::E, first, steps, acc);
        store_sums<S>(p, q, at.first, (int64_t)tile * S::E, acc);
    }
    __syncthreads();
    end_tile(p, q, at, smem);
}

#define PARAMETERS const __grid_constant__ nk_route_problem p, const __grid_constant__ sm80_route_params q
#define ROUTE(name, TOKENS, EXPERTS, CTAS, ...)                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, CTAS) sm80_route_##name(PARAMETERS) \
    {                                                                                         \
        route<fma_tile<TOKENS, EXPERTS, __VA_ARGS__>>(p, q);                                  \
    }
SM80_ROUTE_FMA_TILES(ROUTE)

extern "C" __global__ void __launch_bounds__(THREADS, SM80_ROUTE_SELECT_CTAS) sm80_route_select(PARAMETERS)
{
    end_tile<true>(p, q, begin_tile(p, q, SM80_ROUTE_WARPS), smem);
}
