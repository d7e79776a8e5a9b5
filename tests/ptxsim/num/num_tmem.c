/* Tensor memory: the shapes of tcgen05.ld, st, cp; accumulators; block scales; the instruction descriptor. */
#include "num_layout.h"

#include <stddef.h>

int num_tmem_registers(num_tmem_shape shape)
{
    return shape == NUM_TMEM_16X128B ? 2 : shape == NUM_TMEM_16X256B ? 4 : 1;
}

num_cell num_tmem_cell(num_tmem_shape shape, int thread, int reg, int split)
{
    int group = thread / 4, in_group = thread % 4;
    switch (shape) {
    case NUM_TMEM_32X32B:
        return (num_cell){thread, reg};
    case NUM_TMEM_16X64B:
        return (num_cell){group + 8 * (thread & 1), 2 * reg + (thread >> 1 & 1)};
    case NUM_TMEM_16X128B:
        return (num_cell){group + 8 * (reg & 1), 4 * (reg / 2) + in_group};
    case NUM_TMEM_16X256B:
        return (num_cell){group + 8 * (reg >> 1 & 1), 8 * (reg / 4) + 2 * in_group + (reg & 1)};
    case NUM_TMEM_16X32BX2:
        return (num_cell){thread % 16, reg + (thread < 16 ? 0 : split)};
    }
    return (num_cell){0, 0};
}

int num_cp_rows(num_cp_shape shape)
{
    static const int ROWS[] = {128, 4, 128, 64, 64, 32};
    return ROWS[shape];
}

int num_cp_pieces(num_cp_shape shape) { return shape == NUM_CP_128X256B || shape == NUM_CP_4X256B ? 2 : 1; }

int num_cp_lanes(num_cp_shape shape, int row, int lanes[4])
{
    switch (shape) {
    case NUM_CP_128X256B:
    case NUM_CP_128X128B:
        lanes[0] = row;
        return 1;
    case NUM_CP_4X256B: /* one lane of each quarter */
        lanes[0] = 32 * row;
        return 1;
    case NUM_CP_64X128B_02_13:
        lanes[0] = row;
        lanes[1] = row + 64;
        return 2;
    case NUM_CP_64X128B_01_23:
        lanes[0] = row % 32 + 64 * (row / 32);
        lanes[1] = lanes[0] + 32;
        return 2;
    case NUM_CP_32X128B_WARPX4:
        for (int quarter = 0; quarter < 4; quarter++)
            lanes[quarter] = row + 32 * quarter;
        return 4;
    }
    return 0;
}

num_pair_cell num_accumulator_cell(int cta_group, int m, int n, int row, int column)
{
    if (cta_group == 2) {
        int half = m / 2, cta = row / half, lane = row % half;
        if (m == 256) return (num_pair_cell){cta, lane, column};
        bool right = column >= n / 2; /* 64 rows a CTA: the right half of the columns in lanes 64..127 */
        return (num_pair_cell){cta, lane + (right ? 64 : 0), column - (right ? n / 2 : 0)};
    }
    int lane = m == 64 ? row / 16 * 32 + row % 16 : row; /* 64 rows: the lower half of each quarter */
    return (num_pair_cell){0, lane, column};
}

num_cell num_scale_factor(int row) { return (num_cell){.lane = row % 32, .column = row / 32}; }

/* ---------------------------------------------------------------------------------------------------------------- */
/* Instruction descriptor: tables 42 and 44                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

static uint32_t field(uint32_t bits, int low, int width) { return bits >> low & ((1U << width) - 1); }

static const char *wrong_shape(num_kind kind, int cta_group, const num_instruction *i)
{
    int step = 8 * cta_group;
    if (i->n < step || i->n > 256 || i->n % step) {
        return cta_group == 1 ? "N is not a multiple of 8 from 8 to 256" : "N is not a multiple of 16 from 16 to 256";
    }
    if (cta_group == 2) return i->m == 128 || i->m == 256 ? NULL : "M is not 128 or 256";
    if (kind == NUM_KIND_MXF4NVF4) return i->m == 128 ? NULL : "M is not 128";
    return i->m == 64 || i->m == 128 ? NULL : "M is not 64 or 128";
}

static const char *f16_fields(uint32_t bits, num_instruction *i)
{
    if (field(bits, 0, 4)) return "bits 0-3 are not 0: sparsity is not modelled";
    if (field(bits, 4, 3) != 1) return "bits 4-6 are not 1: accumulators other than f32 are not modelled";
    if (field(bits, 7, 3) > 1 || field(bits, 10, 3) > 1) return "bits 7-9 or 10-12 name no type of this kind";
    if (field(bits, 23, 1) || field(bits, 29, 3)) return "one of the bits 23, 29-31 is set";
    i->a = field(bits, 7, 3) ? NUM_BF16 : NUM_F16;
    i->b = field(bits, 10, 3) ? NUM_BF16 : NUM_F16;
    i->m = (int)field(bits, 24, 5) << 4;
    return NULL;
}

static const char *scaled_fields(uint32_t bits, num_instruction *i)
{
    if (field(bits, 0, 7)) return "bits 0-6 are not 0: sparsity and scale-factor ids are not modelled";
    if (field(bits, 7, 3) != 1 || field(bits, 10, 3) != 1) return "bits 7-9 or 10-12 do not say e2m1";
    if (i->mn_major_a || i->mn_major_b) return "FP4 operands are K-major";
    if (field(bits, 23, 4)) return "bits 23-26 are not 0: scales in ue8m0 are not modelled";
    if (field(bits, 29, 3)) return "bits 29-31 are not 0: scale-factor ids and K of 96 are not modelled";
    i->a = i->b = NUM_E2M1;
    i->m = (int)field(bits, 27, 2) << 7;
    return NULL;
}

const char *num_instruction_descriptor(num_kind kind, int cta_group, uint32_t bits, num_instruction *i)
{
    *i = (num_instruction){
        .n = (int)field(bits, 17, 6) << 3,
        .negate_a = field(bits, 13, 1),
        .negate_b = field(bits, 14, 1),
        .mn_major_a = field(bits, 15, 1),
        .mn_major_b = field(bits, 16, 1),
    };
    const char *wrong = (kind == NUM_KIND_F16 ? f16_fields : scaled_fields)(bits, i);
    return wrong ? wrong : wrong_shape(kind, cta_group, i);
}
