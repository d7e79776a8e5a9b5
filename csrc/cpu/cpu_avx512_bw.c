/* The AVX-512 path without VNNI. */
#include "cpu_path.h"

#ifdef CPU_X86
#define CPU_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#include "cpu_avx512.h"

static bool available(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const cpu_path cpu_path_avx512_bw = {
    .name = "avx512-bw",
    .why = "CPU tensors; AVX-512 (BW)",
    .available = available,
    .gemm_tile = sum_gemm_tile,
    .gemv = sum_gemv,
    CPU_ROWS,
};
#endif
