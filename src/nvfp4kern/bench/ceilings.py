"""What this GPU can do at best, measured in the run that is compared with it."""

from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial

import torch

from . import timing
from .read_kernel import GRIDS, read_kernel

SIZE = 2**31


@dataclass
class Ceilings:
    """Bytes and operations per microsecond: reads, copies (bytes read plus written), fp16 products
    of 8192^3."""

    read: float
    copy: float
    rate: float

    def floor(self, nbytes, operations):
        """The time that either memory or arithmetic needs."""
        return max(nbytes / self.read, operations / self.rate)

    def bound_by_memory(self, nbytes, operations):
        return nbytes / self.read >= operations / self.rate


def readers(buffers_of_sets):
    """{name: calls} of the reading kernel in each of its grids, as their names say."""
    return {
        f"read, {per_sm} CTAs an SM": [read_kernel(buffers, per_sm) for buffers in buffers_of_sets]
        for per_sm in GRIDS
    }


def _fastest(contenders):
    replays = {name: timing.captured(calls) for name, calls in contenders.items()}
    return min(time.median for time in timing.in_turns(replays).values())


@cache
def measured():
    """The faster of our reading kernel and torch's sum; torch's copy; cuBLAS."""
    source = torch.randn(SIZE // 4, device="cuda")
    reading = {"torch.sum": [partial(torch.sum, source)]}
    with suppress(OSError, RuntimeError):  # without it every row says why
        reading |= readers([[source]])
    read = _fastest(reading)
    target = torch.empty_like(source)
    copy = timing.queued(partial(target.copy_, source)).median  # a graph copies more slowly
    del source, target
    a, b, c = (torch.randn(8192, 8192, dtype=torch.float16, device="cuda") for _ in range(3))
    product = _fastest({"product": [partial(torch.matmul, a, b.T, out=c)]})
    return Ceilings(SIZE / read, 2 * SIZE / copy, 2 * 8192.0**3 / product)
