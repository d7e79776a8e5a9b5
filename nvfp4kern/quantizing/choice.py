"""Which tensors of a folder are weights that become NVFP4.

Where transformers has the architecture, that is built without memory, and a tensor is chosen if
quantize_ would replace the module that it fills: names alone do not tell a linear layer from a
transposed one (GPT-2), nor from one whose weight a kernel reads past the layer. Elsewhere, as for a
model with code of its own, names, shapes and the excluded patterns decide, and the summary says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ..checkpoint.files import Files, TensorInfo
from ..checkpoint.plan import EMBEDDINGS, FLOATS, SHARDS
from ..checkpoint.save import roles_of
from ..layout import SF_VEC
from ..nn.stacks import STACKS

__all__ = ["Choice", "Weight", "choose"]

TABLES = (*EMBEDDINGS, "relative_attention_bias", "shared")
"""Parts of names of what is no linear layer."""
TRANSPOSED = ("c_attn", "c_proj", "c_fc", "q_attn")
"""Layers of GPT-2 and its like, [K, N]; others have them, too, but only the model tells."""


@dataclass(frozen=True)
class Weight:
    """A layer's weight [N, K], all of a tensor or a part of a stack of experts."""

    name: str
    """Of the layer, in the files to be written."""
    tensor: str
    index: tuple[int, int] | None
    """In a stack: the expert, and the first row."""
    rows: int
    columns: int
    group: str
    """Layers of a group have one global scale: engines fuse them."""

    @property
    def of_bias(self) -> tuple[int, slice]:
        """In the biases of a stack."""
        assert self.index is not None
        expert, first = self.index
        return expert, slice(first, first + self.rows)


@dataclass
class Choice:
    """What becomes NVFP4, by tensor, and why other matrices do not, by module."""

    weights: dict[str, list[Weight]] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    biases: dict[str, list[Weight]] = field(default_factory=dict)
    """Of stacks, by tensor: the layers that its rows are of."""
    by: str = ""
    """What has decided, in words."""


def choose(files: Files, exclude: Iterable[str]) -> Choice:
    """exclude: patterns (fnmatch) of names of modules that stay, with all that is in them."""
    candidates = {}
    found = Choice()
    for tensor, info in files.tensors.items():
        module = module_of(tensor, info)
        if module is None:
            continue
        why = "a table" if is_table(module) else why_not(files, module, info)
        why = why or _excluded(module, exclude)
        if why:
            found.kept[module] = why
        else:
            candidates[module] = tensor
    found.by, refused, by_turns = _by_model(files, candidates, found.kept, tuple(exclude))
    for module in [each for each in candidates if candidates[each] == each]:  # stacks
        if _other_half(module) in found.kept.keys() | refused.keys():
            refused.setdefault(module, "a stack whose other half stays")
    across = [tensor for tensor in candidates.values() if lies_across(files, tensor)]
    for module, tensor in candidates.items():
        if module in refused:
            found.kept[module] = refused[module]
        else:
            if tensor in across:
                files.transpose(tensor)
            bias = f"{tensor}_bias"
            for name in (tensor, bias) if module in by_turns else ():
                if name in files.tensors:
                    files.part_by_turns(name)
            found.weights[tensor] = _weights(files, module, tensor)
            if tensor == module and bias in files.tensors:  # of a stack
                found.biases[bias] = found.weights[tensor]
    return found


def module_of(tensor: str, info: TensorInfo) -> str | None:
    """The module of a matrix; a stack of experts is one, as it is in quantised files."""
    module, _, part = tensor.rpartition(".")
    if len(info.shape) == 2 and part == "weight":
        return module
    if len(info.shape) == 3 and part in STACKS:
        return tensor
    return None


def is_table(module: str, words: tuple[str, ...] = TABLES) -> bool:
    last = module.rpartition(".")[2]
    return any(word in last for word in words)


def why_not(files: Files, module: str, info: TensorInfo) -> str | None:
    """Why a matrix can have no NVFP4 codes that a layer computes with, by its header."""
    if info.dtype not in FLOATS:
        return f"{info.dtype}"
    if len(info.shape) == 3:
        return _why_no_stack(files, module)
    if info.shape[-1] % SF_VEC or not info.shape[0] or not info.shape[1]:
        return f"K = {info.shape[-1]}, no multiple of {SF_VEC}"
    return None


