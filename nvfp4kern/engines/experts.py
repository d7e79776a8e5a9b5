"""A mixture's experts of engines with NVFP4 weights, as two grouped products over all tokens.

Gate and up keep their own global scales: `alpha` is one number for each row. A token is quantised
once for all its experts, with the largest of their scales. Engines call the stack of gates and ups
w13, which is up's alone for experts without a gate, and that of down w2.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import torch as nk
from ..nn.experts import expert_ids
from ..nn.linear import quantize_input, readable, static_scale
from .linear import Names

STACKS = ("w13", "w2")


def global_names(names: Names) -> list[str]:
    """The parameters that have global scales."""
    of = names.weight_global, names.input_global
    return [f"{stack}_{name}" for stack in STACKS for name in of]


def loaded(layer: nn.Module, name: str) -> Tensor:
    """Global scales. Raises ValueError for one that was not loaded."""
    value = getattr(layer, name).data.float()
    if bool(value.isnan().any()):
        raise ValueError(f"{layer.layer_name}.{name}: not all were loaded")
    return value


def largest(layer: nn.Module, name: str, divisors: bool) -> Tensor:
    """The largest input scale, or the smallest divisor. Files lack that of an expert that no token
    of the calibration reached. Raises ValueError where all are missing."""
    value = getattr(layer, name).data.float()
    value = value[~value.isnan()]
    if not value.numel():
        raise ValueError(f"{layer.layer_name}.{name}: was not loaded")
    return value.min() if divisors else value.max()


def factors(layer: nn.Module, names: Names, stack: str, w4a4: bool) -> tuple[Tensor, Tensor | None]:
    """Of what was loaded: a stack's `alpha`, [E, rows] of gates and ups, else [E], and the scale of
    its inputs.

    Their sizes do not depend on values. Synchronises with the device.
    """
    alpha, given = loaded(layer, f"{stack}_{names.weight_global}"), None
    alpha = 1 / alpha if names.divisors else alpha.clone()
    if w4a4:
        given = largest(layer, f"{stack}_{names.input_global}", names.divisors)
        alpha = alpha / given if names.divisors else alpha * given
    if alpha.dim() == 2:
        alpha = alpha.repeat_interleave(layer.w13_weight_scale.shape[1] // 2, dim=1)
    return alpha, given


def product(
    layer: nn.Module,
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    w4a4: bool,
    inverse: bool,
    expert_map: Tensor | None = None,
    *,
    all_experts: int | None = None,
    gated: bool = True,
    **gating: Any,
) -> Tensor:
    """The weighted sum of what each token's experts make of it, [T, H] of x's dtype.

    ids, weights: [T, k]. An expert of -1 adds nothing.
    expert_map: where ids are those of all ranks, this rank's expert for each, or -1.
    all_experts: how many all ranks have, where ids are this rank's own.
    gating: activation and limit of grouped_dual_gemm; with gated=False activation of grouped_gemm.
    """
    ids, local = expert_ids(ids, len(x)), len(layer.w13_weight)
    of_rank: dict[str, Any] = {}
    if expert_map is not None:
        of_rank = {"expert_map": expert_map, "num_local_experts": local}
    experts = local if expert_map is None else len(expert_map)
    _, offsets, rows, row_of = nk.sort_by_expert(ids, experts, **of_rank)
    expected_rows = -(-ids.numel() * local // (all_experts or experts))
    a, scales = readable(x), None
    if w4a4:
        a, scales, _ = quantize_input(a, "static", layer.w13_nvfp4_input_scale, inverse)
    first = a, layer.w13_weight, scales, layer.w13_weight_scale
    of_both = {"offsets": offsets, "expected_rows": expected_rows}
    options = {"rows": rows, "rows_per_token": ids.shape[1]} | of_both | gating
    options["alpha"] = layer.w13_nvfp4_alpha
    up: Callable[..., Any] = nk.grouped_dual_gemm if gated else nk.grouped_gemm
    if w4a4:
        options |= static_scale(layer.w2_nvfp4_input_scale, inverse)
        h, scales, _ = up(*first, quantized=True, data_dtype=torch.uint8, **options)
    else:
        h = up(*first, out_dtype=x.dtype, **options)
    y = nk.grouped_gemm(
        h, layer.w2_weight, scales, layer.w2_weight_scale,
        alpha=layer.w2_nvfp4_alpha, out_dtype=x.dtype, **of_both,
    )  # fmt: skip
    return nk.combine(y, row_of, readable(weights.float()), out_dtype=x.dtype)
