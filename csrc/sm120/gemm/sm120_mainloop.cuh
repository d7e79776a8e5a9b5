/* What sm120_tile.cuh's main loop does with NVFP4 tokens: acc[weight rows][tokens] += W X^T over K.
 *
 * Work: weights are the A operand of mma.m16n8k64 (16 rows), tokens the B operand (8 columns), so that few tokens take
 * few instructions. A tile's 128 weight rows are an atom of scale factors. A warp owns eight row quads of it, rows q,
 * q + 32, q + 64, q + 96: then the words that an mma reads of its lanes lie side by side. Lane (g, t) has that of row
 * 32 t + g of the warp's, and of column 8 t + g of each 32 tokens: one load serves two m16 tiles or four n8 tiles.
 *
 * Roles: all warps alike. Four threads copy 64 bytes of a row's codes (cp.async, 16 bytes each), a thread four scale
 * factors of a row. By TMA linear scale factors would take boxes of 16 bytes, twice a step's; and an unaligned row no
 * map at all. A step costs a thread 6 to 8 copies beside 32 mma of its warp, of which each takes 16 cycles.
 *
 * Banks: 64 bytes a row, of which chunk c lies at c ^ (row / 2 % 4): the eight rows of a matrix of ldmatrix are in all
 * banks, and so are the 32 words of a warp's scale factors.
 *
 * NaN: that zero codes times a NaN scale factor are NaN no manual says. So each lane keeps whether a factor that it
 * loaded was NaN, and the sums of such rows and columns become NaN behind the loop. Bit 7 means nothing, and is
 * cleared. */
#ifndef NK_SM120_MAINLOOP_CUH
#define NK_SM120_MAINLOOP_CUH

#include "cuda/ptx/mma_scaled.cuh"
#include "sm120_gemm_config.h"
#include "sm120_rows.cuh"

#define SM120_MMAS_K (SM120_GEMM_STEP / SM120_GEMM_MMA_K) /* of a step */
#define SM120_ROW_CHUNKS (SM120_GEMM_STEP / 32)           /* of 16 bytes */

template <int TILE_M> struct sm120_stage {
    uint4 weights[SM120_GEMM_TILE_N][SM120_ROW_CHUNKS], tokens[TILE_M][SM120_ROW_CHUNKS];
    uint32_t weight_sf[SM120_MMAS_K][SM120_GEMM_TILE_N], token_sf[SM120_MMAS_K][SM120_GEMM_SF_WORDS(TILE_M)];
};

/* Where chunk `chunk` of a row is kept. */
__device__ inline int sm120_swizzled(int row, int chunk) { return chunk ^ (row >> 1 & 3); }

/* What this thread copies of a tile. */
template <int TILE_M, int WARPS_M> struct sm120_source {
    static constexpr int THREADS = SM120_GEMM_THREADS(WARPS_M), AT_ONCE = THREADS / SM120_ROW_CHUNKS;
    static constexpr int WEIGHTS = SM120_GEMM_TILE_N / AT_ONCE, TOKENS = (TILE_M + AT_ONCE - 1) / AT_ONCE;
    static constexpr int WEIGHT_WORDS = SM120_MMAS_K / WARPS_M; /* of one row */
    static_assert(TILE_M * SM120_MMAS_K <= THREADS, "a thread has a word of one token");
    static_assert(TILE_M % AT_ONCE == 0 || TILE_M < AT_ONCE, "threads have as many tokens, or one");

    const uint8_t *weights[WEIGHTS], *tokens[TOKENS], *weight_sf, *token_sf;
    int weight_sf_step, token_sf_step; /* from four scale factors to the next four */
    int64_t k;
    bool wide; /* all of the warp's are aligned */

    /* This thread's part. */
    static __device__ int row() { return threadIdx.x / SM120_ROW_CHUNKS; }
    static __device__ int chunk() { return threadIdx.x % SM120_ROW_CHUNKS; }
    static __device__ int weight_sf_row() { return threadIdx.x % SM120_GEMM_TILE_N; }
    static __device__ int weight_sf_mma() { return threadIdx.x / SM120_GEMM_TILE_N; }
    static __device__ int token_sf_row() { return threadIdx.x % TILE_M; }
    static __device__ int token_sf_mma() { return threadIdx.x / TILE_M; }
    static __device__ bool has_tokens() { return TILE_M >= AT_ONCE || row() < TILE_M; }
    static __device__ bool has_token_sf() { return token_sf_mma() < SM120_MMAS_K; }

    template <typename OPERATOR, typename TILE> __device__ void point(const OPERATOR &op, const TILE &tile)
    {
        k = op.k(tile);
        weight_sf_step = op.weight_sf_step(tile);
        token_sf_step = op.token_sf_step(tile);
        weight_sf = op.weight(tile, weight_sf_row()).sf + (WEIGHT_WORDS > 1 ? 0 : weight_sf_mma() * weight_sf_step);
        token_sf = op.token(tile, token_sf_row()).sf + (has_token_sf() ? token_sf_mma() * token_sf_step : 0);
        bool aligned = is_aligned(weight_sf, 4) && is_aligned(token_sf, 4);
#pragma unroll
        for (int i = 0; i < WEIGHTS; i++) {
            weights[i] = op.weight(tile, row() + i * AT_ONCE).data + chunk() * 16;
            aligned = aligned && is_aligned(weights[i], 16);
        }
#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            tokens[i] = op.token(tile, has_tokens() ? row() + i * AT_ONCE : 0).data + chunk() * 16;
            aligned = aligned && is_aligned(tokens[i], 16);
        }
        wide = __all_sync(~0u, aligned);
    }

    __device__ void fetch(sm120_stage<TILE_M> &to, int step) const
    {
        if (wide)
            fetch_by<true>(to, step);
        else
            fetch_by<false>(to, step);
    }

    template <bool WIDE> __device__ void fetch_by(sm120_stage<TILE_M> &to, int step) const
    {
        const int64_t at = step * (int64_t)(SM120_GEMM_STEP / 2), codes = k / 2 - at - chunk() * 16;
        const int64_t factors = k / NK_SF_VEC - step * (int64_t)(SM120_GEMM_STEP / NK_SF_VEC);
        const int64_t word = step * (int64_t)SM120_MMAS_K;
#pragma unroll
        for (int i = 0; i < WEIGHTS; i++) {
            const int r = row() + i * AT_ONCE;
            sm120_copy<WIDE, 16>(&to.weights[r][sm120_swizzled(r, chunk())], weights[i] + at, codes);
        }
#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            const int r = row() + i * AT_ONCE;
            if (has_tokens()) sm120_copy<WIDE, 16>(&to.tokens[r][sm120_swizzled(r, chunk())], tokens[i] + at, codes);
        }
