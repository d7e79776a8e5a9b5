/* What an sm100 kind_f16 kernel is compiled for: a tile's extents, and the maps of shared and tensor memory. */
#ifndef NK_SM100_KIND_F16_TRAITS_CUH
#define NK_SM100_KIND_F16_TRAITS_CUH

#include "sm100/gemm/sm100_gemm.cuh"
#include "sm100_kind_f16_config.h"

/* Has the names of mxf4nvf4_traits for the scheduler and the epilogue. DECODES: weights are NVFP4, else 16-bit. */
template <bool DECODES_, int MATRICES_, int TILES_, int CTA_GROUP_, int MMA_N_, int SPLIT_K_, int ACCUMULATORS_>
struct kind_f16_traits {
    static constexpr bool DECODES = DECODES_, EXPERTS = TILES_ == FROM_EXPERTS, LIST = TILES_ == FROM_LIST;
    static constexpr int MATRICES = MATRICES_, OPERANDS = MATRICES + 1;
    static constexpr int CTA_GROUP = CTA_GROUP_, SPLIT_K = SPLIT_K_, PAIRS = 1, CLUSTER = CTA_GROUP * SPLIT_K;
    static constexpr bool DYNAMIC = false, ACTIVATED = false;
    static constexpr int MMA_M = CTA_GROUP * SM100_GEMM_CTA_M, MMA_N = MMA_N_, CTA_N = MMA_N / CTA_GROUP;
    static constexpr int STAGES = SM100_KIND_F16_STAGES(DECODES, CTA_GROUP, MMA_N, SPLIT_K, MATRICES);
    static constexpr int EPILOGUE_N = MMA_N / SPLIT_K, LOAD_N = EPILOGUE_N < 32 || MATRICES > 1 ? 16 : 32;
    static constexpr int ACCUMULATORS = ACCUMULATORS_, ACCUMULATOR_COLUMNS = MATRICES * MMA_N;
    static constexpr int DECODED_COLUMN = ACCUMULATORS * ACCUMULATOR_COLUMNS; /* the first of tensor memory */
    static constexpr int DECODED_STAGE_COLUMNS = MATRICES * SM100_KIND_F16_DECODED_COLUMNS;
    static constexpr int DECODED_STAGES =
        DECODES ? (SM100_GEMM_TMEM_COLUMNS - DECODED_COLUMN) / DECODED_STAGE_COLUMNS : 1;
    static constexpr int THREADS = SM100_KIND_F16_THREADS(DECODES), MMA_WARP = SM100_KIND_F16_WARPS(DECODES) - 1;
    static constexpr int PRODUCER_WARP = SM100_GEMM_EPILOGUE_WARPS + (DECODES ? SM100_KIND_F16_DECODE_WARPS : 0);
    static constexpr int WEIGHT_BYTES = SM100_KIND_F16_WEIGHT_BYTES(DECODES);
    static_assert(MMA_N % 16 == 0 && MMA_N <= 256, "what an MMA can have");
    static_assert(CTA_GROUP == 1 || DECODES, "the leader hears of its follower's stages from the warps that decode");
    static_assert(EPILOGUE_N % 16 == 0, "the epilogue stores 16 columns at a time");
    static_assert(STAGES >= 3 && DECODED_COLUMN <= SM100_GEMM_TMEM_COLUMNS, "one stage is filled, one multiplied");
    static_assert(!DECODES || DECODED_STAGES >= 2, "one stage is decoded while another is multiplied");
};

/* By SM100_GEMM_OPERAND_.. */
__device__ constexpr int weight_operand(int matrix)
{
    return matrix == 0 ? SM100_GEMM_OPERAND_M : SM100_GEMM_OPERAND_UP;
}

/* A CTA's shared memory. sm100_kind_f16.cuh says who arrives at the barriers. */
template <class C> struct kind_f16_smem {
    struct stage {
        uint8_t weights[C::MATRICES][C::WEIGHT_BYTES]; /* codes, or boxes of 16-bit rows; swizzled, as tokens are */
        uint8_t tokens[SM100_KIND_F16_BOXES][C::CTA_N * SM100_KIND_F16_SWIZZLE_BYTES];
        uint8_t sf[C::DECODES ? C::MATRICES : 0][SM100_KIND_F16_SF_ATOMS][SF_ATOM_BYTES];
    } stages[C::STAGES];
    /* Peers' partial sums: [peer][matrix][column / 4][lane]. */
    float4 inbox[C::SPLIT_K - 1][C::MATRICES][C::EPILOGUE_N / 4][SM100_GEMM_CTA_M];
    uint64_t full[C::STAGES], empty[C::STAGES];
    uint64_t decoded_full[C::DECODED_STAGES], decoded_empty[C::DECODED_STAGES];
    uint64_t accumulator_full[C::ACCUMULATORS], accumulator_empty[C::ACCUMULATORS];
    uint64_t inbox_full, peers_ready;
    uint32_t tmem; /* the address of tensor memory */
    expert_scan<C::THREADS / 32> scan[C::EXPERTS ? 1 : 0];
    sm100_gemm_expert experts[];
};

#endif
