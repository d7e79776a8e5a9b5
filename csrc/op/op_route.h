/* The checks that route and sort_by_expert share. */
#ifndef NK_OP_ROUTE_H
#define NK_OP_ROUTE_H

#include "op_check.h"

/* `map` is int32 [n] or NULL, and goes with a number of local experts. Fills what the problem has of both. */
nk_status nk_check_expert_map(const nk_tensor *map, int64_t num_local_experts, const nk_tensor *first,
                              nk_route_problem *p);

/* An int32 output of one dimension, contiguous. */
nk_status nk_check_list(const nk_tensor *out, const nk_tensor *spec, const nk_exec *exec, const nk_tensor *first,
                        int32_t **data);

/* What a permutation consists of. The numbers of selections fit int32. */
typedef struct nk_permutation {
    nk_tensor counts, offsets, sorted_rows, row_of;
} nk_permutation;

nk_status nk_spec_permutation(const nk_tensor *first, const nk_route_problem *p, nk_permutation *specs);

#endif
