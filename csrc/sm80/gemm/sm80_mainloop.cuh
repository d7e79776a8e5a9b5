/* The main loop of all GEMMs: acc[weight rows][tokens] += W X^T over a range of K steps.
 *
 * Work: weights are the A operand of mma.m16n8k16 (16 rows), tokens the B operand (8 columns). Of a step, lane (g, c) =
 * (lane / 4, lane % 4) takes chunk c of each of its rows, 16 contiguous bytes: four lanes have a row's 64. Word i of a
 * chunk becomes the fragments of k16 steps 2i and 2i + 1. That is another order of K than memory's, which is right
 * because both operands have the same.
 *
 * Roles: all warps alike. A warp owns 32 weight rows and multiplies them by all tokens of the tile; a lane owns four of
 * them (rows 0..3 of the lane; j and j + 2 are rows g and g + 8 of m16 tile j). It copies its own weights to shared
 * memory (cp.async) and decodes them in registers. The warps divide the tokens' n8 tiles among them: each copies and
 * decodes some, for all warps.
 *
 * Barriers, at step s:
 *   cp.async groups    a lane's copies -> the same lane     of step s + 1; no other lane reads what it copied
 *   __syncthreads      the warps that decoded step s + 1 -> all warps, which multiply it
 *                      all warps, which multiplied step s -> the warps that decode step s + 2 into the same buffer
 * A lane waits for its copies of step s + 1, multiplies step s while it decodes step s + 1, and waits at the barrier.
 *
 * Shared memory: struct operand_memory. Its size is SM80_GEMM_OPERANDS on the host, see sm80_gemm.cuh. */
#ifndef NK_SM80_MAINLOOP_CUH
#define NK_SM80_MAINLOOP_CUH

#include "cuda/nvfp4.cuh"
#include "cuda/ptx/async_copy.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/sf_layout.cuh"
#include "cuda/vectors.cuh"
#include "sm80_gemm_config.h"

template <int TILE_M, int WARPS_, int STAGES, int KIND_> struct operand_memory {
    static constexpr int WARPS = WARPS_, KIND = KIND_, TILES = TILE_M / 8;
    static constexpr int TILES_PER_WARP = TILES > WARPS ? TILES / WARPS : 1; /* n8 tiles that one warp decodes */
    /* The i-th of them; TILES or more if the warp has none. */
    static __device__ int token_tile(int warp, int i) { return warp + i * WARPS; }

    uint4 weights[STAGES][WARPS][4][32]; /* a lane's chunks of its four rows */
    uint4 weight_sf[STAGES][WARPS][32];  /* a lane's factors: 4 bytes a row, those of 64 elements */
    uint4 tokens[STAGES][TILES][SM80_GEMM_TOKEN_CHUNKS(KIND)][32]; /* a lane's chunk of its row of an n8 tile */
    uint4 decoded[2][TILES][SM80_GEMM_WORDS(KIND)][32];            /* fragments of the tokens, for all warps */
    uint32_t token_sf[STAGES][TILES][32];                          /* a lane's factors of 64 elements */
};

/* This lane's four weight rows, as two pairs: rows 0 and 1, rows 2 and 3. The rows of a pair are 32 apart. */
typedef struct weight_rows {
    const uint8_t *row[2], *sf[2]; /* of the first of each pair */
    int64_t row_step[2];           /* bytes to the second: the same in all lanes, which costs no registers */
    int64_t sf_step[2];            /* linear: the same for the factors */
    int64_t k_stride;              /* 16-bit weights only */
    bool alone[2];                 /* the second row is beyond N */
    bool blocked;
    bool adjacent; /* blocked: the factors of all four are 16 contiguous bytes, not twice 8 */
    bool apart;    /* blocked: nor are those of a pair; sf_step is used as for linear ones, but differs by lane */
} weight_rows;

/* This lane's rows of its warp's n8 tiles. */
template <int TILES_PER_WARP> struct token_rows {
    const uint8_t *row[TILES_PER_WARP];
    const uint8_t *sf[TILES_PER_WARP];
    bool blocked;
};

/* ---------------------------------------------------------------------------------------------------------------- */
/* Fetching a step that is wholly within K, from rows that are all there and aligned: copies and nothing else       */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Bytes from one step to the next of a row's chunk, and of its factors. */
template <int KIND> __device__ inline int64_t row_advance(const weight_rows &w)
{
    return SM80_GEMM_PLAIN(KIND) ? SM80_GEMM_STEP(KIND) * w.k_stride : 64;
}
__device__ inline int sf_advance(bool blocked) { return blocked ? sf_bytes_of_atoms(2) : 2 * SF_ATOM_COLS; }

