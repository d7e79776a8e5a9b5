"""Files by torch.save, read as weights only: tensors, and torchao's NVFP4Tensor without torchao."""

import json
import math
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.serialization import safe_globals

from .files import CheckpointError, TensorInfo, check_name, in_short, readable

SUFFIXES = (".pt", ".pth", ".bin")
MODULE = "torchao.prototype.mx_formats.nvfp4_tensor"
TENSORS = ("qdata", "scale", "per_tensor_scale", "act_per_tensor_scale")
MOST = 10**6
"""The largest number that an attribute may be."""


def _check_zip(path: Path) -> None:
    """Refuses compressed entries. torch.save makes none, and torch.load inflates them to any
    size."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as file:
        for entry in file.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
                raise ValueError(f"{readable(entry.filename)} is compressed")


class NVFP4Tensor(Tensor):
    """Stands in for torchao's class. It keeps the attributes and has no operations."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func} of a tensor that only holds what a file says")


class Activations:
    """Stands in for torchao's QuantizeTensorToNVFP4Kwargs."""


def _stands_for(value: object, ours: type, name: str) -> bool:
    """Whether a value is of our class, or of torchao's: torch.load may find that one imported."""
    found = type(value)
    return found is ours or (found.__module__, found.__qualname__) == (MODULE, name)


class Pickled:
    """A dictionary of tensors by torch.save, mapped into memory. Parts have safetensors' names.

    `.metadata` is what torchao's safetensors support writes into a header. Raises CheckpointError
    where the file has more than weights, which torch.load refuses, or a tensor is not a plain one.
    """

    def __init__(self, path: Path) -> None:
        self.file = path.name
        self.metadata: dict[str, str] = {}
        self._tensors: dict[str, Tensor] = {}
        names = {"NVFP4Tensor": NVFP4Tensor, "QuantizeTensorToNVFP4Kwargs": Activations}
        allowed: list[Any] = [(thing, f"{MODULE}.{name}") for name, thing in names.items()]
        try:
            _check_zip(path)
            with safe_globals(allowed):
                found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # whatever a pickle makes of its reader
            raise CheckpointError(f"{self.file}: torch.load: {readable(error)}") from None
        if not isinstance(found, dict):
            raise CheckpointError(f"{self.file}: {type(found).__name__}, expected a dictionary")
        for name, value in found.items():
            self._add(check_name(name, self.file), value)
        if self.metadata:
            self.metadata["tensor_names"] = "[]"  # its presence says that torchao wrote the rest

    def get_tensor(self, name: str) -> Tensor:
        return self._tensors[name].contiguous()

    def get_slice(self, name: str) -> Tensor:
        """A tensor to take an index of."""
        return self._tensors[name]

    def infos(self) -> dict[str, TensorInfo]:
        return {
            name: TensorInfo(
                str(tensor.dtype).removeprefix("torch."),
                tuple(tensor.shape),
                tensor.numel() * tensor.element_size(),
                self.file,
            )
            for name, tensor in self._tensors.items()
        }

    def _add(self, name: str, value: object) -> None:
        if not _stands_for(value, NVFP4Tensor, "NVFP4Tensor"):
            self._put(name, value)
            return
        module, _, own = name.rpartition(".")
        for part in TENSORS:
            tensor = value.__dict__.get(part)
            if tensor is not None:
                self._put(f"{module}._{own}_{part}" if module else f"_{own}_{part}", tensor)
        kept: dict[str, object] = {
            key: self._number(name, value, key) for key in ("block_size", "is_swizzled_scales")
        }
        activations = value.__dict__.get("act_quant_kwargs")
        if _stands_for(activations, Activations, "QuantizeTensorToNVFP4Kwargs"):
            dynamic = "use_dynamic_per_tensor_scale"
            number = self._number(name, activations, dynamic)
            kept["act_quant_kwargs"] = {"_data": {dynamic: number}}
        elif activations is not None:
            came = in_short(type(activations).__name__)
            raise CheckpointError(f"{self.file}: {name}: act_quant_kwargs: {came}")
        self.metadata[name] = json.dumps({"_type": "NVFP4Tensor", "_data": kept})

    def _number(self, name: str, holder: object, key: str) -> object:
        """A small number. A list could hold itself, and its JSON would have no end."""
        found = holder.__dict__.get(key)
        if found is not None and (type(found) not in (int, bool) or abs(found) > MOST):
            came = in_short(type(found).__name__)
            raise CheckpointError(f"{self.file}: {name}: {key}: {came}, expected a small number")
        return found

    def _put(self, name: str, value: object) -> None:
        plain = type(value) in (Tensor, torch.nn.Parameter)
        if not plain or value.layout is not torch.strided or value.device.type != "cpu":
            came = in_short(type(value).__name__)
            raise CheckpointError(f"{self.file}: {name}: {came}, expected a plain tensor")
        if name in self._tensors:
            raise CheckpointError(f"{self.file}: {name}: is there twice")
        held = value.untyped_storage().nbytes()
        if math.prod(value.shape) * value.element_size() > held:
            raise CheckpointError(f"{self.file}: {name}: more elements than the file has")
        self._tensors[name] = value.detach()
