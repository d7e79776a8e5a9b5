"""A mixture's experts of SGLang with NVFP4 weights: engines/experts.py in SGLang's parameters and
methods.

What SGLang loads stays as it is, as that of linear layers does. SGLang's loader knows parameters by
their `quant_method`, but for a class with "ModelOpt" in its name: ours has none.
"""

from typing import Any

import torch
from sglang.srt.layers.dp_attention import is_dp_attention_enabled
from sglang.srt.layers.moe import get_moe_a2a_backend, get_moe_runner_backend
from sglang.srt.layers.moe.fused_moe_triton import FusedMoE, FusedMoeWeightScaleSupported
from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
from sglang.srt.layers.quantization.base_config import FusedMoEMethodBase
from sglang.srt.layers.quantization.compressed_tensors.schemes import CompressedTensorsMoEScheme
from sglang.srt.layers.utils import copy_or_rebind_param
from sglang.srt.runtime_context import get_exec, get_lora, get_parallel
from sglang.srt.utils import common
from torch import Tensor, nn

from ..engines.experts import STACKS, factors, global_names, product
from ..engines.linear import COMPRESSED, MODELOPT, Names
from ..layout import SF_VEC
from ..nn.frozen import E4M3
from .reloading import expect, watched

ACTIVATIONS = {True: ("silu", "gelu", "gelu_tanh"), False: ("silu", "relu2")}
"""Those that are ours, of experts with a gate and without one."""
RUNNERS = ("auto", "marlin", "triton")
"""Of `--moe-runner-backend`: others shape weights or choose experts in ways of their own."""


def why_not(layer: FusedMoE) -> str | None:
    """Why experts run by SGLang's own method, or None."""
    config, asked, parallel = layer.moe_runner_config, get_exec().moe, get_parallel()
    of_swiglu = config.gemm1_alpha, config.gemm1_beta, config.gemm1_clamp_limit
    gates, limit = "with a gate" if config.is_gated else "without a gate", config.swiglu_limit
    silu = config.is_gated and config.activation == "silu"
    width, moves = config.intermediate_size_per_partition, get_moe_a2a_backend()
    moved = asked.enable_eplb or asked.ep_num_redundant_experts
    replicas = is_dp_attention_enabled() or parallel.moe_dp_size > 1
    reasons = {
        f"activation {config.activation} {gates}": (
            config.activation not in ACTIVATIONS[config.is_gated]
        ),
        "factors of SwiGLU (gemm1_alpha)": any(each is not None for each in of_swiglu),
        f"swiglu_limit {limit} of {config.activation} {gates}": (
            limit is not None and not (silu and limit > 0)
        ),
        "biases": layer.with_bias,
        "router weights that multiply the input": config.apply_router_weight_on_input,
        "results that are not summed": config.no_combine,
        "EPLB": moved or asked.init_expert_location != "trivial",
        f"--moe-a2a-backend {moves.value}": not moves.is_none(),
        f"--moe-runner-backend {get_moe_runner_backend().value}": (
            get_moe_runner_backend().value not in RUNNERS
        ),
        "data parallelism": replicas or parallel.dwdp_size > 1,
        "context parallelism": parallel.attn_cp_size > 1,
        "LoRA": bool(get_lora().enable_lora or get_lora().lora_paths),
        "experts in the CPU's memory": asked.enable_paged_experts or asked.kt_weight_path,
        f"{width} columns of down_proj on a rank, no multiple of {SF_VEC}": width % SF_VEC,
        f"{layer.hidden_size} columns of the input, no multiple of {SF_VEC}": (
            layer.hidden_size % SF_VEC
        ),
        f"a subclass of FusedMoE, {type(layer).__name__}": type(layer) is not FusedMoE,
    }
    return next((what for what, so in reasons.items() if so), None)


