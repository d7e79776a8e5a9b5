"""A mixture's experts of vLLM with NVFP4 weights, as two grouped products over all tokens.

Parameters are vLLM's, and vLLM fills them. Gate and up keep their own global scales. A token is
quantised once for all its experts, with the largest of their scales.
"""

from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, RoutedExperts
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_w4a4_nvfp4 as compressed,
)
from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4FusedMoE
from vllm.model_executor.utils import replace_parameter

from .. import torch as nk
from ..layout import SF_VEC
from ..nn.experts import expert_ids
from ..nn.linear import quantize_input, readable, static_scale
from .linear import COMPRESSED, MODELOPT, Names, mark_missing


def why_not(layer: RoutedExperts) -> str | None:
    """Why experts run by vLLM's own method, or None."""
    config = layer.moe_config
    parallel = config.moe_parallel_config
    width = config.intermediate_size_per_partition
    reasons = {
        f"activation {layer.activation.value}": layer.activation != MoEActivation.SILU,
        "a limit of SwiGLU": layer.swiglu_limit is not None,
        "biases": config.has_bias,
        "router weights that multiply the input": layer.apply_router_weight_on_input,
        "EPLB": parallel.enable_eplb,
        "data parallelism": parallel.dp_size > 1,
        "context parallelism of prefill": parallel.pcp_size > 1,
        "LoRA": config.is_lora_enabled,
        f"{width} columns of down_proj on a rank, no multiple of {SF_VEC}": width % SF_VEC != 0,
    }
    return next((f"nvfp4kern does not serve {what}" for what, so in reasons.items() if so), None)


def names(layer: RoutedExperts, prefix: str) -> list[str]:
    """The names of an expert's projections in configs."""
    parts = layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name
    return [f"{prefix}.0.{part}" for part in parts]


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


class Experts:
    """What both formats' methods share.

    They keep vLLM's create_weights and the names of its classes: the loader looks for "ModelOpt"
    and "CompressedTensors" in them.
    """

    NAMES: Names
    supports_pre_processed_weights = False
    is_monolithic = False
    supports_eplb = False
    use_global_sf = True  # ModelOpt's input scales of all experts, so that all ranks take one
    use_a16: bool

    def create_weights(self, layer: nn.Module, *args: Any, **options: Any) -> None:
        super().create_weights(layer, *args, **options)  # type: ignore[misc]
        for name in self._globals():
            getattr(layer, name).data.fill_(torch.nan)  # so that one never loaded shows

    def _globals(self) -> list[str]:
        of = self.NAMES.weight_global, self.NAMES.input_global
        return [f"{stack}_{name}" for stack in ("w13", "w2") for name in of]

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """As that of a linear layer."""
        mark_missing(layer, self._globals())
        inverse = self.NAMES.divisors
        for stack in ("w13", "w2"):
            alpha = loaded(layer, f"{stack}_{self.NAMES.weight_global}")
            alpha = 1 / alpha if inverse else alpha
            if not self.use_a16:
                scale = largest(layer, f"{stack}_{self.NAMES.input_global}", inverse)
                alpha = alpha / scale if inverse else alpha * scale
                replace_parameter(layer, f"{stack}_nvfp4_input_scale", scale)
            if stack == "w13":
                alpha = alpha.repeat_interleave(layer.w13_weight_scale.shape[1] // 2, dim=1)
            replace_parameter(layer, f"{stack}_nvfp4_alpha", alpha)
            weight = getattr(layer, f"{stack}_{self.NAMES.weight}").data
            delattr(layer, f"{stack}_{self.NAMES.weight}")
            setattr(layer, f"{stack}_weight", nn.Parameter(weight, requires_grad=False))
            scales = f"{stack}_weight_scale"
            replace_parameter(layer, scales, getattr(layer, scales).data)
        for name in self._globals():
            delattr(layer, name)

    def get_fused_moe_quant_config(self, layer: nn.Module) -> None:
        return None

    def apply(
        self,
        layer: nn.Module,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        *_: Any,  # shared experts, which vLLM runs before where the method has no kernel of its own
        **__: Any,
    ) -> Tensor:
        ids, local, mapped = expert_ids(topk_ids, len(x)), len(layer.w13_weight), layer.expert_map
        of_rank = {}
        if mapped is not None:  # -1, an expert of another rank, adds nothing
            of_rank = {"expert_map": mapped, "num_local_experts": local}
        experts = local if mapped is None else len(mapped)
        _, offsets, rows, row_of = nk.sort_by_expert(ids, experts, **of_rank)
        a, scales = readable(x), None
        inverse = self.NAMES.divisors
        if not self.use_a16:
            a, scales, _ = quantize_input(a, "static", layer.w13_nvfp4_input_scale, inverse)
        first = a, layer.w13_weight, scales, layer.w13_weight_scale, offsets
        options: dict[str, Any] = {"rows": rows, "rows_per_token": ids.shape[1]}
        options["alpha"] = layer.w13_nvfp4_alpha
        if self.use_a16:
            h, scales = nk.grouped_dual_gemm(*first, out_dtype=x.dtype, **options), None
        else:
            options |= static_scale(layer.w2_nvfp4_input_scale, inverse)
            options |= {"quantized": True, "data_dtype": torch.uint8}
            h, scales, _ = nk.grouped_dual_gemm(*first, **options)
        y = nk.grouped_gemm(
            h, layer.w2_weight, scales, layer.w2_weight_scale,
            offsets=offsets, alpha=layer.w2_nvfp4_alpha, out_dtype=x.dtype,
        )  # fmt: skip
        return nk.combine(y, row_of, readable(topk_weights.float()), out_dtype=x.dtype)


class NVFP4KernModelOptMoEMethod(Experts, ModelOptNvFp4FusedMoE):
    NAMES = MODELOPT

    def __init__(self, quant_config: Any, moe_config: Any) -> None:
        FusedMoEMethodBase.__init__(self, moe_config)  # vLLM's would choose a kernel
        self.quant_config = quant_config
        self.use_a16 = quant_config.quant_method == "W4A16_NVFP4"


class NVFP4KernCompressedTensorsMoEMethod(Experts, compressed.CompressedTensorsW4A4Nvfp4MoEMethod):
    NAMES = COMPRESSED

    def __init__(self, moe_config: Any, use_a16: bool) -> None:
        FusedMoEMethodBase.__init__(self, moe_config)
        self.group_size, self.use_a16 = SF_VEC, use_a16
