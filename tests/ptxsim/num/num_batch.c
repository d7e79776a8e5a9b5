/* Loops over the num_ functions for the tests, which would spend their time in ctypes otherwise. */
#include "num_float.h"

void num_batch_value(num_format format, int64_t n, const uint64_t *x, double *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = num_value(format, x[i]);
}

void num_batch_convert(num_format to, num_format from, num_mode mode, int64_t n, const uint64_t *x, uint64_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = num_convert(to, from, x[i], mode);
}

void num_batch_arith(num_op op, num_format format, num_mode mode, int64_t n, const uint64_t *a, const uint64_t *b,
                     const uint64_t *c, uint64_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = num_arith(op, format, a[i], b[i], c[i], mode);
}

void num_batch_to_integer(int bits, int is_signed, num_format from, num_mode mode, int64_t n, const uint64_t *x,
                          uint64_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = num_to_integer(bits, is_signed, from, x[i], mode);
}

void num_batch_from_integer(num_format to, int is_signed, num_mode mode, int64_t n, const uint64_t *x, uint64_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = num_from_integer(to, is_signed, x[i], mode);
}
