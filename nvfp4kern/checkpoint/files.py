"""A checkpoint's files, which are not trusted: everything is checked before a tensor is read.

safetensors checks a header: its length, its JSON, its offsets. What it lets pass is checked here:
names that come twice, an index that does not say what lies in the directory.
"""

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..torch import from_blocked

__all__ = ["CheckpointError", "Files", "TensorInfo"]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLED = "pytorch_model.bin"
JSON_BYTES = 100_000_000
"""Of a JSON file, and of safetensors' header."""
NAME_CHARACTERS = 1000
DIMENSIONS = 64
"""Functions of torch take no more."""
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
    "F4": "float4_e2m1fn_x2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
"""safetensors' name of a dtype -> torch's."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or loaded. Names the file and the tensor."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a header says of a tensor."""

    dtype: str
    """torch's name, such as "uint8" or "float8_e4m3fn"."""
    shape: tuple[int, ...]
    nbytes: int
    shard: str
    """The name of its file."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"{in_short(twice)} is there twice")
    return found


def in_short(text: object) -> str:
    """A name of a file's making as a message shows it: quoted, and not all of a long one."""
    shown = repr(text)
    return shown if len(shown) <= 200 else f"{shown[:200]}..."


def readable(error: object) -> str:
    """What a library says, which may repeat any bytes of the file."""
    return "".join(c if c.isprintable() else "?" for c in str(error))[:300]


def parse_json(text: bytes, file: str) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError for anything else, and where a key comes twice."""
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise CheckpointError(f"{file}: its JSON is nested too deeply") from None
    except ValueError as error:
        raise CheckpointError(f"{file}: not valid JSON: {readable(error)}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: {type(found).__name__}, expected a JSON object")
    return found


def regular_file(path: Path) -> Path:
    """The path of a regular file or of a link to one, as in Hugging Face's cache.

    Raises CheckpointError for anything else, such as a pipe or a device.
    """
    try:
        there = path.is_file()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path.name}: {error}") from None
    if not there:
        what = "not a regular file" if path.exists() else "there is no such file"
        raise CheckpointError(f"{path.name}: {what}")
    return path


def is_there(path: Path) -> bool:
    """True also for a link that leads nowhere: it is refused then, not passed over."""
    return path.is_symlink() or path.exists()


def read_json(path: Path) -> dict[str, Any]:
    try:
        size = regular_file(path).stat().st_size
        if size > JSON_BYTES:
            expected = f"expected at most {JSON_BYTES}"
            raise CheckpointError(f"{path.name}: {size} bytes of JSON, {expected}")
        return parse_json(path.read_bytes(), path.name)
    except OSError as error:
        raise CheckpointError(f"{path.name}: {error.strerror}") from None


def check_name(name: object, file: str) -> str:
    """A tensor's name that can be printed."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS or not name.isprintable():
        expected = f"expected 1 to {NAME_CHARACTERS} printable characters"
        raise CheckpointError(f"{file}: {in_short(name)} as a tensor's name, {expected}")
    return name


def check_shape(shape: tuple[int, ...], where: str) -> tuple[int, ...]:
    """A shape that torch can have. One with a size of 0 could have any sizes beside it."""
    if len(shape) > DIMENSIONS:
        raise CheckpointError(f"{where}: {len(shape)} dimensions, expected at most {DIMENSIONS}")
    if math.prod(max(size, 1) for size in shape) >= 2**63:
        raise CheckpointError(f"{where}: {list(shape)}, expected sizes with a product below 2^63")
    return shape


