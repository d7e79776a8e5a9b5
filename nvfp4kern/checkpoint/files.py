"""A checkpoint's files, which are not trusted: everything is checked before a tensor is read."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from ..torch import from_blocked
from .headers import read_header
from .opened import Opened, Stored, is_there, read_json, row_major
from .pickled import SUFFIXES, read_pickled
from .untrusted import CheckpointError, check_name, in_short

__all__ = ["CheckpointError", "Files", "TensorInfo"]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLED = "pytorch_model.bin"
INCOMPLETE = ".incomplete-"
"""A folder of save_checkpoint's begins so, while it writes."""
NONE = bytearray()
Index: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a header says of a tensor."""

    dtype: str
    """torch's name, such as "uint8" or "float8_e4m3fn"."""
    shape: tuple[int, ...]
    nbytes: int
    shard: str
    """The name of its file."""


@dataclass(frozen=True)
class Made:
    """How a tensor is read that is listed otherwise than it is stored, or not stored at all."""

    of: tuple[str, ...]
    """The stored tensors that it is made of."""
    make: Callable[[Callable[[str, Index], torch.Tensor], Index], torch.Tensor]
    """(stored, index) -> tensor[index], where stored(name, index) reads what is stored."""


class Files:
    """The tensors and the configuration of a checkpoint.

    `path` is a directory or one file. A directory has config.json, perhaps hf_quant_config.json,
    and its tensors in the first of these that is there: shards with model.safetensors.index.json,
    model.safetensors, other *.safetensors files, pytorch_model.bin. One file is read alone: a
    *.safetensors file, or one by torch.save (.pt, .pth, .bin).

    Everything that headers say is checked here, and no tensor is read. Raises CheckpointError,
    which names the file and the tensor. The files stay open until `close`, or the end of `with`.

    `.config` is what config.json says, {} without one. `.tensors` has a TensorInfo for each name.
    `.metadata` has what each shard's header says beside its tensors, by shard.
    `.nbytes_read` is how many bytes of tensors have been read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        self._opened: dict[str, Opened] = {}
        self._stored: dict[str, Stored] = {}
        self._quantization: dict[str, Any] | None = None
        self._linear: dict[str, tuple[int, ...]] = {}
        self._last: tuple[Any, Any] | None = None
        self.made: dict[str, Made] = {}
        self.nbytes_read = 0
        try:
            self._open_all()
        except BaseException:
            self.close()
            raise
        self._headers = dict(self.tensors), dict(self._stored)

    def close(self) -> None:
        """What headers say stays known."""
        for opened in self._opened.values():
            opened.close()

    def __enter__(self) -> "Files":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def quantization(self) -> dict[str, Any] | None:
        """config.json's quantization_config, or what hf_quant_config.json says, or None."""
        return self._quantization

    def read(self, name: str, index: Index = (), buffer: bytearray = NONE) -> torch.Tensor:
        """A tensor on the CPU, or tensor[index]: do not write to it.

        index: numbers and slices. Nothing else of the tensor is read, but where its scale factors
        are blocked in the file.
        buffer: becomes the tensor's memory where it is large enough. Memory that has been used
        before is faster than new one.
        """
        if name in self._linear:
            return self._read_blocked(name)[index]
        if name in self.made:
            return self.made[name].make(self.stored, index)
        return self._read(name, index, buffer)

    def pieces(self, name: str, nbytes: int = 1 << 22) -> Iterator[bytearray]:
        """A tensor's bytes as they lie in its file, so many at a time."""
        opened, stored = self._opened[self.tensors[name].shard], self._stored[name]
        for at in range(0, stored.nbytes, nbytes):
            yield opened.read(stored.begin + at, min(nbytes, stored.nbytes - at))

    def stored(self, name: str, index: Index = ()) -> torch.Tensor:
        """A tensor as it is stored, or tensor[index]."""
        return self._read(name, index, NONE)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """make(), or what it returned for this key, if that was the last one."""
        if self._last is None or self._last[0] != key:
            self._last = None  # its memory may be needed
            self._last = key, make()
        return self._last[1]

    def stored_of(self, name: str) -> tuple[str, ...]:
        """The stored tensors that are read for a listed one."""
        return self.made[name].of if name in self.made else (name,)

    def layout(self, name: str) -> Stored:
        """How a tensor is stored, but for dimensions that are flattened."""
        return self._stored[name]

    def list_anew(self) -> None:
        """Lists all tensors as headers do: what `make` and the like said is forgotten."""
        self.tensors, self._stored = (dict(each) for each in self._headers)
        self.made, self._linear = {}, {}

    def make(self, name: str, dtype: str, shape: tuple[int, ...], made: Made) -> None:
        """From now on `name` is listed so, and read as `made` says."""
        known = self.tensors.get(name)
        shard = known.shard if known else self.tensors[made.of[0]].shard
        self.tensors[name] = TensorInfo(dtype, shape, known.nbytes if known else 0, shard)
        self.made[name] = made

    def transpose(self, name: str) -> None:
        """From now on a tensor's last two dimensions are the other way round."""
        info = self.tensors[name]
        *outer, a, b = info.shape

        def make(stored: Callable[[str, Index], torch.Tensor], index: Index) -> torch.Tensor:
            *first, rows, columns = (*index, *(slice(None),) * (len(info.shape) - len(index)))
            return stored(name, (*first, columns, rows)).transpose(-1, -2)

        self.make(name, info.dtype, (*outer, b, a), Made((name,), make))

    def part_by_turns(self, name: str) -> None:
        """From now on rows 2i and 2i + 1 of a stack's matrices are rows i of two halves."""
        info, before = self.tensors[name], self.made.get(name)

        def make(stored: Callable[[str, Index], torch.Tensor], index: Index) -> torch.Tensor:
            first = index[:1]
            whole = before.make(stored, first) if before else stored(name, first)
            if whole.dtype.itemsize == 1:
                whole = whole.view(torch.uint8)
            dim = whole.dim() - len(info.shape) + 1
            halves = torch.cat(whole.unflatten(dim, (-1, 2)).unbind(dim + 1), dim)
            found = halves[(slice(None),) * dim + index[1:]]
            return found.view(getattr(torch, info.dtype))

        self.make(name, info.dtype, info.shape, Made(before.of if before else (name,), make))

    def flatten(self, name: str) -> None:
        """From now on a tensor's last two dimensions are one."""
        info, stored = self.tensors[name], self._stored[name]
        *outer, a, b = info.shape
        shape = (*outer, a * b)
        if stored.strides == row_major(info.shape):
            self.tensors[name] = replace(info, shape=shape)
            self._stored[name] = replace(stored, shape=shape, strides=row_major(shape))
        else:
            whole = Made((name,), lambda stored, index: stored(name, ()).flatten(-2)[index])
            self.make(name, info.dtype, shape, whole)

    def _read(self, name: str, index: Index, buffer: bytearray) -> torch.Tensor:
        shard = self.tensors[name].shard
        try:
            found = self._opened[shard].tensor(self._stored[name], index, buffer)
        except LookupError as error:
            raise CheckpointError(f"{shard}: {name}: {error}") from None
        self.nbytes_read += found.nbytes
        return found

    def _read_blocked(self, name: str) -> torch.Tensor:
        """All of it, as linear. Experts are taken from it one by one."""
        *batch, rows, columns = shape = self._linear[name]

        def make() -> torch.Tensor:
            stored = self._read(name, (), NONE).flatten()
            return from_blocked(stored, math.prod(batch) * rows, columns).reshape(shape)

        return self.once(name, make)

    def unblock(self, name: str, shape: tuple[int, ...]) -> bool:
        """Takes scale factors as blocked: from now on they are listed and read as linear.

        shape: their linear shape. The blocked layout runs over all its rows.
        Returns False, and changes nothing, where the tensor's size or dtype does not fit.
        """
        *batch, rows, columns = shape
        info = self.tensors[name]
        padded = -(-math.prod(batch) * rows // 128) * -(-columns // 4) * 512
        if self._linear.get(name) == shape:
            return True
        if info.dtype != "float8_e4m3fn" or math.prod(info.shape) != padded:
            return False
        self._linear[name] = shape
        self.tensors[name] = replace(info, shape=shape)
        return True

    def check(self) -> None:
        """Raises CheckpointError where a file was written to since it was opened."""
        for opened in self._opened.values():
            opened.check()

    def numbers(self, name: str) -> list[float]:
        """The values of a small tensor, such as a global scale."""
        return [float(x) for x in self.read(name).flatten().tolist()]

    # -------------------------------------------------------------------------------------------

    def _open_all(self) -> None:
        if self.path.is_dir():
            self._directory = self.path
            if any(self.path.glob(f"{INCOMPLETE}*/*")):  # an empty one has given all it had
                left = f"has a folder {INCOMPLETE}*, which a save_checkpoint that was killed leaves"
                raise CheckpointError(f"{self.path.name}: {left}")
            if is_there(self.path / "config.json"):
                self.config = read_json(self.path / "config.json")
            index = self._read_index()
            shards = sorted(set(index.values())) if index else self._unindexed()
        else:
            self._directory = self.path.parent
            index, shards = {}, [self.path.name]
        for shard in shards:
            self._open(shard)
        for name, shard in index.items():
            if name not in self.tensors or self.tensors[name].shard != shard:
                raise CheckpointError(f"{shard}: has no {name}, which {INDEX} says it has")
        self._quantization = self._find_quantization()

    def _find_quantization(self) -> dict[str, Any] | None:
        for where, config in self._configs():
            found = config.get("quantization_config", config.get("compression_config"))
            if found is not None:
                if not isinstance(found, dict):
                    came = type(found).__name__
                    raise CheckpointError(f"{where}: {came}, expected an object")
                return found
        other = self._directory / "hf_quant_config.json"
        return read_json(other) if self.path.is_dir() and is_there(other) else None

    def _configs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What may hold quantization_config: config.json, or a multimodal model's text_config."""
        yield "config.json: quantization_config", self.config
        text = self.config.get("text_config")
        if isinstance(text, dict):
            yield "config.json: text_config.quantization_config", text

    def _read_index(self) -> dict[str, str]:
        """name -> shard, with shards that are names of files in the directory."""
        path = self.path / INDEX
        if not is_there(path):
            return {}
        weight_map = read_json(path).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{INDEX}: weight_map: expected an object with the tensors")
        for name, shard in weight_map.items():
            check_name(name, INDEX)
            plain = isinstance(shard, str) and len(shard) <= 255 and shard.isprintable()
            if not plain or "/" in shard or "\\" in shard or not shard.endswith(".safetensors"):
                expected = "expected the name of a .safetensors file in this directory"
                raise CheckpointError(f"{INDEX}: {name}: {in_short(shard)}, {expected}")
        if is_there(self.path / SINGLE) and SINGLE not in weight_map.values():
            raise CheckpointError(f"{INDEX}: does not name {SINGLE}, which is there too")
        return weight_map

    def _unindexed(self) -> list[str]:
        if is_there(self.path / SINGLE):
            return [SINGLE]
        found = sorted(path.name for path in self.path.glob("*.safetensors"))
        if not found and is_there(self.path / PICKLED):
            return [PICKLED]
        if not found:
            raise CheckpointError(f"{self.path.name}: no *.safetensors file in this directory")
        return found

    def _open(self, shard: str) -> None:
        if not shard.isprintable():
            raise CheckpointError(f"{in_short(shard)}: a file's name that cannot be printed")
        file = self._opened[shard] = Opened(self._directory / shard)
        read = read_pickled if shard.endswith(SUFFIXES) else read_header
        stored, self.metadata[shard] = read(file)
        for name, each in stored.items():
            if name in self.tensors:
                other = self.tensors[name].shard
                raise CheckpointError(f"{shard}: {name}: is in {other} too")
            self.tensors[name] = TensorInfo(each.dtype, each.shape, each.nbytes, shard)
        self._stored |= stored
