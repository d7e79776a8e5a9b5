/* Tiles of 16-bit tokens and NVFP4 weights, see sm120/gemm/sm120_tile.cuh. */
#ifndef NK_SM120_KIND_F16_CUH
#define NK_SM120_KIND_F16_CUH

#include "sm120/gemm/sm120_tile.cuh"
#include "sm120_kind_f16_mainloop.cuh"

template <int TILE_M_, int WARPS_M_, int STAGES_> struct kind_f16_traits {
    static constexpr int TILE_M = TILE_M_, WARPS_M = WARPS_M_, STAGES = STAGES_, STEP = SM120_KIND_F16_STEP;
    static constexpr int SMEM = SM120_KIND_F16_SMEM(TILE_M, STAGES);
    using stage = kind_f16_stage<TILE_M>;
    using source = kind_f16_source<TILE_M, WARPS_M>;
    using sums = kind_f16_sums<TILE_M / WARPS_M / 8>;

    static __device__ void multiply(const source &from, const stage &s, int quads, int first_token, sums &acc)
    {
        if (from.bf16)
            acc.template multiply<true>(s, quads, first_token);
        else
            acc.template multiply<false>(s, quads, first_token);
    }
    static __device__ void finish(sums &) {}
};

#endif
