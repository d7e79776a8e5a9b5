"""Why spoiled host code passes the tests: what mutate_host.py knows of its survivors."""

# By the file and the spoiled text: line numbers move.
SURVIVORS = {
    "op_check.c: exec->dry_run": "the binding hands over an output wherever a call runs",
    "op_operand.c: bytes_of_atoms(sf, rest_m, rest_k, &bytes)": (
        "the operand's own sizes have passed, 2^55 in each dimension and 2^61 bytes, so that its "
        "scales have at most 2^62 with their padding"
    ),
    "op_operand.c: nk_spec_matrix(sf->name, NK_E4M3, sf, of, of->rows, k / NK_SF_VEC, &expected)": (
        "the operand's own sizes have passed, and its scales are fewer"
    ),
    "op_quantize.c: check(args, &p, &x, &outs)": (
        "nk_quantize_out, which the binding calls before, makes the same checks"
    ),
    "op_quantize.c: check(args, &problem, &x, &outs)": (
        "nk_quantize, which the binding calls next, makes the same checks; the number of outputs "
        "is not set where one fails, so that only chance tells whether any are allocated before"
    ),
    'op_quantize.c: nk_spec_matrix("codes", NK_E2M1X2, first, x, x->rows, x->cols / 2, '
    "&outs->spec[0])": "x's own sizes have passed, and its codes are fewer",
    "op_quantize.c: nk_check_out(&scales, spec, NK_FP8, exec, first)": (
        "only a dry run has no scales here: the binding hands over an output wherever a call runs"
    ),
    "op_relayout.c: nk_check_out(&out, &spec, NK_FP8, exec, args->in)": (
        "only a dry run has no output here, as in op_quantize.c"
    ),
    "op_route.c: check(args, &first, &problem, &outs)": (
        "that of nk_route: nk_route_out, which the binding calls before, makes the same checks"
    ),
    "op_sort_by_expert.c: check(args, &problem, &specs)": (
        "nk_sort_by_expert_out, which the binding calls before, makes the same checks"
    ),
    "op_route.c: nk_mul(p->m, p->top_k, first, &rows)": (
        "the sizes of the weights, at least as many, are checked next and give the same message; "
        "given ids have been counted before"
    ),
    "py_tensor.c: api->managed_tensor_to_py_object_no_sync(managed, &object) < 0": (
        "a conversion that fails leaves the object NULL, which means the same"
    ),
}
NO_MEMORY = [
    "py_args.c: py_keep(call, tuple) < 0",
    "py_competition.c: py_groups_init(&groups, count) < 0",
    "py_grouped.c: py_groups_init(&groups, count) < 0",
    "py_invoke.c: py_keep(call, object) < 0",
    "py_invoke.c: set(dict, texts[i].key, PyUnicode_FromString(texts[i].value)) < 0",
    "py_invoke.c: set(dict, numbers[i].key, PyLong_FromLongLong(numbers[i].value)) < 0",
    'py_invoke.c: set(dict, "batch_invariant", PyBool_FromLong(plan->batch_invariant)) < 0',
    "py_tensor.c: py_keep(call, capsule) < 0",
]
SURVIVORS |= dict.fromkeys(NO_MEMORY, "it fails only where there is no memory")

