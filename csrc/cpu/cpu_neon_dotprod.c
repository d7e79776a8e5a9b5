/* The NEON path with dot products. */
#include "cpu_path.h"

#ifdef CPU_NEON
#define CPU_DOTPROD 1
#define CPU_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#include "cpu_neon.h"

#include <sys/auxv.h>

#define HWCAP_DOT_PRODUCTS (1ul << 20)

static bool available(void) { return (getauxval(AT_HWCAP) & HWCAP_DOT_PRODUCTS) != 0; }

const cpu_path cpu_path_neon_dotprod = {
    .name = "neon-dotprod",
    .why = "CPU tensors; NEON with dot products",
    .available = available,
    .gemm_tile = sum_gemm_tile,
    .gemv = sum_gemv,
    CPU_ROWS,
};
#endif
