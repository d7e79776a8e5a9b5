"""LoRA adapters of the package peft on NVFP4 layers: import this, then use peft as always.

    import nvfp4kern.peft
    model = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear"))

The import tells every LoraConfig about NVFP4Linear, by what peft documents for custom layers. The
adapters are trained beside weights that stay NVFP4, as QLoRA does; experts' stacks take none.
"all-linear" means the NVFP4 layers of a model: routers and the head are none.
Merging is refused, since the sum would have to be quantised again, and so is what reads the base
layer's weight: DoRA and initialisations such as PiSSA.
"""

import functools
from typing import Any, NoReturn

from peft import LoraConfig
from peft.tuners.lora import LoraModel
from peft.tuners.lora.layer import Linear
from torch import nn

from ..nn import NVFP4Experts, NVFP4Linear

__all__ = ["NVFP4LoraLinear"]

INITIALISATIONS = (True, False, "gaussian", "eva")
"""Values of init_lora_weights that do not read the base layer's weight."""
MERGE = (
    "merge: {} is NVFP4, and the sum would have to be quantised again; expected adapters to stay "
    "beside it, or the merge in a 16-bit model that is quantised afterwards"
)


class NVFP4LoraLinear(Linear):
    """peft's LoRA beside an NVFP4Linear. Raises ValueError for a config that needs its weight."""

    def _get_in_out_features(self, module: nn.Module) -> tuple[int, int]:
        return module.in_features, module.out_features

    @property
    def lora_variants(self) -> dict[tuple[str, ...], Any]:
        known = super().lora_variants
        return {names: known[names] for names in known if names in BESIDE}

    def update_layer(
        self, adapter_name: str, *args: Any, config: LoraConfig, **options: Any
    ) -> None:
        how = config.init_lora_weights
        if how not in INITIALISATIONS:
            raise ValueError(f"init_lora_weights: {how!r} reads the weight of an NVFP4 layer")
        super().update_layer(adapter_name, *args, config=config, **options)

    def merge(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(MERGE.format("the base layer"))

    unmerge = merge


BESIDE = ((), ("alora_invocation_tokens",))
"""Variants of LoRA that only add to the layer's result."""


def refuse_experts(target: nn.Module, *_: Any, **__: Any) -> NoReturn:
    name = type(target).__name__
    raise ValueError(f"target_modules: {name} takes no LoRA, expected names of linear layers")


def targets(model: nn.Module) -> set[str]:
    """Names of NVFP4 linear layers, or of what already holds an adapter of one."""
    found: set[str] = set()
    for name, module in model.named_modules():
        if isinstance(module, (NVFP4Linear, NVFP4LoraLinear)):
            if name.removesuffix(".base_layer") not in found:
                found.add(name)
    return found


def know_layers() -> None:
    """Changes what peft's configurations know, and what it does before adapters and merges."""
    prepare, allow = LoraConfig.__post_init__, LoraModel._check_merge_allowed
    begin = LoraModel._prepare_model

    @functools.wraps(prepare)
    def __post_init__(self: LoraConfig) -> None:
        prepare(self)
        self._register_custom_module({NVFP4Linear: NVFP4LoraLinear, NVFP4Experts: refuse_experts})

    @functools.wraps(allow)
    def _check_merge_allowed(self: LoraModel) -> None:
        """Of all layers before the first of them is merged."""
        allow(self)
        for name, module in self.model.named_modules():
            if isinstance(module, NVFP4LoraLinear):
                raise ValueError(MERGE.format(name))

    @functools.wraps(begin)
    def _prepare_model(self: LoraModel, config: LoraConfig, model: nn.Module) -> None:
        if str(config.target_modules).lower() == "all-linear":
            config.target_modules = targets(model) or config.target_modules
        begin(self, config, model)

    LoraConfig.__post_init__ = __post_init__
    LoraModel._prepare_model = _prepare_model
    LoraModel._check_merge_allowed = _check_merge_allowed


know_layers()
