"""A mixture's experts of vLLM with NVFP4 weights: engines/experts.py in vLLM's methods.

Parameters are vLLM's, and vLLM fills them.
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

from ..engines.experts import STACKS, factors, global_names, product
from ..layout import SF_VEC
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
        for name in global_names(self.NAMES):
            getattr(layer, name).data.fill_(torch.nan)  # so that one never loaded shows

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """As that of a linear layer."""
        of_files = global_names(self.NAMES)
        mark_missing(layer, of_files)
        for stack in STACKS:
            alpha, scale = factors(layer, self.NAMES, stack, not self.use_a16)
            if scale is not None:
                replace_parameter(layer, f"{stack}_nvfp4_input_scale", scale)
            replace_parameter(layer, f"{stack}_nvfp4_alpha", alpha)
            weight = getattr(layer, f"{stack}_{self.NAMES.weight}").data
            delattr(layer, f"{stack}_{self.NAMES.weight}")
            setattr(layer, f"{stack}_weight", nn.Parameter(weight, requires_grad=False))
            scales = f"{stack}_weight_scale"
            replace_parameter(layer, scales, getattr(layer, scales).data)
        for name in of_files:
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
        inverse, mapped = self.NAMES.divisors, layer.expert_map
        return product(layer, x, topk_ids, topk_weights, not self.use_a16, inverse, mapped)


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
