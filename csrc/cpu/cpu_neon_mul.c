/* The NEON path without dot products. */
#include "cpu_path.h"

#ifdef CPU_NEON
#define CPU_TARGET
#include "cpu_neon.h"

static bool available(void) { return true; }

const cpu_path cpu_path_neon_mul = {
    .name = "neon-mul",
    .why = "CPU tensors; NEON",
    .available = available,
    .gemm_tile = sum_gemm_tile,
    .gemv = sum_gemv,
    CPU_ROWS,
};
#endif
