/* Which thread holds which element: PTX ISA 9.7.14.5 (mma.sync), 9.7.15.5.1.1 (wgmma). */
#include "num_mma.h"

#include "num_round.h"

#include <stddef.h>

#define INLINE static inline __attribute__((always_inline))

INLINE num_position a_position(int bits, int lane, int i)
{
    int each = 32 / bits, group = lane >> 2, thread = lane & 3, reg = i / each;
    return (num_position){.row = group + 8 * (reg & 1), .col = thread * each + i % each + 4 * each * (reg >> 1)};
}

INLINE num_position b_position(int bits, int lane, int i)
{
    int each = 32 / bits, group = lane >> 2, thread = lane & 3, reg = i / each;
    return (num_position){.row = thread * each + i % each + 4 * each * reg, .col = group};
}

num_position num_mma_a_position(int bits, int lane, int i) { return a_position(bits, lane, i); }
num_position num_mma_b_position(int bits, int lane, int i) { return b_position(bits, lane, i); }

num_position num_mma_d_position(int lane, int i)
{
    return (num_position){.row = (lane >> 2) + 8 * (i >> 1), .col = 2 * (lane & 3) + (i & 1)};
}

num_position num_wgmma_d_position(int thread, int i)
{
    num_position d = num_mma_d_position(thread & 31, i & 3);
    return (num_position){.row = d.row + 16 * (thread >> 5), .col = d.col + 8 * (i >> 2)};
}

num_position num_wgmma_a_position(int bits, int thread, int i)
{
    num_position a = num_mma_a_position(bits, thread & 31, i);
    return (num_position){.row = a.row + 16 * (thread >> 5), .col = a.col};
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* A warp's instruction                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

enum { WARP = 32, TILE_M = 16, TILE_N = 8, MAX_K = 32 };

/* Registers of four neighbouring lanes hold consecutive elements of a row of A or a column of B. */
enum { NEIGHBOURS = 4, GROUPS = WARP / NEIGHBOURS };

#define SPREAD(T)                                                 \
    {                                                             \
        T parts[NEIGHBOURS * 4 / sizeof(T)];                      \
        memcpy(parts, words, sizeof parts);                       \
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) \
            codes[i] = parts[i];                                  \
    }

static void spread(int each, const uint32_t *words, uint32_t *codes)
{
    if (each == 1) SPREAD(uint32_t)
    if (each == 2) SPREAD(uint16_t)
    if (each == 4) SPREAD(uint8_t)
}

static void gather_operands(num_format format, int k, const num_mma_registers *in, uint32_t *a, uint32_t *b)
{
    int each = 32 / num_lane_bits(format), chunk = NEIGHBOURS * each;
    for (int group = 0; group < GROUPS; group++) {
        for (int reg = 0; reg < 2 * k / chunk; reg++)
            spread(each, in->a[reg] + NEIGHBOURS * group, a + (group + GROUPS * (reg & 1)) * k + chunk * (reg >> 1));
        for (int reg = 0; reg < k / chunk; reg++)
            spread(each, in->b[reg] + NEIGHBOURS * group, b + group * k + chunk * reg);
    }
}

static void multiply(const num_mma_model *model, num_format a_format, num_format b_format, num_format d_format, int k,
                     const num_mma_registers *in, uint32_t *const *d)
{
    uint32_t a_tile[TILE_M * MAX_K], b_tile[TILE_N * MAX_K], d_tile[TILE_M][TILE_N];
    gather_operands(a_format, k, in, a_tile, b_tile);
    bool pairs = d_format == NUM_F16;
    for (int lane = 0; lane < WARP; lane++) {
        int row = lane / NEIGHBOURS, col = 2 * (lane % NEIGHBOURS);
        for (int half = 0; half < 2; half++) {
            uint32_t *to = &d_tile[row + GROUPS * half][col], word = in->c[pairs ? half : 2 * half][lane];
            to[0] = pairs ? word & 0xFFFF : word;
            to[1] = pairs ? word >> 16 : in->c[2 * half + 1][lane];
        }
    }
    num_mma(model, a_format, b_format, d_format, TILE_M, TILE_N, k, a_tile, b_tile, d_tile[0]);
    for (int lane = 0; lane < WARP; lane++) {
        int row = lane / NEIGHBOURS, col = 2 * (lane % NEIGHBOURS);
        for (int half = 0; half < 2; half++) {
            const uint32_t *from = &d_tile[row + GROUPS * half][col];
            d[pairs ? half : 2 * half][lane] = pairs ? from[0] | from[1] << 16 : from[0];
            if (!pairs) d[2 * half + 1][lane] = from[1];
        }
    }
}

/* A register's low (half 0) or high pair of codes as two of f16, in every lane. */
static void unpack(num_format format, int half, const uint32_t *from, uint32_t *to)
{
    for (int lane = 0; lane < WARP; lane++)
        to[lane] = num_convert_pair(NUM_F16, format, from[lane] >> 16 * half & 0xFFFF, (num_mode){.round = NUM_RN});
}

static void multiply_bytes_as_halves(const num_mma_model *model, num_format a_format, num_format b_format,
                                     num_format d_format, int k, const num_mma_registers *in, uint32_t *const *d)
{
    static const uint32_t zero[WARP];
    const num_mode nearest = {.round = NUM_RN};
    uint32_t a[4][WARP], b[2][WARP], sum[4][WARP];
    num_mma_registers halves = {.a = {a[0], a[1], a[2], a[3]}, .b = {b[0], b[1]}, .c = {zero, zero, zero, zero}};
    for (int half = 0; half < 2; half++) {
        for (int reg = 0; reg < k / 8; reg++)
            unpack(a_format, half, in->a[reg], a[reg]);
        for (int reg = 0; reg < k / 16; reg++)
            unpack(b_format, half, in->b[reg], b[reg]);
        multiply(model, NUM_F16, NUM_F16, d_format, k / 2, &halves,
                 (uint32_t *const[]){sum[0], sum[1], sum[2], sum[3]});
        for (int reg = 0; reg < 4; reg++)
            halves.c[reg] = sum[reg];
    }
    for (int reg = 0; reg < (d_format == NUM_F16 ? 2 : 4); reg++)
        for (int lane = 0; lane < WARP; lane++) {
            uint32_t x = in->c[reg][lane], y = sum[reg][lane];
            d[reg][lane] = (uint32_t)(d_format == NUM_F16 ? num_arith_pair(NUM_ADD, NUM_F16, x, y, 0, nearest)
                                                          : num_arith(NUM_ADD, NUM_F32, x, y, 0, nearest));
        }
}

void num_mma_sync(const num_mma_model *model, num_format a_format, num_format b_format, num_format d_format, int k,
                  const num_mma_registers *in, uint32_t *const *d)
{
    bool as_halves = model->bytes_as_halves && num_lane_bits(a_format) == 8;
    (as_halves ? multiply_bytes_as_halves : multiply)(model, a_format, b_format, d_format, k, in, d);
}
