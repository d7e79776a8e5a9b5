/* What the instructions' functions share: vectors of lanes in, a vector out under the mask; rows that name them. */
#ifndef PTXSIM_EXEC_H
#define PTXSIM_EXEC_H

#include "sim.h"

#include <string.h>

/* An opcode and its operands: p h w d predicates and registers of 16, 32, 64 bits, i an immediate. Destination first.
 */
typedef struct op_row {
    const char *name, *signature;
    op_fn *fn;
    uint8_t op;
    bool whole_warp; /* .aligned: all lanes of the warp, or the code is wrong */
} op_row;

extern const op_row sim_int_rows[], sim_bit_rows[], sim_float_rows[], sim_convert_rows[];

#define EACH for (int i = 0; i < LANES; i++)
#define ACTIVE(r) \
    for (uint32_t left_ = (r)->mask, i = 0; left_ && ((i = (uint32_t)__builtin_ctz(left_)), 1); left_ &= left_ - 1)

static inline step put(run *r, uint32_t place, const void *lanes, size_t size)
{
    uint8_t *to = r->base[0] + place;
    if (r->mask == ALL_LANES) {
        memcpy(to, lanes, size * LANES);
        return STEP_NEXT;
    }
    ACTIVE(r) memcpy(to + i * size, (const uint8_t *)lanes + i * size, size);
    return STEP_NEXT;
}

static inline step put_predicate(run *r, uint32_t place, uint32_t bits)
{
    r->predicates[place] = (r->predicates[place] & ~r->mask) | (bits & r->mask);
    return STEP_NEXT;
}

#define MAP1(name, D, A, expression)               \
    static step name(run *r, const insn *in)       \
    {                                              \
        const A *pa = at(r, in->o[1]);             \
        D out[LANES];                              \
        EACH                                       \
        {                                          \
            A a = pa[i];                           \
            out[i] = (D)(expression);              \
        }                                          \
        return put(r, in->o[0], out, sizeof *out); \
    }

#define MAP2(name, D, A, B, expression)            \
    static step name(run *r, const insn *in)       \
    {                                              \
        const A *pa = at(r, in->o[1]);             \
        const B *pb = at(r, in->o[2]);             \
        D out[LANES];                              \
        EACH                                       \
        {                                          \
            A a = pa[i];                           \
            B b = pb[i];                           \
            out[i] = (D)(expression);              \
        }                                          \
        return put(r, in->o[0], out, sizeof *out); \
    }

#define MAP3(name, D, A, B, C, expression)         \
    static step name(run *r, const insn *in)       \
    {                                              \
        const A *pa = at(r, in->o[1]);             \
        const B *pb = at(r, in->o[2]);             \
        const C *pc = at(r, in->o[3]);             \
        D out[LANES];                              \
        EACH                                       \
        {                                          \
            A a = pa[i];                           \
            B b = pb[i];                           \
            C c = pc[i];                           \
            out[i] = (D)(expression);              \
        }                                          \
        return put(r, in->o[0], out, sizeof *out); \
    }

#endif
