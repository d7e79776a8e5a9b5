/* Stands in for the CUDA driver's memory, and answers what tests ask the simulator (ptxsim_*). */
#include "checks/report.h"
#include "cuda_abi.h"
#include "machine/memory.h"
#include "num/num_tensormap.h"

#include <string.h>

EXPORT CUresult cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    void *block = bytes ? sim_memory_allocate(bytes) : NULL;
    *address = (uint64_t)(uintptr_t)block;
    return block ? CUDA_SUCCESS : bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemFree_v2(uint64_t address)
{
    return !address || sim_memory_free((const void *)(uintptr_t)address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
    return memcpy((void *)(uintptr_t)to, from, bytes), CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
    return memcpy(to, (const void *)(uintptr_t)from, bytes), CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(void **context); /* driver.c */

EXPORT CUresult cuTensorMapEncodeTiled(void *map, int type, unsigned rank, const void *address, const uint64_t *dims,
                                       const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                                       int interleave, int swizzle, int l2, int fill)
{
    const char *why = NULL;
    void *context;
    cuCtxGetCurrent(&context);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    int result = num_tensormap_encode(map, (uint32_t)type, rank, (uint64_t)(uintptr_t)address, dims, strides, box,
                                      element_strides, (uint32_t)interleave, (uint32_t)swizzle, (uint32_t)l2,
                                      (uint32_t)fill, &why);
    sim_set_last_error(why ? why : "");
    return (CUresult)result;
}

/* The caller's own memory becomes memory of the device. */
EXPORT void ptxsim_adopt(const void *begin, size_t bytes) { sim_memory_adopt(begin, bytes); }

/* A seed and the number of a launch since it was set tell what happens in that launch. */
EXPORT void ptxsim_seed(uint64_t seed)
{
    sim_config.seed = seed;
    sim_config.launches = 0;
}
EXPORT size_t ptxsim_report(char *to, size_t size) { return sim_report_json(to, size); }
EXPORT void ptxsim_clear(void) { sim_report_clear(); }

/* Reads the environment again. */
EXPORT void ptxsim_configure(void) { sim_configure(); }
