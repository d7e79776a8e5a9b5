/* The main loop of GEMMs of 16-bit tokens: acc[weight rows][tokens] += W X^T over K.
 *
 * Work: weights are the A operand of mma.m16n8k16 (16 rows), tokens the B operand (8 columns). Of a step, 64 elements
 * of K, lane (g, t) = (lane / 4, lane % 4) takes block t of each of its rows: 16 elements under one scale factor. Four
 * neighbours of them are what the lane has of a k16 step. That is another order of K than memory's, which is right
 * because both operands have the same.
 *
 * A lane reads eight bytes of codes of its four weight rows, their words of scale factors (16 bytes, since row quads'
 * words lie side by side), and 32 bytes of a token of each n8 tile. It decodes weights in registers, exactly, so a NaN
 * scale factor is a NaN weight: zero codes need no care.
 *
 * Roles: all warps alike. Two threads copy the 32 bytes of a weight row's codes (cp.async, 16 bytes each), eight the
 * 128 bytes of a token, one four scale factors of a row.
 *
 * Banks: of a token's eight chunks of 16 bytes, chunk c lies at c ^ (row & 1): the quarter of a warp that one access
 * serves reads every other chunk of two rows. Weight rows of 32 bytes need no swizzle.
 *
 * Barriers: those of sm120_tile.cuh. */
#ifndef NK_SM120_KIND_F16_MAINLOOP_CUH
#define NK_SM120_KIND_F16_MAINLOOP_CUH

#include "cuda/nvfp4_narrow.cuh"
#include "sm120/gemm/sm120_rows.cuh"
#include "sm120_kind_f16_config.h"

#define SM120_KIND_F16_WEIGHT_CHUNKS (SM120_KIND_F16_STEP / 32) /* of 16 bytes, of a row and step */
#define SM120_KIND_F16_TOKEN_CHUNKS (SM120_KIND_F16_STEP / 8)

template <int TILE_M> struct kind_f16_stage {
    uint4 tokens[TILE_M][SM120_KIND_F16_TOKEN_CHUNKS], weights[SM120_GEMM_TILE_N][SM120_KIND_F16_WEIGHT_CHUNKS];
    uint32_t weight_sf[SM120_GEMM_TILE_N];
};

/* Where chunk `chunk` of a token's row is kept. */
__device__ inline int kind_f16_swizzled(int row, int chunk) { return chunk ^ (row & 1); }

