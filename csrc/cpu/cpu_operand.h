/* The addresses of an operand's elements and scale factors, and how an element is stored. */
#ifndef NK_CPU_OPERAND_H
#define NK_CPU_OPERAND_H

#include "cpu_convert.h"

/* A hint, if the compiler has one. Any address is allowed. */
#ifdef __GNUC__
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

static inline const uint8_t *operand_row(const nk_operand *o, int64_t l, int64_t row)
{
    return o->data + l * o->batch_stride + row * o->row_stride;
}

/* Address of scale byte `col`, which is that of elements 16 col .. 16 col + 15; `cols` is K/16. In both layouts the
 * scale bytes up to the next multiple of 4 follow it. */
static inline const uint8_t *operand_sf_at(const nk_operand *o, int64_t l, int64_t row, int64_t col, int64_t cols)
{
    const uint8_t *sf = o->sf + l * o->sf_batch_stride;
    if (o->sf_layout == NK_SF_BLOCKED) return sf + nk_sf_blocked_offset(row, col, cols);
    return sf + row * o->sf_row_stride + col;
}

/* Copies the scale bytes of blocks col .. col + count - 1 of a row; `col` is a multiple of 4. */
static inline void gather_sf(const nk_operand *o, int64_t l, int64_t row, int64_t col, int64_t count, int64_t cols,
                             uint8_t *to)
{
    const uint8_t *from = operand_sf_at(o, l, row, col, cols);
    if (o->sf_layout == NK_SF_LINEAR) {
        memcpy(to, from, (size_t)count);
        return;
    }
    for (; count >= NK_SF_ATOM_COLS; count -= NK_SF_ATOM_COLS, from += NK_SF_ATOM_BYTES, to += NK_SF_ATOM_COLS)
        memcpy(to, from, NK_SF_ATOM_COLS);
    memcpy(to, from, (size_t)count);
}

/* What the caller may write during the call is read once, by this. */
static inline int32_t read_once(const int32_t *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }

/* The rows of expert g, within 0 .. rows whatever `offsets` hold: they were checked, but another thread may have
 * written them since. */
typedef struct cpu_rows {
    int64_t begin, end;
} cpu_rows;

static inline cpu_rows cpu_rows_of_expert(const int32_t *offsets, int64_t g, int64_t rows)
{
    int64_t begin = read_once(&offsets[g]), end = read_once(&offsets[g + 1]);
    begin = begin < 0 ? 0 : begin > rows ? rows : begin;
    end = end < begin ? begin : end > rows ? rows : end;
    return (cpu_rows){begin, end};
}

static inline float cpu_alpha_at(const nk_alpha *alpha, int64_t n)
{
    return alpha->data ? alpha->data[n * alpha->stride] : alpha->value;
}

static inline void store_output(const nk_output *d, int64_t l, int64_t m, int64_t n, float value)
{
    cpu_store_float(d->data + l * d->batch_stride + m * d->row_stride + n * d->col_stride, d->dtype, value);
}

#endif
