/* How blocks are encoded once their global scale is known: by a recipe, made of a scale or of a largest magnitude. */
#ifndef NK_QUANTIZE_RECIPES_CUH
#define NK_QUANTIZE_RECIPES_CUH

#include "quantize_four_six.cuh"
#include "quantize_params.h"

/* The largest of all threads' values, for all of them. */
template <int THREADS> __device__ inline uint32_t max_of_cta(uint32_t mine)
{
    __shared__ uint32_t of_warp[THREADS / 32];
    const uint32_t warp_max = __reduce_max_sync(~0u, mine);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = warp_max;
    __syncthreads();
    return __reduce_max_sync(~0u, of_warp[threadIdx.x % (THREADS / 32)]);
}

/* The largest of all maxima, which all threads of a CTA find together. */
__device__ inline float largest_maximum(const cuda_quantize_params &q)
{
    uint32_t bits = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < q.maxima_count; i += CUDA_TILE_THREADS)
        bits = max(bits, q.maxima[i]);
    return __uint_as_float(max_of_cta<CUDA_TILE_THREADS>(bits));
}

/* S of numbers whose largest finite magnitude is `amax`; *s2 becomes their global scale, 1/S where S is FLT_MAX. */
__device__ inline float scale_of_amax(float amax, float *s2)
{
    const float full = NK_E2M1_MAX * NK_E4M3_MAX;
    *s2 = amax > 0 ? fmaxf(__fdiv_rn(amax, full), 1 / FLT_MAX) : 1.0f;
    return amax > 0 ? fminf(__fdiv_rn(full, amax), FLT_MAX) : 1.0f;
}

/* S of the contract. */
__device__ inline float encode_scale(const nk_quantize_problem &p, const cuda_quantize_params &q)
{
    if (!p.amax_out) return encode_scale_of(p.global_scale);
    float s2;
    const float s = scale_of_amax(largest_maximum(q), &s2);
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.amax_out = s2;
    return s;
}

/* The same of the recipe four_six, whose formulas take s2. */
__device__ inline float four_six_scale_of_amax(float amax)
{
    const float s2 = __fdiv_rn(amax, NK_FOUR_SIX_MAX);
    return s2 > 0 ? s2 : 1.0f;
}

__device__ inline float four_six_scale(const nk_quantize_problem &p, const cuda_quantize_params &q)
{
    if (!p.amax_out) return alpha_at(p.global_scale, 0);
    const float s2 = four_six_scale_of_amax(largest_maximum(q));
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.amax_out = s2;
    return s2;
}

/* A RECIPE is made of the call's global scale, or of the amax of a row, whose global scale *s2 becomes. */
struct amax_recipe {
    encoder e;

    __device__ amax_recipe(const nk_quantize_problem &p, const cuda_quantize_params &q)
        : e(encoder_of(encode_scale(p, q)))
    {
    }

    __device__ amax_recipe(float amax, float *s2) : e(encoder_of(scale_of_amax(amax, s2))) {}

    template <typename CONVERT, nk_dtype DTYPE>
    __device__ uint32_t encode(float smallest_scale, const block<DTYPE> &x, uint32_t codes[2]) const
    {
        return encode_block<CONVERT>(e, smallest_scale, x, codes);
    }
};

struct four_six_recipe {
    four_six_encoder e;

    __device__ four_six_recipe(const nk_quantize_problem &p, const cuda_quantize_params &q)
        : e(four_six_encoder_of(four_six_scale(p, q)))
    {
    }

    __device__ four_six_recipe(float amax, float *s2) : e(four_six_encoder_of(*s2 = four_six_scale_of_amax(amax))) {}

    template <typename CONVERT, nk_dtype DTYPE>
    __device__ uint32_t encode(float smallest_scale, const block<DTYPE> &x, uint32_t codes[2]) const
    {
        return encode_four_six<CONVERT>(e, smallest_scale, x, codes);
    }
};

#endif
