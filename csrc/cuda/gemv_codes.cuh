/* D[l,n] = convert(alpha[n] * sum_k X[l,k] W[l,n,k] + bias[n]) for one NVFP4 token: W is read once.
 * row_scale, if given: fl(row_scale[l,m] * sum) takes the place of each sum.
 *
 * Math: codes are converted to fp16 by hardware, 8 conversions for 16 elements. Products of codes are multiples of 1/4,
 * so 8 of them add up exactly in each fp16 of a pair (at most 1152 quarters), and the two in fp32. The product of both
 * scale factors is exact in fp32, too, and so is its product with the sum. One addition for each block rounds.
 *
 * Scheduler: see gemv_config.h. A step is a tile of 16 rows x 256 elements of K. A lane takes 64 neighbouring
 * elements of one row of each 8: 32 bytes of codes and four scale factors, which in a blocked atom are a word beside
 * those of the other seven rows.
 *
 * Roles: all warps are alike. Each has a pipeline of three steps in registers, also across tiles, and loads the next
 * step as soon as one is multiplied. No warp waits for another one in the loop.
 *
 * Barriers:
 *   inbox_full (mbarrier, parity 0, once)   CTAs of the cluster -> epilogue   1 arrival, of thread 0, + the bytes of
 *                                           all sums of the rows whose epilogue this CTA has
 *   __syncthreads()   tokens are in shared memory, and inbox_full is initialised; later: partial sums are there
 *   cluster (bar 0)   if a cluster splits K: inbox_full is initialised before other CTAs send sums
 *
 * Overlap: the kernel may begin before the ones before it have ended. Until it has waited for them (griddepcontrol) it
 * only prefetches codes to L2, or, with NVFP4KERN_PDL=weights, reads weights.
 *
 * Memory: gemv_config.h has the map of shared memory. Loads of codes bypass L1, and L2 evicts them first. */
#ifndef NK_GEMV_CODES_CUH
#define NK_GEMV_CODES_CUH

#include "cuda/ptx/grid.cuh"
#include "gemv_tokens.cuh"

#include "gemv_epilogue.cuh"

struct codes_fma {
    const gemv_scheduler &s;
    const warp_schedule &w;
    const uint8_t *token; /* the lane's chunk of K step 0 */
    float sums[M8S];

    __device__ codes_fma(const gemv_scheduler &s, const warp_schedule &w)
        : s(s), w(w), token((const uint8_t *)(&head() + 1) + (threadIdx.x & 3) * CHUNK_BYTES), sums{0, 0}
    {
    }

    static __device__ void stage(const nk_gemm_problem &p, const gemv_scheduler &s, const warp_schedule &w)
    {
        stage_tokens<CODES, true>(p, s, w);
    }

    __device__ void step(const weight_stage &now, int k_step)
    {
        const uint8_t *const chunk = token + k_step * (4 * CHUNK_BYTES);
        const float4 four = *(const float4 *)((const gemv_token_chunk *)chunk)->sf;
        const float sfx[FACTORS] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int block = 0; block < FACTORS; block++) {
            const uint4 low = ((const uint4 *)chunk)[2 * block], high = ((const uint4 *)chunk)[2 * block + 1];
            const uint32_t x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int o = 0; o < M8S; o++) {
                uint32_t v[8];
                cvt_f16x2_e2m1x2(now.codes[o][2 * block], v);
                cvt_f16x2_e2m1x2(now.codes[o][2 * block + 1], v + 4);
                __half2 dot = __hmul2(*(__half2 *)&v[0], *(const __half2 *)&x[0]);
#pragma unroll
                for (int i = 1; i < 8; i++)
                    dot = __hfma2(*(__half2 *)&v[i], *(const __half2 *)&x[i], dot);
                const uint32_t scales = cvt_f16x2_e4m3x2(now.sf[o] >> (block / 2 * 16) & 0xFFFF);
                const float scale = __fmul_rn(float_of<false>(scales, block % 2), sfx[block]);
                sums[o] = __fmaf_rn(__low2float(dot) + __high2float(dot), scale, sums[o]);
            }
        }
    }

    __device__ void store_partials(int tile)
    {
        float *const partials = warp_partials(s, w, tile);
#pragma unroll
        for (int o = 0; o < M8S; o++) {
            const int row = o * GEMV_M8 + (int)(threadIdx.x >> 2 & 7);
            sums[o] += __shfl_xor_sync(~0u, sums[o], 1);
            sums[o] += __shfl_xor_sync(~0u, sums[o], 2);
            if ((threadIdx.x & 3) == 0 && tile * GEMV_TILE_ROWS + row < w.positions) partials[row] = sums[o];
            sums[o] = 0;
        }
    }
};

#define GEMV_CODES_KERNELS(row) GEMV_KERNELS(row, codes, codes_fma, 1.0f)

#endif