def create_weights(
    layer: FusedMoE, names: Names, k: int, width: int, load: Any, input_global: bool
) -> None:
    """k, width: columns of the input, and of down_proj on this rank."""
    alphas = (f"{stack}_nvfp4_alpha" for stack in STACKS)
    load = watched(layer, (*global_names(names), *alphas), load)
    kinds = FusedMoeWeightScaleSupported

    def load_input(
        parameter: nn.Parameter, value: Tensor, weight_name: str, *args: Any, **of: Any
    ) -> None:
        # By "input_scale" SGLang gives gate and up the last one of theirs.
        weight_name = weight_name.replace("input_scale", "input_global_scale")
        load(parameter, value, weight_name, *args, **of)

    def register(name: str, shape: tuple[int, ...], dtype: torch.dtype, kind: Any) -> None:
        parameter = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        if kind is kinds.TENSOR:
            parameter.data.fill_(torch.nan)  # so that one never loaded shows
        parameter.weight_loader, parameter.quant_method = load, kind.value
        layer.register_parameter(name, parameter)
        if name.endswith(names.input_global):
            parameter.weight_loader = load_input
            parameter._sglang_require_global_experts = True  # so that all ranks take one scale

    up, of_up = (2 * width, (2,)) if layer.moe_runner_config.is_gated else (width, ())
    for stack, rows, columns, shards in (("w13", up, k, of_up), ("w2", k, width, ())):
        local, f32 = layer.num_local_experts, torch.float32
        register(f"{stack}_{names.weight}", (local, rows, columns // 2), torch.uint8, kinds.BLOCK)
        register(f"{stack}_weight_scale", (local, rows, columns // SF_VEC), E4M3, kinds.BLOCK)
        register(f"{stack}_{names.weight_global}", (local, *shards), f32, kinds.TENSOR)
        if input_global:
            of_inputs = layer.num_experts, *shards
            register(f"{stack}_{names.input_global}", of_inputs, f32, kinds.TENSOR)


class Experts:
    """What both formats share. w4a4: whether inputs become NVFP4, with the file's scales."""

    NAMES: Names
    w4a4: bool

    def create_weights(
        self,
        layer: FusedMoE,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra: Any,
    ) -> None:
        layer.params_dtype = params_dtype
        # ModelOpt's W4A16 files may have one left over.
        inputs = self.w4a4 or self.NAMES is MODELOPT
        k, width, load = hidden_size, intermediate_size_per_partition, extra["weight_loader"]
        create_weights(layer, self.NAMES, k, width, load, inputs)

    def create_moe_runner(self, layer: FusedMoE, moe_runner_config: Any) -> None:
        """None: SGLang then gives `apply` ids of this rank's experts, and -1 for others."""
        self.moe_runner_config = config = moe_runner_config
        self.gating: dict[str, Any] = {"gated": config.is_gated, "activation": config.activation}
        if config.swiglu_limit is not None:
            self.gating["limit"] = config.swiglu_limit

    def restore_weights_before_loading(self, layer: FusedMoE) -> None:
        expect(layer)

    def process_weights_after_loading(self, layer: FusedMoE) -> None:
        """Derives what `product` reads from what was loaded. Synchronises with the device."""
        expect(layer)
        for stack in STACKS:
            alpha, given = factors(layer, self.NAMES, stack, self.w4a4)
            copy_or_rebind_param(layer, f"{stack}_nvfp4_alpha", alpha)
            if given is not None:
                copy_or_rebind_param(layer, f"{stack}_nvfp4_input_scale", given)
            if self.NAMES.weight != "weight":
                setattr(layer, f"{stack}_weight", getattr(layer, f"{stack}_{self.NAMES.weight}"))

    def apply(self, layer: FusedMoE, dispatch_output: Any) -> StandardCombineInput:
        routed = dispatch_output.topk_output
        weights, factor = routed.topk_weights, self.moe_runner_config.routed_scaling_factor
        if factor is not None and common.is_cuda():  # elsewhere SGLang leaves it to its models
            weights = weights * factor
        x, inverse = dispatch_output.hidden_states, self.NAMES.divisors
        options = {"all_experts": layer.num_experts} | self.gating
        y = product(layer, x, routed.topk_ids, weights, self.w4a4, inverse, **options)
        return StandardCombineInput(hidden_states=y)


class NVFP4KernMoEMethod(Experts, FusedMoEMethodBase):
    """Of ModelOpt's files."""

    NAMES = MODELOPT

    def __init__(self, quant_config: Any, w4a4: bool) -> None:
        self.quant_config, self.w4a4 = quant_config, w4a4


class NVFP4KernCompressedTensorsMoEScheme(Experts, CompressedTensorsMoEScheme):
    NAMES = COMPRESSED

    def __init__(self, w4a4: bool) -> None:
        self.w4a4 = w4a4

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    def apply_weights(self, layer: FusedMoE, dispatch_output: Any) -> StandardCombineInput:
        return self.apply(layer, dispatch_output)
