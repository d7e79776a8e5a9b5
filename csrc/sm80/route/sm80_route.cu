/* logits[m,n] = alpha[n] * sum_k x[m,k] w[n,k]; the best experts of each row and their weights; all in one launch.
 *
 * Work: several CTAs have the same tile of tokens. Each multiplies it by one tile of experts over one split of K, or by
 * all tiles of experts in turn if tokens alone fill all SMs. Partial sums go to the workspace. Once all those of a
 * token tile are there, its CTAs take up to eight tokens at a time and route them, one a warp (cuda/route_topk.cuh). If
 * a permutation is wanted, the CTAs then sort by expert (cuda/route_sort.cuh).
 *
 * Roles: all warps alike. Experts are the A operand of mma.m16n8k16 (16 rows), tokens the B operand (8 columns);
 * fragments come by ldmatrix.
 *
 * Barriers, of the CTA (__syncthreads):
 *   all threads, which copied step s -> all threads, which multiply it; and back, before the stage is copied to again
 *   all threads, which staged sums -> all threads, which write them to the workspace -> the next tile
 *   between the phases of routing and of sorting
 * Grid barriers (cuda/grid_barrier.cuh): of the CTAs of a token tile, once their sums are written; of the CTAs of the
 * launch, once tokens are routed, if there is a permutation. The last CTA to arrive never waits and leaves nothing
 * undone. Some CTAs wait for it, to take part in the work that follows: only if all CTAs can be resident, and only for
 * a while. Which CTA does the work changes no bit: sums are added in the order of K.
 *
 * Shared memory: see sm80_route_config.h. */
#include "cuda/pairs.cuh"
#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/ptx/shared.cuh"
#include "sm80_route_turns.cuh"

extern __shared__ uint4 smem[];

#define WARPS SM80_ROUTE_WARPS
#define THREADS SM80_ROUTE_THREADS

/* ---------------------------------------------------------------------------------------------------------------- */
/* The GEMM of x and w                                                                                              */
/* ---------------------------------------------------------------------------------------------------------------- */

template <int TOKENS, int EXPERTS, int WARP_TOKENS, int WARP_EXPERTS, int K_WARPS_, int STAGES_, bool ALIGNED_>
struct route_tile {
    static constexpr int T = TOKENS, E = EXPERTS, WT = WARP_TOKENS, WE = WARP_EXPERTS, K_WARPS = K_WARPS_,
                         STAGES = STAGES_;
    static constexpr bool ALIGNED = ALIGNED_;             /* every row of x and w to 16 bytes */
    static constexpr int CHUNKS = 8 * K_WARPS;            /* 16-byte words of a row and step */
    static constexpr int ROWS_AT_ONCE = THREADS / CHUNKS; /* rows that all threads fetch at once */
    static constexpr int STEP = 64 * K_WARPS;             /* elements along K */
    static constexpr int PITCH = E + 4;                   /* of staged sums: spreads a fragment over all banks */
    static_assert(E / WE * (T / WT) * K_WARPS == WARPS, "a warp for each warp tile");
    static_assert(E % ROWS_AT_ONCE == 0 && T % ROWS_AT_ONCE == 0 && ROWS_AT_ONCE % 8 == 0, "threads keep their column");

    uint4 operands[STAGES][K_WARPS][E + T][8];
};

/* What this thread fetches of one operand: rows that are `step` bytes apart, the first `present` of them. */
typedef struct row_source {
    const uint8_t *at;
    int64_t step;
    int present;
} row_source;

/* Of both operands. From step `inside` on, this thread's words lie beyond K, but for `cut` bytes of the first. */
typedef struct sources {
    row_source w, x;
    int inside, cut;
} sources;

/* How many bytes of this thread's words at a step are there. */
__device__ inline int bytes_at(const sources &from, int step)
{
    return step < from.inside ? 16 : step == from.inside ? from.cut : 0;
}

template <typename S> __device__ inline row_source source_of(const nk_operand &o, int64_t row, int64_t end, int64_t k)
{
    const int64_t mine = row + threadIdx.x / S::CHUNKS, rest = end - mine + S::ROWS_AT_ONCE - 1;
    row_source from;
    from.at = o.data + mine * o.row_stride + (k + threadIdx.x % S::CHUNKS * 8) * 2;
    from.step = S::ROWS_AT_ONCE * o.row_stride;
    from.present = rest <= 0                                 ? 0
                   : rest >= (S::E + S::T) * S::ROWS_AT_ONCE ? S::E + S::T
                                                             : (int)(rest / S::ROWS_AT_ONCE);
    return from;
}

