"""Subclasses of vLLM's configs. They are this module's, since vLLM pickles them into processes."""

from typing import Any

import torch
from torch import nn
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from vllm.model_executor.layers.quantization.modelopt import (
    ModelOptMixedPrecisionConfig,
    ModelOptNvFp4Config,
)
from vllm.model_executor.layers.quantization.utils.quant_utils import kNvfp4Static
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from . import experts
from .linear import NVFP4KernCompressedTensorsScheme, NVFP4KernModelOptLinearMethod

BEFORE_030 = hasattr(ModelOptNvFp4Config, "LinearMethodCls")
"""A config has the class of its linear method; later one class has them all."""
if not BEFORE_030:
    from vllm.model_executor.layers.quantization.modelopt import ModelOptLinearMethod

logger = init_logger("vllm.nvfp4kern")

W4A16 = "W4A16_NVFP4"
ALGORITHMS = ("NVFP4", W4A16)
IDENTITY = "kv_b_proj"
"""MLA multiplies this layer by an identity matrix to get its weight, which quantised inputs would
spoil: static scales were made for other values."""


def linear_method(w4a4: bool, prefix: str) -> NVFP4KernModelOptLinearMethod:
    return NVFP4KernModelOptLinearMethod(w4a4 and not prefix.endswith(IDENTITY))


def before_030(config: ModelOptNvFp4Config) -> NVFP4KernModelOptLinearMethod:
    """In the place of a class of vLLM's, which no CPU can make."""
    return NVFP4KernModelOptLinearMethod(config.quant_method != W4A16)


def serves(layer: nn.Module, activation: Any = None) -> bool:
    """Whether experts are ours. Says why not, once for each reason.

    activation: what a config asks for in place of the layer's, or None.
    """
    reason = experts.why_not(layer)
    if activation is not None:
        reason = f"nvfp4kern does not serve an activation of the config, {activation}"
    if reason:
        logger.warning_once("Experts with NVFP4 weights run by vLLM's own method: %s", reason)
    return reason is None


class NVFP4KernModelOptConfig(ModelOptNvFp4Config):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if BEFORE_030:
            self.LinearMethodCls = before_030

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        wide = [] if self.quant_method == W4A16 else [torch.float32]
        return super().get_supported_act_dtypes() + wide

    def get_quant_method(self, layer: nn.Module, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts) and not self.is_layer_excluded(prefix):
            asked = getattr(self, "moe_activation_override", None)  # new in 0.32
            own = serves(layer, asked)
            self.FusedMoEMethodCls = (
                experts.NVFP4KernModelOptMoEMethod if own else ModelOptNvFp4Config.FusedMoEMethodCls
            )
        method = super().get_quant_method(layer, prefix)
        if isinstance(method, NVFP4KernModelOptLinearMethod):
            return linear_method(method.w4a4, prefix)
        if not BEFORE_030 and type(method) is ModelOptLinearMethod:
            if method.spec.weight == kNvfp4Static:
                return linear_method(method.spec.activation is not None, prefix)
        return method


class NVFP4KernMixedConfig(ModelOptMixedPrecisionConfig):
    def get_quant_method(self, layer: nn.Module, prefix: str) -> Any:
        linear = isinstance(layer, (LinearBase, ParallelLMHead))
        if (linear or isinstance(layer, RoutedExperts)) and not self.is_layer_excluded(prefix):
            algorithm = self._resolve_quant_algo(prefix)
            if algorithm in ALGORITHMS and linear:
                return linear_method(algorithm != W4A16, prefix)
            if algorithm in ALGORITHMS and serves(layer):
                own = self.w4a16_nvfp4_config if algorithm == W4A16 else self.nvfp4_config
                return experts.NVFP4KernModelOptMoEMethod(own, layer.moe_config)
        return super().get_quant_method(layer, prefix)


class NVFP4KernCompressedTensorsConfig(CompressedTensorsConfig):
    def get_scheme(self, layer: nn.Module, layer_name: str | None = None) -> Any:
        parts = self.get_scheme_dict(layer, layer_name)
        if not self._nvfp4(parts):
            return super().get_scheme(layer, layer_name)
        w4a4 = parts["input_activations"] is not None
        return NVFP4KernCompressedTensorsScheme(w4a4, (layer_name or "").endswith(IDENTITY))

    def get_quant_method(self, layer: nn.Module, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts):
            self._add_fused_moe_to_target_scheme_map()
            of_experts = [
                self.get_scheme_dict(layer, name) for name in experts.names(layer, prefix)
            ]
            first = of_experts[0]
            alike = all(each == first for each in of_experts)
            if alike and self._nvfp4(first) and serves(layer):
                w4a4 = first["input_activations"] is not None
                return experts.NVFP4KernCompressedTensorsMoEMethod(layer.moe_config, not w4a4)
        return super().get_quant_method(layer, prefix)

    def _nvfp4(self, parts: Any) -> bool:
        """Whether weights are NVFP4, and inputs, too, or not quantised."""
        if not parts or not self._is_nvfp4_format(parts.get("weights")):
            return False
        if parts.get("output_activations") is not None:
            return False
        given = parts.get("input_activations")
        return given is None or bool(self._is_nvfp4_format(given))


CONFIGS: dict[str, type] = {
    "modelopt_fp4": NVFP4KernModelOptConfig,
    "modelopt_mixed": NVFP4KernMixedConfig,
    "compressed-tensors": NVFP4KernCompressedTensorsConfig,
}
