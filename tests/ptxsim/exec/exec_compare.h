/* Finds the functions that execute comparisons, by name and type. */
#ifndef PTXSIM_EXEC_COMPARE_H
#define PTXSIM_EXEC_COMPARE_H

#include "sim.h"

/* The number of eq, ltu, ..; -1: no such comparison. */
int sim_comparison(const char *name, size_t n);

/* Compares operands of a type; NULL: no such type. */
op_fn *sim_comparer(const char *type, size_t n, char *width);

#endif
