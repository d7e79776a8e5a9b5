/* What all roles of sm100_kind_f16.cuh know: a tile's sizes and shared memory. */
#ifndef NK_SM100_KIND_F16_PARTS_CUH
#define NK_SM100_KIND_F16_PARTS_CUH

#include "sm100/gemm/sm100_gemm.cuh"
#include "sm100_kind_f16_config.h"

/* What tiles, parts and stores of sm100/gemm want to know is named as there. */
template <bool DECODES_, int MATRICES_, int FORM_, int CTAS_, int COLUMNS_, int PARTS_, int ACCUMULATORS_>
struct halves_config {
    static constexpr bool DECODES = DECODES_, EXPERTS = FORM_ == OF_EXPERTS, LIST = FORM_ == OF_LIST;
    static constexpr int MATRICES = MATRICES_, COLUMNS = COLUMNS_, PARTS = PARTS_, ACCUMULATORS = ACCUMULATORS_;
    static constexpr int CTAS = CTAS_, PAIRS = 1, CLUSTER = CTAS * PARTS, LANES = CTAS * SM100_GEMM_CTA_M;
    static constexpr bool ASKS = false;
    static constexpr int OPERANDS = MATRICES + 1, TOKENS = COLUMNS / CTAS; /* that a CTA loads */
    static constexpr int OWN = COLUMNS / PARTS, WINDOW = OWN < 32 || MATRICES > 1 ? 16 : 32, SUMS = MATRICES * COLUMNS;
    static constexpr int STAGES = SM100_KIND_F16_STAGES(DECODES, CTAS, COLUMNS, PARTS, MATRICES);
    static constexpr int DECODED = ACCUMULATORS * SUMS; /* the first column of tensor memory */
    static constexpr int SLOT = MATRICES * SM100_KIND_F16_DECODED_COLUMNS;
    static constexpr int SLOTS = DECODES ? (SM100_GEMM_TMEM_COLUMNS - DECODED) / SLOT : 1;
    static constexpr int THREADS = SM100_KIND_F16_THREADS(DECODES), ISSUER = SM100_KIND_F16_WARPS(DECODES) - 1;
    static constexpr int LOADER = SM100_GEMM_EPILOGUE_WARPS + (DECODES ? SM100_KIND_F16_DECODE_WARPS : 0);
    static constexpr int WEIGHT_BYTES = SM100_KIND_F16_WEIGHT_BYTES(DECODES);
    static_assert(COLUMNS % 16 == 0 && COLUMNS <= 256, "a product has so many");
    static_assert(CTAS == 1 || DECODES, "who decodes in the odd CTA of a pair tells the issuer what is there");
    static_assert(OWN % 16 == 0, "a part finishes whole pieces");
    static_assert(STAGES >= 3 && DECODED <= SM100_GEMM_TMEM_COLUMNS, "a stage is filled while another is multiplied");
    static_assert(!DECODES || SLOTS >= 2, "weights are decoded while others are multiplied");
};

/* By SM100_GEMM_OF_.., of the lanes' matrices. */
__device__ constexpr int lanes_operand(int matrix)
{
    return matrix == 0 ? SM100_GEMM_OPERAND_M : SM100_GEMM_OPERAND_UP;
}

template <class C> struct halves_memory {
    struct stage {
        uint8_t weights[C::MATRICES][C::WEIGHT_BYTES]; /* codes, or panels of 16-bit rows; swizzled, as tokens are */
        uint8_t tokens[SM100_KIND_F16_BOXES][C::TOKENS * SM100_KIND_F16_SWIZZLE_BYTES];
        uint8_t sf[C::DECODES ? C::MATRICES : 0][SM100_KIND_F16_SF_ATOMS][NK_SF_ATOM_BYTES];
    } stages[C::STAGES];
    float4 inbox[C::PARTS - 1][C::MATRICES][C::OWN / 4][SM100_GEMM_CTA_M]; /* the other parts' sums, in their order */
    uint64_t full[C::STAGES], empty[C::STAGES];
    uint64_t decoded_full[C::SLOTS], decoded_empty[C::SLOTS];
    uint64_t sums_full[C::ACCUMULATORS], sums_empty[C::ACCUMULATORS];
    uint64_t inbox_full, inbox_empty;
    uint32_t tmem; /* the address of tensor memory */
    expert_scan<C::THREADS / 32> scan[C::EXPERTS ? 1 : 0];
    sm100_gemm_expert experts[];
};

#endif
