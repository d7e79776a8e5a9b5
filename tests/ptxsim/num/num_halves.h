/* f16 and bf16 in bulk: the same bits as num_float.h gives one by one. */
#ifndef PTXSIM_NUM_HALVES_H
#define PTXSIM_NUM_HALVES_H

#include "num_float.h"

/* n values, a multiple of 8; add, sub, mul and fma. False: not an operation, format or mode that this knows. */
bool num_halves_arith(num_op op, num_format format, num_mode mode, int n, const uint16_t *a, const uint16_t *b,
                      const uint16_t *c, uint16_t *out);

bool num_halves_to_f32(num_format format, num_mode mode, int n, const uint16_t *x, uint32_t *out);
bool num_halves_from_f32(num_format format, num_mode mode, int n, const uint32_t *x, uint16_t *out);

#endif
