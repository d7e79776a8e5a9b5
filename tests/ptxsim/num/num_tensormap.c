/* cuTensorMapEncodeTiled's rules in the order of its documentation; tensormap.replace. */
#include "num_tensormap.h"

#include "num_tensor_type.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(num_tensormap) == NUM_TENSORMAP_BYTES, "CUtensorMap is 128 bytes");
_Static_assert(offsetof(num_tensormap, dims_less_one) == 32, "words 8 to 12");

static const uint32_t MAGIC = 0x70616D74; /* "tmap" */

enum { INTERLEAVE_NONE, INTERLEAVE_16B, INTERLEAVE_32B };

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

/* ---------------------------------------------------------------------------------------------------------------- */
/* Rules                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

static bool is_padded(const num_tensormap *map)
{
    return map->type == NUM_TM_16U4_ALIGN16B || map->type == NUM_TM_16U6_ALIGN16B;
}

static const char *wrong_address(const num_tensormap *map)
{
    uint64_t alignment = map->interleave == INTERLEAVE_32B || is_padded(map) ? 32 : 16;
    if (map->address % alignment == 0) return NULL;
    return wrong("globalAddress = 0x%llx, expected a multiple of %llu", (ull)map->address, (ull)alignment);
}

static const char *wrong_dims(const num_tensormap *map)
{
    uint64_t multiple = is_padded(map) ? 128 : map->type == NUM_TM_16U4_ALIGN8B ? 2 : 1;
    uint64_t inner = (uint64_t)map->dims_less_one[0] + 1;
    if (inner % multiple == 0) return NULL;
    return wrong("globalDim[0] = %llu, expected a multiple of %llu", (ull)inner, (ull)multiple);
}

static const char *wrong_strides(const num_tensormap *map)
{
    uint64_t multiple = map->interleave == INTERLEAVE_32B || is_padded(map) ? 32 : 16;
    for (int i = 0; i < map->rank - 1; i++) {
        uint64_t stride = map->strides[i];
        if (stride % multiple) {
            return wrong("globalStrides[%d] = %llu, expected a multiple of %llu", i, (ull)stride, (ull)multiple);
        }
        if (stride >> 40) return wrong("globalStrides[%d] = %llu, expected less than 2^40", i, (ull)stride);
    }
    return NULL;
}

static const char *wrong_box(const num_tensormap *map)
{
    int inner = map->box_less_one[0] + 1;
    if (is_padded(map)) {
        return inner == 128 ? NULL : wrong("boxDim[0] = %d, expected 128 for this type", inner);
    }
    int bits = inner * num_tensor_types[map->type].bits;
    if (map->interleave == INTERLEAVE_NONE && bits % 128) {
        return wrong("boxDim[0] = %d is %d bits, expected a multiple of 16 bytes", inner, bits);
    }
    return NULL;
}

static const char *wrong_swizzle(const num_tensormap *map)
{
    int inner = num_box_row_bytes(map), span = num_swizzle_span((num_swizzle)map->swizzle);
    if (map->interleave == INTERLEAVE_NONE && map->swizzle != NUM_SWIZZLE_NONE && inner > span) {
        return wrong("boxDim[0] is %d bytes, expected at most %d for this swizzle", inner, span);
    }
    if (map->interleave == INTERLEAVE_32B && map->swizzle != NUM_SWIZZLE_32B) {
        return wrong("swizzle = %d, expected 1 (32B) with an interleave of 32B", map->swizzle);
    }
    if (map->type == NUM_TM_16U6_ALIGN16B && map->interleave != INTERLEAVE_NONE) {
        return wrong("interleave = %d, expected 0 (none) for 16U6_ALIGN16B", map->interleave);
    }
    bool possible = map->swizzle == NUM_SWIZZLE_NONE || map->swizzle == NUM_SWIZZLE_128B ||
                    map->swizzle == NUM_SWIZZLE_128B_ATOM_32B ||
                    (map->swizzle == NUM_SWIZZLE_128B_ATOM_64B && map->type == NUM_TM_16U6_ALIGN16B);
    if (is_padded(map) && !possible) return wrong("swizzle = %d, which this type does not have", map->swizzle);
    return NULL;
}

static const char *wrong_record(const num_tensormap *map)
{
    const char *why = NULL;
    if (map->interleave != INTERLEAVE_NONE && map->rank < 3) {
        return wrong("tensorRank = %d, expected 3 to 5 with an interleave", map->rank);
    }
    if (!why) why = wrong_address(map);
    if (!why) why = wrong_dims(map);
    if (!why) why = wrong_strides(map);
    if (!why) why = wrong_box(map);
    if (!why) why = wrong_swizzle(map);
    if (!why && map->fill && !num_tensor_types[map->type].nan) {
        why = wrong("oobFill = 1 (NaN), expected a floating-point tensorDataType, got %d", map->type);
    }
    return why;
}

/* What does not fit into the record's narrow fields. */
static const char *wrong_ranges(uint32_t type, uint32_t rank, const uint64_t *dims, const uint64_t *strides,
                                const uint32_t *box, const uint32_t *element_strides, const uint32_t modes[4])
{
    static const struct {
        const char *name;
        uint32_t count;
    } MODES[] = {{"interleave", 3}, {"swizzle", NUM_SWIZZLES}, {"l2Promotion", 4}, {"oobFill", 2}};
    if (type >= NUM_TM_TYPES) return wrong("tensorDataType = %u, expected 0 to 15", type);
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

/* ---------------------------------------------------------------------------------------------------------------- */
/* The driver's functions                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

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
        .interleave = (uint8_t)interleave,
        .swizzle = (uint8_t)swizzle,
        .fill = (uint8_t)fill,
        .l2 = (uint8_t)l2,
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

int num_tensormap_replace_address(num_tensormap *map, uint64_t address, const char **why)
{
    *why = num_tensormap_check(map);
    if (*why) return NUM_CUDA_ERROR_INVALID_VALUE;
    num_tensormap changed = *map;
    changed.address = address;
    *why = wrong_address(&changed);
    if (*why) return NUM_CUDA_ERROR_INVALID_VALUE;
    *map = changed;
    return NUM_CUDA_SUCCESS;
}

const char *num_tensormap_check(const num_tensormap *map)
{
    if (map->magic != MAGIC) return wrong("no tensor map: magic word 0x%08x", map->magic);
    bool known = map->type < NUM_TM_TYPES && map->swizzle < NUM_SWIZZLES && map->interleave <= INTERLEAVE_32B;
    if (map->rank < 1 || map->rank > NUM_TENSORMAP_MAX_RANK || !known) {
        return wrong("a damaged tensor map: rank %d, type %d, swizzle %d", map->rank, map->type, map->swizzle);
    }
    for (int i = 0; i < map->rank; i++) { /* a rank that tensormap.replace raised leaves zeros */
        if (map->element_strides[i] == 0) return wrong("elementStrides[%d] = 0, expected 1 to 8", i);
    }
    return wrong_record(map);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* tensormap.replace                                                                                                */
