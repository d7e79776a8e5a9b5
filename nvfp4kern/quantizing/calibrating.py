"""What a text says of the inputs of a folder's layers: static scales, and Hessians for "gptq"."""

import math
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..checkpoint.files import Files
from ..nn.gptq import Compensation, Hessians
from ..nn.recipes import CODE_VALUES, MOST
from .choice import Choice, Weight
from .shards import fsync

if TYPE_CHECKING:
    from ..transformers.architecture import Product

__all__ = ["Compensations", "calibrated"]


def calibrated(
    files: Files, found: Choice, text: str, static: bool, hessians: Path | None, offload: Path
) -> dict[str, Any]:
    """Runs the model. "scales": the input_scale of each layer, where `static`. "hessians": the
    files in the folder `hessians` whose sum is a layer's; a layer that no token reached has none.

    Raises ValueError for a layer that cannot have a static scale.
    """
    from ..transformers.architecture import Architecture
    from ..transformers.calibration import Largest, run_text

    architecture = Architecture(files.path)
    shapes = {
        tensor.removesuffix(".weight"): files.tensors[tensor].shape for tensor in found.weights
    }
    products = architecture.inputs_of(shapes)
    wanted = {
        (each.name, each.expert): shapes[name][-1] for name, own in products.items() for each in own
    }
    largest, stored = Largest(), None if hessians is None else Stored(hessians, wanted)
    watchers = [each for each in (largest if static else None, stored) if each is not None]
    run_text(architecture, files.path, text, offload, watchers)
    made: dict[str, Any] = {"scales": {}, "hessians": {}}
    for weights in found.weights.values():
        for weight in weights:
            own = [
                product
                for product in products[weight.tensor.removesuffix(".weight")]
                if weight.index is None or product.source in (None, weight.index[0])
            ]
            if static:
                made["scales"][weight.name] = scale_of(weight, own, largest.values)
            if stored is not None:
                keys = [(product.name, product.expert) for product in own]
                files_of = sorted({stored.names[key] for key in keys if key in stored.names})
                made["hessians"][weight.name] = files_of
    if stored is not None:
        stored.sync()
    return made


def scale_of(weight: Weight, products: list["Product"], largest: dict[str, Tensor]) -> float:
    value = max((float(largest.get(each.name, 0.0)) for each in products), default=0.0)
    if not 0 < value < math.inf:
        what = "no token reached it" if not value else f"its input has {value:g}"
        raise ValueError(f"--calibrate: {weight.name}: {what}; --exclude it")
    return value / (CODE_VALUES[-1] * MOST)


class Stored(Hessians):
    """Hessians that are files in a folder, mapped: memory need not hold them all."""

    def __init__(self, folder: Path, wanted: dict[tuple[str, int | None], int]) -> None:
        """wanted: K by layer, or by the weight of a stack and the expert.

        Raises OSError where the disk has no room for them.
        """
        super().__init__(self._file)
        self.wanted = wanted
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        needed, free = sum(4 * k * k for k in wanted.values()), shutil.disk_usage(folder).free
        if free < needed:
            what = f"{needed} bytes are needed for Hessians, {free} are free"
            raise OSError(f"{folder}: {what}")
        self.folder = folder
        self.names: dict[tuple[str, int | None], str] = {}

    def see(self, name: str, expert: int | None, given: Tensor) -> None:
        if (name, expert) in self.wanted:
            super().see(name, expert, given)

    def _file(self, name: str, expert: int | None, k: int) -> Tensor:
        path = self.folder / str(len(self.names))
        with open(path, "wb") as file:  # a full disk would end the process in the mapping
            os.posix_fallocate(file.fileno(), 0, k * k * 4)
        self.names[name, expert] = path.name
        return torch.from_file(str(path), True, k * k, dtype=torch.float32).view(k, k)

    def sync(self) -> None:
        self.values.clear()
        for name in self.names.values():
            fsync(self.folder / name)
        fsync(self.folder)


class Compensations:
    """Those of layers by name, of which the last one is held."""

    def __init__(self, folder: Path, files: dict[str, list[str]]) -> None:
        self.folder, self.files = folder, files
        self._last: tuple[list[str], Compensation] | None = None

    def of(self, weight: Weight) -> Compensation | None:
        """None where no token reached it. Raises ValueError for inputs that are not finite."""
        names, shape = self.files[weight.name], (weight.columns, weight.columns)
        if not names:
            return None
        if self._last is None or self._last[0] != names:
            self._last = None
            numel = weight.columns**2
            parts = [
                torch.from_file(str(self.folder / name), False, numel, dtype=torch.float32)
                for name in names
            ]
            total = parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
            try:
                self._last = names, Compensation(total.view(shape))
            except ValueError as error:
                raise ValueError(f"--calibrate: {weight.name}: {error}; --exclude it") from None
        return self._last[1]
