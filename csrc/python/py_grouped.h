/* Holds the arguments of grouped_gemm's list form: those of one gemm for each group, and their tensors. */
#ifndef NK_PY_GROUPED_H
#define NK_PY_GROUPED_H

#include "py_state.h"

typedef struct py_group {
    nk_tensor a, b, sfa, sfb, alpha, row_scale, bias, out;
} py_group;

typedef struct py_groups {
    Py_ssize_t count;
    py_group *tensors;  /* where the memory of all three begins */
    nk_gemm_args *list; /* alpha is 1, the rest 0, until the arguments are read */
    void *problems;
    nk_activation_kind activation; /* identity, until it is read */
    bool quantized;                /* which the call refuses */
} py_groups;

int py_groups_init(py_groups *groups, Py_ssize_t count);
int py_groups_run(py_call *call, const py_groups *groups);
void py_groups_free(py_groups *groups);

#endif
