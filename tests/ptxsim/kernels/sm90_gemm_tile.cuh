/* Tiles of sm90_gemm.cu: their sizes, rings of them, where their bytes lie, and what becomes of codes and scales. */
#ifndef NK_SM90_GEMM_TILE_CUH
#define NK_SM90_GEMM_TILE_CUH

#include "cuda/nvfp4.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/wgmma.cuh"

enum {
    TILE_M = 128,
    TILE_N = 64,
    TILE_K = 64,
    STAGES = 3,
    DECODED = 2,
    ROWS = 64, /* of a consumer warpgroup */
    WARPGROUP = 128,
    CONSUMERS = 2,
    CODE_BYTES = TILE_K / 2, /* of a row */
    ROW_BYTES = 2 * TILE_K,
    X_BYTES = TILE_N * ROW_BYTES,
    PART_BYTES = ROWS * TILE_N * 4,
    STEP_BYTES = TILE_M * CODE_BYTES + NK_SF_ATOM_BYTES + X_BYTES
};

template <int SPAN_, int MULTICAST_, int SPLIT_, bool DECODER_, bool BF16_> struct config {
    enum {
        SPAN = SPAN_,
        MULTICAST = MULTICAST_,
        SPLIT = SPLIT_,
        DECODER = DECODER_,
        BF16 = BF16_,
        PANEL_COLS = SPAN / 2,
        THREADS = (3 + DECODER) * WARPGROUP,
        /* they sum up to what the CTA has at launch: 128 or 168 a thread */
        LOAD_REGISTERS = 40,
        DECODE_REGISTERS = 120,
        CONSUMER_REGISTERS = DECODER ? 176 : 232
    };
    static_assert(SPAN == 16 || SPAN == 32 || SPAN == 64 || SPAN == 128, "the rows that TMA can swizzle");
    static_assert(MULTICAST <= 4 && TILE_N % (8 * MULTICAST) == 0, "a part of a panel is whole rows of the pattern");
    static_assert(SPLIT == 1 || SPLIT == 2, "a warpgroup sends its sums to one peer or gets them of it");
};

/* A slot of a ring and the parity of its phase. */
typedef struct ring {
    int slot;
    uint32_t phase;
} ring;

template <int DEPTH> __device__ inline void advance(ring &r)
{
    if (++r.slot < DEPTH) return;
    r.slot = 0;
    r.phase ^= 1;
}

__device__ inline void wait(const uint64_t &barrier, uint32_t parity)
{
    mbarrier_wait(shared_address(&barrier), parity);
}

/* Where peers arrive. */
__device__ inline void wait_for_cluster(const uint64_t &barrier, uint32_t parity)
{
    mbarrier_wait_cluster(shared_address(&barrier), parity);
}

/* Where byte `byte` of row `row` of a tile of `rows` rows lies. */
template <class C> __device__ inline uint32_t swizzled(uint32_t tile, int rows, int row, int byte)
{
    const uint32_t at = tile + (uint32_t)(byte / C::SPAN * rows * C::SPAN + row * C::SPAN + byte % C::SPAN);
    return at ^ ((at >> 7 & (C::SPAN / 16 - 1)) << 4);
}

/* Codes are rows of 32 bytes; with the swizzle of that size where anything is swizzled. */
template <class C> __device__ inline uint32_t code_at(uint32_t tile, int row, int byte)
{
    const uint32_t at = tile + (uint32_t)(row * CODE_BYTES + byte);
    return C::SPAN == 16 ? at : at ^ ((at >> 7 & 1) << 4);
}

/* The descriptor of K columns 16 * part of a tile of `rows` rows, from a row on. */
template <class C> __device__ inline uint64_t descriptor(uint32_t tile, int rows, int row, int part)
{
    const uint32_t at = tile + (uint32_t)(32 * part / C::SPAN * rows * C::SPAN + 32 * part % C::SPAN + row * C::SPAN);
    const uint32_t mode = C::SPAN == 16   ? WGMMA_NO_SWIZZLE
                          : C::SPAN == 32 ? WGMMA_SWIZZLE_32B
                          : C::SPAN == 64 ? WGMMA_SWIZZLE_64B
                                          : WGMMA_SWIZZLE_128B;
    return wgmma_descriptor(at, C::SPAN == 16 ? 16 * rows : 16, 8 * C::SPAN, mode);
}

/* d = A B^T + (accumulate ? d : 0) of 64 rows of A, in shared memory (a descriptor) or in registers. */
template <class C, typename A> __device__ inline void multiply(float (&d)[32], const A &a, uint64_t b, bool accumulate)
{
    if (C::BF16)
        wgmma_bf16(d, a, b, accumulate);
    else
        wgmma_f16(d, a, b, accumulate);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Decode                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A byte of a word as a pair of equal scales; values and scales multiply to the true ones over NVFP4_DECODE_SCALE. */
template <class C> __device__ inline uint32_t scale_pair(uint32_t word, int byte)
{
    return __byte_perm(e4m3x2_to_pair<C::BF16>(word >> 8 * byte), 0, 0x1010);
}

/* Eight codes as pairs (0,1), (2,3), (4,5), (6,7). */
template <class C> __device__ inline void decode_word(uint32_t codes, uint32_t out[4])
{
    uint32_t apart[4];
    e2m1x8_to_pairs<C::BF16>(codes, apart);
    out[0] = __byte_perm(apart[0], apart[1], 0x5410);
    out[1] = __byte_perm(apart[2], apart[3], 0x5410);
    out[2] = __byte_perm(apart[0], apart[1], 0x7632);
    out[3] = __byte_perm(apart[2], apart[3], 0x7632);
}

/* A row of a step from codes and scales to a tile for wgmma. */
template <class C> __device__ inline void decode_row(uint32_t codes, uint32_t sf, uint32_t w, int row)
{
    const uint32_t scales = ld_shared(sf + (uint32_t)(row % 32 * 16 + row / 32 * 4));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 raw = ld_shared_v4(code_at<C>(codes, row, 16 * half));
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t scale = scale_pair<C>(scales, 2 * half + i / 2);
            uint32_t pairs[4];
            decode_word<C>(words[i], pairs);
            for (int k = 0; k < 4; k++)
                pairs[k] = multiply_pairs<C::BF16>(pairs[k], scale);
            st_shared_v4(swizzled<C>(w, TILE_M, row, 64 * half + 16 * i),
                         make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
        }
    }
}

/* What a thread holds of 64 rows x 64 columns of W for four wgmma: rows g and g + 8 of its warp's 16, of every 16
 * columns pairs 2t and 2t + 8. Bytes t and t + 4 of every 8 bytes of codes. */
template <class C>
__device__ inline void decode_fragments(uint32_t codes, uint32_t sf, int first, uint32_t fragments[4][4])
{
    const int lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = first + lane / 4 + 8 * r;
        const uint32_t scales = ld_shared(sf + (uint32_t)(row % 32 * 16 + row / 32 * 4));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 raw = ld_shared_v4(code_at<C>(codes, row, 16 * half));
            const uint32_t low = __byte_perm(raw.x, raw.y, t | (t + 4) << 4) & 0xFFFF;
            uint32_t pairs[4];
            decode_word<C>(low | __byte_perm(raw.z, raw.w, t | (t + 4) << 4) << 16, pairs);
#pragma unroll
            for (int i = 0; i < 4; i++)
                fragments[2 * half + i / 2][2 * (i % 2) + r] =
                    multiply_pairs<C::BF16>(pairs[i], scale_pair<C>(scales, 2 * half + i / 2));
        }
    }
}

#endif
