"""A safetensors file whose tensors are written piece by piece, in any order, and again."""

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path

from ..checkpoint.headers import DTYPES

__all__ = ["Shard", "fsync"]

SPELT = {name: (spelt, bits) for spelt, (name, bits) in DTYPES.items()}
"""torch's name of a dtype -> safetensors' name, and an element's bits."""


class Shard:
    """Its header and its size are known before its tensors. Tensors lie as safetensors lays them:
    those of the largest elements first, which keeps every tensor aligned."""

    def __init__(self, path: Path, tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> None:
        """tensors: (name, torch's name of the dtype, shape) of each."""
        self.path, self._fd = path, -1
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        at, self.begins = 0, {}
        for name, dtype, shape in sorted(tensors, key=lambda each: (-SPELT[each[1]][1], each[0])):
            spelt, bits = SPELT[dtype]
            if spelt == "F4":  # torch counts pairs
                shape = (*shape[:-1], 2 * shape[-1])
                bits = 4
            end = at + math.prod(shape) * bits // 8
            header[name] = {"dtype": spelt, "shape": shape, "data_offsets": (at, end)}
            self.begins[name] = at
            at = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.head = len(text).to_bytes(8, "little") + text
        self.size = len(self.head) + at

    def complete(self) -> bool:
        """Whether the file is there and has its size."""
        return self.path.is_file() and self.path.stat().st_size == self.size

    def needed(self) -> int:
        """Bytes that the disk has to give still. A file has its size before it has its bytes."""
        if not self.path.is_file():
            return self.size
        return max(0, self.size - 512 * self.path.stat().st_blocks)

    def open(self) -> None:
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._named(os.ftruncate, self._fd, self.size)
        self._write(self.head, 0)

    def write(self, name: str, data: memoryview | bytes, offset: int = 0) -> None:
        """data: the tensor's bytes from `offset` on."""
        self._write(data, len(self.head) + self.begins[name] + offset)

    def sync(self) -> None:
        self._named(os.fsync, self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _write(self, data: memoryview | bytes, at: int) -> None:
        data = memoryview(data).cast("B")
        while data:
            done = self._named(os.pwrite, self._fd, data, at)
            data, at = data[done:], at + done

    def _named(self, call, *arguments):  # type: ignore[no-untyped-def]
        try:
            return call(*arguments)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), str(self.path)) from error


def fsync(path: Path) -> None:
    """Of a file, or of a folder's names."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
