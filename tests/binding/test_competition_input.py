"""The drop-ins name each item of the harness's tuple that they refuse, and leave c as it was."""

import re

import pytest
import torch
from calls import drop_in

from nvfp4kern.verify import data

SHAPES = {"gemv": (17, 48, 3), "gemm": (13, 3, 80, 2), "dual_gemm": (5, 12, 112, 2)}
TENSORS = {
    "gemv": {0: "a", 1: "b", 4: "sfa_permuted", 5: "sfb_permuted", 6: "c"},
    "gemm": {0: "a", 1: "b", 4: "sfa_permuted", 5: "sfb_permuted", 6: "c"},
    "dual_gemm": {0: "a", 1: "b1", 2: "b2", 6: "sfa_permuted", 7: "sfb1_permuted",
                  8: "sfb2_permuted", 9: "c"},
}  # fmt: skip


def replaced(items, index, item):
    return (*items[:index], item, *items[index + 1 :])


@pytest.mark.parametrize(
    "problem, index, name", [(p, *item) for p, names in TENSORS.items() for item in names.items()]
)
def test_an_item_that_is_no_tensor_of_its_rank(problem, index, name):
    items = data.competition(problem, SHAPES[problem], device="cpu").data
    with pytest.raises(TypeError, match=f"^{name}: object, expected a tensor"):
        drop_in(problem)(replaced(items, index, object()))
    dims = 6 if "sf" in name else 3
    with pytest.raises(ValueError, match=f"^{name}: {dims - 1} dimensions, expected {dims}: "):
        drop_in(problem)(replaced(items, index, items[index][0]))
    assert torch.isnan(items[-1]).all()


def one_group():
    """The lists of a harness's tuple for one group, and its sizes."""
    return data.competition("group_gemm", [(3, 6, 32, 1)], device="cpu").data


@pytest.mark.parametrize("which, index, name", [
    (0, 0, "a"), (0, 1, "b"), (0, 2, "c"), (2, 0, "sfa_permuted"), (2, 1, "sfb_permuted"),
])  # fmt: skip
def test_an_item_of_a_group_that_is_wrong(which, index, name):
    items = one_group()
    group = items[which][0]
    dims = group[index].ndim
    doubled = group[index].expand(*[-1] * (dims - 1), 2)
    for wrong, error, message in [
        (object(), TypeError, "object, expected a tensor"),
        (group[index][0], ValueError, f"{dims - 1} dimensions, expected {dims}: "),
        (doubled, ValueError, "L = 2, expected 1"),
    ]:
        with pytest.raises(error, match=rf"^{name}\[0\]: {message}"):
            drop_in("group_gemm")(replaced(items, which, [replaced(group, index, wrong)]))
    if which == 0:
        cut = group[index][1:]
        sizes = [", ".join(map(str, t.shape)) for t in (cut, group[index])]
        message = f"{name}[0]: shape ({sizes[0]}), but problem_sizes[0] asks for ({sizes[1]})"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            drop_in("group_gemm")(replaced(items, 0, [replaced(group, index, cut)]))
    assert torch.isnan(items[0][0][2]).all()


@pytest.mark.parametrize("which, item, error, message", [
    (0, 3, TypeError, "abc_tensors: int, expected a list"),
    (2, 3, TypeError, "sfasfb_reordered_tensors: int, expected a list"),
    (2, [], ValueError, "sfasfb_reordered_tensors: 0 items, expected 1"),
    (3, 3, TypeError, "problem_sizes: int, expected a list"),
    (3, [], ValueError, "problem_sizes: 0 items, expected 1"),
    (0, [3], TypeError, r"abc_tensors\[0\]: int, expected a tuple \(a, b, c\)"),
    (2, [3], TypeError, r"sfasfb_reordered_tensors\[0\]: int, expected a tuple \(sfa, sfb\)"),
    (3, [3], TypeError, r"problem_sizes\[0\]: int, expected a tuple \(m, n, k, l\)"),
    (3, [(3, 6, 32, 2)], ValueError, r"problem_sizes\[0\]: l = 2, expected 1"),
    (3, [(3, 6, 33, 1)], ValueError, r"problem_sizes\[0\]: k = 33, expected an even number"),
    (3, [("3", 6, 32, 1)], TypeError, "problem_sizes: str, expected an int"),
    (3, [(3, 6, 32, "1")], TypeError, "problem_sizes: str, expected an int"),
])  # fmt: skip
def test_groups_that_are_wrong(which, item, error, message):
    items = one_group()
    with pytest.raises(error, match=f"^{message}"):
        drop_in("group_gemm")(replaced(items, which, item))
    assert torch.isnan(items[0][0][2]).all()


def test_a_gemv_without_a_vector():
    items = data.competition("gemv", SHAPES["gemv"], device="cpu").data
    with pytest.raises(ValueError, match="^b: no rows, expected the vector in row 0"):
        drop_in("gemv")(replaced(items, 1, items[1][:0]))
    assert torch.isnan(items[-1]).all()
