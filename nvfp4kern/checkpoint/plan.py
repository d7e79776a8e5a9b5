"""What a checkpoint's tensors are: the layers, whatever their producer calls them.

A layer is quantised because its tensors say so. The configuration says what activations are. Where
it contradicts the tensors, that is a `Problem`.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .files import Files, TensorInfo
from .patterns import Names, PatternError
from .untrusted import CheckpointError, in_short

__all__ = ["InputQuant", "Layer", "Plan", "Problem", "Source"]

InputQuant: TypeAlias = Literal["static", "dynamic", "amax", "token"] | None
FLOATS = ("float32", "float16", "bfloat16")
KV_SCALES = ("k_scale", "v_scale", "q_scale")
ATTENTION = ("k_proj", "v_proj", "q_proj", "qkv_proj", "attn", "self_attn", "attention")
EMBEDDINGS = ("embed", "wte", "wpe")
SHARDS = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("in_proj_qkv", "in_proj_z"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
)
"""Layers that engines fuse, as they read the same x."""


@dataclass(frozen=True)
class Source:
    """A tensor of the files that fills a parameter. divisor: its inverse is what is used."""

    name: str
    divisor: bool = False


@dataclass
class Layer:
    """A quantised module, or stacked experts, whose tensors have one dimension more.

    `kind` is "nvfp4", or "fp8": weight and weight_scale, which are dequantised. `sources` has a
    Source for each parameter of NVFP4Linear that the files hold. `input_quant` says how activations
    are quantised; with None they stay at 16 bits.
    """

    name: str
    kind: Literal["nvfp4", "fp8"]
    input_quant: InputQuant
    sources: dict[str, Source]
    constants: dict[str, float] = field(default_factory=dict)
    """Values of parameters that the format leaves out."""

    @property
    def has_inverse(self) -> bool:
        """Whether its static input scale is an inverse, which is kept as it is."""
        return "input_scale" in self.sources and self.sources["input_scale"].divisor

    @property
    def expert(self) -> str | None:
        """The layer's name with "*" for the expert's number, where it is one expert's."""
        parts = self.name.split(".")
        for at, part in enumerate(parts[1:], 1):
            if part.isdecimal() and parts[at - 1] == "experts":
                return ".".join([*parts[:at], "*", *parts[at + 1 :]])
        return None


@dataclass(frozen=True)
class Problem:
    """A sentence about a tensor, a module or a pattern. A fatal one makes loading fail."""

    fatal: bool
    name: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.name}: {self.sentence}"


@dataclass
class Plan:
    """What `read_plan` found: every tensor of the files is in a layer, plain, or ignored."""

    format: str
    producer: str
    layers: dict[str, Layer] = field(default_factory=dict)
    plain: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)
    """Part of a layer -> the format's name of it, where that is not NVFP4Linear's."""

    def name_of(self, layer: Layer, part: str) -> str:
        """The name of a layer's tensor in the files, which need not have it."""
        if part in layer.sources:
            return layer.sources[part].name
        if layer.sources["weight"].name == layer.name:
            return f"{layer.name}_{part}"  # stacked experts
        return f"{layer.name}.{self.parts.get(part, part)}"

    def wrong(self, name: str, sentence: str) -> None:
        self.problems.append(Problem(True, name, sentence))

    def warn(self, name: str, sentence: str) -> None:
        self.problems.append(Problem(False, name, sentence))


def refuse(problems: Iterable[Problem]) -> None:
    """Raises CheckpointError with the first fatal problem, and how many there are."""
    fatal = [problem for problem in problems if problem.fatal]
    if fatal:
        more = f" (and {len(fatal) - 1} more)" if len(fatal) > 1 else ""
        raise CheckpointError(f"{fatal[0]}{more}")


Parts: TypeAlias = dict[str, str]
"""A module's tensors: the last part of a name, the whole name."""


