"""Calls between ranks that are streams of one GPU: what the kernels take without a link.

    python benchmarks/peer_calls.py --ranks 2 4 8

Every time is that of one call of each rank in a CUDA graph of several, the median of replays.
A wrong result ends the run.
"""

import argparse
import json
import os
import statistics
from functools import partial

os.environ["NVFP4KERN_PDL"] = "0"  # launches that begin early would take the SMs of other ranks

import torch  # noqa: E402

from nvfp4kern import torch as nk  # noqa: E402
from nvfp4kern.distributed.cut import evenly  # noqa: E402
from nvfp4kern.distributed.peers import PeerMemory  # noqa: E402

ARENA_BYTES = 64 << 20
CALLS = 20
"""In a graph."""
REPLAYS = 20
SUMS = (16 << 10, 128 << 10)
"""Bytes."""
LAYERS = {"Qwen3-30B": (2048, 128, 8), "DeepSeek-V3": (7168, 256, 8)}
"""H, experts, experts of a token."""
TOKENS = (1, 4)
"""Of each rank. CTAs that wait keep their SMs, and all ranks' must have room at once."""
BF16 = torch.bfloat16


def ranks_of(world):
    arenas = [torch.zeros(ARENA_BYTES, dtype=torch.uint8, device="cuda") for _ in range(world)]
    addresses = [arena.data_ptr() for arena in arenas]
    ranks = [PeerMemory(r, addresses, arena) for r, arena in enumerate(arenas)]
    for each in ranks:
        each.seconds = 2
    return ranks


def on_streams(calls, streams):
    results = []
    for call, stream in zip(calls, streams, strict=True):
        with torch.cuda.stream(stream):
            results.append(call())
    return results


def captured(calls, streams, times):
    """(a graph in which each rank's calls follow each other, the last results)."""
    graph, begin = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=begin):
        for stream in streams:
            stream.wait_stream(begin)
        for _ in range(times):
            results = on_streams(calls, streams)
        for stream in streams:
            begin.wait_stream(stream)
    return graph, results


def us_of(ranks, streams, calls, right):
    """Microseconds, once right(results) holds."""
    graph, results = captured(calls, streams, CALLS)
    found = []
    for _ in range(REPLAYS + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(1000 * begin.elapsed_time(end) / CALLS)
    for each in ranks:
        each.check()
    if not right(results):
        raise AssertionError("a wrong result")
    return round(statistics.median(found[3:]), 2)


def in_order(parts):
    total = torch.zeros_like(parts[0], dtype=torch.float32)
    for each in parts:
        total += each.float()
    return total.to(BF16)


def sums(ranks, streams):
    for nbytes in SUMS:
        partials = [torch.randn(nbytes // 2, device="cuda").to(BF16) for _ in ranks]
        want = in_order(partials)
        us = {}
        for shots in (1, 2):
            calls = [
                partial(r.all_reduce, own, BF16, shots=shots)
                for r, own in zip(ranks, partials, strict=True)
            ]
            us[f"{shots} shots"] = us_of(ranks, streams, calls, partial(all_are, want))
        yield {"what": "all_reduce", "bytes": nbytes, "us": us}


def all_are(want, results):
    return all(torch.equal(each, want) for each in results)


def experts(ranks, streams, name):
    hidden, total, k = LAYERS[name]
    world = len(ranks)
    ranges = [evenly(total, r, world) for r in range(world)]
    for tokens in TOKENS:
        x = torch.randn(world, tokens, hidden, device="cuda").to(BF16)
        ids = torch.rand(world, tokens, total, device="cuda").topk(k).indices.int()
        weights = torch.rand(world, tokens, k, device="cuda")
        calls = [
            partial(r.dispatch, x[i], None, ids[i], total, tokens) for i, r in enumerate(ranks)
        ]
        arrived = []
        for first, end in ranges:
            arrived.append(torch.where((ids >= first) & (ids < end), ids - first, -1))
        us = {"dispatch": us_of(ranks, streams, calls, partial(have_come, x, arrived))}
        products = torch.randn(world * tokens * k, hidden, device="cuda").to(BF16)
        calls, rows = [], []
        for i, r in enumerate(ranks):
            first, end = ranges[i]
            row_of = nk.sort_by_expert(arrived[i].view(-1, k), end - first)[3]
            args = (products, row_of, ids[i], weights[i], None, total, BF16)
            calls.append(partial(r.combine, *args))
            rows.append(row_of)
        rows = torch.stack(rows).amax(0)  # -1 on all ranks but that of the expert
        want = nk.combine(products, rows, weights.view(-1, k))
        us["combine"] = us_of(ranks, streams, calls, partial(together_are, want))
        yield {"what": f"experts of {name}", "tokens": tokens, "us": us}


def have_come(x, arrived, results):
    """Whether all ranks have the numbers of their experts, and the tokens that go there."""
    for (got, _, local), want in zip(results, arrived, strict=True):
        chosen = (want >= 0).any(-1)
        same = torch.equal(local.view(want.shape), want)
        if not same or not torch.equal(got.view(x.shape)[chosen], x[chosen]):
            return False
    return True


def together_are(want, results):
    return torch.equal(torch.cat(results), want)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="one group each")
    options = parser.parse_args()
    torch.manual_seed(1)
    print(json.dumps({"gpu": torch.cuda.get_device_name()}), flush=True)
    alone = ranks_of(1)[0]  # loads the kernels: that cannot be while others wait
    ids = torch.zeros(1, 1, dtype=torch.int32, device="cuda")
    for shots in (1, 2):
        alone.all_reduce(torch.ones(8, device="cuda").to(BF16), BF16, shots=shots)
    alone.dispatch(ids.float().expand(1, 4).contiguous(), None, ids, 1, 1)
    ones = torch.ones(1, 8, device="cuda")
    alone.combine(ones.to(BF16), ids.flatten(), ids, ones[:, :1].contiguous(), None, 1, BF16)
    for world in options.ranks:
        ranks = ranks_of(world)
        streams = [torch.cuda.Stream() for _ in ranks]
        for row in sums(ranks, streams):
            print(json.dumps({"ranks": world} | row), flush=True)
        for name in LAYERS:
            for row in experts(ranks, streams, name):
                print(json.dumps({"ranks": world} | row), flush=True)


if __name__ == "__main__":
    main()