def _why_no_stack(files: Files, module: str) -> str | None:
    parent = module.rpartition(".")[0]
    up, down = (files.tensors.get(f"{parent}.{name}") for name in STACKS)
    if up is None or down is None or len(up.shape) != 3 or len(down.shape) != 3:
        return "a stack without its other half"
    biases = [files.tensors.get(f"{parent}.{name}_bias") for name in STACKS]
    (e, n, k), other = up.shape, down.shape
    if lies_across(files, module):
        n, k, other = k, n, (e, other[2], other[1])
    if other != (e, k, n // 2) or n % 2:
        return f"a stack of experts with gate_up_proj {list(up.shape)} and down_proj {list(other)}"
    if k % SF_VEC or other[-1] % SF_VEC or not e * n * k:
        return f"K = {k} and {other[-1]}, expected multiples of {SF_VEC}"
    given = [(each.dtype in FLOATS, each.shape) for each in biases if each is not None]
    if given and given != [(True, (e, n)), (True, (e, k))]:
        return f"a stack of experts with other biases than [{e}, {n}] and [{e}, {k}]"
    return None


def _other_half(stack: str) -> str:
    parent, _, last = stack.rpartition(".")
    return f"{parent}.{STACKS[last == STACKS[0]]}"


def lies_across(files: Files, tensor: str) -> bool:
    """Whether a tensor is of a stack whose weights are [E, 2 I, H] and [E, H, I] transposed, as
    Llama-4's are. No sizes fit both ways."""
    parent, _, last = tensor.rpartition(".")
    both = [files.tensors.get(f"{parent}.{name}") for name in STACKS]
    shapes = [each.shape for each in both if each is not None and len(each.shape) == 3]
    if last not in STACKS or len(shapes) != 2:
        return False
    (_, k, n), (_, inner, outer) = shapes
    return n == 2 * inner and k == outer


def _shape(files: Files, tensor: str) -> tuple[int, ...]:
    """As quantize_ takes it."""
    shape = files.tensors[tensor].shape
    return (shape[0], shape[2], shape[1]) if lies_across(files, tensor) else shape


def _excluded(module: str, patterns: Iterable[str]) -> str | None:
    """The pattern that names the module, or one that holds it."""
    parts = module.split(".")
    names = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    found = (p for p in patterns if any(fnmatchcase(name, p) for name in names))
    pattern = next(found, None)
    return None if pattern is None else f"excluded by {pattern}"


def _by_model(
    files: Files, candidates: dict[str, str], kept: dict[str, str], exclude: tuple[str, ...]
) -> tuple[str, dict[str, str], set[str]]:
    """(what has decided, why a candidate is no weight that quantize_ would take, the stacks whose
    rows are gate, up, gate, up)."""
    names = _by_names(files, candidates), set[str]()
    try:
        from ..transformers.architecture import Architecture
    except (ImportError, AttributeError):  # none, or one that nvfp4kern.transformers does not know
        return "names, as there is no transformers that is known", *names
    try:
        model = Architecture(files.path)
    except Exception as error:  # whatever transformers raises for a configuration
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return f"names, as transformers has no such model: {reason}"[:200], *names
    shapes = {m: _shape(files, tensor) for m, tensor in candidates.items()}
    others = [f"{module}.weight" for module in kept]
    shapes_kept = {
        other.removesuffix(".weight"): files.tensors[other].shape
        for other in others
        if other in files.tensors
    }
    refused = model.why_not(shapes, shapes_kept, exclude)
    return f"the modules of {model.name}", refused, model.by_turns(shapes)


def _by_names(files: Files, candidates: dict[str, str]) -> dict[str, str]:
    found = {}
    for module in candidates:
        if module.rpartition(".")[2] in TRANSPOSED:
            found[module] = "perhaps transposed, which only the model tells"
        elif f"{module.rpartition('.')[0]}.{STACKS[0]}_bias" in files.tensors:
            found[module] = "with biases, as gpt-oss, whose gate only the model tells"
    return found


def _weights(files: Files, module: str, tensor: str) -> list[Weight]:
    shape = files.tensors[tensor].shape
    parent, _, last = module.rpartition(".")
    if len(shape) == 2:
        shards = next((each for each in SHARDS if last in each), None)
        group = f"{parent}.{'+'.join(shards)}" if shards else module
        return [Weight(module, tensor, None, *shape, group)]
    experts, rows, columns = shape
    gate, up, down = roles_of(files.config.get("model_type", ""))
    roles = (gate, up) if last == "gate_up_proj" else (down,)
    each = rows // len(roles)
    return [
        Weight(f"{parent}.{e}.{role}", tensor, (e, i * each), each, columns, f"{tensor}.{e}")
        for e in range(experts)
        for i, role in enumerate(roles)
    ]