def modules_of(names: Iterable[str]) -> dict[str, Parts]:
    """Tensors by module. "gate_up_proj_weight_scale", of stacked experts, is gate_up_proj's."""
    names = set(names)
    scales = ("weight_scale_2", "weight_scale", "input_scale")
    stacked = {name for name in names if any(f"{name}_{part}" in names for part in scales)}
    found: dict[str, Parts] = defaultdict(dict)
    for name in sorted(names):
        head, _, part = name.rpartition(".")
        scale = next((scale for scale in scales if part.endswith(f"_{scale}")), None)
        if name in stacked:
            head, part = name, "weight"
        elif scale:
            head, part = name[: -len(scale) - 1], scale
        elif part.endswith("_bias") and name[:-5] in stacked:
            head, part = name[:-5], "bias"
        found[head][name if part in found[head] else part] = name
    return found


def quantised(parts: Parts, files: Files) -> bool:
    """Whether a module's tensors say that it is."""
    if not parts.keys().isdisjoint(("weight_scale", "weight_scale_2", "weight_global_scale")):
        return True
    weight = files.tensors[parts["weight"]].dtype if "weight" in parts else ""
    return "weight_packed" in parts or weight == "uint8" or weight.startswith("float8")


def take_plain(plan: Plan, name: str, parts: Parts, files: Files) -> bool:
    """Takes a module as not quantised. True where its weight is a matrix."""
    for part in ("input_scale", "input_global_scale"):
        if part in parts:
            plan.ignored.append(parts.pop(part))
            plan.warn(plan.ignored[-1], "is ignored, as its layer is not quantised")
    plan.plain.extend(parts.values())
    weight = files.tensors.get(parts.get("weight", ""))
    return weight is not None and len(weight.shape) == 2 and weight.dtype in FLOATS


def take_kv_scales(plan: Plan, modules: dict[str, Parts], files: Files) -> None:
    """Takes away the scales of the key-value cache, which no layer uses."""
    for module, parts in modules.items():
        if module.rpartition(".")[2] not in ATTENTION:
            continue
        for part in KV_SCALES:
            if part in parts and math.prod(files.tensors[parts[part]].shape) == 1:
                plan.ignored.append(parts.pop(part))


# --- Shapes and dtypes ---


def check_layer(plan: Plan, layer: Layer, files: Files) -> None:
    """Adds what is wrong with a layer's dtypes and shapes to the plan's problems."""
    infos = {part: files.tensors[source.name] for part, source in layer.sources.items()}
    check = _nvfp4 if layer.kind == "nvfp4" else _fp8
    for part, expected in check(layer, infos):
        info = infos.get(part)
        came = f"{info.dtype} {list(info.shape)}" if info else "is missing"
        plan.wrong(plan.name_of(layer, part), f"{came}, expected {expected}")


