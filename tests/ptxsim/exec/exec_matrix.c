/* Executes ldmatrix, stmatrix, movmatrix and mma. */
#include "exec_memory.h"
#include "exec_value.h"
#include "machine/fragment.h"
#include "machine/memory.h"
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
