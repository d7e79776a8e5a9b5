/* D[l,n] = convert(alpha[n] * sum_k X[l,k] W[l,n,k] + bias[n]) for one NVFP4 token: W is read once.
 *
 * Codes become halves by the hardware's conversion, 8 for 16 elements. Products of codes are quarters, so 8 of them add
 * up exactly in each half of a pair (at most 1152 quarters), and both halves in fp32. The product of both scale factors
 * is exact in fp32, too, and so is its product with the sum. One addition for each block rounds.
 *
 * Work: a cluster has consecutive positions, a CTA of it a part of K, see sm100_gemv_config.h. A step is a tile of two
 * octets of rows x 256 elements of K. A lane takes 64 neighbouring elements of a row of each octet: 32 bytes of codes
 * and four scale factors, which in a blocked atom are a word beside those of the octet's other rows.
 *
 * Roles: all warps alike. A warp has three steps under way in registers, also across tiles, and asks for the next one
 * as soon as one is multiplied. Nobody waits for anybody in the loop.
 *
 * Barriers:
 *   sums_arrived (mbarrier, parity 0, once)   CTAs of the cluster -> threads that end rows   1 arrival, of thread 0,
 *                                             + the bytes of all sums of the rows that this CTA ends
 *   __syncthreads()   tokens are in shared memory, and sums_arrived is initialised; later: partial sums are there
 *   cluster (bar 0)   where CTAs share rows: sums_arrived is initialised before others send sums
 *
 * Overlap: the kernel may begin before the ones before it have ended. Until it has waited for them it brings codes to
 * L2 alone, or, with NVFP4KERN_PDL=weights, reads weights.
 *
 * Memory: shared memory is in sm100_gemv_config.h. Codes come past L1 and are the first that L2 gives up. */
#include "cuda/ptx/grid.cuh"
#include "sm100_gemv_token.cuh"

#include "sm100_gemv_sums.cuh"

struct code_products {
    const sm100_gemv_work &s;
    const warp_work &w;
    const uint8_t *token; /* the lane's chunk of its first step */
    float sums[OCTETS];

    __device__ code_products(const sm100_gemv_work &s, const warp_work &w)
        : s(s), w(w), token((const uint8_t *)(&head() + 1) + (threadIdx.x & 3) * CHUNK_BYTES), sums{0, 0}
    {
    }

    static __device__ void stage(const nk_gemm_problem &p, const sm100_gemv_work &s, const warp_work &w)
    {
        stage_tokens<CODES, true>(p, s, w);
    }

    __device__ void step(const weights &now, int k_step)
    {
        const uint8_t *const chunk = token + k_step * (4 * CHUNK_BYTES);
        const float4 four = *(const float4 *)((const sm100_gemv_token_chunk *)chunk)->sf;
        const float sfx[FACTORS] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int block = 0; block < FACTORS; block++) {
            const uint4 low = ((const uint4 *)chunk)[2 * block], high = ((const uint4 *)chunk)[2 * block + 1];
            const uint32_t x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int o = 0; o < OCTETS; o++) {
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

    __device__ void end_tile(int tile)
    {
        float *const part = part_of(s, w, tile);
#pragma unroll
        for (int o = 0; o < OCTETS; o++) {
            const int row = o * SM100_GEMV_OCTET + (int)(threadIdx.x >> 2 & 7);
            sums[o] += __shfl_xor_sync(~0u, sums[o], 1);
            sums[o] += __shfl_xor_sync(~0u, sums[o], 2);
            if ((threadIdx.x & 3) == 0 && tile * SM100_GEMV_ROWS + row < w.positions) part[row] = sums[o];
            sums[o] = 0;
        }
    }
};

GEMV_KERNELS(codes, code_products, 1.0f)
