/* The bytes that a tile of a tensor map moves: PTX ISA 5.5.3. */
#include "num_tensormap.h"

const num_tensor_type num_tensor_types[NUM_TM_TYPES] = {
    [NUM_TM_UINT8] = {1, 0},
    [NUM_TM_UINT16] = {2, 0},
    [NUM_TM_UINT32] = {4, 0},
    [NUM_TM_INT32] = {4, 0},
    [NUM_TM_UINT64] = {8, 0},
    [NUM_TM_INT64] = {8, 0},
    [NUM_TM_FLOAT16] = {2, 0x7FFF7FFF7FFF7FFF},
    [NUM_TM_FLOAT32] = {4, 0x7FFFFFFF7FFFFFFF},
    [NUM_TM_FLOAT64] = {8, 0x7FFFFFFFFFFFFFFF},
    [NUM_TM_BFLOAT16] = {2, 0x7FFF7FFF7FFF7FFF},
    [NUM_TM_FLOAT32_FTZ] = {4, 0x7FFFFFFF7FFFFFFF},
    [NUM_TM_TFLOAT32] = {4, 0x7FFFFFFF7FFFFFFF},
    [NUM_TM_TFLOAT32_FTZ] = {4, 0x7FFFFFFF7FFFFFFF},
};

static uint32_t box_dim(const num_tensormap *map, int i) { return map->box_less_one[i] + 1u; }

/* Elements that a box takes along dimension i > 0. */
static uint32_t taken(const num_tensormap *map, int i)
{
    uint32_t step = map->element_strides[i];
    return (box_dim(map, i) + step - 1) / step;
}

uint32_t num_box_row_bytes(const num_tensormap *map) { return box_dim(map, 0) * num_tensor_types[map->type].bytes; }

static uint32_t row_pitch(const num_tensormap *map)
{
    uint32_t bytes = num_box_row_bytes(map), span = (uint32_t)num_swizzle_span((num_swizzle)map->swizzle);
    return map->swizzle != NUM_SWIZZLE_NONE && bytes < span ? span : bytes;
}

static uint32_t rows(const num_tensormap *map)
{
    uint32_t count = 1;
    for (int i = 1; i < map->rank; i++)
        count *= taken(map, i);
    return count;
}

uint32_t num_box_pieces(const num_tensormap *map) { return rows(map) * num_box_row_bytes(map) / 16; }
uint32_t num_box_span(const num_tensormap *map) { return rows(map) * row_pitch(map); }
uint64_t num_box_fill(const num_tensormap *map) { return map->fill ? num_tensor_types[map->type].nan : 0; }

/* The bytes first .. first + 15 of a row that has `size`: a bit for each that exists. */
static uint16_t bytes_inside(int64_t first, int64_t size)
{
    uint16_t inside = 0;
    for (int i = 0; i < 16; i++) {
        if (first + i >= 0 && first + i < size) inside |= (uint16_t)(1 << i);
    }
    return inside;
}

num_box_piece num_box_piece_at(const num_tensormap *map, const int32_t *coordinates, uint32_t index)
{
    uint32_t in_row = num_box_row_bytes(map) / 16, row = index / in_row, piece = index % in_row;
    int64_t bytes = num_tensor_types[map->type].bytes, first = coordinates[0] * bytes + (int64_t)piece * 16;
    num_box_piece result = {
        .shared = row * row_pitch(map) + piece * 16,
        .inside = bytes_inside(first, ((int64_t)map->dims_less_one[0] + 1) * bytes),
        .global = map->address + (uint64_t)first,
    };
    for (int i = 1; i < map->rank; i++) {
        uint32_t count = taken(map, i);
        int64_t at = coordinates[i] + (int64_t)(row % count) * map->element_strides[i];
        row /= count;
        if (at < 0 || at > (int64_t)map->dims_less_one[i]) result.inside = 0;
        result.global += (uint64_t)at * map->strides[i - 1];
    }
    return result;
}
