/* Executes ldmatrix, stmatrix, movmatrix and mma, also of block-scaled e2m1. */
#include "exec_memory.h"
#include "exec_value.h"
#include "machine/fragment.h"
#include "machine/memory.h"
#include "machine/traffic.h"
#include "num/num_layout.h"

/* ldmatrix: 8x8 matrices of 16 bits; lane 8j+i points to row i of matrix j; lane t gets two elements of row t/4. */
step sim_exec_ldmatrix(run *r, const insn *in)
{
    uint8_t rows[4 * 8][16];
    if (!sim_gather(r, ALL_LANES)) return STEP_WAIT;
    for (uint32_t lane = 0; lane < 8u * in->vec; lane++) {
        const uint8_t *from = sim_locate(r, in, lane, in->space, sim_address_at(r, in, 1, lane), 16, READ);
        if (!from) return STEP_FAIL;
        memcpy(rows[lane], from, 16);
    }
    sim_wavefronts(r, in, (uint32_t)((1ull << 8 * in->vec) - 1), 16);
    for (uint32_t j = 0; j < in->vec; j++) {
        if (!in->flags) { /* lane after lane, as it lies there */
            put(r, in->list[j], rows[8 * j], 4);
            continue;
        }
        ACTIVE(r)
        {
            uint16_t pair[2];
            for (int half = 0; half < 2; half++) {
                num_position at = num_ldmatrix_position(in->flags, (int)i, half);
                memcpy(&pair[half], &rows[8 * j + (uint32_t)at.row][2 * at.col], 2);
            }
            sim_put_lane(r, in->list[j], 4, i, (uint64_t)pair[1] << 16 | pair[0]);
        }
    }
    return STEP_NEXT;
}

/* The other way round. */
step sim_exec_stmatrix(run *r, const insn *in)
{
    uint8_t rows[4 * 8][16];
    if (!sim_gather(r, ALL_LANES)) return STEP_WAIT;
    for (uint32_t j = 0; j < in->vec; j++) {
        ACTIVE(r)
        {
            for (int half = 0; half < 2; half++) {
                num_position at = num_ldmatrix_position(in->flags, (int)i, half);
                uint16_t value = (uint16_t)(sim_lane(r, in->list[j], 4, i) >> 16 * half);
                memcpy(&rows[8 * j + (uint32_t)at.row][2 * at.col], &value, 2);
            }
        }
    }
    for (uint32_t lane = 0; lane < 8u * in->vec; lane++) {
        uint8_t *to = sim_locate(r, in, lane, in->space, sim_address_at(r, in, 1, lane), 16, WRITE);
        if (!to) return STEP_FAIL;
        memcpy(to, rows[lane], 16);
    }
    sim_wavefronts(r, in, (uint32_t)((1ull << 8 * in->vec) - 1), 16);
    return STEP_NEXT;
}

/* movmatrix: the 8x8 matrix that the warp holds as ldmatrix leaves it, transposed. list d, a. */
step sim_exec_movmatrix(run *r, const insn *in)
{
    uint16_t rows[8][8];
    if (!sim_gather(r, ALL_LANES)) return STEP_WAIT;
    ACTIVE(r)
    {
        for (int half = 0; half < 2; half++) {
            num_position at = num_ldmatrix_position(false, (int)i, half);
            rows[at.row][at.col] = (uint16_t)(sim_lane(r, in->list[1], 4, i) >> 16 * half);
        }
    }
    ACTIVE(r)
    {
        num_position low = num_ldmatrix_position(true, (int)i, 0), high = num_ldmatrix_position(true, (int)i, 1);
        sim_put_lane(r, in->list[0], 4, i, (uint64_t)rows[high.row][high.col] << 16 | rows[low.row][low.col]);
    }
    return STEP_NEXT;
}

/* mma.m16n8k*: `vec` is k; a_type the format of a and b; list d, a, b, c. */
step sim_exec_mma(run *r, const insn *in)
{
    if (!sim_gather(r, ALL_LANES)) return STEP_WAIT;
    uint32_t n_b = in->size, n_a = 2 * n_b, *d[4];
    const uint32_t *list = in->list + 4;
    num_mma_registers from;
    for (uint32_t k = 0; k < n_a; k++)
        from.a[k] = at(r, *list++);
    for (uint32_t k = 0; k < n_b; k++)
        from.b[k] = at(r, *list++);
    for (uint32_t k = 0; k < 4; k++) {
        from.c[k] = at(r, *list++);
        d[k] = at(r, in->list[k]);
    }
    num_mma_sync(r->launch->mma, in->a_type, in->vec, &from, d);
    r->stats.mmas++;
    return STEP_NEXT;
}

/* mma.m16n8k64 of e2m1 with a scale for each 16 elements. op: lanes 4 g + 2 op and the next have the scales of rows g
 * and g + 8 of A; a_type: lane 4 g + a_type has those of column g of B. What other lanes have there is not read.
 * list d, a, b, c, sfa, sfb. */
step sim_exec_mma_scaled(run *r, const insn *in)
{
    uint8_t a[16][64], b[8][64], sfa[16][4], sfb[8][4];
    uint32_t d[16][8];
    const uint32_t *of_d = in->list, *of_a = of_d + 4, *of_b = of_a + 4, *of_c = of_b + 2, *of_scales = of_c + 4;
    if (!sim_gather(r, ALL_LANES)) return STEP_WAIT;
    ACTIVE(r)
    {
        const uint32_t g = i / 4, t = i % 4;
        for (uint32_t q = 0; q < 4; q++) {
            const uint32_t codes = (uint32_t)sim_lane(r, of_a[q], 4, i);
            for (uint32_t k = 0; k < 8; k++)
                a[g + 8 * (q % 2)][32 * (q / 2) + 8 * t + k] = codes >> 4 * k & 15;
            d[g + 8 * (q / 2)][2 * t + q % 2] = (uint32_t)sim_lane(r, of_c[q], 4, i);
        }
        for (uint32_t q = 0; q < 2; q++) {
            const uint32_t codes = (uint32_t)sim_lane(r, of_b[q], 4, i);
            for (uint32_t k = 0; k < 8; k++)
                b[g][32 * q + 8 * t + k] = codes >> 4 * k & 15;
        }
        for (uint32_t j = 0; j < 4; j++) {
            if (t / 2 == in->op) sfa[g + 8 * (t % 2)][j] = (uint8_t)(sim_lane(r, of_scales[0], 4, i) >> 8 * j);
            if (t == in->a_type) sfb[g][j] = (uint8_t)(sim_lane(r, of_scales[1], 4, i) >> 8 * j);
        }
    }
    num_mma_nvf4(r->launch->mma, sim_config.zeros_win, 16, 8, a[0], sfa[0], b[0], sfb[0], d[0]);
    ACTIVE(r)
    {
        for (uint32_t q = 0; q < 4; q++)
            sim_put_lane(r, of_d[q], 4, i, d[i / 4 + 8 * (q / 2)][2 * (i % 4) + q % 2]);
    }
    r->stats.mmas++;
    return STEP_NEXT;
}
