/* Fills tensor maps through the driver, which needs a current context for it. */
#include "cuda_encode.h"

#include "cuda_context.h"

_Static_assert(sizeof(cuda_tensor_map) == sizeof(CUtensorMap), "what the driver fills");

static const CUtensorMapDataType types[] = {
    [NK_U8] = CU_TENSOR_MAP_DATA_TYPE_UINT8,      [NK_E2M1X2] = CU_TENSOR_MAP_DATA_TYPE_UINT8,
    [NK_E4M3] = CU_TENSOR_MAP_DATA_TYPE_UINT8,    [NK_F16] = CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    [NK_BF16] = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, [NK_F32] = CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    [NK_I32] = CU_TENSOR_MAP_DATA_TYPE_INT32,
};

static const CUtensorMapSwizzle swizzles[] = {
    [CUDA_SWIZZLE_NONE] = CU_TENSOR_MAP_SWIZZLE_NONE,
    [CUDA_SWIZZLE_32] = CU_TENSOR_MAP_SWIZZLE_32B,
    [CUDA_SWIZZLE_64] = CU_TENSOR_MAP_SWIZZLE_64B,
    [CUDA_SWIZZLE_128] = CU_TENSOR_MAP_SWIZZLE_128B,
};

static const CUtensorMapL2promotion promotions[] = {
    [CUDA_L2_AS_ASKED] = CU_TENSOR_MAP_L2_PROMOTION_NONE,
    [CUDA_L2_64] = CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
    [CUDA_L2_128] = CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    [CUDA_L2_256] = CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
};

static nk_status encode_map(const cuda_driver *driver, const cuda_boxes *b, cuda_tensor_map *map)
{
    static const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
    CUresult result = driver->cuTensorMapEncodeTiled(
        (CUtensorMap *)map, types[b->dtype], (cuuint32_t)b->rank, (void *)(uintptr_t)b->at, b->dims, b->strides, b->box,
        ones, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzles[b->swizzle], promotions[b->l2],
        b->nan_outside ? CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA : CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return cuda_driver_check(result, "cuTensorMapEncodeTiled", b->name);
}

bool cuda_has_map(const nk_operand *o, int64_t rows, int64_t batches, bool strict)
{
    const bool begins = (uintptr_t)o->data % 16 == 0, one_matrix = o->batch_stride == 0;
    if (strict) rows = batches = INT64_MAX;
    return begins && cuda_is_stride(o->row_stride, rows) && (one_matrix || cuda_is_stride(o->batch_stride, batches));
}

cuda_boxes cuda_k_major_boxes(const nk_operand *o, const char *name, int64_t k, int64_t rows, int64_t batches,
                              int32_t box_k, int32_t box_rows)
{
    const bool are_codes = o->dtype == NK_E2M1X2;
    const uint32_t box_bytes = (uint32_t)(are_codes ? box_k / 2 : 2 * box_k);
    return (cuda_boxes){.name = name,
                        .at = o->data,
                        .dtype = o->dtype,
                        .rank = batches ? 3 : 2,
                        .dims = {(uint64_t)(are_codes ? k / 2 : k), (uint64_t)rows, (uint64_t)batches},
                        .strides = {cuda_map_stride(o->row_stride, rows), cuda_map_stride(o->batch_stride, batches)},
                        .box = {are_codes ? box_bytes : (uint32_t)box_k, (uint32_t)box_rows, 1},
                        .swizzle = box_bytes == 64 ? CUDA_SWIZZLE_64 : CUDA_SWIZZLE_128,
                        .l2 = CUDA_L2_256};
}

nk_status cuda_encode_maps(nk_device device, int32_t count, const cuda_boxes boxes[], cuda_tensor_map *const maps[])
{
    cuda_context context;
    nk_status status = NK_OK;
    NK_TRY(cuda_enter(device, &context));
    for (int32_t i = 0; i < count && status == NK_OK; i++)
        status = encode_map(context.driver, &boxes[i], maps[i]);
    cuda_leave(&context);
    return status;
}
