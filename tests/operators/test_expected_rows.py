"""expected_rows of grouped_gemm and grouped_dual_gemm: it chooses, and nothing depends on it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from expert_calls import Matrices, Stack, Tokens, drawn, int32
from generators import from_numpy, raw, rng_of
from rows import need

from nvfp4kern.assumed import setting
from nvfp4kern.verify import data

OPERATORS = (Matrices, Stack)
OF = {"ids": lambda value: getattr(value, "name", None)}
operators = pytest.mark.parametrize("experts", OPERATORS, **OF)
numbers = pytest.mark.parametrize("expected", (0, 1, 17, "all"))
CASES = {
    "all rows": ([0, 20, 20, 60], 60),
    "some": ([3, 10, 10, 41], 46),
    "none": ([5, 5, 5, 5], 46),
    "more than a gemv takes": ([0, 129, 130, 300], 300),
}


# --- Results ---


@numbers
@pytest.mark.one_path
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("experts, kind", [(e, kind) for e in OPERATORS for kind in e.kinds], **OF)
def test_any_number_of_rows_is_right(backend, experts, kind, case, expected):
    """More than expected and fewer, up to all and down to none."""
    (offsets, count), rng, device = CASES[case], rng_of(1), backend.device
    a, b = Tokens(rng, device, count, 64, kind=kind), experts(rng, device, 3, 32, 64, kind=kind)
    expected = count if expected == "all" else expected
    got = b.run(a.tensor, a.sf, offsets, expected_rows=expected)
    b.check(got, offsets, a.values, backend.c)


@operators
@numbers
@pytest.mark.one_path
def test_rows_by_index(backend, experts, expected):
    """They are those of the result, of which there are more than tokens."""
    (offsets, count), rng, device = CASES["some"], rng_of(2), backend.device
    a, b = Tokens(rng, device, 5, 64), experts(rng, device, 3, 32, 64)
    index = drawn(rng, offsets, count, 5, 3)
    options = {"rows": from_numpy(index, device), "rows_per_token": 3}
    options["expected_rows"] = count if expected == "all" else expected
    got = b.run(a.tensor, a.sf, offsets, count=count, **options)
    b.check(got, offsets, a.of(index // 3), backend.c)


@operators
@numbers
def test_rows_in_slices(gpu, experts, expected, monkeypatch):
    """On Hopper, where all tokens at once would need too much workspace."""
    monkeypatch.setenv("NVFP4KERN_ROW_LIMIT", "50")
    (offsets, count), rng, device = CASES["more than a gemv takes"], rng_of(6), gpu.device
    a, b = Tokens(rng, device, count, 64), experts(rng, device, 3, 32, 64)
    options = {"expected_rows": count if expected == "all" else expected}
    plan = b.explain(a.tensor, a.sf, offsets, **options)
    assert plan.get("slices", 0) == (6 if plan["backend"] == "sm90" else 0)
    got = b.run(a.tensor, a.sf, offsets, **options)
    b.check(got, offsets, a.values, gpu.c)


def bytes_of(encoded, offsets):
    """Of rows that experts have: the others are not written."""
    return [raw(part)[offsets[0] : offsets[-1]] for part in encoded[:2]]


@operators
@pytest.mark.one_path
@pytest.mark.parametrize("case", CASES)
def test_quantized_results_have_the_same_bytes(device, experts, case):
    """Of sums that are exact in any order."""
    (offsets, count), rng = CASES[case], rng_of(3)
    a, b = Tokens(rng, device, count, 64), experts(rng, device, 3, 32, 64)
    of = {n: b.new(a.tensor, a.sf, offsets, quantized=True, expected_rows=n) for n in (0, 17, None)}
    for hint in (0, 17):
        for got, want in zip(*(bytes_of(of[n], offsets) for n in (hint, None)), strict=True):
            np.testing.assert_array_equal(got, want)


@operators
@pytest.mark.one_path
@pytest.mark.parametrize("kind", ("NVFP4", "W4A16"))
def test_batch_invariant_bits_do_not_depend_on_it(device, experts, kind, monkeypatch):
    """Sums of full-range data round as their order says."""
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    (offsets, count), rng = CASES["more than a gemv takes"], rng_of(4)
    a = Tokens(rng, device, count, 1040, kind=kind, make=data.full_range)
    b = experts(rng, device, 3, 32, 1040, make=data.full_range)
    options = {"alpha": 1e-4, "out_dtype": "float32"}
    want = raw(b.new(a.tensor, a.sf, offsets, **options))
    for hint in (0, 17):
        got = raw(b.new(a.tensor, a.sf, offsets, expected_rows=hint, **options))
        np.testing.assert_array_equal(got, want)


# --- Refusals ---


@operators
@pytest.mark.parametrize("by_rows", (False, True))
def test_more_rows_than_there_are_is_refused(experts, by_rows):
    rng = rng_of(5)
    a, b = Tokens(rng, "cpu", 7, 32), experts(rng, "cpu", 2, 16, 32)
    options = {"rows": int32([0] * 9, "cpu")} if by_rows else {}
    count, args = 9 if by_rows else 7, (a.tensor, a.sf, [0, 1, 7])
    assert b.new(*args, expected_rows=count, **options).shape == (count, 16)
    expected = f"expected 0 to {count}: the rows that offsets divide"
    for wrong in (count + 1, 2**62):
        with pytest.raises(ValueError, match=f"^expected_rows: {wrong}, {expected}$"):
            b.new(*args, expected_rows=wrong, **options)
    for wrong in (-1, -(2**63)):
        with pytest.raises(ValueError, match=f"^expected_rows: {wrong}, expected 0 or more$"):
            b.new(*args, expected_rows=wrong, **options)
    with pytest.raises(TypeError, match="^expected_rows: float, expected an int$"):
        b.new(*args, expected_rows=1.0, **options)


# --- Plans of GPUs that are not here ---

ROW_OF = {"a100": "sm80", "h200": "sm90", "b200": "sm100", "rtx5090": "sm120"}
PLANS = """
import json, sys
import nvfp4kern
from nvfp4kern.assumed import array

