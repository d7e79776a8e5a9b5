/* Shared memory: swizzles and matrix descriptors; ldmatrix. */
#include "num_layout.h"

/* Bytes of a row of the pattern; which bits of the row's number are added to the number of its 16-byte piece. */
static const struct {
    int span;
    uint32_t mask;
} RULES[NUM_SWIZZLES] = {
    [NUM_SWIZZLE_NONE] = {16, 0},
    [NUM_SWIZZLE_32B] = {32, 1},
    [NUM_SWIZZLE_64B] = {64, 3},
    [NUM_SWIZZLE_128B] = {128, 7},
};

int num_swizzle_span(num_swizzle swizzle) { return RULES[swizzle].span; }

uint32_t num_swizzled(num_swizzle swizzle, uint32_t address)
{
    return address ^ (address >> 7 & RULES[swizzle].mask) << 4;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Descriptors                                                                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

static uint32_t field(uint64_t bits, int low, int width) { return (uint32_t)(bits >> low & ((1U << width) - 1)); }

static void common_fields(uint64_t bits, num_smem_matrix *matrix)
{
    matrix->start = field(bits, 0, 14) << 4;
    matrix->leading = field(bits, 16, 14) << 4;
    matrix->stride = field(bits, 32, 14) << 4;
    matrix->base_offset = (int)field(bits, 49, 3);
}

bool num_wgmma_descriptor(uint64_t bits, num_smem_matrix *matrix)
{
    static const num_swizzle SWIZZLES[4] = {NUM_SWIZZLE_NONE, NUM_SWIZZLE_128B, NUM_SWIZZLE_64B, NUM_SWIZZLE_32B};
    common_fields(bits, matrix);
    matrix->swizzle = SWIZZLES[field(bits, 62, 2)];
    return field(bits, 14, 2) == 0 && field(bits, 30, 2) == 0 && field(bits, 46, 3) == 0 && field(bits, 52, 10) == 0;
}

bool num_tcgen05_descriptor(uint64_t bits, num_smem_matrix *matrix)
{
    static const num_swizzle SWIZZLES[8] = {
        [0] = NUM_SWIZZLE_NONE, [2] = NUM_SWIZZLE_128B, [4] = NUM_SWIZZLE_64B, [6] = NUM_SWIZZLE_32B};
    common_fields(bits, matrix);
    uint32_t code = field(bits, 61, 3);
    matrix->swizzle = SWIZZLES[code];
    return code % 2 == 0 && field(bits, 46, 3) == 1 && field(bits, 52, 9) == 0 && field(bits, 14, 2) == 0 &&
           field(bits, 30, 2) == 0;
}

uint32_t num_smem_k_major(const num_smem_matrix *matrix, int row, int byte)
{
    uint32_t r = (uint32_t)row, b = (uint32_t)byte, groups = r / 8 * matrix->stride;
    if (matrix->swizzle == NUM_SWIZZLE_NONE)
        return matrix->start + groups + r % 8 * 16 + b / 16 * matrix->leading + b % 16;
    uint32_t span = (uint32_t)num_swizzle_span(matrix->swizzle);
    return num_swizzled(matrix->swizzle, matrix->start + groups + r % 8 * span + b);
}

uint32_t num_smem_mn_major(const num_smem_matrix *matrix, int row, int byte)
{
    uint32_t k = (uint32_t)row, b = (uint32_t)byte;
    if (matrix->swizzle == NUM_SWIZZLE_NONE) {
        return matrix->start + k / 8 * matrix->leading + k % 8 * 16 + b / 16 * matrix->stride + b % 16;
    }
    uint32_t span = (uint32_t)num_swizzle_span(matrix->swizzle);
    uint32_t atom = k / 8 * matrix->stride + b / span * matrix->leading;
    return num_swizzled(matrix->swizzle, matrix->start + atom + k % 8 * span + b % span);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Warps                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

num_position num_ldmatrix_position(bool trans, int lane, int half)
{
    int row = lane / 4, column = 2 * (lane % 4) + half;
    return trans ? (num_position){.row = column, .col = row} : (num_position){.row = row, .col = column};
}
