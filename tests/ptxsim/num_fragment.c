/* Which thread holds which element: PTX ISA 9.7.14.5 (mma.sync), 9.7.15.5.1.1 (wgmma). */
#include "num_mma.h"

#include "num_round.h"

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

/* The elements of one register to consecutive places. */
INLINE void spread(uint32_t word, int each, uint32_t *out)
{
    uint32_t mask = (uint32_t)num_mask(32 / each);
    for (int e = 0; e < each; e++)
        out[e] = word >> (32 / each * e) & mask;
}

/* `each`: elements a register; a constant wherever this is called. */
INLINE void gather(int each, int k, const uint32_t *a, const uint32_t *b, uint32_t *a_tile, uint32_t *b_tile)
{
    int bits = 32 / each, a_regs = k / 2 / each, b_regs = k / 4 / each;
    for (int lane = 0; lane < WARP; lane++) {
        for (int reg = 0; reg < a_regs; reg++) {
            num_position at = a_position(bits, lane, reg * each);
            spread(a[lane * a_regs + reg], each, a_tile + at.row * k + at.col);
        }
        for (int reg = 0; reg < b_regs; reg++) {
            num_position at = b_position(bits, lane, reg * each);
            spread(b[lane * b_regs + reg], each, b_tile + at.col * k + at.row);
        }
    }
}

static void gather_operands(num_format format, int k, const uint32_t *a, const uint32_t *b, uint32_t *a_tile,
                            uint32_t *b_tile)
{
    if (num_bits(format) == 16) {
        gather(2, k, a, b, a_tile, b_tile);
    } else if (num_bits(format) == 32) {
        gather(1, k, a, b, a_tile, b_tile);
    } else {
        gather(4, k, a, b, a_tile, b_tile);
    }
}

void num_mma_sync(const num_mma_model *model, num_format a_format, num_format b_format, num_format d_format, int k,
                  const uint32_t *a, const uint32_t *b, const uint32_t *c, uint32_t *d)
{
    uint32_t a_tile[TILE_M * MAX_K], b_tile[TILE_N * MAX_K], d_tile[TILE_M][TILE_N];
    gather_operands(a_format, k, a, b, a_tile, b_tile);
    int each = 32 / num_bits(d_format), regs = 4 / each;
    for (int reg = 0; reg < WARP * regs; reg++) {
        num_position at = num_mma_d_position(reg / regs, reg % regs * each);
        spread(c[reg], each, &d_tile[at.row][at.col]);
    }
    num_mma(model, a_format, b_format, d_format, TILE_M, TILE_N, k, a_tile, b_tile, d_tile[0]);
    for (int reg = 0; reg < WARP * regs; reg++) {
        num_position at = num_mma_d_position(reg / regs, reg % regs * each);
        d[reg] = d_tile[at.row][at.col] | (each == 2 ? d_tile[at.row][at.col + 1] << 16 : 0);
    }
}
