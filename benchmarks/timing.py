"""How long calls take on a GPU: replayed from a graph over rotated operands, or one by one, cold.

Kernel time is what a graph replay takes per call, each call on operands that have left the L2 cache
since they were last used. Cold time is what the competition's harness measures: one call between
two events, launch included, after the L2 was overwritten.
"""

import statistics
from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter

import torch


@dataclass
class Time:
    """Microseconds: the median and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples):
        low, median, high = statistics.quantiles(samples, n=4)
        return cls(median, low, high)


def rotation(nbytes, device):
    """How many sets of operands of `nbytes` it takes to be past three times the L2, at most 512."""
    if device == "cpu":
        return 1
    l2 = torch.cuda.get_device_properties(device).L2_cache_size
    return max(2, min(512, -(-3 * l2 // int(nbytes))))


def _elapsed(work):
    """Microseconds between two events around it."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3


def replay(calls, repeats=21, at_least=24):
    """Kernel time per call. `calls`: one for each set of operands."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    rounds = -(-at_least // len(calls))
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(rounds):
            for call in calls:
                call()
    for _ in range(2):
        graph.replay()
    count = rounds * len(calls)
    return Time.of([_elapsed(graph.replay) / count for _ in range(repeats)])


def cold(call, repeats=21):
    """Event time of single calls after the L2 was overwritten."""
    rubbish = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    samples = []
    for _ in range(repeats + 2):
        rubbish.fill_(42)
        samples.append(_elapsed(call))
    return Time.of(samples[2:])


def host(calls, repeats=5):
    """Wall time of calls that return when they are done."""
    samples = []
    for i in range(repeats + 1):
        start = perf_counter()
        calls[i % len(calls)]()
        samples.append((perf_counter() - start) * 1e6)
    return Time.of(samples[1:])


# ---------------------------------------------------------------------------------------------
# Ceilings, measured in the same run
# ---------------------------------------------------------------------------------------------


@dataclass
class Ceilings:
    """Bytes and operations per microsecond."""

    read: float
    copy: float
    rate: float

    def floor(self, nbytes, flops):
        """The time that either memory or arithmetic needs."""
        return max(nbytes / self.read, flops / self.rate)


@cache
def ceilings():
    """What this GPU reads, copies (bytes read plus written), and multiplies (fp16 at 8192^3)."""
    size = 2**31
    source = torch.randn(size // 4, device="cuda")
    target = torch.empty_like(source)
    read = size / replay([partial(torch.sum, source)], at_least=3).median
    copy = 2 * size / min(_elapsed(partial(target.copy_, source)) for _ in range(10))
    a, b, c = (torch.randn(8192, 8192, dtype=torch.float16, device="cuda") for _ in range(3))
    rate = 2 * 8192.0**3 / replay([partial(torch.matmul, a, b.T, out=c)], at_least=3).median
    return Ceilings(max(read, copy), copy, rate)