/* What this thread copies of a tile. */
template <int TILE_M, int WARPS_M> struct kind_f16_source {
    static constexpr int THREADS = SM120_GEMM_THREADS(WARPS_M);
    static constexpr int WEIGHTS_AT_ONCE = THREADS / SM120_KIND_F16_WEIGHT_CHUNKS,
                         WEIGHTS = SM120_GEMM_TILE_N / WEIGHTS_AT_ONCE;
    static constexpr int TOKENS_AT_ONCE = THREADS / SM120_KIND_F16_TOKEN_CHUNKS, TOKENS = TILE_M / TOKENS_AT_ONCE;
    static_assert(SM120_GEMM_TILE_N % WEIGHTS_AT_ONCE == 0 && TILE_M % TOKENS_AT_ONCE == 0, "threads have as many");

    const uint8_t *weights[WEIGHTS], *tokens[TOKENS], *weight_sf;
    int weight_sf_step; /* from four scale factors to the next four */
    int64_t k;
    bool bf16, wide; /* wide: all of the warp's are aligned */

    /* This thread's part. */
    static __device__ int weight() { return threadIdx.x / SM120_KIND_F16_WEIGHT_CHUNKS; }
    static __device__ int weight_chunk() { return threadIdx.x % SM120_KIND_F16_WEIGHT_CHUNKS; }
    static __device__ int token() { return threadIdx.x / SM120_KIND_F16_TOKEN_CHUNKS; }
    static __device__ int token_chunk() { return threadIdx.x % SM120_KIND_F16_TOKEN_CHUNKS; }
    static __device__ int sf_row() { return threadIdx.x % SM120_GEMM_TILE_N; }
    static __device__ bool has_sf() { return THREADS == SM120_GEMM_TILE_N || threadIdx.x < SM120_GEMM_TILE_N; }

    template <typename OPERATOR, typename TILE> __device__ void point(const OPERATOR &op, const TILE &tile)
    {
        k = op.k(tile);
        bf16 = op.tokens(tile).dtype == NK_BF16;
        weight_sf_step = op.weight_sf_step(tile);
        weight_sf = op.weight(tile, sf_row()).sf;
        bool aligned = is_aligned(weight_sf, 4);
#pragma unroll
        for (int i = 0; i < WEIGHTS; i++) {
            weights[i] = op.weight(tile, weight() + i * WEIGHTS_AT_ONCE).data + weight_chunk() * 16;
            aligned = aligned && is_aligned(weights[i], 16);
        }
#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            tokens[i] = op.token(tile, token() + i * TOKENS_AT_ONCE).data + token_chunk() * 16;
            aligned = aligned && is_aligned(tokens[i], 16);
        }
        wide = __all_sync(~0u, aligned);
    }

    __device__ void fetch(kind_f16_stage<TILE_M> &to, int step) const
    {
        if (wide)
            fetch_by<true>(to, step);
        else
            fetch_by<false>(to, step);
    }

    template <bool WIDE> __device__ void fetch_by(kind_f16_stage<TILE_M> &to, int step) const
    {
        const int64_t first = step * (int64_t)SM120_KIND_F16_STEP, rest = k - first; /* elements */
#pragma unroll
        for (int i = 0; i < WEIGHTS; i++) {
            uint4 *at = &to.weights[weight() + i * WEIGHTS_AT_ONCE][weight_chunk()];
            sm120_copy<WIDE, 16>(at, weights[i] + first / 2, rest / 2 - weight_chunk() * 16);
        }
#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            const int row = token() + i * TOKENS_AT_ONCE;
            uint4 *at = &to.tokens[row][kind_f16_swizzled(row, token_chunk())];
            sm120_copy<WIDE, 16>(at, tokens[i] + first * 2, rest * 2 - token_chunk() * 16);
        }
        if (has_sf()) {
            uint32_t *at = &to.weight_sf[sf_row() % 32 * 4 + sf_row() / 32];
            sm120_copy<WIDE, 4>(at, weight_sf + step * (int64_t)weight_sf_step, rest / NK_SF_VEC);
        }
    }
};

/* A warp's sums, see sm120_tile.cuh. */
template <int TILES> struct kind_f16_sums {
    float acc[2][TILES][4];

    template <bool BF16, int TILE_M>
    __device__ void multiply(const kind_f16_stage<TILE_M> &s, int quads, int first_token)
    {
        const int lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
        const uint4 words = ld_shared_v4(shared_address(&s.weight_sf[(quads + g) * 4]));
        const int mine = t * 0x11 + 0x40; /* byte t of two words */
        const uint32_t sf[2] = {e4m3x2_to_pair<BF16>(__byte_perm(words.x, words.y, mine)),
                                e4m3x2_to_pair<BF16>(__byte_perm(words.z, words.w, mine))};
        uint2 codes[4];
#pragma unroll
        for (int r = 0; r < 4; r++)
            codes[r] = ld_shared_v2(shared_address(&s.weights[quads + g + 32 * r]) + 8 * t);
#pragma unroll
        for (int half = 0; half < 2; half++) { /* of the blocks: two k16 steps */
            uint32_t a[2][2][4];               /* [k16 step][m16 tile] */
#pragma unroll
            for (int r = 0; r < 4; r++) {
                uint32_t pairs[4];
                const uint32_t factor = __byte_perm(sf[r / 2], 0, r % 2 ? 0x3232 : 0x1010);
                decode_8_weights<BF16>(half ? codes[r].y : codes[r].x, factor, pairs);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    a[i / 2][r / 2][i % 2 * 2 + r % 2] = pairs[i];
            }
#pragma unroll
            for (int j = 0; j < TILES; j++) {
                const int row = first_token + 8 * j + g;
                const uint4 b = ld_shared_v4(shared_address(&s.tokens[row][kind_f16_swizzled(row, 2 * t + half)]));
#pragma unroll
                for (int i = 0; i < 2; i++)
                    mma_pairs<BF16>(acc[i][j], a[0][i], b.x, b.y);
#pragma unroll
                for (int i = 0; i < 2; i++)
                    mma_pairs<BF16>(acc[i][j], a[1][i], b.z, b.w);
            }
        }
    }
};

#endif
