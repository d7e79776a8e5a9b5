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

num_scale_cell num_scale_factor(int per_row, int id, int row, int j)
{
    return (num_scale_cell){.lane = row % 32, .column = row / 32, .byte = (per_row == 4 ? 0 : id) + j};
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Instruction descriptor: tables 42, 43 and 44                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

static uint32_t field(uint32_t bits, int low, int width) { return bits >> low & ((1U << width) - 1); }

static bool operand_format(num_kind kind, uint32_t code, num_format *format)
{
    static const int F8F6F4[8] = {NUM_E4M3, NUM_E5M2, -1, NUM_E2M3, NUM_E3M2, NUM_E2M1, -1, -1};
    int found = -1;
    if (kind == NUM_KIND_F16) {
        found = code == 0 ? (int)NUM_F16 : code == 1 ? (int)NUM_BF16 : -1;
    } else if (kind == NUM_KIND_TF32) {
        found = code == 2 ? (int)NUM_TF32 : -1;
    } else if (kind == NUM_KIND_F8F6F4 || kind == NUM_KIND_MXF8F6F4) {
        found = F8F6F4[code];
    } else {
        found = code == 1 ? (int)NUM_E2M1 : -1;
    }
    *format = (num_format)found;
    return found >= 0;
}

static const char *wrong_shape(num_kind kind, int cta_group, const num_instruction *i)
{
    bool scaled = kind >= NUM_KIND_MXF8F6F4;
    int step = 8 * cta_group;
    if (i->n < step || i->n > 256 || i->n % step) {
        return cta_group == 1 ? "N is not a multiple of 8 from 8 to 256" : "N is not a multiple of 16 from 16 to 256";
    }
    if (cta_group == 2) return i->m == 128 || i->m == 256 ? NULL : "M is not 128 or 256";
    if (scaled) return i->m == 128 ? NULL : "M is not 128";
    return i->m == 64 || i->m == 128 ? NULL : "M is not 64 or 128";
}

static const char *plain_fields(num_kind kind, uint32_t bits, num_instruction *i)
{
    uint32_t d = field(bits, 4, 2);
    if (field(bits, 3, 1) || field(bits, 6, 1) || field(bits, 23, 1) || field(bits, 29, 1)) {
        return "one of the bits 3, 6, 23, 29 is set";
    }
    if (d > 1 || (d == 0 && kind == NUM_KIND_TF32)) return "bits 4-5 name no accumulator type of this kind";
    i->d = d ? NUM_F32 : NUM_F16;
    if (i->d == NUM_F16 && (i->a == NUM_BF16 || i->b == NUM_BF16)) return "f16 accumulators take f16 operands";
    i->m = (int)field(bits, 24, 5) << 4;
    i->max_shift = (int)field(bits, 30, 2);
    if (i->sparse == 0 && field(bits, 0, 2)) return "a sparsity selector without sparsity";
    return NULL;
}

static const char *scaled_fields(num_kind kind, uint32_t bits, num_instruction *i)
{
    bool fp4 = kind != NUM_KIND_MXF8F6F4;
    if (field(bits, 0, 2) || field(bits, 3, 1) || field(bits, 6, 1) || field(bits, 24, 3)) {
        return "one of the bits 0, 1, 3, 6, 24-26 is set";
    }
    if (fp4 && (i->mn_major_a || i->mn_major_b)) return "FP4 operands are K-major";
    if (!fp4 && field(bits, 31, 1)) return "bit 31 is set";
    i->d = NUM_F32;
    i->m = (int)field(bits, 27, 2) << 7;
    i->ue8m0 = field(bits, 23, 1);
    i->sfb_id = (int)field(bits, 4, 2);
    i->sfa_id = (int)field(bits, 29, 2);
    if (!i->ue8m0 && kind != NUM_KIND_MXF4NVF4) return "the scales of this kind are ue8m0";
    if (fp4 && ((i->sfa_id | i->sfb_id) & 1)) return "a scale-factor id that is not 0 or 2";
    if (fp4 && field(bits, 31, 1)) i->k = 96;
    return NULL;
}

const char *num_instruction_descriptor(num_kind kind, int cta_group, uint32_t bits, num_instruction *i)
{
    static const int K[] = {16, 8, 32, 32, 64, 64};
    *i = (num_instruction){
        .k = K[kind],
        .n = (int)field(bits, 17, 6) << 3,
        .sparse = field(bits, 2, 1),
        .negate_a = field(bits, 13, 1),
        .negate_b = field(bits, 14, 1),
        .mn_major_a = field(bits, 15, 1),
        .mn_major_b = field(bits, 16, 1),
    };
    bool fp4 = kind == NUM_KIND_MXF4 || kind == NUM_KIND_MXF4NVF4;
    if (fp4 && field(bits, 12, 1)) return "bit 12 is set";
    if (!operand_format(kind, field(bits, 7, 3), &i->a)) return "bits 7-9 name no type of this kind";
    if (!operand_format(kind, field(bits, 10, fp4 ? 2 : 3), &i->b)) return "bits 10-12 name no type of this kind";
    const char *wrong = kind >= NUM_KIND_MXF8F6F4 ? scaled_fields(kind, bits, i) : plain_fields(kind, bits, i);
    if (i->sparse) i->k *= 2;
    return wrong ? wrong : wrong_shape(kind, cta_group, i);
}
