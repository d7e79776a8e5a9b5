/* Tiles of NVFP4 tokens, see sm120_tile.cuh. */
#ifndef NK_SM120_GEMM_CUH
#define NK_SM120_GEMM_CUH

#include "sm120_mainloop.cuh"
#include "sm120_tile.cuh"

template <int TILE_M_, int WARPS_M_, int STAGES_> struct sm120_gemm_traits {
    static constexpr int TILE_M = TILE_M_, WARPS_M = WARPS_M_, STAGES = STAGES_, STEP = SM120_GEMM_STEP;
    static constexpr int SMEM = SM120_GEMM_SMEM(TILE_M, STAGES);
    using stage = sm120_stage<TILE_M>;
    using source = sm120_source<TILE_M, WARPS_M>;
    using sums = sm120_sums<TILE_M / WARPS_M / 8>;

    static __device__ void multiply(const source &, const stage &s, int quads, int first_token, sums &acc)
    {
        acc.multiply(s, quads, first_token);
    }
    static __device__ void finish(sums &acc) { acc.spread_nans(); }
};

#endif
