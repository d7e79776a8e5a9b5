/* The AVX-512 path with VNNI. */
#include "cpu_path.h"

#ifdef CPU_X86
#define CPU_VNNI 1
#define CPU_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")))
#include "cpu_avx512.h"

static bool available(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

const cpu_path cpu_path_avx512_vnni = {
    .name = "avx512-vnni",
    .why = "CPU tensors; AVX-512 (VNNI)",
    .available = available,
    .gemm_tile = sum_gemm_tile,
    .gemv = sum_gemv,
    CPU_ROWS,
};
#endif
