/* Single lanes of registers, for instructions that work lane by lane. */
#ifndef PTXSIM_EXEC_VALUE_H
#define PTXSIM_EXEC_VALUE_H

#include "exec.h"

typedef enum conversion {
    CVT_INT_INT,
    CVT_INT_FLOAT,
    CVT_FLOAT_INT,
    CVT_FLOAT,
    CVT_INTEGRAL,
    CVT_TO_PAIR,
    CVT_PAIR,
} conversion;

/* `size`: bytes of the register, 2, 4, 8. */
static inline uint64_t sim_lane(const run *r, uint32_t operand, unsigned size, uint32_t lane)
{
    const void *v = at(r, operand);
    return size == 2   ? ((const uint16_t *)v)[lane]
           : size == 4 ? ((const uint32_t *)v)[lane]
                       : ((const uint64_t *)v)[lane];
}

static inline void sim_put_lane(run *r, uint32_t place, unsigned size, uint32_t lane, uint64_t value)
{
    void *v = r->base[0] + place;
    if (size == 2)
        ((uint16_t *)v)[lane] = (uint16_t)value;
    else if (size == 4)
        ((uint32_t *)v)[lane] = (uint32_t)value;
    else
        ((uint64_t *)v)[lane] = value;
}

static inline step sim_put_lanes(run *r, uint32_t place, unsigned size, const uint64_t *values)
{
    ACTIVE(r) sim_put_lane(r, place, size, i, values[i]);
    return STEP_NEXT;
}

step sim_exec_arith(run *r, const insn *in);
step sim_exec_convert(run *r, const insn *in);

#endif
