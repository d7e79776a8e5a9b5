"""Which modules of a model become layers of nvfp4kern.nn, and which tensors fill them."""

from dataclasses import replace
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.core_model_loading import WeightConverter, rename_source_key

from ..checkpoint.assign import Assignment
from ..checkpoint.destinations import destinations
from ..checkpoint.files import CheckpointError, Files
from ..checkpoint.formats import Layer, Plan
from ..nn import NVFP4Experts
from .conversion import renamed


def assign(model: PreTrainedModel, conversions: list[Any], files: Files, plan: Plan) -> Assignment:
    """What fills the model's quantised layers; transformers loads everything else.

    conversions: transformers' for this model.
    Raises CheckpointError for a layer for which the model has a module that we cannot replace.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    prefix = model.base_model_prefix
    named = {name_in_model(layer, conversions): layer for layer in plan.layers.values()}
    shapes = {
        name: files.tensors[each.sources["weight"].name].shape for name, each in named.items()
    }
    rows = {spelt: shape[0] for name, shape in shapes.items() for spelt in spellings(name, prefix)}
    only, layers = nn.Module(), {}
    homeless = Homeless(model, modules, conversions)
    for name, layer in named.items():
        for spelt in spellings(name, prefix):
            found = destinations(modules, spelt, shapes[name], rows)
            if found:
                layers[spelt] = replace(layer, name=spelt)
                for each in found:
                    add(only, each.module, modules[each.module])
                break
        else:
            homeless.refuse(name, layer)
    if plan.layers and not layers:
        name = next(iter(plan.layers))
        raise CheckpointError(f"{name}: is quantised; the model has no layer of these files")
    return Assignment(only, files, replace(plan, layers=layers, plain=[]))


def name_in_model(layer: Layer, conversions: list[Any]) -> str:
    weight = layer.sources["weight"].name
    if weight == layer.name:  # a stack of experts is a parameter
        return renamed(weight, conversions)
    return renamed(f"{layer.name}.weight", conversions).removesuffix(".weight")


def spellings(name: str, prefix: str) -> list[str]:
    """The name with and without the prefix that models with a head have. Files have either."""
    return [name, name.removeprefix(f"{prefix}."), f"{prefix}.{name}"]


def add(root: nn.Module, name: str, module: nn.Module) -> None:
    *parents, last = name.split(".")
    for parent in parents:
        if parent not in root._modules:
            root.add_module(parent, nn.Module())
        root = root.get_submodule(parent)
    root.add_module(last, module)


class Homeless:
    """Refuses quantised layers for which the model has none that we can replace.

    transformers would load their codes as plain weights. Where the model lacks a whole part, such
    as a head or one that predicts more tokens, it does not: it reports what it left out.
    """

    def __init__(
        self, model: PreTrainedModel, modules: dict[str, nn.Module], conversions: list[Any]
    ) -> None:
        self.modules, self.prefix = modules, model.base_model_prefix
        self.state = model.state_dict()
        self.converters = [each for each in conversions if isinstance(each, WeightConverter)]

    def refuse(self, name: str, layer: Layer) -> None:
        for key in (name, f"{name}.weight"):
            key, _ = rename_source_key(key, [], self.converters, self.prefix, self.state)
            if key in self.state:
                module = self.modules[key.rpartition(".")[0]]
                why = NVFP4Experts.why_not(module) or "is not supported there"
                raise CheckpointError(f"{layer.name}: is quantised; {type(module).__name__} {why}")
        for spelt in spellings(name, self.prefix)[:2]:
            parent = spelt.rpartition(".")[0]
            if parent and parent in self.modules:
                raise CheckpointError(f"{layer.name}: is quantised; the model has no such layer")
