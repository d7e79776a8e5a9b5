"""A file of tensors, read through one descriptor: a file that takes its place is not seen.

Tensors are read into memory of their own. A mapping would end the process where another one
shortens the file.
"""

import itertools
import math
import operator
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .untrusted import JSON_BYTES, CheckpointError, parse_json

__all__ = ["Opened", "Stored", "is_there", "read_json"]


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies in its file."""

    dtype: str
    """torch's name."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    begin: int
    nbytes: int


class Opened:
    """A regular file or a link to one, as in Hugging Face's cache.

    Raises CheckpointError for anything else, such as a pipe or a device. Close it: what the garbage
    collector closes stays open where an interrupt comes just then.
    """

    _fd = -1

    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            if not path.is_file():
                what = "not a regular file" if path.exists() else "there is no such file"
                raise CheckpointError(f"{path.name}: {what}")
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._was = os.fstat(self._fd)
        except (OSError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{path.name}: {error}") from None
        if not stat.S_ISREG(self._was.st_mode):
            raise CheckpointError(f"{path.name}: not a regular file")
        self.size = self._was.st_size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        try:
            if fd >= 0:
                os.close(fd)
        except OSError:  # it is closed all the same, and has been read
            pass

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def read(self, begin: int, count: int) -> bytearray:
        """Raises CheckpointError where the file has not as many, before it takes memory."""
        if begin + count > self.size:
            raise CheckpointError(f"{self.name}: has {self.size} bytes, expected {begin + count}")
        found = bytearray(count)
        self._fill(memoryview(found), begin)
        return found

    def tensor(self, stored: Stored, index: tuple[Any, ...], buffer: bytearray) -> Tensor:
        """A tensor, or tensor[index]. index: numbers and slices without a step. Of a tensor in the
        order of its rows nothing else is read. Raises LookupError outside of it.

        buffer: becomes the tensor's memory where it is large enough.
        """
        dtype = getattr(torch, stored.dtype, None)
        if dtype is None:
            raise LookupError(f"{stored.dtype}, which this torch does not have")
        if stored.strides != row_major(stored.shape):
            flat = self.read(stored.begin, extent(stored.shape, stored.strides) * dtype.itemsize)
            held = torch.frombuffer(flat, dtype=torch.uint8).view(dtype)
            return held.as_strided(stored.shape, stored.strides)[index].contiguous()
        shape, dims, begin = [], [], stored.begin
        for at, size, stride in itertools.zip_longest(index, stored.shape, stored.strides):
            step = stride * dtype.itemsize
            if isinstance(at, int):
                begin += range(size)[at] * step
                continue
            first, last, _ = (at or slice(None)).indices(size)
            begin += first * step
            shape.append(max(last - first, 0))
            dims.append((shape[-1], step))
        nbytes = math.prod(shape) * dtype.itemsize
        if not nbytes:
            return torch.empty(shape, dtype=dtype)
        found = memoryview(buffer if len(buffer) >= nbytes else bytearray(nbytes))[:nbytes]
        run = dtype.itemsize
        while dims and (dims[-1][0] == 1 or dims[-1][1] == run):
            run *= dims.pop()[0]
        offsets = itertools.product(*(range(0, size * step, step) for size, step in dims))
        for i, offset in enumerate(offsets):
            self._fill(found[i * run : (i + 1) * run], begin + sum(offset))
        return torch.frombuffer(found, dtype=torch.uint8).view(dtype).reshape(shape)

    def check(self) -> None:
        """Raises CheckpointError where somebody has written to the file since it was opened."""
        try:
            now = os.fstat(self._fd)
        except OSError as error:
            raise CheckpointError(f"{self.name}: {error.strerror}") from None
        if (now.st_size, now.st_mtime_ns) != (self.size, self._was.st_mtime_ns):
            raise CheckpointError(f"{self.name}: was changed while it was read")

    def _fill(self, buffer: memoryview, begin: int) -> None:
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._fd, [buffer[done:]], begin + done)
            except OSError as error:
                raise CheckpointError(f"{self.name}: {error.strerror}") from None
            if count == 0:
                raise CheckpointError(f"{self.name}: was shortened while it was read")
            done += count


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    found = itertools.accumulate(shape[:0:-1], operator.mul, initial=1)
    return tuple(found)[::-1] if shape else ()


def extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first of a tensor to its last."""
    if not math.prod(shape):
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def is_there(path: Path) -> bool:
    """True also for a link that leads nowhere: it is refused then, not passed over."""
    return path.is_symlink() or path.exists()


def read_json(path: Path) -> dict[str, Any]:
    with Opened(path) as opened:
        if opened.size > JSON_BYTES:
            expected = f"expected at most {JSON_BYTES}"
            raise CheckpointError(f"{path.name}: {opened.size} bytes of JSON, {expected}")
        return parse_json(opened.read(0, opened.size), path.name)
