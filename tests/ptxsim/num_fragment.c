/* Which thread holds which element: PTX ISA 9.7.14.5 (mma.sync), 9.7.15.5.1.1 (wgmma). */
#include "num_mma.h"

#include "num_round.h"

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

enum { WARP = 32, TILE_M = 16, TILE_N = 8, MAX_K = 32 };

/* Element i of registers that hold elements of `bits`. */
static uint32_t element(const uint32_t *registers, int bits, int i)
{
    int each = 32 / bits;
    return (uint32_t)(registers[i / each] >> (bits * (i % each)) & num_mask(bits));
}

static void gather_operands(int bits, int k, const uint32_t *a, const uint32_t *b, uint32_t a_tile[TILE_M][MAX_K],
                            uint32_t b_tile[TILE_N][MAX_K])
{
    int each = 32 / bits, a_count = k / 2, b_count = k / 4;
    for (int lane = 0; lane < WARP; lane++) {
        for (int i = 0; i < a_count; i++) {
            num_position at = num_mma_a_position(bits, lane, i);
            a_tile[at.row][at.col] = element(a + lane * a_count / each, bits, i);
        }
        for (int i = 0; i < b_count; i++) {
            num_position at = num_mma_b_position(bits, lane, i);
            b_tile[at.col][at.row] = element(b + lane * b_count / each, bits, i);
        }
    }
}

void num_mma_sync(const num_mma_model *model, num_format a_format, num_format b_format, num_format d_format, int k,
                  const uint32_t *a, const uint32_t *b, const uint32_t *c, uint32_t *d)
{
    uint32_t a_tile[TILE_M][MAX_K], b_tile[TILE_N][MAX_K], d_tile[TILE_M][TILE_N];
    int bits = num_bits(a_format) <= 8 ? 8 : num_bits(a_format), d_bits = num_bits(d_format), d_regs = d_bits / 8;
    gather_operands(bits, k, a, b, a_tile, b_tile);
    uint32_t a_dense[TILE_M * MAX_K], b_dense[TILE_N * MAX_K];
    for (int i = 0; i < TILE_M * k; i++)
        a_dense[i] = a_tile[i / k][i % k];
    for (int i = 0; i < TILE_N * k; i++)
        b_dense[i] = b_tile[i / k][i % k];
    for (int i = 0; i < WARP * 4; i++) {
        num_position at = num_mma_d_position(i / 4, i % 4);
        d_tile[at.row][at.col] = element(c + i / 4 * d_regs, d_bits, i % 4);
    }
    num_mma(model, a_format, b_format, d_format, TILE_M, TILE_N, k, a_dense, b_dense, d_tile[0]);
    for (int i = 0; i < WARP * d_regs; i++)
        d[i] = 0;
    for (int i = 0; i < WARP * 4; i++) {
        num_position at = num_mma_d_position(i / 4, i % 4);
        int each = 32 / d_bits;
        d[i / 4 * d_regs + i % 4 / each] |= d_tile[at.row][at.col] << (d_bits * (i % 4 % each));
    }
}
