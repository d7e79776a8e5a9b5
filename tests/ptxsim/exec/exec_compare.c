/* Executes setp: a comparison, optionally combined with a predicate. */
#include "exec_compare.h"

#include "exec.h"

#include <math.h>
#include <stdlib.h>

enum { EQ, NE, LT, LE, GT, GE, LO, LS, HI, HS, EQU, NEU, LTU, LEU, GTU, GEU, NUM, NOTNUM };
static const char *const names[] = {"eq", "ne",  "lt",  "le",  "gt",  "ge",  "lo",  "ls",  "hi",
                                    "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};

int sim_comparison(const char *name, size_t n)
{
    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++)
        if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0) return i;
    return -1;
}

#define BITS(condition)                     \
    {                                       \
        uint8_t yes[LANES];                 \
        EACH yes[i] = (condition);          \
        EACH bits |= (uint32_t)yes[i] << i; \
        break;                              \
    }

/* `flags`: how c is combined, 0 where there is none; op + 32: c is negated. o[1] is the second destination or NONE. */
static step finish(run *r, const insn *in, uint32_t bits)
{
    uint32_t c = ALL_LANES, other = ~bits;
    if (in->flags) {
        c = r->predicates[in->o[4]] ^ (in->a_type ? ALL_LANES : 0);
        if (in->flags == '&') bits &= c, other &= c;
        if (in->flags == '|') bits |= c, other |= c;
        if (in->flags == '^') bits ^= c, other ^= c;
    }
    if (in->o[1] != NONE) put_predicate(r, in->o[1], other);
    return in->o[0] == NONE ? STEP_NEXT : put_predicate(r, in->o[0], bits);
}

#define COMPARE_INT(name, T)                                \
    static step name(run *r, const insn *in)                \
    {                                                       \
        const T *a = at(r, in->o[2]), *b = at(r, in->o[3]); \
        uint32_t bits = 0;                                  \
        switch (in->op) {                                   \
        case EQ:                                            \
            BITS(a[i] == b[i])                              \
        case NE:                                            \
            BITS(a[i] != b[i])                              \
        case LT:                                            \
        case LO:                                            \
            BITS(a[i] < b[i])                               \
        case LE:                                            \
        case LS:                                            \
            BITS(a[i] <= b[i])                              \
        case GT:                                            \
        case HI:                                            \
            BITS(a[i] > b[i])                               \
        default:                                            \
            BITS(a[i] >= b[i])                              \
        }                                                   \
        return finish(r, in, bits);                         \
    }

COMPARE_INT(compare_u16, uint16_t)
COMPARE_INT(compare_s16, int16_t)
COMPARE_INT(compare_u32, uint32_t)
COMPARE_INT(compare_s32, int32_t)
COMPARE_INT(compare_u64, uint64_t)
COMPARE_INT(compare_s64, int64_t)

#define COMPARE_FLOAT(name, T)                              \
    static step name(run *r, const insn *in)                \
    {                                                       \
        const T *a = at(r, in->o[2]), *b = at(r, in->o[3]); \
        uint32_t bits = 0;                                  \
        switch (in->op) {                                   \
        case EQ:                                            \
            BITS(a[i] == b[i])                              \
        case NE:                                            \
            BITS(a[i] < b[i] || a[i] > b[i])                \
        case LT:                                            \
            BITS(a[i] < b[i])                               \
        case LE:                                            \
            BITS(a[i] <= b[i])                              \
        case GT:                                            \
            BITS(a[i] > b[i])                               \
        case GE:                                            \
            BITS(a[i] >= b[i])                              \
        case EQU:                                           \
            BITS(!(a[i] < b[i] || a[i] > b[i]))             \
        case NEU:                                           \
            BITS(a[i] != b[i])                              \
        case LTU:                                           \
            BITS(!(a[i] >= b[i]))                           \
        case LEU:                                           \
            BITS(!(a[i] > b[i]))                            \
        case GTU:                                           \
            BITS(!(a[i] <= b[i]))                           \
        case GEU:                                           \
            BITS(!(a[i] < b[i]))                            \
        case NUM:                                           \
            BITS(a[i] == a[i] && b[i] == b[i])              \
        default:                                            \
            BITS(a[i] != a[i] || b[i] != b[i])              \
        }                                                   \
        return finish(r, in, bits);                         \
    }

COMPARE_FLOAT(compare_f32, float)

op_fn *sim_comparer(const char *type, size_t n, char *width)
{
    static const struct {
        const char *type;
        char width;
        op_fn *fn;
    } rows[] = {
        {"b16", 'h', compare_u16}, {"u16", 'h', compare_u16}, {"s16", 'h', compare_s16}, {"b32", 'w', compare_u32},
        {"u32", 'w', compare_u32}, {"s32", 'w', compare_s32}, {"b64", 'd', compare_u64}, {"u64", 'd', compare_u64},
        {"s64", 'd', compare_s64}, {"f32", 'w', compare_f32},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strlen(rows[i].type) != n || memcmp(rows[i].type, type, n) != 0) continue;
        *width = rows[i].width;
        return rows[i].fn;
    }
    return NULL;
}
