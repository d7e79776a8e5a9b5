"""Linear layers of SGLang with NVFP4 weights: engines/linear.py in SGLang's parameters and methods.

What SGLang loads stays as it is, and what `product` reads is derived again after each load: so
SGLang can load other weights into the same memory, which captured CUDA graphs read.
"""

from functools import partial
from typing import Any

import torch
from sglang.srt.layers.parameter import ModelWeightParameter, PerTensorScaleParameter
from sglang.srt.layers.quantization.base_config import LinearMethodBase
from sglang.srt.layers.quantization.compressed_tensors.schemes import CompressedTensorsLinearScheme
from sglang.srt.layers.utils import copy_or_rebind_param
from sglang.srt.utils.common import set_weight_attrs
from torch import Tensor, nn

from ..engines import linear
from ..engines.linear import COMPRESSED, MODELOPT, Names, product
from .reloading import expect, watched


def create_weights(
    layer: nn.Module, names: Names, k: int, rows: list[int], weight_loader: Any, input_global: bool
) -> None:
    scales = names.weight_global, names.input_global, "nvfp4_alpha"
    weight_loader = watched(layer, scales, weight_loader)

    def of_scale(data: Tensor) -> nn.Parameter:
        own = PerTensorScaleParameter(data=data, weight_loader=weight_loader)
        set_weight_attrs(own, {"needs_scalar_to_array": True})  # files have one of no dimension
        return own

    of_weight = partial(
        ModelWeightParameter, input_dim=1, output_dim=0, weight_loader=weight_loader
    )
    linear.create_weights(layer, names, k, rows, input_global, of_weight, of_scale)


def process_weights(layer: nn.Module, names: Names, w4a4: bool) -> None:
    """Derives what `product` reads from what was loaded. Synchronises with the device."""
    expect(layer)
    alpha, given = linear.factors(layer, names, w4a4)
    copy_or_rebind_param(layer, "nvfp4_alpha", alpha)
    if given is not None:
        copy_or_rebind_param(layer, "nvfp4_input_scale", given)
    if names.weight != "weight":  # what a head is asked for
        layer.weight = getattr(layer, names.weight)


class NVFP4KernModelOptLinearMethod(LinearMethodBase):
    """w4a4: whether inputs become NVFP4, with the file's input_scale."""

    def __init__(self, quant_config: Any, w4a4: bool) -> None:
        self.quant_config, self.w4a4 = quant_config, w4a4

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
        layer.params_dtype = params_dtype
        create_weights(layer, MODELOPT, k, rows, load, True)  # W4A16 files may have one left over

    def restore_weights_before_loading(self, layer: nn.Module) -> None:
        expect(layer)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        process_weights(layer, MODELOPT, self.w4a4)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return product(layer, x, bias, self.w4a4, MODELOPT.divisors)


class NVFP4KernCompressedTensorsScheme(CompressedTensorsLinearScheme):
    """w4a4: whether inputs become NVFP4, with the file's input_global_scale."""

    def __init__(self, w4a4: bool) -> None:
        self.w4a4 = w4a4

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    def create_weights(
        self,
        layer: nn.Module,
        output_partition_sizes: list[int],
        input_size_per_partition: int,
        params_dtype: torch.dtype,
        weight_loader: Any,
        **_: Any,
    ) -> None:
        k, rows = input_size_per_partition, output_partition_sizes
        layer.params_dtype = params_dtype
        create_weights(layer, COMPRESSED, k, rows, weight_loader, self.w4a4)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        process_weights(layer, COMPRESSED, self.w4a4)

    def apply_weights(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return product(layer, x, bias, self.w4a4, COMPRESSED.divisors)