def operand(kind, *shape):
    if kind != "nvfp4":
        return array(kind, *shape), None
    return [array("uint8", *shape[:-1], shape[-1] // of) for of in (2, 16)]

def plan(operator, tokens, experts, p, n, k, expected_rows=None):
    n *= 2 if operator == "grouped_dual_gemm" else 1
    weights = "float16" if tokens == "float16" else "nvfp4"
    (a, sfa), (b, sfb) = operand(tokens, p, k), operand(weights, experts, n, k)
    options = {"offsets": array("int32", experts + 1), "expected_rows": expected_rows}
    return nvfp4kern.explain(operator, a, b, sfa, sfb, **options)

print(json.dumps([plan(*call) for call in json.loads(sys.argv[1])]))
"""


def plans_of(gpu, *calls, **variables):
    """Of one process, which remembers plans."""
    need(ROW_OF[gpu])
    command = [sys.executable, "-c", PLANS, json.dumps(calls)]
    facts = os.environ | variables | {"NVFP4KERN_ASSUMED_GPU": setting(gpu)}
    done = subprocess.run(command, capture_output=True, text=True, env=facts)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {plan["backend"] for plan in found} == {ROW_OF[gpu]}
    return found


SOME = ("h200", "grouped_gemm", "nvfp4"), ("h200", "grouped_dual_gemm", "bfloat16")
SOME += ("b200", "grouped_gemm", "bfloat16"), ("b200", "grouped_dual_gemm", "nvfp4")
SOME += (("a100", "grouped_gemm", "bfloat16"), ("h200", "grouped_gemm", "float16"))


@pytest.mark.parametrize("gpu, operator, tokens", SOME)
def test_the_tile_is_that_of_the_expected_rows(gpu, operator, tokens):
    """float16: of the weights, too. What a call needs room for is what all rows need."""
    pairs = (2048, None), (2048, 512), (512, None), (2048, None), (2048, 2048)
    calls = [[operator, tokens, 64, rows, 2048, 7168, expected] for rows, expected in pairs]
    whole, some, few, again, every = plans_of(gpu, *calls)
    assert some["tile"] == few["tile"] != whole["tile"] and whole == again == every
    if gpu == "h200" and tokens != "float16":
        assert (whole["tile"], some["tile"]) == ("v96", "v16")
        row_bytes = 7168 * 2  # of the prologue kernel's tokens
        for plan in (whole, some):
            assert plan["workspace_bytes"] == (2048 + plan["tile_m"]) * row_bytes
    if gpu == "a100":  # sums of two tiles for each CTA of stream-K
        assert some["workspace_bytes"] == 2 * some["grid"] * some["tile_m"] * some["tile_n"] * 4


def test_grids_are_for_all_rows():
    """Where each tile has a CTA of its own."""
    gated = ["grouped_dual_gemm", "bfloat16", 64, 2048, 2048, 7168]
    for gpu in ("a100", "rtx5090"):
        whole, some = plans_of(gpu, gated, [*gated, 1])
        tiles = (2048 - 64) // some["tile_m"] + 64
        assert some["grid"] == tiles * 2048 // some["tile_n"]
        assert whole == some


def test_slices_are_for_all_rows():
    large = ["grouped_dual_gemm", "bfloat16", 64, 65536, 2048, 7168]
    whole, some, none = plans_of("h200", large, [*large, 8192], [*large, 0])
    assert whole["slices"] == some["slices"] == none["slices"] == 4
    assert len({plan["tile"] for plan in (whole, some, none)}) == 3
    for plan in (whole, some, none):
        assert plan["workspace_bytes"] == (16384 + plan["tile_m"]) * 7168 * 2


def test_a_gemv_is_for_few_rows_of_which_fewer_are_expected():
    """It has CTAs for every row; more rows than it may have go to tiles, whatever is expected."""
    pairs = (100, None), (100, 8), (8, None), (129, 1)
    calls = [["grouped_gemm", "nvfp4", 64, rows, 2048, 7168, expected] for rows, expected in pairs]
    many, some, few, large = plans_of("h200", *calls)
    assert few["kernel"] == some["kernel"] == "sm90_gemv_experts_codes_linear"
    assert few["tile"] == some["tile"] and some["grid"] * 8 == few["grid"] * 100
    assert many["tile"] == large["tile"] == "w8"


@pytest.mark.parametrize("gpu", ("b200", "a100"))
def test_batch_invariant_plans_add_alike(gpu):
    calls = [["grouped_gemm", "bfloat16", 64, 2048, 2048, 7168, n] for n in (None, 512, 0)]
    found = plans_of(gpu, *calls, NVFP4KERN_BATCH_INVARIANT="1")
    assert all(plan["batch_invariant"] for plan in found)
    assert len({plan["tile"] for plan in found}) == (1 if gpu == "b200" else 2)


@pytest.mark.parametrize("gpu", ROW_OF)
def test_no_row_and_no_expert_have_a_plan(gpu):
    sizes = [(8, 0)] if gpu == "h200" else [(8, 0), (0, 10), (0, 0)]  # of 0 experts sm90 declines
    calls = [["grouped_gemm", "nvfp4", *of, 256, 256] for of in sizes]
    plans_of(gpu, *calls, *([*call, 0] for call in calls))
