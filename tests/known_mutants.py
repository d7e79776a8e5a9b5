"""Why spoiled host code passes the tests: what mutate_host.py knows of its survivors.

By the file, the function, what is spoiled, and which of its like there (anchors.py).
"""

ONE_ELEMENT = "a dimension of extent 1 has a compact tensor's stride"
GPU = "GPU rows alone read it, and this build has none: the simulator's tests run them"
GAPS = "any gaps sort that end in 1"
SLOWER = "the search for overlaps goes back from a later output, and comes to the same ones"
SAME_REASON = "this build has left out all rows of GPUs, so all give the same reason"
SURVIVORS = {
    "op_check.c, nk_check_out: check (1 of 3)": (
        "the binding hands over an output wherever a call runs"
    ),
    "op_operand.c, check_blocked: check (1 of 2)": (
        "the operand's own sizes have passed, 2^55 in each dimension and 2^61 bytes, so that its "
        "scales have at most 2^62 with their padding"
    ),
    "op_operand.c, check_linear: check (3 of 4)": (
        "the operand's own sizes have passed, and its scales are fewer"
    ),
    "op_quantize.c, nk_quantize: check (1 of 6)": (
        "nk_quantize_out, which the binding calls before, makes the same checks"
    ),
    "op_quantize.c, nk_quantize_out: check": (
        "nk_quantize, which the binding calls next, makes the same checks; the number of outputs "
        "is not set where one fails, so that only chance tells whether any are allocated before"
    ),
    "op_quantize.c, check: check (10 of 11)": "x's own sizes have passed, and its codes are fewer",
    "op_quantize.c, nk_check_scales_out: check (1 of 3)": (
        "only a dry run has no scales here: the binding hands over an output wherever a call runs"
    ),
    "op_relayout.c, nk_relayout: check (2 of 5)": (
        "only a dry run has no output here, as in op_quantize.c"
    ),
    "op_route.c, nk_route: check (1 of 10)": (
        "nk_route_out, which the binding calls before, makes the same checks"
    ),
    "op_sort_by_expert.c, nk_sort_by_expert: check (1 of 6)": (
        "nk_sort_by_expert_out, which the binding calls before, makes the same checks"
    ),
    "op_route.c, nk_spec_permutation: check (1 of 2)": (
        "the sizes of the weights, at least as many, are checked next and give the same message; "
        "given ids have been counted before"
    ),
    "py_tensor.c, empty_from_api: check (3 of 4)": (
        "a conversion that fails leaves the object NULL, which means the same"
    ),
}
NO_MEMORY = [
    "py_args.c, py_items: check (1 of 3)",
    "py_competition.c, group_gemm: check (1 of 2)",
    "py_grouped.c, list_form: check (16 of 27)",
    "py_invoke.c, new_workspace: check (1 of 2)",
    "py_invoke.c, new_workspace: check (2 of 2)",
    "py_invoke.c, plan_dict: check (1 of 4)",
    "py_invoke.c, plan_dict: check (3 of 4)",
    "py_invoke.c, plan_dict: check (4 of 4)",
    "py_tensor.c, from_api: check (5 of 8)",
    "py_tensor.c, from_dlpack_method: check (3 of 3)",
]
SURVIVORS |= dict.fromkeys(NO_MEMORY, "it fails only where there is no memory")
SURVIVORS |= {
    "op_check.c, nk_fail_at: 384 -> 385": "room for one more character",
    "op_check.c, tuple_text: < -> <= (3 of 3)": "snprintf writes nothing without room",
    "op_gemm.c, nk_join_batches: > -> >=": ONE_ELEMENT,
    "op_operand.c, check_blocked: 0 -> 1": "there is one batch, from which nobody takes a step",
    "op_experts.c, nk_check_16_bit_strides: <= -> < (2 of 2)": "shape[1] is K, a multiple of 16",
    "op_view.c, merge: 0 -> 1 (1 of 4)": (
        "it stays where there is one element, from which nobody takes a step"
    ),
    "op_view.c, nk_view_of: > -> >= (3 of 3)": "the one dimension of rank 3 merges to itself",
    "op_view.c, merge: 0 -> 1 (4 of 4)": (
        "the binding gives an empty tensor a compact one's strides, which merge"
    ),
    "backend.c, nobody_serves: && -> ||": SAME_REASON,
    "backend.c, nobody_serves: 1 -> 2": SAME_REASON,
    "nk_settings.c, find_values: || -> && (2 of 2)": "the whole prefix is compared next",
    "py_output.c, py_finish: && -> || (1 of 2)": (
        "what is asked for needlessly makes the checks that the call makes"
    ),
    "nk_settings.c, nk_late_limit: <= -> <": GPU,
    "op_experts.c, check_expected_rows: < -> <=": GPU,
    "op_experts.c, check_expected_rows: 0 -> 1": GPU,
    "nk_settings.c, read_pdl: 2 -> 3 (2 of 2)": GPU,
    "py_module.c, tiles: 0 -> 1 (1 of 2)": GPU,
    "py_module.c, tiles: < -> <=": GPU,
    "py_module.c, tiles: 0 -> 1 (2 of 2)": GPU,
    "py_module.c, tiles: || -> &&": GPU,
    "py_module.c, tiles: && -> ||": GPU,
    **{
        f"py_module.c, tile_traits: {change} ({i} of {n})": GPU
        for change, n in (("0 -> 1", 7), ("< -> <=", 4), ("&& -> ||", 4), ("|| -> &&", 4))
        for i in range(1, n + 1)
    },
    "op_view.c, nk_rows_of: 1 -> 2 (2 of 5)": (
        "all dimensions but the last are rows, and nobody asks for the number of batches"
    ),
    "op_overlap.c, first_beyond: 0 -> 1": SLOWER,
    "op_overlap.c, sort: < -> <= (1 of 2)": GAPS,
    "op_overlap.c, sort: 9 -> 10": GAPS,
    "op_overlap.c, sort: > -> >= (2 of 2)": "equals change places",
    "op_overlap.c, first_beyond: < -> <= (1 of 2)": SLOWER,
    "op_overlap.c, first_beyond: < -> <= (2 of 2)": SLOWER,
    "nk_tile.c, next_entry: + -> -": (
        "this build has no tiles, and refuses the first entry of any list: test_tiles.py has lists"
        " where a build has kernels"
    ),
    "op_operand.c, nk_check_float_rows: <= -> <": ONE_ELEMENT,
    "op_combine.c, check_row_of: <= -> <": ONE_ELEMENT,
    "op_quantize.c, nk_check_codes_out: <= -> <": ONE_ELEMENT,
    "op_route.c, check: 0 -> 1": (
        "the first field is the device's type, which is set once the operands have passed"
    ),
    "py_experts.c, quantized_output: 2 -> 3 (4 of 8)": "room for one more output",
    "py_state.c, py_keep: 0 -> 1": "nobody reads the list, and an empty item is released as none",
}
UNSEEN = {
    "op_view.c, nk_rows_of: - -> + (1 of 3)": (
        "what the stack holds behind a shape tells whether a check of route's weights notices"
    ),
    "op_overlap.c, nk_check_disjoint_groups: > -> >=": (
        "what the stack holds tells whether a dry run notices"
    ),
    "op_overlap.c, first_beyond: 1 -> 2 (2 of 2)": (
        "AddressSanitizer sees what is read in front of an array; elsewhere the search goes back "
        "from a later output"
    ),
    "nk_settings.c, find_values: < -> <= (1 of 2)": (
        "AddressSanitizer sees what is written behind an array: tests/sanitize.sh"
    ),
    "py_module.c, clear: < -> <=": "it runs as the process ends, and these tests end theirs before",
}
