"""A model of transformers without its weights: which of a folder's tensors quantize_ would take."""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from transformers import AutoConfig
from transformers.conversion_mapping import get_model_conversion_mapping

from ..checkpoint.destinations import Destination, destinations
from ..nn.chosen import candidates
from ..nn.linear import is_conv1d
from ..nn.replacing import why_not_replaced
from ..nn.stacks import Gate, gate_of
from .conversion import renamed
from .layers import spellings

Shapes = dict[str, tuple[int, ...]]


class Product(NamedTuple):
    """What a layer of the files computes in the model."""

    name: str
    """Of a linear layer, or of a stack and its weight."""
    expert: int | None
    """In the model's stack."""
    source: int | None
    """In the files' stack: the expert."""


class Architecture:
    """The model of a folder's config.json, on the meta device.

    Raises ValueError, and whatever transformers raises, where it has none.
    """

    def __init__(self, folder: Path) -> None:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        self.name = next(iter(config.architectures or ()), "")
        made = getattr(transformers, self.name, None)
        if made is None:
            raise ValueError(f"architectures: {self.name!r}")
        with torch.device("meta"):
            self.model = made._from_config(config, dtype=torch.bfloat16)
        self.modules = dict(self.model.named_modules(remove_duplicate=False))
        self.conversions = get_model_conversion_mapping(self.model)

    def why_not(self, shapes: Shapes, kept: Shapes, exclude: tuple[str, ...]) -> dict[str, str]:
        """Layer of the files -> why it stays. Those that quantize_ would replace are not in it.

        shapes: of the layers' weights. kept: of others, which stay anyhow.
        """
        rows = self._rows({**shapes, **kept})
        staying = {each.name: each.why for each in candidates(self.model, exclude, None, None)}
        found: dict[str, str] = {}
        fillers: dict[str, list[str]] = defaultdict(list)
        for name, shape in shapes.items():
            homes = list(dict.fromkeys(each.module for each in self._homes(name, shape, rows)))
            why = next(filter(None, (self._why_not(each, staying) for each in homes)), None)
            if not homes:
                why = f"no linear layer of {self.name}"
            if why:
                found[name] = why
            for each in homes:
                fillers[each].append(name)
        for name, shape in kept.items():
            for home in self._homes(name, shape, rows):
                fused = fillers[home.module]
                found |= dict.fromkeys(fused, f"{name} stays, and is fused with it")
        return found

    def _spellings(self, name: str) -> list[str]:
        inner = renamed(f"{name}.weight", self.conversions).removesuffix(".weight")
        return spellings(inner, self.model.base_model_prefix)

    def inputs_of(self, shapes: Shapes) -> dict[str, list[Product]]:
        """Layer of the files -> the products of the model that it has a part in."""
        rows = self._rows(shapes)
        return {
            name: [
                Product(
                    each.module if each.stack is None else f"{each.module}.{each.stack[0]}",
                    None if each.stack is None else each.stack[1],
                    each.source[0] if len(shape) == 3 else None,
                )
                for each in self._homes(name, shape, rows)
            ]
            for name, shape in shapes.items()
        }

    def by_turns(self, shapes: Shapes) -> set[str]:
        """Those whose rows are gate, up, gate, up."""
        rows = self._rows(shapes)
        found = set()
        for name, shape in shapes.items():
            if len(shape) == 3 and name.endswith("gate_up_proj"):
                homes = {each.module for each in self._homes(name, shape, rows)}
                gates = [gate_of(self.modules[home]) for home in homes]
                if any(isinstance(gate, Gate) and gate.interleaved for gate in gates):
                    found.add(name)
        return found

    def _rows(self, shapes: Shapes) -> dict[str, int]:
        named = shapes.items()
        return {spelt: shape[0] for name, shape in named for spelt in self._spellings(name)}

    def _homes(self, name: str, shape: tuple[int, ...], rows: dict[str, int]) -> list[Destination]:
        for spelt in self._spellings(name):
            found = destinations(self.modules, spelt, shape, rows)
            if found:
                return found
        return []

    def _why_not(self, name: str, staying: dict[str, str | None]) -> str | None:
        module = self.modules[name]
        if is_conv1d(module):
            return "of a Conv1D, whose weight is [K, N]; quantize_ takes it"
        if name not in staying:
            return f"of a {type(module).__name__}, which quantize_ leaves"
        return staying[name] or why_not_replaced(module)
