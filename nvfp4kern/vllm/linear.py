"""Linear layers of vLLM with NVFP4 weights, multiplied by nvfp4kern.gemm.

A fused layer, such as qkv_proj, has a global scale for each shard. Ours keeps them apart: `alpha`
is one number for each row. The input is quantised once, with the largest of the shards' scales.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.linear import (
    LinearMethodBase,
    register_weight_loader_v2_supported_method,
)
from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
    CompressedTensorsScheme,
)
from vllm.model_executor.model_loader.reload.layerwise import LAYERWISE_INFO
from vllm.model_executor.parameter import ModelWeightParameter, PerTensorScaleParameter
from vllm.model_executor.utils import replace_parameter

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
    layer: nn.Module, names: Names, k: int, rows: list[int], weight_loader: Any, input_global: bool
) -> None:
    """The parameters that vLLM fills from files.

    k, rows: of this rank. rows: of each shard.
    Raises ValueError for k that is no multiple of 16.
    """
    if k % SF_VEC:
        raise ValueError(f"input_size_per_partition: {k}, expected a multiple of {SF_VEC}")
    layer.logical_widths = rows
    layer.input_size_per_partition, layer.output_size_per_partition = k, sum(rows)
    stored = (names.weight, k // 2, torch.uint8), ("weight_scale", k // SF_VEC, E4M3)
    for name, columns, dtype in stored:
        value = torch.empty(sum(rows), columns, dtype=dtype)
        own = ModelWeightParameter(
            data=value, input_dim=1, output_dim=0, weight_loader=weight_loader
        )
        layer.register_parameter(name, own)
    for name in (names.weight_global, names.input_global)[: 1 + input_global]:
        value = torch.full((len(rows),), torch.nan, dtype=torch.float32)  # shows if never loaded
        own = PerTensorScaleParameter(data=value, weight_loader=weight_loader)
        layer.register_parameter(name, own)


def mark_missing(layer: nn.Module, names: Iterable[str]) -> None:
    """NaN for global scales that a reload did not bring. vLLM makes parameters anew for one, in
    memory of any content, and keeps what it loads until `process_weights_after_loading`."""
    reload = LAYERWISE_INFO.get(layer)
    if reload is None or not reload.loaded_weights:
        return
    parameters = {name: getattr(layer, name) for name in names if hasattr(layer, name)}
    for parameter in parameters.values():
        parameter.data.fill_(torch.nan)
    for name, call in reload.loaded_weights:
        if name in parameters:
            parameters[name].weight_loader(*call.args, **call.kwargs)


def loaded(layer: nn.Module, name: str) -> Tensor:
    """A global scale for each shard. vLLM fills all of them from a file that has one for all.

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


def process_weights(layer: nn.Module, names: Names, w4a4: bool) -> None:
    """Makes of what was loaded what `product` reads. Synchronises with the device.

    All of it are parameters of the layer, of sizes that do not depend on values: so vLLM can load
    other weights into the same memory, which captured CUDA graphs read.
    """
    mark_missing(layer, (names.weight_global, names.input_global))
    scales = loaded(layer, names.weight_global)
    alpha = 1 / scales if names.divisors else scales
    if w4a4:
        given = loaded(layer, names.input_global)
        if names.divisors:
            given = given.min()
            alpha = alpha / given
        else:
            given = given.max()
            alpha = alpha * given
        replace_parameter(layer, "nvfp4_input_scale", given)
    widths = torch.tensor(layer.logical_widths, device=alpha.device)
    by_row = alpha[0].clone() if len(widths) == 1 else alpha.repeat_interleave(widths)
    replace_parameter(layer, "nvfp4_alpha", by_row)
    weight = getattr(layer, names.weight).data
    for name in (names.weight_global, names.input_global, names.weight):
        if hasattr(layer, name):
            delattr(layer, name)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    replace_parameter(layer, "weight_scale", layer.weight_scale.data)


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


@register_weight_loader_v2_supported_method
class NVFP4KernModelOptLinearMethod(LinearMethodBase):
    """w4a4: whether inputs become NVFP4, with the file's input_scale."""

    def __init__(self, w4a4: bool) -> None:
        self.w4a4 = w4a4

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra: Any,
    ) -> None:
        load = extra.get("weight_loader")
        k, rows = input_size_per_partition, output_partition_sizes
        create_weights(layer, MODELOPT, k, rows, load, True)  # W4A16 files may have one left over

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        process_weights(layer, MODELOPT, self.w4a4)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return product(layer, x, bias, self.w4a4, MODELOPT.divisors)


class NVFP4KernCompressedTensorsScheme(CompressedTensorsScheme):
    """w4a4: whether the files have scales of inputs. w4a16: whether these stay at 16 bits."""

    def __init__(self, w4a4: bool, w4a16: bool) -> None:
        self.has_input_scale, self.w4a4 = w4a4, w4a4 and not w4a16

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    def create_weights(
        self,
        layer: nn.Module,
        output_partition_sizes: list[int],
        input_size_per_partition: int,
        weight_loader: Any,
        **_: Any,
    ) -> None:
        k, rows = input_size_per_partition, output_partition_sizes
        create_weights(layer, COMPRESSED, k, rows, weight_loader, self.has_input_scale)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        process_weights(layer, COMPRESSED, self.w4a4)

    def apply_weights(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return product(layer, x, bias, self.w4a4, COMPRESSED.divisors)