class Files:
    """The tensors and the configuration of a checkpoint.

    `path` is a directory or one file. A directory has config.json, perhaps hf_quant_config.json,
    and its tensors in the first of these that is there: shards with model.safetensors.index.json,
    model.safetensors, other *.safetensors files, pytorch_model.bin. One file is read alone: a
    *.safetensors file, or one by torch.save (.pt, .pth, .bin).

    Everything that headers say is checked here, and no tensor is read. Raises CheckpointError,
    which names the file and the tensor.

    `.config` is what config.json says, {} without one. `.tensors` has a TensorInfo for each name.
    `.metadata` has what each shard's header says beside its tensors, by shard.
    `.nbytes_read` is how many bytes of tensors have been read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        self._handles: dict[str, Any] = {}
        self._quantization: dict[str, Any] | None = None
        self._linear: dict[str, tuple[int, ...]] = {}
        self._last_linear: tuple[str, torch.Tensor] | None = None
        self.nbytes_read = 0
        if self.path.is_dir():
            self._directory = self.path
            if is_there(self.path / "config.json"):
                self.config = read_json(self.path / "config.json")
            index = self._read_index()
            shards = sorted(set(index.values())) if index else self._unindexed()
        else:
            self._directory = regular_file(self.path).parent
            index, shards = {}, [self.path.name]
        for shard in shards:
            if shard.endswith(".safetensors"):
                self._open(shard)
            else:
                self._unpickle(shard)
        for name, shard in index.items():
            if name not in self.tensors or self.tensors[name].shard != shard:
                raise CheckpointError(f"{shard}: has no {name}, which {INDEX} says it has")
        self._quantization = self._find_quantization()

    @property
    def quantization(self) -> dict[str, Any] | None:
        """config.json's quantization_config, or what hf_quant_config.json says, or None."""
        return self._quantization

    def read(self, name: str, index: tuple[Any, ...] = ()) -> torch.Tensor:
        """A tensor on the CPU, or tensor[index], mapped from its file: do not write to it.

        index: numbers and slices. Nothing else of the tensor is read, but where its scale factors
        are blocked in the file.
        """
        return self._read_blocked(name)[index] if name in self._linear else self._read(name, index)

    def _read(self, name: str, index: tuple[Any, ...]) -> torch.Tensor:
        info = self.tensors[name]
        try:
            handle = self._handles[info.shard]
            found = handle.get_slice(name)[index] if index else handle.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError, LookupError, ValueError) as error:
            raise CheckpointError(f"{info.shard}: {name}: {readable(error)}") from None
        assert isinstance(found, torch.Tensor)
        self.nbytes_read += found.nbytes
        return found

    def _read_blocked(self, name: str) -> torch.Tensor:
        """All of it, as linear. The last one is kept: experts are taken from it one by one."""
        if self._last_linear is None or self._last_linear[0] != name:
            *batch, rows, columns = shape = self._linear[name]
            stored = self._read(name, ()).flatten()
            linear = from_blocked(stored, math.prod(batch) * rows, columns).reshape(shape)
            self._last_linear = name, linear
        return self._last_linear[1]

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

    def numbers(self, name: str) -> list[float]:
        """The values of a small tensor, such as a global scale."""
        return [float(x) for x in self.read(name).flatten().tolist()]

    # -------------------------------------------------------------------------------------------

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
        path = regular_file(self._directory / shard)
        try:
            self._handles[shard] = safe_open(path, framework="pt")
            header = self._header(path)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise CheckpointError(f"{shard}: {readable(error)}") from None
        metadata = header.pop("__metadata__", {})
        self.metadata[shard] = metadata if isinstance(metadata, dict) else {}
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            check_name(name, shard)
            if name in self.tensors:
                other = self.tensors[name].shard
                raise CheckpointError(f"{shard}: {name}: is in {other} too")
            begin, end = entry["data_offsets"]
            dtype = DTYPES.get(entry["dtype"], entry["dtype"])
            shape = check_shape(tuple(entry["shape"]), f"{shard}: {name}")
            self.tensors[name] = TensorInfo(dtype, shape, end - begin, shard)

    def _unpickle(self, file: str) -> None:
        """Reads a file by torch.save. For others safetensors says what is wrong."""
        from .pickled import SUFFIXES, Pickled

        if not file.endswith(SUFFIXES):
            self._open(file)
            return
        pickled = Pickled(regular_file(self._directory / file))
        self._handles[file] = pickled
        self.metadata[file] = pickled.metadata
        self.tensors |= pickled.infos()

    @staticmethod
    def _header(path: Path) -> dict[str, Any]:
        """The header, once more: of two tensors with one name safetensors keeps the last."""
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            return parse_json(file.read(length), f"{path.name}: header")
