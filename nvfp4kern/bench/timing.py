"""How long calls take: on a GPU replayed from a graph over rotated operands, or one by one, cold.

Kernel time is what a graph replay takes per call, each call on operands that have left the L2 cache
since they were last used. Whatever is compared is replayed in turns, so that a clock that moves
moves for all. Cold time is what the competition's harness measures: one call between two events,
launch included, after the L2 was overwritten; in turns too, as is wall time on the host.
"""

import statistics
from dataclasses import dataclass
from functools import cache
from time import perf_counter, sleep

import torch

REPLAY_US = 1500
"""Length of a replay, about: long compared with launching the next one."""

WARM_UP_S = 0.1
REST_S = 0.2
"""Before cold samples: a GPU that was at its power limit has up to a third less clock for 0.1 s."""
SAMPLES = 31
MOST_CALLS = 2048


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
    return max(2, min(512, -(-3 * l2 // max(1, int(nbytes)))))


def _events():
    return [torch.cuda.Event(enable_timing=True) for _ in range(2)]


@cache
def _rubbish():
    """Larger than any L2."""
    return torch.empty(2**28, dtype=torch.uint8, device="cuda")


def overwrite_l2():
    _rubbish().fill_(42)


def _estimate(calls):
    """Microseconds per call, queued behind other work so that launching them is hidden."""
    begin, end = _events()
    for _ in range(20):
        overwrite_l2()
    begin.record()
    for call in calls[:20]:
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / len(calls[:20])


@cache
def _side_stream():
    """One for all, as the default stream cannot be captured and cuBLAS takes memory for each."""
    return torch.cuda.Stream()


@dataclass
class Replay:
    """A graph of `count` calls, which own the memory that it works on."""

    graph: torch.cuda.CUDAGraph
    count: int
    calls: list

    def sample(self):
        """Events around a replay."""
        begin, end = _events()
        begin.record()
        self.graph.replay()
        end.record()
        return begin, end

    def microseconds(self, sampled):
        begin, end = sampled
        return begin.elapsed_time(end) * 1e3 / self.count


def captured(calls):
    """The calls, one for each set of operands, as often as fills a replay."""
    here, stream, graph = torch.cuda.current_stream(), _side_stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(here)
    try:
        with torch.cuda.stream(stream):
            for call in calls:
                call()
            each = max(0.5, _estimate(calls))
        rounds = max(1, min(round(REPLAY_US / each), MOST_CALLS) // len(calls))
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(rounds):
                for call in calls:
                    call()
    finally:
        torch.cuda.set_stream(here)  # a capture that fails leaves its own behind
    return Replay(graph, rounds * len(calls), calls)


def in_turns(replays):
    """{name: Time} per call of {name: Replay}. All samples are queued before any is waited for, so
    that the GPU always has work and no launch shows."""
    begin = perf_counter()
    while perf_counter() - begin < WARM_UP_S:
        for replay in replays.values():
            replay.graph.replay()
        torch.cuda.synchronize()
    rounds = [{name: r.sample() for name, r in replays.items()} for _ in range(SAMPLES)]
    torch.cuda.synchronize()
    return {
        name: Time.of([replay.microseconds(events[name]) for events in rounds[1:]])
        for name, replay in replays.items()
    }


def queued(call):
    """Time of a call without a graph, for one that takes much longer than its launch."""
    call()
    events = [_events() for _ in range(SAMPLES)]
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return Time.of([begin.elapsed_time(end) * 1e3 for begin, end in events[1:]])


def _cold_sample(call):
    """Microseconds of a call after the L2 was overwritten."""
    overwrite_l2()
    begin, end = _events()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3


def cold_in_turns(calls, samples=51):
    """{name: Time} of {name: call}, one call a sample."""
    sleep(REST_S)
    rounds = [
        {name: _cold_sample(call) for name, call in calls.items()} for _ in range(samples + 3)
    ]
    return {name: Time.of([times[name] for times in rounds[3:]]) for name in calls}


# --- The host ---

HOST_SAMPLE_S = 1e-3
"""Length of a sample, at least."""

HOST_BUDGET_S = 1.0
"""What all samples of one row may take, if that is enough for the fewest."""

FEWEST_SAMPLES = 3
PAUSE_S = 0.01
"""Before a sample: others' threads wait for more work for a while, on the cores they share."""


def _host_sample(calls, count):
    """Microseconds of a call, on average over `count`."""
    begin = perf_counter()
    for i in range(count):
        calls[i % len(calls)]()
    return (perf_counter() - begin) * 1e6 / count


def _host_length(calls):
    """Seconds of a call. Of short ones the fastest of some: one that was interrupted would make
    samples of a single call, each of them right after a pause."""
    each = _host_sample(calls, 1)
    if each < PAUSE_S * 1e6:
        each = min(each, *(_host_sample(calls, 1) for _ in range(4)))
    return each / 1e6


def host_in_turns(contenders):
    """{name: Time} per call of {name: calls}, which return when they are done: wall time."""
    counts, length = {}, 0.0
    for name, calls in contenders.items():
        calls[0]()
        each = _host_length(calls)
        counts[name] = max(1, round(HOST_SAMPLE_S / each))
        length += each * counts[name] + PAUSE_S
    rounds = max(FEWEST_SAMPLES, min(SAMPLES, round(HOST_BUDGET_S / length)))
    samples = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, calls in contenders.items():
            sleep(PAUSE_S)
            samples[name].append(_host_sample(calls, counts[name]))
    return {name: Time.of(taken) for name, taken in samples.items()}
