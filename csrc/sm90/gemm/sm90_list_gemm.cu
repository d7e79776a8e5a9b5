/* The kernels of sm90_gemm.cuh for a list of groups: of each tile one for fp16 tokens (NVFP4 ones become fp16), one for
 * bf16. */
#include "sm90_gemm.cuh"

/* Aliases w32, w128, ..: the configuration of the tile of that name, with the tile_m that a list's groups may have. */
#define PIPELINE(name, ...) \
    template <bool BFLOAT, int... TILE_MS> using name = sm90_tile_config<LIST_GEMM, BFLOAT, __VA_ARGS__, TILE_MS...>;
SM90_GEMM_PERSISTENT_TILES(PIPELINE)

#define KERNEL(name, ...)                                                                                              \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__::THREADS, 1) name(const __grid_constant__ sm90_list list) \
    {                                                                                                                  \
        const cuda_tensor_map &unused = list.tokens[0]; /* the list's own are in its parameters */                     \
        run_gemm<__VA_ARGS__>({unused, unused, nullptr}, &unused, list, list.params);                                  \
    }
#define KERNELS(name, ...)                                         \
    KERNEL(sm90_list_gemm_##name##_fp16, name<false, __VA_ARGS__>) \
    KERNEL(sm90_list_gemm_##name##_bf16, name<true, __VA_ARGS__>)

SM90_LIST_PIPELINES(KERNELS)
