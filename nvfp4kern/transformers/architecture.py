"""A model of transformers without its weights: which of a folder's tensors quantize_ would take."""

from collections import defaultdict
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig
from transformers.conversion_mapping import get_model_conversion_mapping

from ..checkpoint.destinations import destinations
from ..nn.chosen import candidates
from ..nn.replacing import why_not_replaced
from .conversion import renamed
from .layers import spellings

Shapes = dict[str, tuple[int, ...]]


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
        rows = {
            spelt: shape[0]
            for name, shape in {**shapes, **kept}.items()
            for spelt in self._spellings(name)
        }
        staying = {each.name: each.why for each in candidates(self.model, exclude, None, None)}
        found: dict[str, str] = {}
        fillers: dict[str, list[str]] = defaultdict(list)
        for name, shape in shapes.items():
            homes = self._homes(name, shape, rows)
            why = next(filter(None, (self._why_not(each, staying) for each in homes)), None)
            if not homes:
                why = f"no linear layer of {self.name}"
            if why:
                found[name] = why
            for each in homes:
                fillers[each].append(name)
        for name, shape in kept.items():
            for each in self._homes(name, shape, rows):
                found |= {one: f"{name} stays, and is fused with it" for one in fillers[each]}
        return found

    def _spellings(self, name: str) -> list[str]:
        inner = renamed(f"{name}.weight", self.conversions).removesuffix(".weight")
        return spellings(inner, self.model.base_model_prefix)

    def _homes(self, name: str, shape: tuple[int, ...], rows: dict[str, int]) -> list[str]:
        for spelt in self._spellings(name):
            found = destinations(self.modules, spelt, shape, rows)
            if found:
                return list(dict.fromkeys(each.module for each in found))
        return []

    def _why_not(self, name: str, staying: dict[str, str | None]) -> str | None:
        module = self.modules[name]
        if name not in staying:
            return f"of a {type(module).__name__}, which quantize_ leaves"
        return staying[name] or why_not_replaced(module)
