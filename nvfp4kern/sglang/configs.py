"""Subclasses of SGLang's configs, whose NVFP4 linear layers and experts are ours."""

import logging
from typing import Any

from sglang.srt.layers.moe.fused_moe_triton import FusedMoE
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from sglang.srt.layers.quantization.modelopt_quant import (
    ModelOptFp4Config,
    ModelOptFp4LinearMethod,
    ModelOptMixedPrecisionConfig,
    ModelOptNvFp4A16LinearMethod,
)
from torch import nn

from ..layout import SF_VEC
from . import experts
from .linear import NVFP4KernCompressedTensorsScheme, NVFP4KernModelOptLinearMethod

logger = logging.getLogger("sglang.nvfp4kern")
W4A4 = {ModelOptFp4LinearMethod: True, ModelOptNvFp4A16LinearMethod: False}
"""SGLang's methods that ours replace, and whether they quantise inputs."""
ALGORITHMS = {"NVFP4": True, "W4A16_NVFP4": False}
_said: set[str] = set()


def why_not(prefix: str, group_size: int = SF_VEC, awq: bool = False) -> str | None:
    """Why a layer runs by SGLang's own method, or None."""
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


def serves_experts(layer: FusedMoE, of: ModelOptFp4Config | None = None) -> bool:
    """Whether experts are ours. Says why not. of: the config of ModelOpt's files."""
    reason = experts.why_not(layer)
    if of is not None:
        tokens = "global scales of tokens (SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION)"
        reason = reason or (tokens if of.use_per_token_activation else None)
        reason = reason or why_not("", group_size=of.group_size, awq=of.is_awq)
    if reason is not None:
        say("Experts", reason)
    return reason is None


class ModelOpt:
    """What ModelOpt's configs share: the method that SGLang chose is replaced, and that of experts
    before it is made, which raises where SGLang has no kernel."""

    def get_quant_method(self, layer: nn.Module, prefix: str) -> Any:
        if isinstance(layer, FusedMoE) and not self.is_layer_excluded(prefix):
            of, w4a4 = self._of_experts(prefix)
            if w4a4 is not None and serves_experts(layer, of):
                return experts.NVFP4KernMoEMethod(of, w4a4)
        method = super().get_quant_method(layer, prefix)  # type: ignore[misc]
        w4a4 = W4A4.get(type(method))
        if w4a4 is not None:
            of = method.quant_config
            if serves(prefix, group_size=of.group_size, awq=w4a4 and of.is_awq):
                return NVFP4KernModelOptLinearMethod(of, w4a4)
        return method


class NVFP4KernModelOptConfig(ModelOpt, ModelOptFp4Config):
    def _of_experts(self, prefix: str) -> tuple[ModelOptFp4Config, bool | None]:
        """The config of a layer's experts, and whether inputs are NVFP4; None of other files."""
        return self, not self.is_w4a16 if self.is_checkpoint_nvfp4_serialized else None


class NVFP4KernMixedConfig(ModelOpt, ModelOptMixedPrecisionConfig):
    def _of_experts(self, prefix: str) -> tuple[ModelOptFp4Config, bool | None]:
        w4a4 = ALGORITHMS.get(self._resolve_quant_algo(prefix) or "")
        return self.nvfp4_config if w4a4 else self.nvfp4a16_config, w4a4


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
        parts = [
            self.get_scheme_dict(layer, f"{layer_name}.0.{part}")
            for part in ("gate_proj", "up_proj", "down_proj")
        ]
        w4a4 = self._nvfp4(parts[0])
        alike = all(each == parts[0] for each in parts)
        if w4a4 is not None and alike and serves_experts(layer):
            return experts.NVFP4KernCompressedTensorsMoEScheme(w4a4)
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
