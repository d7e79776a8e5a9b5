"""Quantising a model's linear layers and experts in place."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn

from ..layout import SF_VEC
from .experts import NVFP4Experts
from .frozen import InputQuant, choice
from .linear import NVFP4Linear
from .recipes import RECIPES, Recipe


@dataclass(frozen=True)
class NVFP4Config:
    """How quantize_ quantises.

    input_quant: None for W4A16; "dynamic" or, for linear layers alone, "amax" for W4A4 (see
    NVFP4Linear).
    recipe: "amax", or "four_six", slower and with a smaller error: a block's largest magnitude
    becomes code 6 or 4.
    exclude: patterns of module names (fnmatch) that are left alone, by default the head and
    routers.
    """

    input_quant: InputQuant = None
    recipe: Recipe = "amax"
    exclude: tuple[str, ...] = ("*lm_head", "*router*", "*mlp.gate", "*_gate")

    def __post_init__(self) -> None:
        choice("input_quant", self.input_quant, (None, "dynamic", "amax"))
        choice("recipe", self.recipe, RECIPES)


Filter = Callable[[nn.Module, str], bool]


def quantize_(
    model: nn.Module, config: NVFP4Config | None = None, filter_fn: Filter | None = None
) -> list[str]:
    """Replaces linear layers and stacked experts of `model` by NVFP4 ones; returns their names.

    filter_fn(module, name) says which of them, in addition to config.exclude. Layers whose K is no
    multiple of 16
    stay as they are. A weight is float16, bfloat16 or float32, on any device that nvfp4kern serves.
    Raises ValueError for a model that is itself a layer (nothing holds it) and for experts with
    "amax", TypeError for other dtypes; the model is unchanged then.
    """
    config = config or NVFP4Config()
    chosen = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not quantizable(module) or any(fnmatchcase(name, each) for each in config.exclude):
            continue
        if filter_fn is None or filter_fn(module, name):
            chosen[name] = module
    for name, module in chosen.items():
        if not name:
            raise ValueError("model: itself a layer, expected a module that contains it")
        if config.input_quant == "amax" and not isinstance(module, nn.Linear):
            raise ValueError(f"{name}: experts have no input_quant='amax'; exclude them")
        for key, value in module.named_parameters():
            if value.dtype not in (torch.float16, torch.bfloat16, torch.float32):
                raise TypeError(
                    f"{name}.{key}: {value.dtype}, expected float16, bfloat16 or float32"
                )
    made: dict[nn.Module, nn.Module] = {}  # one where the model has the same layer twice
    for name, module in chosen.items():
        if module not in made:
            made[module] = quantized(module, config).train(module.training)
        model.set_submodule(name, made[module])
    return list(chosen)


def quantizable(module: nn.Module) -> bool:
    if type(module) is nn.Linear:
        return module.in_features % SF_VEC == 0
    return NVFP4Experts.why_not(module) is None


def quantized(module: nn.Module, config: NVFP4Config) -> nn.Module:
    options = {"input_quant": config.input_quant, "recipe": config.recipe}
    if isinstance(module, nn.Linear):
        return NVFP4Linear.from_linear(module, **options)
    return NVFP4Experts.from_experts(module, **options)