template <typename S>
__device__ inline void fetch_whole(S &s, int stage, const weight_rows &w, const token_rows<S::TILES_PER_WARP> &x)
{
    constexpr int KIND = S::KIND;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const uint32_t to = shared_address(&s.weights[stage][warp][0][lane]);
#pragma unroll
    for (int r = 0; r < 4; r++)
        cp_async_cg(to + r * 512, w.row[r >> 1] + (r & 1 ? w.row_step[r >> 1] : 0));
    if (!SM80_GEMM_PLAIN(KIND)) {
        const uint32_t sf = shared_address(&s.weight_sf[stage][warp][lane]);
        if (w.blocked && w.adjacent) {
            cp_async_ca<16>(sf, w.sf[0]);
        } else if (w.blocked && !w.apart) {
            cp_async_ca<8>(sf, w.sf[0]);
            cp_async_ca<8>(sf + 8, w.sf[1]);
        } else {
#pragma unroll
            for (int r = 0; r < 4; r++)
                cp_async_ca<4>(sf + r * 4, w.sf[r >> 1] + (r & 1 ? w.sf_step[r >> 1] : 0));
        }
    }
#pragma unroll
    for (int i = 0; i < S::TILES_PER_WARP; i++) {
        const int tile = S::token_tile(warp, i);
        if (S::TILES_PER_WARP == 1 && tile >= S::TILES) return;
        const uint32_t token = shared_address(&s.tokens[stage][tile][0][lane]);
#pragma unroll
        for (int q = 0; q < SM80_GEMM_TOKEN_CHUNKS(KIND); q++)
            cp_async_ca<16>(token + q * 512, x.row[i] + q * 16);
        if (KIND == SM80_GEMM_NVFP4) cp_async_ca<4>(shared_address(&s.token_sf[stage][tile][lane]), x.sf[i]);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Fetching any other step: codes, elements and factors beyond K are zero; unaligned sources are read byte by byte  */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The first `valid` of BYTES bytes; `valid` may be negative or above BYTES. No byte behind them is read. `valid` is
 * not clamped to 0..BYTES first: ptxas 13.0 makes of the clamp and the comparison, for sm_90, one VIMNMX.RELU whose
 * predicate takes 8 of 16 for all. */
template <int BYTES> __device__ inline void copy_valid(void *to, const uint8_t *from, int valid)
{
    if (valid >= BYTES && is_aligned(from, BYTES)) {
        cp_async_ca<BYTES>(shared_address(to), from);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < BYTES; i++)
        ((uint8_t *)to)[i] = i < valid ? from[i] : 0;
}

/* Eight 16-bit elements that do not lie side by side. */
__device__ inline void gather_eight(void *to, const uint8_t *from, int64_t stride, int valid)
{
#pragma unroll 1
    for (int i = 0; i < 8; i++)
        ((uint16_t *)to)[i] = i < valid ? *(const uint16_t *)(from + i * stride) : 0;
}

/* `blocks` counts K in blocks of 16 elements: a chunk of codes is two, one of 16-bit elements is half a block. */
template <typename S>
__device__ inline void fetch_partial(S &s, int stage, const weight_rows &w, const token_rows<S::TILES_PER_WARP> &x,
                                     int step, int blocks)
{
    constexpr int KIND = S::KIND, CHUNKS = SM80_GEMM_TOKEN_CHUNKS(KIND);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, chunk = step * 4 + (lane & 3);
    const int group = step * 2 + (lane >> 1 & 1), factors = blocks - group * 4; /* bytes left of either */
    const int rest = blocks - 2 * chunk, codes = rest >= 2 ? 16 : rest * 8;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        uint4 *to = &s.weights[stage][warp][r][lane];
        const uint8_t *from = w.row[r >> 1] + (r & 1 && !w.alone[r >> 1] ? w.row_step[r >> 1] : 0);
        if (!SM80_GEMM_PLAIN(KIND))
            copy_valid<16>(to, from, codes);
        else if (w.k_stride == 2)
            copy_valid<16>(to, from, chunk < 2 * blocks ? 16 : 0);
        else
            gather_eight(to, from, w.k_stride, chunk < 2 * blocks ? 8 : 0);
    }
    if (!SM80_GEMM_PLAIN(KIND)) {
        uint32_t *to = (uint32_t *)&s.weight_sf[stage][warp][lane];
        /* A blocked row always has all four factors, if only as padding. */
#pragma unroll
        for (int pair = 0; pair < 2 && w.blocked && !w.apart; pair++) {
            copy_valid<8>(to + 2 * pair, pair && w.adjacent ? w.sf[0] + 8 : w.sf[pair], factors > 0 ? 8 : 0);
        }
#pragma unroll
        for (int r = 0; r < 4 && (!w.blocked || w.apart); r++) {
            copy_valid<4>(to + r, w.sf[r >> 1] + (r & 1 && !w.alone[r >> 1] ? w.sf_step[r >> 1] : 0), factors);
        }
    }
#pragma unroll
    for (int i = 0; i < S::TILES_PER_WARP; i++) {
        const int tile = S::token_tile(warp, i);
        if (S::TILES_PER_WARP == 1 && tile >= S::TILES) return;
#pragma unroll
        for (int q = 0; q < CHUNKS; q++) {
            const int valid = KIND == SM80_GEMM_NVFP4 ? codes : chunk * CHUNKS + q < 2 * blocks ? 16 : 0;
            copy_valid<16>(&s.tokens[stage][tile][q][lane], x.row[i] + q * 16, valid);
        }
        if (KIND == SM80_GEMM_NVFP4) copy_valid<4>(&s.token_sf[stage][tile][lane], x.sf[i], factors);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Decoding                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The factors of blocks 2 chunk and 2 chunk + 1 in the low two bytes, zero beyond K: padding may be anything. */
__device__ inline uint32_t sf_pair(uint32_t four, int chunk, int blocks)
{
    const int rest = blocks - 2 * chunk;
    return four >> (chunk & 1) * 16 & (rest >= 2 ? 0xFFFF : rest == 1 ? 0xFF : 0);
}

/* A pair of the low factor of `pair`. */
__device__ inline uint32_t low_twice(uint32_t pair) { return __byte_perm(pair, 0, 0x1010); }

/* The factors of this lane's rows, ready to multiply with; step as counted from K = 0. */
template <typename S> __device__ inline void decode_weight_sf(S &s, int stage, int step, int blocks, uint32_t sf[4])
{
    constexpr int KIND = S::KIND;
    if (SM80_GEMM_PLAIN(KIND)) return;
    const uint4 factors = s.weight_sf[stage][threadIdx.x >> 5][threadIdx.x & 31];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const uint32_t pair = sf_pair(word_of(factors, r), step * 4 + (threadIdx.x & 3), blocks);
        sf[r] = e4m3x2_to_pair<KIND == SM80_GEMM_BF16>(pair);
    }
}

/* Row r's fragments of word `word`: a[k16 step][m16 tile][register]. */
template <typename S>
__device__ inline void decode_weight_row(S &s, int stage, int word, int r, const uint32_t sf[4], uint32_t a[2][2][4])
{
    constexpr int KIND = S::KIND;
    const uint4 *chunk = &s.weights[stage][threadIdx.x >> 5][r][threadIdx.x & 31];
    uint32_t pairs[4];
    if (SM80_GEMM_PLAIN(KIND)) {
        const uint4 v = *chunk;
        pairs[0] = v.x, pairs[1] = v.y, pairs[2] = v.z, pairs[3] = v.w;
    } else {
        decode_e2m1x8<KIND == SM80_GEMM_BF16>(((const uint32_t *)chunk)[word], low_twice(sf[r] >> word / 2 * 16),
                                              pairs);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        a[half][r & 1][r >> 1] = pairs[2 * half];
        a[half][r & 1][2 + (r >> 1)] = pairs[2 * half + 1];
    }
}

/* The factors of this lane's row of n8 tile `tile`. */
template <typename S> __device__ inline uint32_t decode_token_sf(S &s, int stage, int tile, int step, int blocks)
{
    constexpr int KIND = S::KIND;
    if (KIND != SM80_GEMM_NVFP4) return 0;
    const int lane = threadIdx.x & 31;
    return e4m3x2_to_f16x2(sf_pair(s.token_sf[stage][tile][lane], step * 4 + (lane & 3), blocks));
}

/* Word `word` of this lane's row of n8 tile `tile`, as fragments of two k16 steps. */
template <typename S> __device__ inline uint4 decode_token_word(S &s, int stage, int tile, int word, uint32_t sf)
{
    constexpr int KIND = S::KIND;
    const int lane = threadIdx.x & 31;
    if (KIND == SM80_GEMM_NVFP4) {
        uint32_t pairs[4];
        const uint32_t codes = ((const uint32_t *)&s.tokens[stage][tile][0][lane])[word];
        decode_e2m1x8<false>(codes, low_twice(sf >> word / 2 * 16), pairs);
        return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    const uint4 v = s.tokens[stage][tile][word % SM80_GEMM_TOKEN_CHUNKS(KIND)][lane];
    return SM80_GEMM_PLAIN(KIND) ? v : in_decode_order(v);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Multiplying one step while the next is decoded                                                                   */
/* ---------------------------------------------------------------------------------------------------------------- */

/* `a` holds word 0 of this step's weights, afterwards that of the next step; sf holds their factors. Decoding (integer
 * pipes) stands between multiplications (tensor pipe), one word of weights ahead, because two warps a scheduler are too
 * few for one warp's decoding to hide behind another's multiplications. In the last step it decodes whatever
 * the next stage holds, and the result is not read. */
template <int TILE_M, int WARPS, int STAGES, int KIND, int TILES_PER_WARP>
__device__ inline void mma_step(operand_memory<TILE_M, WARPS, STAGES, KIND> &s, int stage, int next_stage, int buffer,
                                int step, int blocks, uint32_t a[2][2][4], uint32_t sf[4], float acc[2][TILE_M / 8][4])
{
    constexpr int TILES = TILE_M / 8, WORDS = SM80_GEMM_WORDS(KIND), GROUP = TILES < 2 ? 1 : 2, GROUPS = TILES / GROUP;
    constexpr bool IS_BF16 = KIND == SM80_GEMM_BF16 || KIND == SM80_GEMM_PLAIN_BF16;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t token_sf[TILES_PER_WARP];
#pragma unroll
    for (int i = 0; i < TILES_PER_WARP; i++) {
        const int tile = warp + i * WARPS;
        token_sf[i] = TILES_PER_WARP > 1 || tile < TILES ? decode_token_sf(s, next_stage, tile, step + 1, blocks) : 0;
    }
#pragma unroll
    for (int word = 0; word < WORDS; word++) {
        const bool wraps = word + 1 == WORDS;
        uint32_t ahead[2][2][4];
        if (wraps) decode_weight_sf(s, next_stage, step + 1, blocks, sf);
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            uint4 b[GROUP];
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                b[i] = s.decoded[buffer][group * GROUP + i][word][lane];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                if (r * GROUPS / 4 != group) continue;
                decode_weight_row(s, wraps ? next_stage : stage, wraps ? 0 : word + 1, r, sf, ahead);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int i = 0; i < GROUP; i++) {
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        mma_pairs<IS_BF16>(acc[j][group * GROUP + i], a[half][j], half ? b[i].z : b[i].x,
                                           half ? b[i].w : b[i].y);
                    }
                }
            }
#pragma unroll
            for (int piece = 0; piece < TILES_PER_WARP * WORDS; piece++) {
                if (piece * GROUPS / TILES_PER_WARP != word * GROUPS + group) continue;
                const int tile = warp + piece / WORDS * WARPS;
                if (TILES_PER_WARP > 1 || tile < TILES) {
                    s.decoded[buffer ^ 1][tile][piece % WORDS][lane] =
                        decode_token_word(s, next_stage, tile, piece % WORDS, token_sf[piece / WORDS]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 16; i++)
            ((uint32_t *)a)[i] = ((uint32_t *)ahead)[i];
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */

/* Decodes the first step, which no mma_step() comes before. */
template <int TILE_M, int WARPS, int STAGES, int KIND, int TILES_PER_WARP>
__device__ inline void decode_first_step(operand_memory<TILE_M, WARPS, STAGES, KIND> &s, int step, int blocks,
                                         uint32_t a[2][2][4], uint32_t sf[4])
{
    decode_weight_sf(s, 0, step, blocks, sf);
#pragma unroll
    for (int r = 0; r < 4; r++)
        decode_weight_row(s, 0, 0, r, sf, a);
    for (int tile = threadIdx.x >> 5; tile < TILE_M / 8; tile += WARPS) {
        const uint32_t token_sf = decode_token_sf(s, 0, tile, step, blocks);
#pragma unroll
        for (int word = 0; word < SM80_GEMM_WORDS(KIND); word++) {
            s.decoded[0][tile][word][threadIdx.x & 31] = decode_token_word(s, 0, tile, word, token_sf);
        }
    }
}

/* What a sum is multiplied by: a decoded value is the true one times 2^-14. */
template <int KIND> __device__ inline float product_scale()
{
    return KIND == SM80_GEMM_NVFP4 ? 0x1p28f : SM80_GEMM_PLAIN(KIND) ? 1.0f : 0x1p14f;
}

/* Moves w and x from K = 0 to this lane's chunk of step `first`. Whether fetch_whole may be used. */
template <typename S> __device__ inline bool begin_operands(weight_rows &w, token_rows<S::TILES_PER_WARP> &x, int first)
{
    constexpr int KIND = S::KIND, token_step = 64 * SM80_GEMM_TOKEN_CHUNKS(KIND);
    const int c = threadIdx.x & 3, sf_step = sf_advance(w.blocked), token_sf_step = sf_advance(x.blocked);
    const int64_t row_step = row_advance<KIND>(w);
    bool wide = !SM80_GEMM_PLAIN(KIND) || w.k_stride == 2;
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        w.row[pair] += first * row_step + c * (row_step / 4);
        w.sf[pair] += first * (int64_t)sf_step + c / 2 * (sf_step / 2);
        wide = wide && is_aligned(w.row[pair], 16) && is_aligned((void *)w.row_step[pair], 16) && !w.alone[pair];
        if (SM80_GEMM_PLAIN(KIND)) continue;
        const bool alone = !w.blocked || w.apart; /* a row's factors */
        wide = wide && is_aligned(w.sf[pair], alone ? 4 : w.adjacent && pair == 0 ? 16 : 8);
        wide = wide && (!alone || is_aligned((void *)w.sf_step[pair], 4));
    }
#pragma unroll
    for (int i = 0; i < S::TILES_PER_WARP; i++) {
        x.row[i] += first * (int64_t)token_step + c * (token_step / 4);
        x.sf[i] += first * (int64_t)token_sf_step + c / 2 * (token_sf_step / 2);
        wide = wide && is_aligned(x.row[i], 16) && (KIND != SM80_GEMM_NVFP4 || is_aligned(x.sf[i], 4));
    }
    return wide;
}

/* Moves w and x on by one step. */
template <typename S> __device__ inline void advance_operands(weight_rows &w, token_rows<S::TILES_PER_WARP> &x)
{
    const int64_t row_step = row_advance<S::KIND>(w);
    const int sf_step = sf_advance(w.blocked), token_sf_step = sf_advance(x.blocked);
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        w.row[pair] += row_step;
        w.sf[pair] += sf_step;
    }
#pragma unroll
    for (int i = 0; i < S::TILES_PER_WARP; i++) {
        x.row[i] += 64 * SM80_GEMM_TOKEN_CHUNKS(S::KIND);
        x.sf[i] += token_sf_step;
    }
}

/* Adds `steps` steps from `first` on; w and x point to K = 0. For all threads of the CTA; ends with a barrier. */
template <int TILE_M, int WARPS, int STAGES, int KIND, int TILES_PER_WARP>
__device__ inline void gemm_mainloop(operand_memory<TILE_M, WARPS, STAGES, KIND> &s, weight_rows w,
                                     token_rows<TILES_PER_WARP> x, int blocks, int first, int steps,
                                     float acc[2][TILE_M / 8][4])
{
    using S = operand_memory<TILE_M, WARPS, STAGES, KIND>;
    static_assert(STAGES >= 3, "one step is multiplied, one decoded, one fetched");
    constexpr int BLOCKS_PER_STEP = SM80_GEMM_STEP(KIND) / NK_SF_VEC;
    const bool wide = __all_sync(~0u, begin_operands<S>(w, x, first));
    const int whole = wide ? blocks / BLOCKS_PER_STEP - first : 0; /* steps that lie within K */

    int stage = 0, last = 0; /* of the step that is multiplied; of the one that is fetched */
    uint32_t a[2][2][4], sf[4];
#pragma unroll 1
    for (int step = 1 - STAGES; step < steps; step++) {
        const int ahead = step + STAGES - 1;
        if (ahead < steps) {
            if (ahead < whole)
                fetch_whole(s, last, w, x);
            else
                fetch_partial(s, last, w, x, first + ahead, blocks);
            advance_operands<S>(w, x);
        }
        last = last + 1 == STAGES ? 0 : last + 1;
        cp_async_commit_group();
        if (step < -1) continue; /* the pipeline is being filled */
        cp_async_wait_group<STAGES - 2>();
        if (step < 0) {
            decode_first_step<TILE_M, WARPS, STAGES, KIND, TILES_PER_WARP>(s, first, blocks, a, sf);
        } else {
            const int next = stage + 1 == STAGES ? 0 : stage + 1;
            mma_step<TILE_M, WARPS, STAGES, KIND, TILES_PER_WARP>(s, stage, next, step & 1, first + step, blocks, a, sf,
                                                                  acc);
            stage = next;
        }
        __syncthreads();
    }
}

#endif
