/* The bytes that a tile of a tensor map moves: PTX ISA 5.5.3. */
#include "num_tensor_type.h"

const num_tensor_type num_tensor_types[NUM_TM_TYPES] = {
    [NUM_TM_UINT8] = {8, 16, 0},
    [NUM_TM_UINT16] = {16, 16, 0},
    [NUM_TM_UINT32] = {32, 16, 0},
    [NUM_TM_INT32] = {32, 16, 0},
    [NUM_TM_UINT64] = {64, 16, 0},
    [NUM_TM_INT64] = {64, 16, 0},
    [NUM_TM_FLOAT16] = {16, 16, 0x7FFF7FFF7FFF7FFF},
    [NUM_TM_FLOAT32] = {32, 16, 0x7FFFFFFF7FFFFFFF},
    [NUM_TM_FLOAT64] = {64, 16, 0x7FFFFFFFFFFFFFFF},
    [NUM_TM_BFLOAT16] = {16, 16, 0x7FFF7FFF7FFF7FFF},
    [NUM_TM_FLOAT32_FTZ] = {32, 16, 0x7FFFFFFF7FFFFFFF},
    [NUM_TM_TFLOAT32] = {32, 16, 0x7FFFFFFF7FFFFFFF},
    [NUM_TM_TFLOAT32_FTZ] = {32, 16, 0x7FFFFFFF7FFFFFFF},
    [NUM_TM_16U4_ALIGN8B] = {4, 16, 0},
    [NUM_TM_16U4_ALIGN16B] = {4, 8, 0},
    [NUM_TM_16U6_ALIGN16B] = {6, 12, 0},
};

static int box_dim(const num_tensormap *map, int i) { return map->box_less_one[i] + 1; }

/* Elements that a box takes along dimension i > 0. */
static uint32_t taken(const num_tensormap *map, int i)
{
    int step = map->element_strides[i];
    return (uint32_t)((box_dim(map, i) + step - 1) / step);
}

int num_box_row_bytes(const num_tensormap *map)
{
    const num_tensor_type *type = &num_tensor_types[map->type];
    return box_dim(map, 0) * type->bits / 8 * 16 / type->piece_bytes;
}

static uint32_t row_pitch(const num_tensormap *map)
{
    uint32_t bytes = (uint32_t)num_box_row_bytes(map), span = (uint32_t)num_swizzle_span((num_swizzle)map->swizzle);
    return map->swizzle != NUM_SWIZZLE_NONE && bytes < span ? span : bytes;
}

static uint32_t rows(const num_tensormap *map)
{
    uint32_t count = 1;
    for (int i = 1; i < map->rank; i++)
        count *= taken(map, i);
    return count;
}

uint32_t num_box_pieces(const num_tensormap *map) { return rows(map) * (uint32_t)num_box_row_bytes(map) / 16; }
uint32_t num_box_span(const num_tensormap *map) { return rows(map) * row_pitch(map); }
uint64_t num_box_fill(const num_tensormap *map) { return map->fill ? num_tensor_types[map->type].nan : 0; }

/* The bytes first .. first + 15 of a row that has `size`: a bit for each that exists. */
static uint16_t bytes_inside(int64_t first, int64_t size, int bytes)
{
    uint16_t inside = 0;
    for (int i = 0; i < bytes; i++) {
        if (first + i >= 0 && first + i < size) inside |= (uint16_t)(1 << i);
    }
    return inside;
}

num_box_piece num_box_piece_at(const num_tensormap *map, const int32_t *coordinates, uint32_t index)
{
    const num_tensor_type *type = &num_tensor_types[map->type];
    uint32_t in_row = (uint32_t)num_box_row_bytes(map) / 16, row = index / in_row, piece = index % in_row;
    num_box_piece result = {.shared = row * row_pitch(map) + piece * 16, .bytes = type->piece_bytes};
    int64_t size = ((int64_t)map->dims_less_one[0] + 1) * type->bits / 8;
    int64_t first = (int64_t)coordinates[0] * type->bits / 8 + (int64_t)piece * type->piece_bytes;
    result.inside = bytes_inside(first, size, type->piece_bytes);
    result.global = map->address + (uint64_t)first;
    for (int i = 1; i < map->rank; i++) {
        uint32_t count = taken(map, i);
        int64_t at = coordinates[i] + (int64_t)(row % count) * map->element_strides[i];
        row /= count;
        if (at < 0 || at > (int64_t)map->dims_less_one[i]) result.inside = 0;
        result.global += (uint64_t)at * map->strides[i - 1];
    }
    return result;
}
