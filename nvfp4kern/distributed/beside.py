"""What a GPU computes beside the calls between ranks."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..nn.experts import Residual
from .cut import Slice

_STREAMS: dict[torch.device, torch.cuda.Stream] = {}
"""One of each GPU."""


class Beside:
    """A residual of [T, H] that the GPU computes on a stream of its own, from what the current one
    has done so far.

    start() launches it: behind a launch whose waiting it shall fill, since GPUs take launches as
    they come. result() has the current stream wait for it.

    A residual goes beside where it is functools.partial(module, ..) of a module without slices. Any
    other function is called when Beside is made, since it may call other ranks, and calls of one
    group follow each other. On a CPU and in compiled code every function is called then.
    """

    def __init__(self, residual: Residual, x: Tensor) -> None:
        self.shape, self.value, self.compute = x.shape, None, None
        self.stream: torch.cuda.Stream | None = None
        if residual is None or isinstance(residual, Tensor):
            self.value = residual
        elif not x.is_cuda or torch.compiler.is_compiling() or not _calls_nobody(residual):
            self.value = residual().reshape(self.shape)
        else:
            self.compute = residual
            self.stream = _stream_of(x.device)
            self.stream.wait_stream(torch.cuda.current_stream(x.device))

    def start(self) -> None:
        if self.stream is not None and self.compute is not None:
            with torch.cuda.stream(self.stream):
                self.value = self.compute().reshape(self.shape)
            self.compute = None

    def result(self) -> Tensor | None:
        self.start()
        if self.stream is not None and self.value is not None:
            current = torch.cuda.current_stream(self.value.device)
            current.wait_stream(self.stream)
            self.value.record_stream(current)
            self.stream = None
        return self.value


def _calls_nobody(residual: Callable[[], Tensor]) -> bool:
    """Whether no other rank can take part: it is a partial of a module without slices."""
    module = getattr(residual, "func", None)
    if not isinstance(module, nn.Module):
        return False
    return not any(isinstance(each, Slice) for each in module.modules())


def _stream_of(device: torch.device) -> torch.cuda.Stream:
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)
    return _STREAMS[device]
