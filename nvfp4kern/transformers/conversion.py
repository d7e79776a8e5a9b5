"""How transformers' loader fills the layers: one converter for all of their tensors.

transformers finds the parameter that a tensor fills by patterns of names, which match differently
in each of its versions. Here the plan of the files says what fills what: names are looked up.
Values are made as `nvfp4kern.checkpoint` makes them.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps, WeightConverter, WeightRenaming

from ..checkpoint.assign import Assignment, Fill
from ..checkpoint.files import NONE, Files, Index
from ..checkpoint.fill import Filler

PATTERN = "nvfp4kern"


def renamed(key: str, conversions: Iterable[Any]) -> str:
    """What transformers makes of a tensor's name before it looks for a converter."""
    for each in conversions:
        if isinstance(each, WeightRenaming):
            key, _ = each.rename_source_key(key)
    return key


def tensors_of(files: Files, fill: Fill) -> list[str]:
    given = [source.name for source in (fill.source, fill.scale) if source]
    return [stored for name in given for stored in files.stored_of(name)]


def groups_of(files: Files, fills: Iterable[Fill]) -> list[list[Fill]]:
    """Puts fills together that have a tensor or a parameter in common, as a fused layer's have."""

    def keys_of(fill: Fill) -> list[tuple[str, str]]:
        tensors = [("tensor", name) for name in tensors_of(files, fill)]
        return [("parameter", fill.target.name), *tensors]

    groups: dict[tuple[str, str], list[Fill]] = {}
    for fill in fills:
        keys = keys_of(fill)
        known = list({id(groups[key]): groups[key] for key in keys if key in groups}.values())
        group = known[0] if known else []
        for other in known[1:]:
            group += other
            groups.update((key, group) for each in other for key in keys_of(each))
        group.append(fill)
        groups.update(dict.fromkeys(keys, group))
    return list({id(group): group for group in groups.values()}.values())


class Loading:
    """What is known about the loading of one model, and what went wrong in it."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        groups = groups_of(assignment.files, assignment.fills)
        self.groups = {group[0].target.name: group for group in groups}
        self.errors: list[Exception] = []

    def routes(self, conversions: list[Any]) -> dict[str, str]:
        """Tensor, as transformers' conversions rename it -> the first parameter of its group."""
        return {
            renamed(tensor, conversions): first
            for first, group in self.groups.items()
            for fill in group
            for tensor in tensors_of(self.assignment.files, fill)
        }

    def make(self, first: str, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """The parameters of a group, of its tensors."""
        device = next(iter(given.values())).device
        filler = Filler(_Given(self.assignment.files, given), self.assignment, device)
        made: dict[str, Tensor] = {}
        for fill in self.groups[first]:
            try:
                filler.fill(fill)
            except Exception as error:  # raised later: transformers would write it to a log
                self.errors.append(error)
        for target in {fill.target.name: fill.target for fill in self.groups[first]}.values():
            value, target.tensor = filler.allocate(target), None
            made[target.name] = nn.Parameter(value, requires_grad=target.requires_grad)
        return made

    def complete(self, model: nn.Module) -> None:
        """Fills in what the files leave out and other values give. Call it after the loading."""
        targets = self.assignment.targets.values()
        if not any(target.missing for target in targets):
            return
        for target in targets:
            if target.dtype == torch.float32:
                target.tensor = model.get_parameter(target.name).data
                if target.missing == target.shape.numel():  # as transformers allocated it
                    target.tensor.fill_(torch.nan)
        Filler(self.assignment.files, self.assignment, torch.device("cpu")).complete()


class _Given(Files):
    """Files whose tensors have been read already, and perhaps cast."""

    def __init__(self, files: Files, tensors: dict[str, Tensor]) -> None:
        self.tensors, self.made, self._last = files.tensors, files.made, None
        self._given, self._files = tensors, files

    def read(self, name: str, index: Index = (), buffer: bytearray = NONE) -> Tensor:
        if name in self.made:
            return self.made[name].make(self.stored, index)
        return self.stored(name, index)

    def stored(self, name: str, index: Index = ()) -> Tensor:
        was = self._files.layout(name)
        return self._given[name].reshape(was.shape)[index].to(getattr(torch, was.dtype))


class _Make(ConversionOps):
    def __init__(self, loading: Loading) -> None:
        self.loading = loading

    def convert(self, input_dict: dict[str, Any], *_: Any, **named: Any) -> dict[str, Any]:
        given = {name: tensors[0] for name, tensors in input_dict.items()}
        return self.loading.make(named["full_layer_name"], given)


class Converter(WeightConverter):
    """Takes every tensor of the layers to its group, before transformers' converters."""

    __slots__ = ("loading", "routes")

    def __init__(self, loading: Loading, routes: dict[str, str]) -> None:
        super().__init__(PATTERN, PATTERN, [_Make(loading)])
        self.loading, self.routes = loading, routes

    def rename_source_key(self, source_key: str) -> tuple[str, str | None]:
        found = self.routes.get(source_key)
        return (source_key, None) if found is None else (found, PATTERN)

    def add_tensor(
        self, target_key: str, source_key: str, source_pattern: str, future: Any
    ) -> None:
        """Keeps tensors by their own names. transformers would go by the pattern and the order."""
        super().add_tensor(target_key, source_key, source_key, future)

    def __deepcopy__(self, memo: Any) -> "Converter":
        """transformers makes one for each group."""
        return Converter(self.loading, self.routes)