# Of mutants that are no removed checks, by the same key with what has changed.
ONE_ELEMENT = "a dimension of extent 1 has a compact tensor's stride"
GPU = "GPU rows alone read it, and this build has none: the simulator's tests run them"
SLOWER = "the search for overlaps goes back from a later output, and comes to the same ones"
SAME_REASON = "this build has left out all rows of GPUs, so all give the same reason"
SURVIVORS |= {
    "op_check.c: char text[384]; (384 -> 385, column 15)": "room for one more character",
    'op_check.c: if (at < sizeof text.s) snprintf(text.s + at, sizeof text.s - at, "%s)", '
    'count == 1 ? "," : ""); (< -> <=, column 12)': "snprintf writes nothing without room",
    "op_gemm.c: if (!joins || (n > 1 && d->col_stride != size && d_stride != size)) return; "
    "(> -> >=, column 22)": ONE_ELEMENT,
    "op_operand.c: *batch_stride = sf->ndim == 6 ? sf->stride[5] : 0; (0 -> 1, column 53)": (
        "there is one batch, from which nobody takes a step"
    ),
    "op_experts.c: NK_CHECK_AT(shape[1] <= 1 || shape[0] <= 1 || operand->k_stride == size || "
    "operand->row_stride == size, (<= -> <, column 43)": "shape[1] is K, a multiple of 16",
    "op_view.c: *stride = 0; (0 -> 1, column 15)": (
        "it stays where there is one element, from which nobody takes a step"
    ),
    "op_view.c: return rank > 3 ? merge_lead(t, v) : NK_OK; (> -> >=, column 17)": (
        "the one dimension of rank 3 merges to itself"
    ),
    "op_view.c: bool first = *extent == 1, empty = *extent == 0 || t->shape[d] == 0; "
    "(0 -> 1, column 75)": "the binding gives an empty tensor a compact one's strides, which merge",
    "backend.c: for (int i = ROWS - 1; i >= 0 && !why; i--) (&& -> ||, column 35)": SAME_REASON,
    "backend.c: for (int i = ROWS - 1; i >= 0 && !why; i--) (1 -> 2, column 25)": SAME_REASON,
    "nk_settings.c: if (text[0] != 'N' || text[1] != 'V' || text[2] != 'F') continue; "
    "/* a fast test, which most variables fail */ (|| -> &&, column 46)": (
        "the whole prefix is compared next"
    ),
    "py_output.c: bool wanted = !is_given(given) && !call->exec.dry_run; (&& -> ||, column 36)": (
        "what is asked for needlessly makes the checks that the call makes"
    ),
    "nk_settings.c: NK_CHECK(*end == 0 && number >= 1 && number <= INT_MAX, NK_BACKEND_ERROR, "
    "(<= -> <, column 49)": GPU,
    "nk_settings.c: *pdl = answer == 2 ? NK_PDL_WEIGHTS : answer ? NK_PDL_SAFE : NK_PDL_OFF; "
    "(2 -> 3, column 22)": GPU,
    "py_module.c: for (int i = 0; list && nk_tile_list(i, &info); i++) { (0 -> 1, column 18)": GPU,
    "py_module.c: if (!name || PyList_Append(list, name) < 0) Py_CLEAR(list); "
    "(< -> <=, column 48)": GPU,
    "py_module.c: if (!name || PyList_Append(list, name) < 0) Py_CLEAR(list); "
    "(0 -> 1, column 50)": GPU,
    "py_module.c: if (!name || PyList_Append(list, name) < 0) Py_CLEAR(list); "
    "(|| -> &&, column 19)": GPU,
    "op_view.c: *v = (nk_view){.rank = rank, .lead = t->shape, .l = 1, "
    ".cols = t->shape[rank - 1]}; (1 -> 2, column 57)": (
        "all dimensions but the last are rows, and nobody asks for the number of batches"
    ),
    "op_overlap.c: sorted += sorted[half - 1].in.low < end ? half : 0; (0 -> 1, column 58)": SLOWER,
    "op_overlap.c: sorted += sorted[half - 1].in.low < end ? half : 0; "
    "(< -> <=, column 43)": SLOWER,
    "op_overlap.c: return sorted + (sorted->in.low < end); (< -> <=, column 37)": SLOWER,
    "nk_tile.c: *list = rest.at[rest.length] ? rest.at + rest.length + 1 : NULL; "
    "(+ -> -, column 58)": (
        "this build has no tiles, and refuses the first entry of any list: test_tiles.py has lists "
        "where a build has kernels"
    ),
    "op_operand.c: NK_CHECK_AT(v->cols <= 1 || v->col_stride == nk_dtype_size(t->dtype), "
    "NK_VALUE_ERROR, t, (<= -> <, column 25)": ONE_ELEMENT,
    "op_combine.c: NK_CHECK_AT(selections <= 1 || row_of->stride[0] == 1, NK_VALUE_ERROR, row_of, "
    "(<= -> <, column 28)": ONE_ELEMENT,
    "op_quantize.c: NK_CHECK_AT(view->cols <= 1 || view->col_stride == 1, NK_VALUE_ERROR, codes, "
    "(<= -> <, column 28)": ONE_ELEMENT,
    "op_route.c: *p = (nk_route_problem){0}; (0 -> 1, column 29)": (
        "the first field is the device's type, which is set once the operands have passed"
    ),
    "py_invoke.c: for (int i = 0; i < PY_MAX_ARGS && op->names[i]; i++) { (< -> <=, column 23)": (
        "no operator has as many names, so that a NULL ends them"
    ),
    "py_grouped_dual.c: PyObject *given[2] = {NULL}, *outputs[2] = {NULL}; (2 -> 3, column 43)": (
        "room for one more output"
    ),
    "py_route.c: nk_sort_by_expert_args args = {0}; (0 -> 1, column 36)": (
        "the first field is ids, which is set next, or the call ends"
    ),
    "py_state.c: if (!call->kept) call->kept = PyList_New(0); (0 -> 1, column 46)": (
        "nobody reads the list, and an empty item is released as none"
    ),
}
UNSEEN = {
    "op_view.c: *v = (nk_view){.rank = rank, .lead = t->shape, .l = 1, "
    ".cols = t->shape[rank - 1]}; (- -> +, column 82)": (
        "what the stack holds behind a shape tells whether a check of route's weights notices"
    ),
    "op_overlap.c: for (int64_t g = 0; g < groups && count > 0; g++) { (> -> >=, column 49)": (
        "what the stack holds tells whether a dry run notices"
    ),
    "op_overlap.c: sorted += sorted[half - 1].in.low < end ? half : 0; (1 -> 2, column 33)": (
        "AddressSanitizer sees what is read in front of an array; elsewhere the search goes back "
        "from a later output"
    ),
    "nk_settings.c: for (int i = 0; i < COUNT; i++) (< -> <=, column 23)": (
        "AddressSanitizer sees what is written behind an array: tests/sanitize.sh"
    ),
    "py_module.c: for (int i = 0; i < PY_EXPORTER_TYPES; i++) { (< -> <=, column 23)": (
        "that of clear(), which runs as the process ends, and these tests end theirs before"
    ),
}
