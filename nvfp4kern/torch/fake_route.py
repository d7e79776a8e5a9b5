"""What a router and the operators around it return, from shapes alone: see fake.py."""

import math

import torch

from .fake import (
    alpha_like,
    empty,
    expect,
    float_rows,
    out_dtype_of,
    same_sizes,
    shape_of,
    tensor,
    word,
)

SCORES = ("topk_softmax", "softmax_topk", "sigmoid")
MAX_EXPERTS, MAX_TOP_K = 1024, 32


def router(x, w, logits):
    """(the first tensor, all but N of the logits, N, which argument has N experts)."""
    if logits is not None:
        for name, t in (("x", x), ("w", w)):
            expect(t is None, name, "given", "None where logits are given")
        return logits, *float_rows("logits", logits, "[.., N]", logits), "logits"
    for name, t in (("x", x), ("w", w)):
        if t is None:
            raise TypeError(f"{name}: None, expected a tensor")
    expect(w.dim() == 2, "w", shape_of(w), "[N, K]")
    outer, x_k = float_rows("x", x, "[.., K]", x)
    (n,), w_k = float_rows("w", w, "[N, K]", x)
    expect(w_k == x_k, "w", f"{shape_of(w)} is K = {w_k}", f"K = {x_k} as in x")
    return x, outer, n, "w"


def local_experts(expert_map, count, n, permutation, first):
    """The extent of counts."""
    if expert_map is None:
        expect(count is None, "num_local_experts", "given", "None without expert_map")
        return n
    expect(permutation, "expert_map", "given", "None unless permutation=True")
    tensor("expert_map", expert_map, (torch.int32,), first)
    same_sizes("expert_map", expert_map, (n,), f"({n},)")
    if count is None:
        raise TypeError("num_local_experts: None, expected an int where expert_map is given")
    expect(0 <= count <= MAX_EXPERTS, "num_local_experts", count, f"0 to {MAX_EXPERTS}")
    return count


def route(
    x, w, k, score="topk_softmax", correction_bias=None, n_group=1, topk_group=1, renormalize=None,
    scaling_factor=1.0, alpha=1.0, alpha_tensor=None, dense=False, logits=None, expert_map=None,
    num_local_experts=None, out_dtype=None, *, permutation=False, return_logits=False,
    return_row_of=False,
):  # fmt: skip
    word("score", score, SCORES)
    first, outer, n, of = router(x, w, logits)
    expect(n <= MAX_EXPERTS, of, f"{n} experts", f"at most {MAX_EXPERTS}")
    expect(1 <= k <= MAX_TOP_K, "k", k, f"1 to {MAX_TOP_K}")
    expect(n_group >= 1, "n_group", n_group, "1 or more")
    expect(n % n_group == 0, "n_group", n_group, f"a divisor of the {n} experts of {of}")
    expect(1 <= topk_group <= n_group, "topk_group", topk_group, f"1 to n_group = {n_group}")
    expect(k <= n // n_group * topk_group, "k", k, f"at most the experts in {topk_group} groups")
    if renormalize is False and score == "topk_softmax":
        raise ValueError("renormalize: False, expected None or True with score='topk_softmax'")
    if correction_bias is not None:
        expect(score == "sigmoid", "correction_bias", "given", "None unless score='sigmoid'")
        tensor("correction_bias", correction_bias, (torch.float32,), first)
        same_sizes("correction_bias", correction_bias, (n,), f"({n},)")
    alpha_like("alpha", alpha_tensor, n, first)
    local = local_experts(expert_map, num_local_experts, n, permutation, first)
    dtype = out_dtype_of(out_dtype, torch.float32)
    outs = [
        empty(first, (*outer, n if dense else k), dtype),
        empty(first, (*outer, k), torch.int32),
    ]
    if permutation:
        selections = math.prod(outer) * k
        sizes = (local, local + 1, selections, *[selections] * return_row_of)
        outs += [empty(first, (size,), torch.int32) for size in sizes]
    if return_logits:
        outs.append(empty(first, (*outer, n), torch.float32))
    return tuple(outs)


def sort_by_expert(ids, num_experts, expert_map=None, num_local_experts=None):
    tensor("ids", ids, (torch.int32,), ids)
    expect(ids.dim() > 0, "ids", shape_of(ids), "[.., k]")
    expect(0 <= num_experts <= MAX_EXPERTS, "num_experts", num_experts, f"0 to {MAX_EXPERTS}")
    local = local_experts(expert_map, num_local_experts, num_experts, True, ids)
    sizes = (local, local + 1, ids.numel(), ids.numel())
    return tuple(empty(ids, (size,), torch.int32) for size in sizes)


def combine(products, row_of, weights, residual=None, out_dtype=None):
    expect(products.dim() == 2, "products", shape_of(products), "[P, H]")
    (_,), h = float_rows("products", products, "[P, H]", products)
    outer, k = float_rows("weights", weights, "[.., k]", products)
    tensor("row_of", row_of, (torch.int32,), products)
    selections = math.prod(outer) * k
    same_sizes("row_of", row_of, (selections,), f"({selections},)")
    if residual is not None:
        float_rows("residual", residual, "[.., H]", products)
        same_sizes("residual", residual, (*outer, h), (*outer, h))
    return empty(products, (*outer, h), out_dtype_of(out_dtype))
