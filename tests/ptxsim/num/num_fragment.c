/* Which thread holds which element: PTX ISA 9.7.14.5 (mma.sync), 9.7.15.5.1.1 (wgmma). */
#include "num_mma.h"

#include <string.h>

num_position num_mma_a_position(int bits, int lane, int i)
{
    int each = 32 / bits, group = lane >> 2, thread = lane & 3, reg = i / each;
    return (num_position){.row = group + 8 * (reg & 1), .col = thread * each + i % each + 4 * each * (reg >> 1)};
}

num_position num_mma_b_position(int bits, int lane, int i)
{
    int each = 32 / bits, group = lane >> 2, thread = lane & 3, reg = i / each;
    return (num_position){.row = thread * each + i % each + 4 * each * reg, .col = group};
}

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

enum { WARP = 32, TILE_M = 16, TILE_N = 8, MAX_K = 16 };

/* Registers of four neighbouring lanes hold consecutive elements of a row of A or a column of B. */
enum { NEIGHBOURS = 4, GROUPS = WARP / NEIGHBOURS, CHUNK = 2 * NEIGHBOURS };

static void spread(const uint32_t *words, uint32_t *codes)
{
    uint16_t parts[CHUNK];
    memcpy(parts, words, sizeof parts);
    for (int i = 0; i < CHUNK; i++)
        codes[i] = parts[i];
}

static void gather_operands(int k, const num_mma_registers *in, uint32_t *a, uint32_t *b)
{
    for (int group = 0; group < GROUPS; group++) {
        for (int reg = 0; reg < 2 * k / CHUNK; reg++)
            spread(in->a[reg] + NEIGHBOURS * group, a + (group + GROUPS * (reg & 1)) * k + CHUNK * (reg >> 1));
        for (int reg = 0; reg < k / CHUNK; reg++)
            spread(in->b[reg] + NEIGHBOURS * group, b + group * k + CHUNK * reg);
    }
}

static uint32_t *element(uint32_t tile[TILE_M][TILE_N], int lane, int i)
{
    num_position at = num_mma_d_position(lane, i);
    return &tile[at.row][at.col];
}

void num_mma_sync(const num_mma_model *model, num_format format, int k, const num_mma_registers *in, uint32_t *const *d)
{
    uint32_t a_tile[TILE_M * MAX_K], b_tile[TILE_N * MAX_K], d_tile[TILE_M][TILE_N];
    gather_operands(k, in, a_tile, b_tile);
    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < 4; i++)
            *element(d_tile, lane, i) = in->c[i][lane];
    num_mma(model, format, format, TILE_M, TILE_N, k, a_tile, b_tile, d_tile[0]);
    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < 4; i++)
            d[i][lane] = *element(d_tile, lane, i);
}
