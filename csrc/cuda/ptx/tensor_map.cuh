/* Boxes of a tensor map (TMA): to shared memory, to L2, and back. */
#ifndef NK_TENSOR_MAP_CUH
#define NK_TENSOR_MAP_CUH

#include "cuda/cuda_tensor_map.h"

/* A tensor map's 128 bytes to where the TMA unit looks for them. */
__device__ inline void prefetch_tensormap(const cuda_tensor_map *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* A box to shared memory; `mbarrier` counts the bytes of all of it: what lies outside the tensor is zero. Each of these
 * functions has a box of D dimensions, at[0] being the innermost coordinate of its corner. Operands are numbered: first
 * the corner, then MAP, SHARED, MBARRIER and OTHER. */
#define NK_COPY_BOX(D, suffix, group, behind, AT, MAP, SHARED, MBARRIER, OTHER, parameter, ...)                    \
    __device__ inline void cp_async_bulk_tensor_##D##d##suffix(uint32_t to, const cuda_tensor_map *map,            \
                                                               const int (&at)[D], uint32_t mbarrier parameter)    \
    {                                                                                                              \
        asm volatile("cp.async.bulk.tensor." #D "d" group                                                          \
                     ".shared::cluster.global.mbarrier::complete_tx::bytes" behind " [" SHARED "], [" MAP ", {" AT \
                     "}], [" MBARRIER "]" OTHER ";" ::__VA_ARGS__                                                  \
                     : "memory");                                                                                  \
    }

#define NK_MASK , uint16_t mask
#define NK_POLICY , uint64_t policy
#define NK_BARE
#define NK_OF_BOX "l"(map), "r"(to), "r"(mbarrier)

/* _multicast: to the same address of every CTA in the mask, and of its mbarrier. _pair: `mbarrier` may be that of
 * either CTA of a pair (cta_group::2). _hint: L2 takes it by a policy, see async_copy.cuh. _prefetch: to L2, see
 * prefetch_global_l2_if(). _store: from shared memory, counted by the thread's bulk groups. */
#define NK_BOXES(D, AT, M, S, B, O, ...)                                                                               \
    NK_COPY_BOX(D, , "", "", AT, M, S, B, "", NK_BARE, __VA_ARGS__, NK_OF_BOX)                                         \
    NK_COPY_BOX(D, _hint, "", ".L2::cache_hint", AT, M, S, B, ", " O, NK_POLICY, __VA_ARGS__, NK_OF_BOX, "l"(policy))  \
    NK_COPY_BOX(D, _multicast, "", ".multicast::cluster", AT, M, S, B, ", " O, NK_MASK, __VA_ARGS__, NK_OF_BOX,        \
                "h"(mask))                                                                                             \
    NK_COPY_BOX(D, _pair, ".cta_group::2", "", AT, M, S, B, "", NK_BARE, __VA_ARGS__, NK_OF_BOX)                       \
    NK_COPY_BOX(D, _pair_multicast, ".cta_group::2", ".multicast::cluster", AT, M, S, B, ", " O, NK_MASK, __VA_ARGS__, \
                NK_OF_BOX, "h"(mask))                                                                                  \
    __device__ inline void cp_async_bulk_tensor_##D##d_prefetch(const cuda_tensor_map *map, const int (&at)[D])        \
    {                                                                                                                  \
        asm volatile("cp.async.bulk.prefetch.tensor." #D "d.L2.global [" M ", {" AT "}];" ::__VA_ARGS__, "l"(map)      \
                     : "memory");                                                                                      \
    }                                                                                                                  \
    __device__ inline void cp_async_bulk_tensor_##D##d_store(const cuda_tensor_map *map, const int (&at)[D],           \
                                                             uint32_t from)                                            \
    {                                                                                                                  \
        asm volatile("cp.async.bulk.tensor." #D "d.global.shared::cta.bulk_group [" M ", {" AT "}], [" S               \
                     "];" ::__VA_ARGS__,                                                                               \
                     "l"(map), "r"(from)                                                                               \
                     : "memory");                                                                                      \
    }

NK_BOXES(2, "%0, %1", "%2", "%3", "%4", "%5", "r"(at[0]), "r"(at[1]))
NK_BOXES(3, "%0, %1, %2", "%3", "%4", "%5", "%6", "r"(at[0]), "r"(at[1]), "r"(at[2]))
NK_BOXES(4, "%0, %1, %2, %3", "%4", "%5", "%6", "%7", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]))
NK_BOXES(5, "%0, %1, %2, %3, %4", "%5", "%6", "%7", "%8", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]))

#undef NK_BOXES
#undef NK_COPY_BOX

#endif
