/* cuTensorMapEncodeTiled's rules in the order of its documentation. */
#include "num_tensormap.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(num_tensormap) == NUM_TENSORMAP_BYTES, "CUtensorMap is 128 bytes");

static const uint32_t MAGIC = 0x70616D74; /* "tmap" */

static _Thread_local char message[200];

__attribute__((format(printf, 1, 2))) static const char *wrong(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return message;
}

typedef unsigned long long ull;

static const char *wrong_strides(const num_tensormap *map)
{
    for (int i = 0; i < map->rank - 1; i++) {
        uint64_t stride = map->strides[i];
        if (stride % 16) return wrong("globalStrides[%d] = %llu, expected a multiple of 16", i, (ull)stride);
        if (stride >> 40) return wrong("globalStrides[%d] = %llu, expected less than 2^40", i, (ull)stride);
    }
    return NULL;
}

static const char *wrong_box(const num_tensormap *map)
{
    uint32_t row = num_box_row_bytes(map), span = (uint32_t)num_swizzle_span((num_swizzle)map->swizzle);
    if (row % 16) return wrong("boxDim[0] is %u bytes, expected a multiple of 16", row);
    if (map->swizzle == NUM_SWIZZLE_NONE || row <= span) return NULL;
    return wrong("boxDim[0] is %u bytes, expected at most %u for this swizzle", row, span);
}

static const char *wrong_record(const num_tensormap *map)
{
    if (map->address % 16) return wrong("globalAddress = 0x%llx, expected a multiple of 16", (ull)map->address);
    const char *why = wrong_strides(map);
    if (!why) why = wrong_box(map);
    if (!why && map->fill && !num_tensor_types[map->type].nan)
        why = wrong("oobFill = 1 (NaN), expected a floating-point tensorDataType, got %d", map->type);
    return why;
}

/* What does not fit into the record's narrow fields. */
static const char *wrong_ranges(uint32_t type, uint32_t rank, const uint64_t *dims, const uint64_t *strides,
                                const uint32_t *box, const uint32_t *element_strides, const uint32_t modes[4])
{
    static const struct {
        const char *name;
        uint32_t count;
    } MODES[] = {{"interleave", 1}, {"swizzle", NUM_SWIZZLES}, {"l2Promotion", 4}, {"oobFill", 2}};
    if (type >= NUM_TM_TYPES) return wrong("tensorDataType = %u, expected 0 to %d", type, NUM_TM_TYPES - 1);
    if (rank < 1 || rank > NUM_TENSORMAP_MAX_RANK) return wrong("tensorRank = %u, expected 1 to 5", rank);
    if (!dims || !box || !element_strides || (rank > 1 && !strides)) return wrong("an array is NULL");
    for (uint32_t i = 0; i < rank; i++) {
        if (dims[i] < 1 || dims[i] > UINT64_C(1) << 32) {
            return wrong("globalDim[%u] = %llu, expected 1 to 2^32", i, (ull)dims[i]);
        }
        if (box[i] < 1 || box[i] > 256) return wrong("boxDim[%u] = %u, expected 1 to 256", i, box[i]);
        if (element_strides[i] < 1 || element_strides[i] > 8) {
            return wrong("elementStrides[%u] = %u, expected 1 to 8", i, element_strides[i]);
        }
    }
    for (int i = 0; i < 4; i++) {
        if (modes[i] >= MODES[i].count) {
            return wrong("%s = %u, expected 0 to %u", MODES[i].name, modes[i], MODES[i].count - 1);
        }
    }
    return NULL;
}

int num_tensormap_encode(num_tensormap *map, uint32_t type, uint32_t rank, uint64_t address, const uint64_t *dims,
                         const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                         uint32_t interleave, uint32_t swizzle, uint32_t l2, uint32_t fill, const char **why)
{
    *why = NULL;
    if (!map || (uintptr_t)map % 64) *why = wrong("tensorMap = %p, expected a multiple of 64", (void *)map);
    uint32_t modes[4] = {interleave, swizzle, l2, fill};
    if (!*why) *why = wrong_ranges(type, rank, dims, strides, box, element_strides, modes);
    if (*why) return NUM_CUDA_ERROR_INVALID_VALUE;
    num_tensormap record = {
        .address = address,
        .magic = MAGIC,
        .rank = (uint8_t)rank,
        .type = (uint8_t)type,
        .swizzle = (uint8_t)swizzle,
        .fill = (uint8_t)fill,
    };
    for (uint32_t i = 0; i < rank; i++) {
        record.dims_less_one[i] = (uint32_t)(dims[i] - 1);
        record.box_less_one[i] = (uint8_t)(box[i] - 1);
        record.element_strides[i] = (uint8_t)element_strides[i];
        if (i > 0) record.strides[i - 1] = strides[i - 1];
    }
    *why = wrong_record(&record);
    if (*why) return NUM_CUDA_ERROR_INVALID_VALUE;
    memcpy(map, &record, sizeof record);
    return NUM_CUDA_SUCCESS;
}

const char *num_tensormap_check(const num_tensormap *map)
{
    return map->magic == MAGIC ? NULL : wrong("no tensor map: magic word 0x%08x", map->magic);
}