#pragma unroll
        for (int i = 0; i < WEIGHT_WORDS; i++) {
            const int r = weight_sf_row(), mma = WEIGHT_WORDS > 1 ? i : weight_sf_mma();
            const uint8_t *from = weight_sf + (word + (WEIGHT_WORDS > 1 ? i : 0)) * weight_sf_step;
            sm120_copy<WIDE, 4>(&to.weight_sf[mma][r % 32 * 4 + r / 32], from, factors - 4 * mma);
        }
        if (has_token_sf()) {
            const int r = token_sf_row(), mma = token_sf_mma();
            sm120_copy<WIDE, 4>(&to.token_sf[mma][r / 32 * 32 + r % 8 * 4 + r / 8 % 4], token_sf + word * token_sf_step,
                                factors - 4 * mma);
        }
    }
};

/* A warp's sums, as sm120_tile.cuh has them. */
template <int TILES> struct sm120_sums {
    static constexpr int GROUPS = (TILES + 3) / 4; /* of n8 tiles whose scale factors are one load */

    float acc[2][TILES][4];
    uint32_t row_nans, column_nans[GROUPS]; /* of the factors that this lane loads; not 0: some is NaN */

    __device__ static uint32_t load_sf(const uint32_t *at, uint32_t &nans)
    {
        const uint32_t four = ld_shared(shared_address(at)) & 0x7F7F7F7F;
        nans |= four + 0x01010101 & 0x80808080;
        return four;
    }

    template <int TILE_M> __device__ void multiply(const sm120_stage<TILE_M> &s, int quads, int first_token)
    {
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int mma = 0; mma < SM120_MMAS_K; mma++) {
            uint32_t a[2][4], b[TILES / 2][4], sfb[GROUPS];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = quads + lane % 8 + 32 * (2 * i + lane / 8 % 2), chunk = 2 * mma + lane / 16;
                ldmatrix_x4(a[i], shared_address(&s.weights[row][sm120_swizzled(row, chunk)]));
            }
            const uint32_t sfa = load_sf(&s.weight_sf[mma][quads * 4 + lane], row_nans);
#pragma unroll
            for (int i = 0; i < GROUPS; i++) {
                sfb[i] = 0;
                if (4 * i + lane % 4 < TILES)
                    sfb[i] = load_sf(&s.token_sf[mma][first_token + 32 * i + lane], column_nans[i]);
            }
#pragma unroll
            for (int j = 0; j < TILES; j += 2) {
                const int row = first_token + 8 * (j + lane / 16) + lane % 8, chunk = 2 * mma + lane / 8 % 2;
                ldmatrix_x4(b[j / 2], shared_address(&s.tokens[row][sm120_swizzled(row, chunk)]));
            }
#pragma unroll
            for (int j = 0; j < TILES; j++) {
#pragma unroll
                for (int i = 0; i < 2; i++)
                    mma_m16n8k64_mxf4nvf4(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], sfa, i,
                                          sfb[j / 4], j % 4);
            }
        }
    }

    /* Sums with a NaN factor become NaN. */
    __device__ void spread_nans()
    {
        const int lane = threadIdx.x & 31;
        uint32_t any = row_nans;
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
            any |= column_nans[i];
        if (!__any_sync(~0u, any)) return;
#pragma unroll
        for (int q = 0; q < 4; q++) {
#pragma unroll
            for (int j = 0; j < TILES; j++) {
                const uint32_t column = __shfl_sync(~0u, column_nans[j / 4], lane % 4 * 8 + q % 2 * 4 + j % 4);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t row = __shfl_sync(~0u, row_nans, lane / 4 * 4 + 2 * i + q / 2);
                    if (row | column) acc[i][j][q] = __int_as_float(0x7FFFFFFF);
                }
            }
        }
    }
};

#endif