__device__ inline uint4 gather_word(const uint8_t *from, int bytes)
{
    const uint16_t *v = (const uint16_t *)from;
    uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (2 * i < bytes) word[i / 2] |= (uint32_t)v[i] << (i % 2 * 16);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* ROWS rows of a step into shared memory; zeros beyond K. Rows that do not exist keep what the stage held: only sums
 * that are not read depend on them. */
template <typename S, int ROWS> __device__ inline void fetch_rows(uint4 *to, const row_source &from, int bytes)
{
    const uint8_t *at = from.at;
#pragma unroll
    for (int i = 0; i < ROWS / S::ROWS_AT_ONCE; i++, at += from.step) {
        uint4 *word = to + i * S::ROWS_AT_ONCE * 8;
        if (i >= from.present) continue;
        if (S::ALIGNED)
            cp_async_cg_zfill(shared_address(word), at, bytes);
        else
            *word = gather_word(at, bytes);
    }
}

template <typename S> __device__ inline void fetch_step(S &s, int stage, sources &from, int bytes)
{
    const int chunk = threadIdx.x % S::CHUNKS, row = threadIdx.x / S::CHUNKS;
    uint4 *to = &s.operands[stage][chunk / 8][row][(chunk ^ row) % 8];
    fetch_rows<S, S::E>(to, from.w, bytes);
    fetch_rows<S, S::T>(to + S::E * 8, from.x, bytes);
    from.w.at += 2 * S::STEP;
    from.x.at += 2 * S::STEP;
}

/* This warp's piece of the CTA's tile. */
template <typename S> __device__ inline int warp_k() { return threadIdx.x / 32 % S::K_WARPS; }
template <typename S> __device__ inline int warp_expert()
{
    return threadIdx.x / 32 / S::K_WARPS % (S::E / S::WE) * S::WE;
}
template <typename S> __device__ inline int warp_token()
{
    return threadIdx.x / 32 / S::K_WARPS / (S::E / S::WE) * S::WT;
}

/* Elements 16 FIRST .. 16 LAST of this warp's 64 of a step. */
template <typename S, bool BF16, int FIRST, int LAST>
__device__ inline void route_mma(S &s, int stage, float acc[S::WE / 16][S::WT / 8][4])
{
    const int lane = threadIdx.x & 31;
    const uint32_t rows = shared_address(&s.operands[stage][warp_k<S>()][0][0]);
    /* A: experts 0..15 of k 0..7, then of 8..15. B: tokens 0..7 of k 0..7, 8..15, then tokens 8..15; or, with eight
     * tokens, of 16..23, 24..31. */
    const uint32_t a_row = rows + (warp_expert<S>() + lane % 16) * 128;
    const uint32_t b_row = rows + (S::E + warp_token<S>() + lane % 8 + (S::WT > 8 ? lane / 16 * 8 : 0)) * 128;
    const int a_chunk = lane / 16, b_chunk = S::WT > 8 ? lane / 8 % 2 : lane / 8;
    uint32_t b[4];
#pragma unroll
    for (int kk = FIRST; kk < LAST; kk++) {
        uint32_t a[S::WE / 16][4];
#pragma unroll
        for (int i = 0; i < S::WE / 16; i++)
            ldmatrix_x4(a[i], a_row + i * 16 * 128 + ((2 * kk + a_chunk) ^ lane % 8) * 16);
#pragma unroll
        for (int j = 0; j < S::WT / 8; j++) {
            const int at = S::WT > 8 ? j % 2 * 2 : kk % 2 * 2;
            if (at == 0) ldmatrix_x4(b, b_row + j / 2 * 16 * 128 + ((2 * kk + b_chunk) ^ lane % 8) * 16);
#pragma unroll
            for (int i = 0; i < S::WE / 16; i++)
                mma_pairs<BF16>(acc[i][j], a[i], b[at], b[at + 1]);
        }
    }
}

/* Ends with the CTA's barrier after the last read of the operands. */
template <typename S, bool BF16>
__device__ inline void route_mainloop(S &s, sources from, int steps, float acc[S::WE / 16][S::WT / 8][4])
{
#pragma unroll 1
    for (int step = 0; step < S::STAGES - 1; step++) {
        if (step < steps) fetch_step(s, step, from, bytes_at(from, step));
        cp_async_commit_group();
    }
    int stage = 0;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        const int ahead = step + S::STAGES - 1;
        cp_async_wait_group<S::STAGES - 2>();
        __syncthreads();
        /* Few tokens: copies first, since they take longest. Many: copies after the first multiplications, which hide
         * them. */
        if (S::T >= 128) route_mma<S, BF16, 0, 2>(s, stage, acc);
        if (ahead < steps) fetch_step(s, stage ? stage - 1 : S::STAGES - 1, from, bytes_at(from, ahead));
        cp_async_commit_group();
        route_mma<S, BF16, S::T >= 128 ? 2 : 0, 4>(s, stage, acc);
        stage = stage + 1 == S::STAGES ? 0 : stage + 1;
    }
    cp_async_wait_group<0>();
    __syncthreads();
}