def _nvfp4(layer: Layer, infos: dict[str, TensorInfo]) -> Iterator[tuple[str, str]]:
    """(part, what was expected) of every wrong one."""
    weight, scale = infos["weight"], infos.get("weight_scale")
    if weight.dtype != "uint8" or len(weight.shape) not in (2, 3):
        yield "weight", "uint8 [N, K/2] or [experts, N, K/2]"
        return
    *experts, n, half = weight.shape
    if half % 8 or not math.prod(weight.shape):
        yield "weight", "uint8 with K/2 a multiple of 8 (K of 16), and not empty"
        return
    if experts and n % 2 and layer.name.endswith("gate_up_proj"):
        yield "weight", "as many rows of gates as of ups"
        return
    if scale is None or scale.dtype != "float8_e4m3fn" or scale.shape != (*experts, n, half // 8):
        yield "weight_scale", f"float8_e4m3fn {[*experts, n, half // 8]}"
    rows = _globals(layer, experts, n)
    for part in ("weight_scale_2", "input_scale"):
        info = infos.get(part)
        needed = part == "weight_scale_2" and part not in layer.constants
        shapes = rows if part == "weight_scale_2" else [r for r in rows if r[-1:] != (n,) or n == 1]
        if (needed and info is None) or (
            info is not None and (info.dtype != "float32" or info.shape not in shapes)
        ):
            yield part, f"float32 {' or '.join(str(list(shape)) for shape in shapes)}"
    for part, size in (("pre_quant_scale", 2 * half), ("bias", n)):
        info = infos.get(part)
        if info is not None and (info.dtype not in FLOATS or info.shape != (*experts, size)):
            yield part, f"{', '.join(FLOATS)} {[*experts, size]}"
    low, high = infos.get("svdquant_lora_a"), infos.get("svdquant_lora_b")
    if low or high:
        rank = low.shape[0] if low and low.shape else 0
        for part, info, shape in (
            ("svdquant_lora_a", low, (*experts, rank, 2 * half)),
            ("svdquant_lora_b", high, (*experts, n, rank)),
        ):
            if info is None or info.dtype not in FLOATS or info.shape != shape or not rank:
                yield part, f"{', '.join(FLOATS)} {list(shape)}"
                return


def _globals(layer: Layer, experts: list[int], n: int) -> list[tuple[int, ...]]:
    """Shapes that global scales may have: one for all, each expert, gate and up, or each row."""
    if not experts:
        return [(), (1,), (n,)]
    (e,) = experts
    both = [(e, 2)] if layer.name.endswith("gate_up_proj") else []
    return [(), (1,), (e,), (e, 1), (e, 1, 1), *both, (e, n)]


def _fp8(layer: Layer, infos: dict[str, TensorInfo]) -> Iterator[tuple[str, str]]:
    weight, scale = infos["weight"], infos.get("weight_scale")
    if len(weight.shape) != 2:
        yield "weight", "float8_e4m3fn [N, K]"
        return
    if scale is None or scale.dtype != "float32" or scale.shape not in [(), (1,)]:
        yield "weight_scale", "float32 [] or [1]"
    for part in ("pre_quant_scale", "svdquant_lora_a", "svdquant_lora_b"):
        if part in infos:
            yield part, "none beside FP8"
    bias = infos.get("bias")
    if bias is not None and (bias.dtype not in FLOATS or bias.shape != weight.shape[:1]):
        yield "bias", f"{', '.join(FLOATS)} {[weight.shape[0]]}"


# --- What the configuration says, and the tensors do not ---


def strings(value: object, where: str) -> list[str]:
    """A list of strings of a configuration, [] for null. Raises CheckpointError for others."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise CheckpointError(f"{where}: {in_short(value)}, expected a list of strings")
    return value


def matching(plan: Plan, names: Names, patterns: Iterable[str], regular: str) -> set[str]:
    """Names that the patterns match.

    regular: what a regular expression begins with; other patterns are plain names. Where it is "",
    all patterns are wildcards. A pattern that is not evaluated becomes a problem.
    """
    found: set[str] = set()
    for pattern in patterns:
        try:
            if not regular:
                found |= names.wildcard(pattern)
            elif pattern.startswith(regular):
                found |= names.regular(pattern.removeprefix(regular))
            else:
                found |= names.exact(pattern)
        except PatternError as error:
            plan.warn(in_short(pattern), f"this pattern is not evaluated: {error}")
    return found


def compare(plan: Plan, matched: set[str], matrices: Iterable[str], every_linear: bool) -> None:
    """Fills `excluded`. Warns where the configuration and the tensors differ in what is quantised.

    matched: the names that the configuration excludes. matrices: modules with a plain weight of two
    dimensions. every_linear: the configuration quantises whatever it does not exclude.
    """
    for name in plan.layers:
        if name in matched:
            plan.warn(name, "is quantised, and the configuration excludes it; it is loaded so")
    for name in matrices:
        last = name.rpartition(".")[2]
        if name in matched:
            plan.excluded.append(name)
        elif every_linear and not any(word in last for word in EMBEDDINGS):
            plan.warn(name, "is not quantised, and the configuration does not exclude it")


def check_input_scales(plan: Plan) -> None:
    """An expert that calibration has not reached has no input_scale: another one has to serve."""
    having: set[str | None] = set()
    lacking: list[Layer] = []
    for layer in plan.layers.values():
        if layer.input_quant != "static":
            continue
        if "input_scale" in layer.sources:
            having.add(layer.expert)
        else:
            lacking.append(layer)
    for layer in lacking:
        name = plan.name_of(layer, "input_scale")
        if layer.expert is None:
            plan.wrong(name, 'is missing; load it with input_quant=None or "dynamic"')
        elif layer.expert in having:
            plan.warn(name, "is missing; the maximum over the other experts takes its place")
        else:
            plan.wrong(name, "is missing, and no other expert has one")
