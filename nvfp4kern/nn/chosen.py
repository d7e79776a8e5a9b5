"""Which layers of a model are quantised, and why others stay as they are."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ..layout import SF_VEC
from .experts import NVFP4Experts
from .frozen import Frozen, InputQuant
from .linear import is_conv1d, is_linear, sizes_of
from .replacing import made_by_hooks
from .stacks import STACKS, UNGATED

HEAD, ROUTER = "<head>", "<router>"
"""Stand among patterns for what no name tells: see NVFP4Config."""
EXCLUDED = (
    HEAD, "*lm_head*", "*embed_out", "*output_layer", "*proj_out",
    "*score", "*classifier*", "*cls.predictions*",
    ROUTER, "*router*", "gate", "*.gate", "*.gate.*", "*_gate", "*linear_attn.in_proj_[ab]*",
    "*lora_*",
)  # fmt: skip
ROUTERS = re.compile(r"(Router|Gate|Gating)$")
"""Classes of routers."""
READ = ("weight", *STACKS)
"""Attributes of a layer that another module may read instead of calling the layer."""
Filter = Callable[[nn.Module, str], bool]


@dataclass
class Candidate:
    """A module whose weights engines quantise, and why it stays, or None."""

    name: str
    module: nn.Module
    weights: list[Tensor]
    why: str | None


def candidates(
    model: nn.Module, exclude: Iterable[str], filter_fn: Filter | None, input_quant: InputQuant
) -> list[Candidate]:
    """All of a model that are not NVFP4 yet, by each of their names."""
    special = {HEAD: heads(model), ROUTER: routers(model)}
    read = read_by_others(model)
    found = []
    for name, module in model.named_modules(remove_duplicate=False):
        weights = [] if isinstance(module, Frozen) else weights_of(module)
        if not weights:
            continue
        each = Candidate(name, module, weights, why_not(module) or read.get(module))
        for pattern in exclude:
            if module in special.get(pattern, ()) or fnmatchcase(name, pattern):
                each.why = f"excluded by {pattern!r}"
                break
        else:
            if each.why is None and filter_fn is not None and not filter_fn(module, name):
                each.why = "filter_fn says so"
        found.append(each)
    chosen = [each for each in found if each.why is None]
    wide = [each for each in chosen if each.weights[0].dtype == torch.float32]
    if input_quant is None and wide and len(wide) < len(chosen):
        for each in wide:
            each.why = "is float32 in a model of 16 bits"
    return found


def weights_of(module: nn.Module) -> list[Tensor]:
    """The matrices that a module multiplies its input by, as far as that can be told."""
    if isinstance(module, nn.Linear) or is_conv1d(module):
        return [module.weight] if isinstance(module.weight, Tensor) else []
    others = (nn.Embedding, nn.EmbeddingBag, nn.modules.conv._ConvNd)
    if isinstance(module, others) or "Norm" in type(module).__name__:
        return []
    named = dict(module.named_parameters(recurse=False))
    for name in (STACKS[0], *UNGATED):
        if isinstance(vars(module).get(name), Tensor):  # as pruning leaves it
            named[name] = vars(module)[name]
    return [
        value
        for name, value in named.items()
        if value.is_floating_point()
        and min(value.shape[-2:], default=0) >= SF_VEC
        and (
            value.dim() == 3
            and (len(value) > 1 or name in READ)
            or value.dim() == 2
            and "weight" in name
        )
    ]


def why_not(module: nn.Module) -> str | None:
    """Why there is no NVFP4 layer for a module with weights, or None."""
    if is_linear(module):
        made = made_by_hooks(module, "weight", "bias")
        if made:
            return f"has a {made} that is no parameter"
        k, _ = sizes_of(module)
        return f"has K = {k}, expected a multiple of {SF_VEC}" if k % SF_VEC else None
    if isinstance(module, nn.Linear):
        return f"is a {type(module).__name__}, which may compute otherwise than nn.Linear"
    if any(each.dim() == 3 for each in weights_of(module)):
        reason = NVFP4Experts.why_not(module)
        return reason and f"{type(module).__name__} {reason}"
    return f"is a {type(module).__name__}"


# --- What no name tells ---


def heads(model: nn.Module) -> set[nn.Module]:
    """What get_output_embeddings of the model and of its parts returns."""
    found: set[nn.Module] = set()
    for module in model.modules():
        ask = getattr(module, "get_output_embeddings", None)
        try:
            head = ask() if callable(ask) else None
        except Exception:  # whatever a model's own code raises where it has none
            continue
        if isinstance(head, nn.Module):
            found.update(head.modules())
    return found


def routers(model: nn.Module) -> set[nn.Module]:
    """Modules of classes whose names end as routers' do, and their parts."""
    named = (each for each in model.modules() if ROUTERS.search(type(each).__name__))
    return {part for each in named for part in each.modules()}


def read_by_others(model: nn.Module) -> dict[nn.Module, str]:
    """Layers whose weights another module reads, by what the sources of its methods say."""
    found = {}
    for module in model.modules():
        for path in _read_below(type(module)):
            for layer in _below(module, path):
                if layer is not None:
                    found[layer] = f"{type(module).__name__} reads its weight"
    return found


def _below(module: nn.Module, path: tuple[str, ...]) -> Iterator[nn.Module | None]:
    found: list[Any] = [module]
    for name in path:
        parts = (each._modules for each in found if each is not None)
        found = [x for own in parts for x in (own.values() if name == "*" else [own.get(name)])]
    yield from found


@cache
def _read_below(kind: type) -> frozenset[tuple[str, ...]]:
    """Paths such as ("wo",) where a method has `self.wo.weight`."""
    found = set()
    for base in kind.__mro__:
        if base is nn.Module:
            break
        for name, method in vars(base).items():
            if inspect.isfunction(method) and not name.startswith(("__init__", "_init", "reset")):
                found |= set(_reads(method))
    return frozenset(found)


def _reads(method: Any) -> Iterator[tuple[str, ...]]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, TypeError, SyntaxError):
        return
    nodes = list(ast.walk(tree))
    harmless = set()
    for each in nodes:
        if isinstance(each, ast.Attribute) and each.attr == "device":
            harmless.add(id(each.value))
        if isinstance(each, ast.If) and "pretraining_tp" in ast.unparse(each.test):
            # Models after Llama's first code slice all of their weights there, in training alone.
            harmless |= {id(node) for line in each.body for node in ast.walk(line)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in READ and id(node) not in harmless:
            path = _path(node.value)
            if path:
                yield path


def _path(node: ast.expr) -> tuple[str, ...]:
    """("mlp", "0") of `self.mlp[0]`, () of what does not begin with self."""
    parts: list[str] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
        elif isinstance(node, ast.Subscript):
            index = node.slice.value if isinstance(node.slice, ast.Constant) else None
            parts.append(str(index) if isinstance(index, int) and index >= 0 else "*")
        else:
            return ()
        node = node.value
    return tuple(reversed(parts)) if node.id == "self" else ()
