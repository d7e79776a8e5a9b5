"""Subclasses of SGLang's configs, whose NVFP4 linear layers are ours."""

import logging
from typing import Any

from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from sglang.srt.layers.quantization.modelopt_quant import (
    ModelOptFp4Config,
    ModelOptFp4LinearMethod,
    ModelOptMixedPrecisionConfig,
    ModelOptNvFp4A16LinearMethod,
    ModelOptNvFp4FusedMoEMethod,
)
from torch import nn

from ..layout import SF_VEC
from .linear import NVFP4KernCompressedTensorsScheme, NVFP4KernModelOptLinearMethod

logger = logging.getLogger("sglang.nvfp4kern")
W4A4 = {ModelOptFp4LinearMethod: True, ModelOptNvFp4A16LinearMethod: False}
"""SGLang's methods that ours replace, and whether they quantise inputs."""
_said: set[str] = set()


def why_not(prefix: str, group_size: int = SF_VEC, awq: bool = False) -> str | None:
    """Why a linear layer runs by SGLang's own method, or None."""
    reasons = {
        "kv_b_proj, whose weight MLA takes apart": prefix.endswith("kv_b_proj"),
        "a pre_quant_scale (NVFP4_AWQ)": awq,
        f"blocks of {group_size}": group_size != SF_VEC,
    }
    return next((what for what, so in reasons.items() if so), None)


def say(kind: str, reason: str) -> None:
    """One warning for each reason."""
    text = f"{kind} with NVFP4 weights run by SGLang's own method: nvfp4kern does not serve"
    if reason not in _said:
        _said.add(reason)
        logger.warning("%s %s", text, reason)


def serves(prefix: str, **options: Any) -> bool:
    """Whether a linear layer is ours. Says why not."""
    reason = why_not(prefix, **options)
    if reason is not None:
        say("Linear layers", reason)
    return reason is None


class ModelOpt:
    """What ModelOpt's configs share: the method that SGLang chose is replaced."""

    def get_quant_method(self, layer: nn.Module, prefix: str) -> Any:
        method = super().get_quant_method(layer, prefix)  # type: ignore[misc]
        if isinstance(method, ModelOptNvFp4FusedMoEMethod):
            say("Experts", "experts in SGLang")
        w4a4 = W4A4.get(type(method))
        if w4a4 is not None:
            of = method.quant_config
            if serves(prefix, group_size=of.group_size, awq=w4a4 and of.is_awq):
                return NVFP4KernModelOptLinearMethod(of, w4a4)
        return method


class NVFP4KernModelOptConfig(ModelOpt, ModelOptFp4Config):
    pass


class NVFP4KernMixedConfig(ModelOpt, ModelOptMixedPrecisionConfig):
    pass


class NVFP4KernCompressedTensorsConfig(CompressedTensorsConfig):
    def get_linear_scheme(
        self, layer: nn.Module, layer_name: str | None = None, matched_target: str | None = None
    ) -> Any:
        parts = self.get_scheme_dict(layer, layer_name, matched_target)
        w4a4 = self._nvfp4(parts)
        if w4a4 is None or not serves(layer_name or ""):
            return super().get_linear_scheme(layer, layer_name, matched_target)
        return NVFP4KernCompressedTensorsScheme(w4a4)

    def get_moe_scheme(self, layer: nn.Module, layer_name: str | None = None) -> Any:
        self._add_fused_moe_to_target_scheme_map()
        if self._nvfp4(self.get_scheme_dict(layer, f"{layer_name}.0.gate_proj")) is not None:
            say("Experts", "experts in SGLang")
        return super().get_moe_scheme(layer, layer_name)

    def _nvfp4(self, parts: Any) -> bool | None:
        """None where weights are not NVFP4, or inputs are of other formats; else whether inputs
        are."""
        given = parts and (parts.get("weights"), parts.get("input_activations"))
        if not given or given[0] is None or parts.get("output_activations") is not None:
            return None
        if given[1] is None:
            return False if self._is_fp4a16_nvfp4(*given) else None
        return True if self._is_fp4a4_nvfp4(*given) else None


CONFIGS: dict[str, type] = {
    "modelopt_fp4": NVFP4KernModelOptConfig,
    "modelopt_mixed": NVFP4KernMixedConfig,
    "compressed-tensors": NVFP4KernCompressedTensorsConfig,
}
