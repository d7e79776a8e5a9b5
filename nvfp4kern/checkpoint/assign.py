"""Which tensor of the files fills which part of the model: decided from headers alone."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..distributed import ColumnParallel, Cut, ExpertParallel, RowParallel, Slice
from ..nn import NVFP4Experts, NVFP4Linear
from ..nn.frozen import Frozen
from ..nn.linear import is_conv1d, sizes_of
from ..nn.replacing import why_not_replaced
from .destinations import Destination, check_stack, destinations, experts_of, is_linear, spellings
from .dtypes import kept_in_float32
from .files import CheckpointError, Files
from .formats import Layer, Plan, Source
from .slices import Index, own_slices


@dataclass
class Target:
    """A parameter or persistent buffer of the model as it will be."""

    name: str
    shape: torch.Size
    """Of a rank's slice, where `cut` is not None."""
    dtype: torch.dtype
    requires_grad: bool
    buffer: bool
    owners: list[tuple[nn.Module, str]]
    """(module, attribute): several where parameters are tied."""
    missing: int = 0
    """Elements of the whole that nothing fills yet."""
    cut: Cut | None = None
    tied: bool = False
    """Whether it has several names."""
    tensor: Tensor | None = None

    @property
    def whole(self) -> torch.Size:
        return self.shape if self.cut is None else self.cut.shape_of_whole(self.shape)


@dataclass(frozen=True)
class Fill:
    """A part of a tensor of the files, and the part of a target that it fills."""

    source: Source
    source_index: tuple[Any, ...]
    target: Target
    target_index: tuple[Any, ...]
    rule: str
    """"copy"; "global", a global scale; "max" or "min" of several; "same", several that must
    be equal; "fp8", which is multiplied by `scale`."""
    scale: Source | None = None


@dataclass
class Fused:
    """A module of the model that becomes an NVFP4 one, and the layers of the files for it."""

    old: nn.Module
    layers: list[Layer] = field(default_factory=list)


