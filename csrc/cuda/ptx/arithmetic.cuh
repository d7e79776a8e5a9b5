/* Arithmetic that CUDA C has no function for. */
#ifndef NK_ARITHMETIC_CUH
#define NK_ARITHMETIC_CUH

/* 1 / x, an ulp off at most; 0 if that is below the smallest normal number. */
__device__ inline float rcp_approx_ftz(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
