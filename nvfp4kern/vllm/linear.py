"""Linear layers of vLLM with NVFP4 weights: engines/linear.py in vLLM's parameters and methods."""

from collections.abc import Iterable
from functools import partial
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

from ..engines import linear
from ..engines.linear import COMPRESSED, MODELOPT, Names, product


def create_weights(
    layer: nn.Module, names: Names, k: int, rows: list[int], weight_loader: Any, input_global: bool
) -> None:
    of_scale = partial(PerTensorScaleParameter, weight_loader=weight_loader)
    of_weight = partial(
        ModelWeightParameter, input_dim=1, output_dim=0, weight_loader=weight_loader
    )
    linear.create_weights(layer, names, k, rows, input_global, of_weight, of_scale)


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


def process_weights(layer: nn.Module, names: Names, w4a4: bool) -> None:
    """Makes of what was loaded what `product` reads. Synchronises with the device.

    All of it are parameters of the layer, of sizes that do not depend on values: so vLLM can load
    other weights into the same memory, which captured CUDA graphs read.
    """
    mark_missing(layer, (names.weight_global, names.input_global))
    alpha, given = linear.factors(layer, names, w4a4)
    if given is not None:
        replace_parameter(layer, "nvfp4_input_scale", given)
    replace_parameter(layer, "nvfp4_alpha", alpha)
    weight = getattr(layer, names.weight).data
    for name in (names.weight_global, names.input_global, names.weight):
        if hasattr(layer, name):
            delattr(layer, name)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    replace_parameter(layer, "weight_scale", layer.weight_scale.data)


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