class Assignment:
    """All fills of a model. Raises CheckpointError where the files do not fill it.

    `.modules`: the NVFP4 modules that it gets, by name, on the meta device.
    `.targets`: by name. `.fills`: in the order of the plan.
    `.unexpected`: names of tensors that nothing in the model takes.
    """

    def __init__(self, model: nn.Module, files: Files, plan: Plan) -> None:
        self.files = files
        self.old = dict(model.named_modules(remove_duplicate=False))
        self.rows = {
            name: files.tensors[layer.sources["weight"].name].shape[0]
            for name, layer in plan.layers.items()
        }
        reached = {name: self._destinations(name, layer) for name, layer in plan.layers.items()}
        for name, layer in plan.layers.items():
            check_stack(self.old, layer, reached[name])
        self.unexpected = [
            source.name
            for name, layer in plan.layers.items()
            if not reached[name]
            for source in layer.sources.values()
        ]
        self.modules = self._new_modules(plan, reached)
        self.targets: dict[str, Target] = {}
        self._aliases: dict[str, Target] = {}
        self._in_float32 = kept_in_float32(model)
        self._find_targets(model)
        self.fills: list[Fill] = []
        self.constants: list[tuple[Target, tuple[Any, ...], float]] = []
        self._filled: set[Any] = set()
        for name, layer in plan.layers.items():
            for to in reached[name]:
                self._fill_layer(layer, to)
        for name in plan.plain:
            self._fill_plain(name)
        ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or []
        self.unexpected = [n for n in self.unexpected if not any(re.search(p, n) for p in ignored)]
        self._check()

    # ---------------------------------------------------------------------------------------------
    # Modules and targets
    # ---------------------------------------------------------------------------------------------

    def _destinations(self, name: str, layer: Layer) -> list[Destination]:
        shape = self.files.tensors[layer.sources["weight"].name].shape
        return destinations(self.old, name, shape, self.rows)

    def _new_modules(self, plan: Plan, reached: dict[str, list[Destination]]) -> dict[str, Frozen]:
        wanted: dict[str, Fused] = {}
        for name, layer in plan.layers.items():
            if layer.kind == "nvfp4":
                for to in reached[name]:
                    if not to.module:
                        raise ValueError("model: itself a layer, expected a module that has it")
                    new = wanted.setdefault(to.module, Fused(self.old[to.module]))
                    if layer not in new.layers[-1:]:
                        new.layers.append(layer)
        made: dict[int, Frozen] = {}  # one where the model has the same module twice
        for name, new in wanted.items():
            reason = why_not_replaced(new.old)
            if reason:
                raise ValueError(f"model: {name}: {reason}")
            if id(new.old) not in made:
                made[id(new.old)] = self._new_module(name, new)
        return {name: made[id(old)] for name, old in self.old.items() if id(old) in made}

    def _new_module(self, name: str, new: Fused) -> Frozen:
        kinds = {layer.input_quant for layer in new.layers}
        if len(kinds) > 1:
            names = ", ".join(layer.name for layer in new.layers[:4])
            raise CheckpointError(f"{name}: {names} quantise their inputs differently")
        quant = kinds.pop()
        inverse = any(layer.has_inverse for layer in new.layers)
        old = new.old
        if quant in ("amax", "token") and isinstance(old, RowParallel):
            raise CheckpointError(f"{name}: input_quant={quant!r}: no rank has whole rows")
        if quant is None and any(value.dtype == torch.float32 for value in weights_of(old)):
            raise ValueError(
                f"model: {name} is float32; inputs that are not quantised are float16 or bfloat16: "
                "model.to(torch.bfloat16), or input_quant='dynamic'"
            )
        scaled = {"pre_quant_scale" in layer.sources for layer in new.layers}
        rank = self._low_rank(name, new)
        if not is_linear(old):
            if scaled != {False}:
                raise CheckpointError(f"{name}: experts with a pre_quant_scale are not supported")
            if quant == "amax":
                raise CheckpointError(f"{name}: experts have no input_quant='amax'")
            options: dict[str, Any] = {
                "input_quant": quant,
                "input_scale_inverse": inverse,
                "row_scales": any(map(self._one_for_each_row, new.layers)),
            }
            if isinstance(old, ExpertParallel):
                if quant == "token" and old.tokens == "own":
                    raise CheckpointError(f"{name}: input_quant='token' is for tokens='same'")
                return old.unset(**options)
            return NVFP4Experts(**NVFP4Experts.options_of(old), device="meta", **options)
        if len(scaled) > 1:
            raise CheckpointError(f"{name}: only some of its layers have a pre_quant_scale")
        if isinstance(old, NVFP4Linear):
            plain = (old.bias, old.pre_quant_scale, old.svdquant_lora_a)
            dtype = next((value.dtype for value in plain if value is not None), None)
        else:
            dtype = old.weight.dtype
        options = {
            "input_quant": quant,
            "input_scale_inverse": inverse,
            "pre_quant_scale": scaled.pop(),
            "row_scales": len(new.layers) > 1 or self._one_for_each_row(new.layers[0]),
        }
        if isinstance(old, (ColumnParallel, RowParallel)):
            return old.unset(**options)
        sizes = *sizes_of(old), old.bias is not None
        return NVFP4Linear(*sizes, device="meta", dtype=dtype, low_rank=rank, **options)

    def _low_rank(self, name: str, new: Fused) -> int:
        """The rank of a layer's svdquant_lora_a, or 0."""
        given = [each.sources.get("svdquant_lora_a") for each in new.layers]
        if not any(given):
            return 0
        alone = is_linear(new.old) and not isinstance(new.old, Slice)
        if not alone or len(given) > 1 or given[0] is None:
            what = "a layer of its own, neither fused nor cut nor an expert of a stack"
            raise CheckpointError(f"{name}: has a svdquant_lora_a, expected {what}")
        return self.files.tensors[given[0].name].shape[0]

    def _one_for_each_row(self, layer: Layer) -> bool:
        """Files of a layer that was fused have a global scale for each of its rows."""
        source = layer.sources.get("weight_scale_2")
        shape = self.files.tensors[source.name].shape if source else ()
        weight = self.files.tensors[layer.sources["weight"].name].shape
        return shape != (1,) and shape == weight[:-1]

    def _find_targets(self, model: nn.Module) -> None:
        seen: dict[int, Target] = {}
        for path, old in self.old.items():
            owner: nn.Module = self.modules.get(path, old)
            if isinstance(old, Slice) and path not in self.modules:
                raise CheckpointError(f"{path}: not in NVFP4 in the files, and only that is cut")
            if path not in self.modules and self.replaces(path):
                continue
            for key, value in owner._parameters.items():
                self._target(seen, owner, path, key, value, False)
            for key, value in owner._buffers.items():
                if isinstance(owner, Frozen):
                    continue  # derived from its parameters
                if key not in owner._non_persistent_buffers_set:
                    self._target(seen, owner, path, key, value, True)
                elif value is not None and value.is_meta:
                    raise ValueError(
                        f"model: {path}.{key} is a buffer on the meta device that no file has; "
                        "build the model under nvfp4kern.checkpoint.meta_parameters()"
                    )

    def replaces(self, path: str) -> bool:
        """Whether a module of the model, or one that contains it, becomes an NVFP4 one."""
        parts = path.split(".")
        return any(".".join(parts[: i + 1]) in self.modules for i in range(len(parts)))

    def _target(
        self,
        seen: dict[int, Target],
        owner: nn.Module,
        path: str,
        key: str,
        value: Tensor | None,
        buffer: bool,
    ) -> None:
        if value is None:
            return
        name = f"{path}.{key}" if path else key
        target = seen.get(id(value))
        if target is None:
            dtype = value.dtype
            if dtype in self._in_float32 and self._in_float32[dtype].search(name):
                dtype = torch.float32
            cut = owner.cuts.get(key) if isinstance(owner, Slice) else None
            target = Target(name, value.shape, dtype, value.requires_grad, buffer, [], cut=cut)
            target.missing = target.whole.numel()
            seen[id(value)] = self.targets[name] = target
        elif name != target.name:
            target.tied = True
        if (owner, key) not in target.owners:
            target.owners.append((owner, key))
        self._aliases[name] = target

    # ---------------------------------------------------------------------------------------------
    # Fills
    # ---------------------------------------------------------------------------------------------

    def _fill_layer(self, layer: Layer, to: Destination) -> None:
        if layer.kind == "fp8":
            if is_conv1d(self.old[to.module]):
                raise CheckpointError(f"{layer.name}: is FP8, which a Conv1D is not filled with")
            scale = layer.sources["weight_scale"]
            self._fill_rows(layer.sources["weight"], to, "weight", "fp8", scale)
        else:
            for key in ("weight", "weight_scale"):
                self._fill_rows(layer.sources[key], to, key, "copy")
            self._fill_global(layer, to, "weight_scale_2")
            static = getattr(self.modules[to.module], "input_quant", None) == "static"
            if static and "input_scale" in layer.sources:
                self._fill_global(layer, to, "input_scale")
        for key in ("pre_quant_scale", "svdquant_lora_a"):
            if key in layer.sources and layer.kind == "nvfp4":
                target = self._aliases[f"{to.module}.{key}"]
                self._add(Fill(layer.sources[key], (), target, (), "same"))
        if "svdquant_lora_b" in layer.sources:
            self._fill_rows(layer.sources["svdquant_lora_b"], to, "svdquant_lora_b", "copy")
        if "bias" in layer.sources:
            self._fill_rows(layer.sources["bias"], to, "bias", "copy")

    def _fill_rows(
        self, source: Source, to: Destination, key: str, rule: str, scale: Source | None = None
    ) -> None:
        if to.stack is None:
            name, index = f"{to.module}.{key}", (to.rows,)
        else:
            weight, expert, _ = to.stack
            name = f"{to.module}.{weight}" + ("" if key == "weight" else f"_{key}")
            index = (expert, to.rows)
            self._check_rows(source, to, name)
        target = self._aliases.get(name)
        if target is None:
            self.unexpected.append(source.name)
            return
        self._add(Fill(source, to.source, target, index, rule, scale))

    def _check_rows(self, source: Source, to: Destination, name: str) -> None:
        """One expert's rows, which say where in the stack they go, all go into their half."""
        target = self._aliases.get(name)
        if target is None or to.stack is None:
            return
        rows = target.whole[1] // (2 if to.stack[0] == "gate_up_proj" else 1)
        given = torch.empty(self.files.tensors[source.name].shape, device="meta")[to.source].shape
        if given[0] != rows:
            raise wrong_shape(source, given, (rows, *target.whole[2:]), target)

    def _fill_global(self, layer: Layer, to: Destination, key: str) -> None:
        """A layer, an expert and each half of one have one global scale or one for each row."""
        inverse = key == "input_scale" and layer.has_inverse
        own = f"{key}_inverse" if inverse else key
        if to.stack is None:
            target = self._aliases[f"{to.module}.{own}"]
            where: tuple[Any, ...] = (to.rows,) if len(target.shape) else ()
        else:
            weight, expert, half = to.stack
            target = self._aliases[f"{to.module}.{weight}_{own}"]
            where = (expert, half) if len(target.shape) == 2 else (expert,)
            if key == "weight_scale_2" and getattr(self.modules[to.module], "row_scales", False):
                where = (expert, to.rows)
        if key not in layer.sources:
            for at, _ in slices_of(target, where, (), ()):
                self.constants.append((target, at, layer.constants[key]))
            self._fill_once(target, where)
            return
        source = layer.sources[key]
        shape = self.files.tensors[source.name].shape
        index = to.source
        if torch.Size(shape).numel() == 1:
            index = ()
        elif to.source and isinstance(to.source[0], int):
            halves = {1: 0, 2: int(to.source[1].start > 0)}
            index = (to.source[0], halves.get(math.prod(shape[1:]), to.source[1]))
        rule = "global"
        if key == "input_scale" and to.stack is None:
            rule = "min" if inverse else "max"
        if inverse:
            source = replace(source, divisor=False)
        self._add(Fill(source, index, target, where, rule))

    def _fill_plain(self, name: str) -> None:
        shape = self.files.tensors[name].shape
        for spelling in spellings(name):
            target = self._aliases.get(spelling)
            if target is None:
                continue
            owner = self.modules.get(spelling.rpartition(".")[0])
            if isinstance(owner, NVFP4Experts) and name.endswith(".gate_up_proj_bias"):
                what = "biases of a stack beside single experts, whose order nothing says"
                raise CheckpointError(f"{name}: {what}")
            self._add(Fill(Source(name), (), target, (), "copy"))
            return
        layer, _, key = name.rpartition(".")
        if key in ("weight", "bias"):
            found = destinations(self.old, layer, shape, self._plain_rows(layer))
            for to in found:
                self._fill_rows(Source(name), to, key, "copy")
            if found:
                return
        self.unexpected.append(name)

    def _plain_rows(self, layer: str) -> dict[str, int]:
        """Rows of the layers beside this one in the files, which the model may have fused."""
        parent = layer.rpartition(".")[0]
        found = {}
        for part in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"):
            info = self.files.tensors.get(f"{parent}.{part}.weight")
            if info is not None and info.shape:
                found[f"{parent}.{part}"] = info.shape[0]
        return found

    def _add(self, fill: Fill) -> None:
        """Checks the shapes, and that nothing is filled twice. All ranks check the whole."""
        info, target = self.files.tensors[fill.source.name], fill.target
        part = torch.empty(target.whole, device="meta")
        try:
            part = part[fill.target_index]
        except IndexError:
            raise CheckpointError(
                f"{fill.source.name}: an expert beyond the {target.whole[0]} of {target.name}"
            ) from None
        if fill.rule in ("copy", "same", "fp8"):
            given = torch.empty(info.shape, device="meta")[fill.source_index].shape
            if given != part.shape:
                raise wrong_shape(fill.source, given, part.shape, target)
        first = self._fill_once(target, fill.target_index)
        if (
            first or target.tied or fill.rule in ("max", "min", "same")
        ):  # several, which Filler compares
            for index, given in slices_of(target, fill.target_index, fill.source_index, info.shape):
                self.fills.append(replace(fill, target_index=index, source_index=given))
        else:
            raise CheckpointError(f"{fill.source.name}: {target.name} is filled twice")

    def _fill_once(self, target: Target, index: tuple[Any, ...]) -> bool:
        """Counts what is filled; False where it was already."""
        key = (target.name, repr(index))
        if key in self._filled:
            return False
        self._filled.add(key)
        target.missing -= torch.empty(target.whole, device="meta")[index].numel()
        return True

    def _check(self) -> None:
        missing = [target for target in self.targets.values() if target.missing]
        missing = [target for target in missing if not serves_others(target)]
        if missing:
            names = ", ".join(target.name for target in missing[:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise CheckpointError(f"{names}{more}: the model has them, the files do not")


def slices_of(
    target: Target, index: Index, source_index: Index, source_shape: tuple[int, ...]
) -> Iterable[tuple[Index, Index]]:
    """(index of the target, index of the source) of what this process has of a fill."""
    if target.cut is None:
        return [(index, source_index)]
    return own_slices(target.cut, index, source_index, source_shape)


def wrong_shape(
    source: Source, given: tuple[int, ...], expected: tuple[int, ...], target: Target
) -> CheckpointError:
    came = f"{list(given)}, expected {list(expected)}"
    return CheckpointError(f"{source.name}: {came} as in the model's {target.name}")


def weights_of(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that become codes. An NVFP4 module has none: it has codes already."""
    if isinstance(module, Frozen):
        return []
    return [value for value in module.parameters(recurse=False) if value.dim() > 1]


def serves_others(target: Target) -> bool:
    """Whether a target may stay unset here: an expert's input scale, which calibration may have
    left out. The plan has found one of another expert, or refused the files."""
    return experts_of(target.name) is not None


def in_order(files: Files, fills: list[Fill]) -> Iterator[Fill]:
    """As the tensors lie in the files, shard by shard."""
    order = {name: i for i, name in enumerate(files.tensors)}
    order |= {name: order[made.of[-1]] for name, made in files.made.items()}
    yield from sorted(fills, key=lambda fill: order[fill.source.name])