/* To the workspace: the sums of the warps that divided K among them, added in their order. */
template <typename S>
__device__ inline void store_partials(const nk_route_problem &p, const sm80_route_params &q, int split, int64_t m0,
                                      int expert0, const float acc[S::WE / 16][S::WT / 8][4])
{
    const int lane = threadIdx.x & 31;
    float *sums = (float *)smem; /* [K_WARPS][T][PITCH] */
    float *to = sums + (warp_k<S>() * S::T + warp_token<S>() + lane % 4 * 2) * S::PITCH + warp_expert<S>() + lane / 4;
#pragma unroll
    for (int i = 0; i < S::WE / 16; i++) {
#pragma unroll
        for (int j = 0; j < S::WT / 8; j++) {
#pragma unroll
            for (int r = 0; r < 4; r++)
                to[(j * 8 + r % 2) * S::PITCH + i * 16 + r / 2 * 8] = acc[i][j][r];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < S::T * S::E / 4; i += THREADS) {
        const int token = i / (S::E / 4), expert = i % (S::E / 4) * 4;
        if (m0 + token >= p.m) break;
        float4 sum = *(const float4 *)(sums + token * S::PITCH + expert);
#pragma unroll
        for (int k = 1; k < S::K_WARPS; k++)
            sum = sum + *(const float4 *)(sums + (k * S::T + token) * S::PITCH + expert);
        *(float4 *)(q.partials + (split * p.m + m0 + token) * q.pitch + expert0 + expert) = sum;
    }
    __syncthreads();
}

/* All sums of this CTA. */
template <typename S, bool BF16>
__device__ inline void sum_tiles(const nk_route_problem &p, const sm80_route_params &q, int64_t m0)
{
    S &s = *(S *)smem;
    const int split = blockIdx.z, first = split * q.steps_per_split;
    const int steps = min(q.steps - first, q.steps_per_split), tile0 = blockIdx.y * q.tiles_per_cta;
    const int64_t k = (int64_t)first * S::STEP, rest = p.k - k - threadIdx.x % S::CHUNKS * 8;
    const int inside = rest >= 8 ? (int)((rest - 8) / S::STEP) + 1 : 0; /* whole words; eight elements each */
    const int64_t left = rest - (int64_t)inside * S::STEP;
    const int cut = left > 0 ? (int)left * 2 : 0;
    for (int tile = tile0; tile < tile0 + q.tiles_per_cta; tile++) {
        float acc[S::WE / 16][S::WT / 8][4] = {};
        const sources from = {source_of<S>(p.w, (int64_t)tile * S::E, p.n, k), source_of<S>(p.x, m0, p.m, k), inside,
                              cut};
        route_mainloop<S, BF16>(s, from, steps, acc);
        store_partials<S>(p, q, split, m0, tile * S::E, acc);
    }
}

template <typename S, bool BF16>
__device__ inline void route_by_mma(const nk_route_problem &p, const sm80_route_params &q)
{
    static_assert(sizeof(S) == SM80_ROUTE_SMEM(S::T, S::E, S::K_WARPS, S::STAGES), "the host asks for what is used");
    static_assert(sizeof(S) >= SM80_ROUTE_TURN_BYTES, "later uses fit");
    static_assert(sizeof(S) >= 4 * S::K_WARPS * S::T * S::PITCH, "the finished tile takes the place of the operands");
    const tile_token_range at = route_prologue(p, q, S::T);
    if (at.count > 0) sum_tiles<S, BF16>(p, q, at.first);
    route_epilogue(p, q, at, smem);
}

#define ROUTE(name, type, BF16, TOKENS, EXPERTS, WARP_TOKENS, WARP_EXPERTS, K_WARPS, STAGES, CTAS, ALIGNED)         \
    extern "C" __global__ void __launch_bounds__(THREADS, CTAS) sm80_route_##name##_##type(                         \
        const __grid_constant__ nk_route_problem p, const __grid_constant__ sm80_route_params q)                    \
    {                                                                                                               \
        route_by_mma<route_tile<TOKENS, EXPERTS, WARP_TOKENS, WARP_EXPERTS, K_WARPS, STAGES, ALIGNED>, BF16>(p, q); \
    }
#define KERNELS(name, ...)                \
    ROUTE(name, fp16, false, __VA_ARGS__) \
    ROUTE(name, bf16, true, __VA_ARGS__)

SM80_ROUTE_TILES(KERNELS)
