"""The best rates of this machine, measured in the same run as what is compared with them."""

from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial

import torch

from . import timing
from .read_kernel import GRIDS, read_kernel

SIZE = {"cuda": 2**31, "cpu": 2**28}
EDGE = {"cuda": 8192, "cpu": 2048}


@dataclass
class Ceilings:
    """Bytes per microsecond of reads and of copies (read plus written), and operations per
    microsecond of a product of EDGE x EDGE matrices, in fp16 on a GPU and fp32 on a CPU."""

    read: float
    copy: float
    rate: float

    def time(self, nbytes, operations):
        """What either memory or arithmetic takes at these rates: a floor where operands come from
        memory."""
        return max(nbytes / self.read, operations / self.rate)

    def is_memory_slower(self, nbytes, operations):
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
def measured(device):
    return _of_gpu() if device == "cuda" else _of_host()


def _of_host():
    """torch's sum, copy and matmul."""
    size, edge = SIZE["cpu"], EDGE["cpu"]
    source = torch.randn(size // 4)
    target = torch.empty_like(source)
    a, b, c = (torch.randn(edge, edge) for _ in range(3))
    times = timing.host_in_turns(
        {
            "read": [partial(torch.sum, source)],
            "copy": [partial(target.copy_, source)],
            "product": [partial(torch.matmul, a, b.T, out=c)],
        }
    )
    read, copy, product = (times[name].median for name in ("read", "copy", "product"))
    return Ceilings(size / read, 2 * size / copy, 2.0 * edge**3 / product)


def _of_gpu():
    """The faster of our reading kernel and torch's sum; torch's copy; cuBLAS."""
    size, edge = SIZE["cuda"], EDGE["cuda"]
    source = torch.randn(size // 4, device="cuda")
    reading = {"torch.sum": [partial(torch.sum, source)]}
    with suppress(OSError, RuntimeError):  # every row says why it is unavailable
        reading |= readers([[source]])
    read = _fastest(reading)
    target = torch.empty_like(source)
    copy = timing.queued(partial(target.copy_, source)).median  # a graph copies more slowly
    del source, target
    a, b, c = (torch.randn(edge, edge, dtype=torch.float16, device="cuda") for _ in range(3))
    product = _fastest({"product": [partial(torch.matmul, a, b.T, out=c)]})
    return Ceilings(size / read, 2 * size / copy, 2.0 * edge**3 / product)
