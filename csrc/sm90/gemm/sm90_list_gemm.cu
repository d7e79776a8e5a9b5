/* The kernels of sm90_gemm.cuh for a list of groups: a tile's for fp16 tokens, which NVFP4 ones become, and for bf16.
 */
#include "sm90_gemm.cuh"

/* The rings of the family's tiles, with the widths of a list's. */
#define RING(name, ...) \
    template <bool BFLOAT, int... WIDTHS> using name = config<LIST_GEMM, BFLOAT, __VA_ARGS__, WIDTHS...>;
SM90_GEMM_PERSISTENT_TILES(RING)

#define KERNEL(name, ...)                                                                                              \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__::THREADS, 1) name(const __grid_constant__ sm90_list list) \
    {                                                                                                                  \
        const cuda_tensor_map &any = list.tokens[0];                                                                   \
        run<__VA_ARGS__>({any, any}, any, list, list.scheduler);                                                       \
    }
#define KERNELS(name, ...)                                         \
    KERNEL(sm90_list_gemm_##name##_fp16, name<false, __VA_ARGS__>) \
    KERNEL(sm90_list_gemm_##name##_bf16, name<true, __VA_ARGS__>)

SM90_LIST_PIPELINES(KERNELS)