/* ---------------------------------------------------------------------------------------------------------------- */

/* PTX's element types in the driver's numbering: PTX ISA 9.7.9.28, table 33. */
static const uint8_t ELEMTYPES[] = {
    NUM_TM_UINT8,        NUM_TM_UINT16,       NUM_TM_UINT32,        NUM_TM_INT32,
    NUM_TM_UINT64,       NUM_TM_INT64,        NUM_TM_FLOAT16,       NUM_TM_FLOAT32,
    NUM_TM_FLOAT32_FTZ,  NUM_TM_FLOAT64,      NUM_TM_BFLOAT16,      NUM_TM_TFLOAT32,
    NUM_TM_TFLOAT32_FTZ, NUM_TM_16U4_ALIGN8B, NUM_TM_16U4_ALIGN16B, NUM_TM_16U6_ALIGN16B,
};

static bool replace_swizzle_mode(num_tensormap *map, uint64_t value)
{
    if (value > 3) return false; /* 4, 96 bytes, is not modelled */
    map->swizzle = (uint8_t)value;
    return true;
}

static bool replace_swizzle_atomicity(num_tensormap *map, uint64_t value)
{
    if (value > 3 || (value && map->swizzle < NUM_SWIZZLE_128B)) return false;
    if (map->swizzle >= NUM_SWIZZLE_128B) map->swizzle = (uint8_t)(NUM_SWIZZLE_128B + value);
    return true;
}

static bool replace_of_dimension(num_tensormap *map, num_tensormap_field field, int i, uint64_t value)
{
    if (i < 0 || i >= NUM_TENSORMAP_MAX_RANK) return false;
    switch (field) {
    case NUM_REPLACE_BOX_DIM:
        if (value < 1 || value > 256) return false;
        map->box_less_one[i] = (uint8_t)(value - 1);
        return true;
    case NUM_REPLACE_GLOBAL_DIM: /* 32 bits, so 0 stands for 2^32 */
        map->dims_less_one[i] = (uint32_t)value - 1;
        return value >> 32 == 0;
    case NUM_REPLACE_GLOBAL_STRIDE:
        if (i >= NUM_TENSORMAP_MAX_RANK - 1) return false;
        map->strides[i] = value;
        return true;
    default:
        if (value < 1 || value > 8) return false;
        map->element_strides[i] = (uint8_t)value;
        return true;
    }
}

static bool replace(num_tensormap *map, num_tensormap_field field, int ordinal, uint64_t value)
{
    switch (field) {
    case NUM_REPLACE_GLOBAL_ADDRESS:
        map->address = value;
        return true;
    case NUM_REPLACE_RANK:
        if (value >= NUM_TENSORMAP_MAX_RANK) return false;
        map->rank = (uint8_t)(value + 1);
        return true;
    case NUM_REPLACE_ELEMTYPE:
        if (value >= sizeof ELEMTYPES) return false;
        map->type = ELEMTYPES[value];
        return true;
    case NUM_REPLACE_INTERLEAVE:
        map->interleave = (uint8_t)value;
        return value <= 2;
    case NUM_REPLACE_SWIZZLE_MODE:
        return replace_swizzle_mode(map, value);
    case NUM_REPLACE_SWIZZLE_ATOMICITY:
        return replace_swizzle_atomicity(map, value);
    case NUM_REPLACE_FILL_MODE:
        map->fill = (uint8_t)value;
        return value <= 1;
    default:
        return replace_of_dimension(map, field, ordinal, value);
    }
}

bool num_tensormap_replace(num_tensormap *map, num_tensormap_field field, int ordinal, uint64_t value)
{
    num_tensormap changed = *map;
    if (!replace(&changed, field, ordinal, value)) return false;
    changed.version++;
    *map = changed;
    return true;
}
