"""Where in a model the layers of the files go, since names and stacking differ."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from ..distributed import ColumnParallel
from ..nn import NVFP4Experts, NVFP4Linear
from ..nn.linear import is_linear as computes_linear
from ..nn.linear import sizes_of
from ..nn.stacks import STACKS, UNGATED, names_of
from .plan import Layer
from .untrusted import CheckpointError

EXPERT = re.compile(r"(.+)\.(\d{1,6})\.(gate_proj|up_proj|down_proj|w1|w3|w2)")
ROLES = {
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
    "down_proj": ("down_proj", 0),
    "w1": ("gate_up_proj", 0),
    "w3": ("gate_up_proj", 1),
    "w2": ("down_proj", 0),
}
"""An expert's layer -> the stacked weight that has its rows, and which half of them."""
UNGATED_ROLES = {"up_proj": ("up_proj", 0), "down_proj": ("down_proj", 0)}
"""The same of experts without a gate."""
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
RENAMED = ((".block_sparse_moe.", ".mlp."), ("backbone.", "model."))
"""Parts of names: the files', the model's."""

STACKED_SCALES = tuple(
    f"{stack}_input_scale{part}" for stack in (*STACKS, UNGATED[0]) for part in ("", "_inverse")
)

KNOWN: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Whether a module is a stack of experts."""


@dataclass(frozen=True)
class Destination:
    """Rows of a weight in the model, and the part of the file's weight that fills them."""

    module: str
    rows: slice
    source: tuple[Any, ...] = ()
    """An index of the file's tensor: () for all of it, (slice,), (expert,) or (expert, slice)."""
    stack: tuple[str, int, int] | None = None
    """In stacked experts: the weight ("gate_up_proj", "up_proj", "down_proj"), the expert, the
    half."""


def is_linear(module: nn.Module | None) -> bool:
    return isinstance(module, NVFP4Linear) or computes_linear(module)


def is_experts(module: nn.Module | None) -> bool:
    if module is None or is_linear(module):
        return False
    if module not in KNOWN:  # hundreds of experts ask, and the answer takes a computation
        KNOWN[module] = isinstance(module, NVFP4Experts) or NVFP4Experts.why_not(module) is None
    return KNOWN[module]


def is_gated(experts: nn.Module) -> bool:
    return names_of(experts) == STACKS


def spellings(name: str) -> Iterator[str]:
    yield name
    for theirs, ours in RENAMED:
        if theirs in name:
            yield name.replace(theirs, ours)


def destinations(
    modules: Mapping[str, nn.Module], name: str, shape: tuple[int, ...], rows: Mapping[str, int]
) -> list[Destination]:
    """Where a layer of the files goes in the model; [] if nowhere.

    modules: the model's, by name. name, shape: the layer's name and its weight's shape.
    rows: how many rows each layer of the files has.
    """
    for spelling in spellings(name) if shape else ():
        found = _destinations(modules, name, spelling, shape, rows)
        if found:
            return found
    return []


def _destinations(
    modules: Mapping[str, nn.Module],
    name: str,
    spelling: str,
    shape: tuple[int, ...],
    rows: Mapping[str, int],
) -> list[Destination]:
    parent, _, leaf = spelling.rpartition(".")
    if len(shape) == 3:
        return _unstacked(modules, parent, leaf, shape)
    if is_linear(modules.get(spelling)):
        return [Destination(spelling, slice(None))]
    expert = EXPERT.fullmatch(spelling)
    if expert and is_experts(modules.get(expert[1])):
        roles = ROLES if is_gated(modules[expert[1]]) else UNGATED_ROLES
        if expert[3] not in roles:
            return []
        weight, half = roles[expert[3]]
        return [_in_stack(expert[1], weight, int(expert[2]), half, shape[0])]
    for fused, parts in FUSED.items():
        if leaf in parts and is_linear(modules.get(f"{parent}.{fused}")):
            before = parts[: parts.index(leaf)]
            start = sum(rows.get(f"{name.rpartition('.')[0]}.{part}", 0) for part in before)
            return [Destination(f"{parent}.{fused}", slice(start, start + shape[0]))]
        if leaf == fused:
            layers = [modules.get(f"{parent}.{part}") for part in parts]
            if all(map(is_linear, layers)):
                return list(_cut(parent, parts, [rows_of(layer) for layer in layers]))
    return []


def check_stack(modules: Mapping[str, nn.Module], layer: Layer, reached: list[Destination]) -> None:
    """Raises CheckpointError where the model has something else than the files, by its class."""
    weight = layer.sources["weight"].name
    for spelling in () if reached else spellings(layer.name):
        if spelling in modules:
            kind = type(modules[spelling]).__name__
            raise CheckpointError(f"{weight}: is quantised; {kind} is no linear layer")
        expert = EXPERT.fullmatch(spelling)
        old = modules.get(expert[1] if expert else spelling.rpartition(".")[0])
        if old is not None and any(value.dim() == 3 for value in old.parameters(recurse=False)):
            why = NVFP4Experts.why_not(old) or "has no such weight"
            raise CheckpointError(f"{weight}: is quantised; {type(old).__name__} {why}")


def rows_of(layer: Any) -> int:
    """Rows of a linear layer, of the whole one where ranks have some each."""
    whole = isinstance(layer, ColumnParallel)
    return layer.whole_out_features if whole else sizes_of(layer)[1]


def _in_stack(module: str, weight: str, expert: int, half: int, rows: int) -> Destination:
    return Destination(module, slice(half * rows, (half + 1) * rows), stack=(weight, expert, half))


def _cut(parent: str, parts: tuple[str, ...], sizes: list[int]) -> Iterator[Destination]:
    start = 0
    for part, size in zip(parts, sizes, strict=True):
        yield Destination(f"{parent}.{part}", slice(0, size), (slice(start, start + size),))
        start += size


def _unstacked(
    modules: Mapping[str, nn.Module], parent: str, leaf: str, shape: tuple[int, ...]
) -> list[Destination]:
    """A stack of experts, for a model's stack or for its single experts."""
    if leaf not in (*STACKS, *UNGATED):
        return []
    stack = modules.get(parent)
    if is_experts(stack) and leaf not in names_of(stack):
        return []
    experts, size = shape[0], shape[1]
    roles = ("gate_proj", "up_proj") if leaf == "gate_up_proj" else (leaf,)
    each = size // len(roles)
    found = []
    for e in range(experts):
        for half, role in enumerate(roles):
            source = (e, slice(half * each, (half + 1) * each))
            if is_experts(stack):
                found.append(Destination(parent, source[1], source, (leaf, e, half)))
            elif is_linear(modules.get(f"{parent}.{e}.{role}")):
                found.append(Destination(f"{parent}.{e}.{role}", slice(0, each), source))
    return found


def experts_of(name: str) -> str | None:
    """The name of an expert's input scale, with "*" for the expert's number. None for others."""
    if name.endswith(STACKED_SCALES):
        return name
    module, _, part = name.rpartition(".")
    found = EXPERT.fullmatch(module)
    return f"{found[1]}.*.{found[3]}" if found and part.startswith("input_scale") else None
