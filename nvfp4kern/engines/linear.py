"""Linear layers of engines with NVFP4 weights, multiplied by nvfp4kern.gemm.

A fused layer, such as qkv_proj, has a global scale for each shard. Ours keeps them apart: `alpha`
is one number for each row. The input is quantised once, with the largest of the shards' scales.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .. import torch as nk
from ..layout import SF_VEC
from ..nn.frozen import E4M3
from ..nn.linear import quantize_input, readable


@dataclass(frozen=True)
class Names:
    """How a producer's files call a layer's tensors, and whether global scales are divisors."""

    weight: str
    weight_global: str
    input_global: str
    divisors: bool


MODELOPT = Names("weight", "weight_scale_2", "input_scale", False)
COMPRESSED = Names("weight_packed", "weight_global_scale", "input_global_scale", True)


def create_weights(
    layer: nn.Module,
    names: Names,
    k: int,
    rows: list[int],
    input_global: bool,
    of_weight: Callable[..., nn.Parameter],
    of_scale: Callable[..., nn.Parameter],
) -> None:
    """The parameters that an engine fills from files.

    k, rows: of this rank. rows: of each shard. of_weight(data=), of_scale(data=): the engine's
    parameter of a matrix, and of a number for each shard.
    Raises ValueError for k that is no multiple of 16.
    """
    if k % SF_VEC:
        raise ValueError(f"input_size_per_partition: {k}, expected a multiple of {SF_VEC}")
    layer.logical_widths = rows
    layer.input_size_per_partition, layer.output_size_per_partition = k, sum(rows)
    stored = (names.weight, k // 2, torch.uint8), ("weight_scale", k // SF_VEC, E4M3)
    for name, columns, dtype in stored:
        value = torch.empty(sum(rows), columns, dtype=dtype)
        layer.register_parameter(name, of_weight(data=value))
    for name in (names.weight_global, names.input_global)[: 1 + input_global]:
        value = torch.full((len(rows),), torch.nan, dtype=torch.float32)  # shows if never loaded
        layer.register_parameter(name, of_scale(data=value))


def loaded(layer: nn.Module, name: str) -> Tensor:
    """A global scale for each shard. Engines fill all of them from a file that has one for all.

    Raises ValueError where one was not loaded.
    """
    value = getattr(layer, name).data.float()
    missing = value.isnan().nonzero().flatten().tolist()
    if missing:
        where = getattr(layer, "prefix", type(layer).__name__)
        raise ValueError(
            f"{where}.{name}: was not loaded for shards {missing} of {len(value)}; is this layer "
            "NVFP4 in the files?"
        )
    return value


def factors(layer: nn.Module, names: Names, w4a4: bool) -> tuple[Tensor, Tensor | None]:
    """Of what was loaded: `alpha`, one number or one for each row, and the scale of inputs.

    Their sizes do not depend on values. Synchronises with the device.
    """
    scales, given = loaded(layer, names.weight_global), None
    alpha = 1 / scales if names.divisors else scales
    if w4a4:
        given = loaded(layer, names.input_global)
        if names.divisors:
            given = given.min()
            alpha = alpha / given
        else:
            given = given.max()
            alpha = alpha * given
    widths = torch.tensor(layer.logical_widths, device=alpha.device)
    return alpha[0].clone() if len(widths) == 1 else alpha.repeat_interleave(widths), given


def product(layer: nn.Module, x: Tensor, bias: Tensor | None, w4a4: bool, inverse: bool) -> Tensor:
    """[.., K] -> [.., N] of x's dtype."""
    tokens = readable(x.reshape(-1, x.shape[-1]))
    scales = None
    if w4a4:
        tokens, scales, _ = quantize_input(tokens, "static", layer.nvfp4_input_scale, inverse)
    y = nk.gemm(
        tokens, layer.weight, scales, layer.weight_scale,
        alpha=layer.nvfp4_alpha, bias=bias, out_dtype=x.dtype,
    )  # fmt: skip
    return y.view(*x.shape[:-1], y.shape[-1])
