"""Quantising a model's linear layers and experts in place."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn

from ..layout import SF_VEC
from .experts import NVFP4Experts
from .frozen import InputQuant, choice
from .linear import NVFP4Linear
from .recipes import RECIPES, Recipe
from .replacing import AllOrNothing, made_by_hooks, replace, why_not_replaced


@dataclass(frozen=True)
class NVFP4Config:
    """How quantize_ quantises.

    input_quant: None for W4A16. For W4A4 "dynamic" or, for linear layers alone, "amax": see
        NVFP4Linear.
    recipe: "amax", or "four_six", which is slower and has a smaller error: the largest magnitude
        of a block becomes code 6 or code 4, whichever is better.
    exclude: patterns (fnmatch) of the names of modules that stay as they are, by default the head
        and routers.
    """

    input_quant: InputQuant = None
    recipe: Recipe = "amax"
    exclude: tuple[str, ...] = ("*lm_head", "*router*", "*mlp.gate", "*_gate")

    def __post_init__(self) -> None:
        choice("input_quant", self.input_quant, (None, "dynamic", "amax"))
        choice("recipe", self.recipe, RECIPES)
        given = self.exclude
        listed = isinstance(given, Iterable) and not isinstance(given, (str, bytes))
        patterns = tuple(given) if listed else (None,)
        if not all(isinstance(each, str) for each in patterns):
            raise TypeError(f"exclude: {given!r}, expected patterns, such as ('*lm_head',)")
        object.__setattr__(self, "exclude", patterns)


Filter = Callable[[nn.Module, str], bool]


def quantize_(
    model: nn.Module, config: NVFP4Config | None = None, filter_fn: Filter | None = None
) -> list[str]:
    """Replaces linear layers and stacked experts of `model` by NVFP4 ones; returns their names.

    filter_fn: says of (module, name) whether to replace it. config.exclude counts first.

    A layer whose K is no multiple of 16 stays as it is, and so does one whose weight is made of
    other parameters, by weight_norm, spectral_norm or pruning. Weights are float16, bfloat16 or
    float32, on any device that nvfp4kern serves. Hooks of a layer's calls stay, and so do their
    handles.

    Raises ValueError for a model that is itself a layer, since nothing holds it, for experts with
    "amax", for weights with NaN or infinities, and for layers with what cannot be kept: hooks of
    state_dict or of parts, parts of a linear layer, a forward of their own. Raises TypeError for
    weights of other dtypes.
    All replacements are made before the first of them is put in, beside the weights they replace.
    So the model is as it was after any error, such as one for want of memory, and after an
    interrupt.
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
        reason = why_not_replaced(module)
        if reason:
            raise ValueError(f"{name}: {reason}; exclude it")
        if config.input_quant == "amax" and not isinstance(module, nn.Linear):
            raise ValueError(f"{name}: experts have no input_quant='amax'; exclude them")
        for key, value in module.named_parameters():
            if value.dtype not in (torch.float16, torch.bfloat16, torch.float32):
                raise TypeError(
                    f"{name}.{key}: {value.dtype}, expected float16, bfloat16 or float32"
                )
    made: dict[nn.Module, nn.Module] = {}  # one where the model has the same layer twice
    for name, module in chosen.items():
        if module in made:
            continue
        try:
            made[module] = quantized(module, config)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    with AllOrNothing(model):
        for name, module in chosen.items():
            replace(model, name, made[module])
    return list(chosen)


def quantizable(module: nn.Module) -> bool:
    if type(module) is nn.Linear:
        return module.in_features % SF_VEC == 0 and not made_by_hooks(module, "weight", "bias")
    return NVFP4Experts.why_not(module) is None


def quantized(module: nn.Module, config: NVFP4Config) -> nn.Module:
    options = {"input_quant": config.input_quant, "recipe": config.recipe}
    if isinstance(module, nn.Linear):
        return NVFP4Linear.from_linear(module, **options)
    return NVFP4Experts.from_experts(module, **options)
