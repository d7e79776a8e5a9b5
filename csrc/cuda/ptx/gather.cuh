/* Rows of a tensor map, each wherever it is: 10.0 and newer. */
#ifndef NK_GATHER_CUH
#define NK_GATHER_CUH

#include "cuda/cuda_tensor_map.h"

/* Four rows of a matrix to shared memory, one behind the other, from element `column` on: as many elements as the map's
 * box has, whose other dimension is 1. A row outside the tensor is zeros, whose bytes count, too. */
__device__ inline void cp_async_bulk_tensor_2d_gather4(uint32_t to, const cuda_tensor_map *map, int column,
                                                       const int (&rows)[4], uint32_t mbarrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
                 "l"(map), "r"(column), "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(mbarrier)
                 : "memory");
}

#endif
