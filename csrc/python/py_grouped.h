/* The list form of grouped_gemm: one gemm's arguments per group, with room for its tensors. */
#ifndef NK_PY_GROUPED_H
#define NK_PY_GROUPED_H

#include "py_state.h"

typedef struct py_group {
    nk_tensor a, b, sfa, sfb, alpha, bias, out;
} py_group;

typedef struct py_groups {
    Py_ssize_t count;
    py_group *tensors;  /* begins the memory of all three */
    nk_gemm_args *list; /* zeros but for alpha, which is 1 */
    void *problems;
} py_groups;

int py_groups_init(py_groups *groups, Py_ssize_t count);
int py_groups_run(py_call *call, const py_groups *groups);
void py_groups_free(py_groups *groups);

#endif
