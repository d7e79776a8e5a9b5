"""Layers and sums across GPUs of one host: over peer memory, over NCCL, and on one GPU.

    python benchmarks/parallel.py --ranks 2 4 --json benchmarks/results/parallel.json

Every time is that of one call in a CUDA graph of several, the median of replays, on the slowest
rank. Results are checked before anything is timed. A run that takes too long ends all processes.
"""

import argparse
import contextlib
import copy
import json
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from nvfp4kern import machine
from nvfp4kern import torch as nk
from nvfp4kern.distributed import ColumnParallel, ExpertParallel, RowParallel, beside, slice_
from nvfp4kern.distributed.peers import PeerMemory, memory_of
from nvfp4kern.nn import NVFP4Experts, NVFP4MoE, NVFP4SwiGLU

SIZES = {"16 KB": 1 << 14, "128 KB": 1 << 17, "1 MB": 1 << 20, "16 MB": 1 << 24}
TOKENS = (1, 8, 64, 256, 1024)
EXPERTS = {"Qwen3-30B": (2048, 768, 128, 8), "DeepSeek-V3": (7168, 2048, 256, 8)}
"""H, I, experts, experts of a token."""
FEED_FORWARD = {"Llama-3-70B": (8192, 28672), "Llama-3.1-405B": (16384, 53248)}
"""H, I."""
CALLS = 10
"""In a graph."""
TRANSPORTS = ("peer", "collective")
PARTS = ("sums", "feed-forward", "experts", "mixtures")


def rank():
    return dist.get_rank()


def world():
    return dist.get_world_size()


def graph_of(step):
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            step()
    return graph


def us_of(steps, samples):
    """{name: microseconds a call, on the slowest rank} of {name: call}, which take turns, so that
    all have the same clocks."""
    graphs = {name: graph_of(step) for name, step in steps.items()}
    found = {name: [] for name in steps}
    for _ in range(samples + 3):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found[name].append(1000 * begin.elapsed_time(end) / CALLS)
    medians = [statistics.median(each[3:]) for each in found.values()]
    slowest = torch.tensor(medians, device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return {name: round(us, 2) for name, us in zip(steps, slowest.tolist(), strict=True)}


def all_agree(same, what):
    told = torch.tensor(float(same), device="cuda")
    dist.all_reduce(told, dist.ReduceOp.MIN)
    if not told.item():
        raise AssertionError(f"{what}: a wrong result")


def drawn(*shape, seed, scale=1.0):
    made = torch.Generator("cuda").manual_seed(seed)
    return (scale * torch.randn(*shape, device="cuda", generator=made)).bfloat16()


# -------------------------------------------------------------------------------------------------
# Sums
# -------------------------------------------------------------------------------------------------


def sums(shared, names, samples):
    for name in names:
        n = SIZES[name] // 2
        everyones = [drawn(n, seed=r) for r in range(world())]
        own, total = everyones[rank()], torch.zeros(n, device="cuda")
        for each in everyones:
            total += each.float()
        steps = {"collective": partial(dist.all_reduce, own.clone())}
        for shots in (0, 1, 2):
            if shots == 1 and SIZES[name] > 1 << 21:
                continue
            step = partial(shared.all_reduce, own, torch.bfloat16, shots=shots)
            all_agree(torch.equal(step(), total.bfloat16()), f"{name} in {shots} shots")
            steps["peer" if shots == 0 else f"peer, {shots} shots"] = step
        yield {"what": "all_reduce", "size": name, "us": us_of(steps, samples)}


# -------------------------------------------------------------------------------------------------
# Layers
# -------------------------------------------------------------------------------------------------


def fill(layer, seed):
    """Random codes and scale factors; products of normal inputs are of the order of 1."""
    made = torch.Generator("cuda").manual_seed(seed)
    for name, value in layer.named_parameters():
        raw = value.data
        if raw.dtype == torch.uint8:
            raw.random_(0, 256, generator=made)
        elif name.endswith("weight_scale"):
            raw.view(torch.uint8).random_(0x30, 0x40, generator=made)
        elif "scale_2" in name:
            raw.fill_(0.01)
        elif "bias" in name:
            raw.zero_()
    layer.finish()
    return layer


def close(got, want):
    error = (got.float() - want.float()).norm() / want.float().norm()
    return error.item() < 0.02


def feed_forward(name, tokens, samples):
    """All ranks have the same tokens."""
    sizes, cut = FEED_FORWARD[name], {}
    whole = NVFP4SwiGLU(*sizes, device="cuda")
    for seed, layer in enumerate(whole.children()):
        fill(layer, seed)
    whole.finish()
    for transport in TRANSPORTS:
        model = nn.ModuleDict({"mlp": NVFP4SwiGLU(*sizes, device="meta")})
        for part, layer in whole.named_children():
            setattr(model["mlp"], part, layer)
        row = partial(RowParallel.slice_of, transport=transport)
        slice_(model, {"*.down_proj": row, "*_proj": ColumnParallel.slice_of})
        cut[transport] = model["mlp"]
    for t in tokens:
        x = drawn(t, sizes[0], seed=t)
        want = whole(x)
        for transport, layer in cut.items():
            all_agree(close(layer(x), want), f"{name}, {transport}, {t} tokens")
        steps = {name: partial(layer, x) for name, layer in (cut | {"one GPU": whole}).items()}
        yield {"what": f"feed-forward of {name}", "tokens": t, "us": us_of(steps, samples)}


def routed(t, experts, k, seed):
    made = torch.Generator("cuda").manual_seed(seed)
    ids = torch.rand(t, experts, device="cuda", generator=made).topk(k).indices.int()
    return ids, torch.rand(t, k, device="cuda", generator=made).softmax(-1)


def experts(name, tokens, samples, shared):
    """Each rank with tokens of its own. One GPU has those of all ranks, and all experts; or a
    rank's tokens, and as many experts as a rank has, which is all that the ranks could reach."""
    h, i, e, k = EXPERTS[name]
    whole = fill(NVFP4Experts(h, i, e, device="cuda"), 4)
    share = fill(NVFP4Experts(h, i, e // world(), device="cuda"), 4)
    cut = {each: ExpertParallel.slice_of(whole, transport=each) for each in TRANSPORTS}
    for t in tokens:
        given = [(drawn(t, h, seed=r), *routed(t, e, k, r)) for r in range(world())]
        all_given = [torch.cat(parts) for parts in zip(*given, strict=True)]
        want = whole(*all_given)[rank() * t : (rank() + 1) * t]
        own, same = given[rank()], []
        steps = {
            "one GPU": partial(whole, *all_given),
            "one GPU, its share": partial(share, own[0], *routed(t, e // world(), k, rank())),
        }
        for transport, layer in cut.items():
            got = layer(*own)
            all_agree(close(got, want), f"{name}, {transport}, {t} tokens")
            same += [transport] if torch.equal(got, want) else []
            steps[transport] = partial(layer, *own)
        row = {"what": f"experts of {name}", "tokens": t, "bits of one GPU": same}
        yield row | {"us": us_of(steps, samples)}
        what = {"what": f"calls between ranks, experts of {name}", "tokens": t}
        yield what | {"us": us_of(travelling(shared, cut["peer"], own), samples)}


def mixtures(name, tokens, samples):
    """Whole layers: a router, experts and shared experts of their size, which run while tokens
    travel, or "in line", before."""
    h, i, e, k = EXPERTS[name]
    whole = NVFP4MoE(h, i, e, k, shared_experts=NVFP4SwiGLU(h, i, device="cuda"), device="cuda")
    whole.gate.weight.data = drawn(e, h, seed=9, scale=h**-0.5)
    for seed, each in enumerate([whole.experts, *whole.shared_experts.children()]):
        fill(each, seed)
    whole.shared_experts.finish()
    cut = {}
    for transport in TRANSPORTS:
        model = nn.ModuleDict({"moe": copy.copy(whole)})
        model["moe"]._modules = whole._modules.copy()
        slice_(model, {"moe.experts": partial(ExpertParallel.slice_of, transport=transport)})
        cut[transport] = model["moe"]
    for t in tokens:
        given = [drawn(t, h, seed=r) for r in range(world())]
        want, own = whole(torch.cat(given))[rank() * t : (rank() + 1) * t], given[rank()]
        steps = {}
        for transport, layer in cut.items():
            all_agree(close(layer(own), want), f"{name}, a layer, {transport}, {t} tokens")
            steps[transport] = partial(layer, own)
            steps[f"{transport}, in line"] = partial(in_line, layer, own)
        steps["one GPU"] = partial(whole, torch.cat(given))
        yield {"what": f"mixture of {name}", "tokens": t, "us": us_of(steps, samples)}


def in_line(layer, x):
    with mock.patch.object(beside, "_calls_nobody", lambda residual: False):
        return layer(x)


def travelling(shared, layer, given):
    """The calls between ranks alone, of 16-bit tokens."""
    x, ids, weights = given
    total, (t, k), h = layer.all_experts, ids.shape, layer.hidden_size
    dispatch = partial(shared.dispatch, x, None, ids, total, t)
    row_of = nk.sort_by_expert(dispatch()[2], layer.num_experts)[3]
    products = drawn(world() * t * k, h, seed=3)
    combine = partial(shared.combine, products, row_of, ids, weights, None, total, x.dtype)
    everyones, own = products[: world() * t], torch.empty_like(x)
    return {
        "all_gather": partial(dist.all_gather_into_tensor, everyones.clone(), x),
        "reduce_scatter": partial(dist.reduce_scatter_tensor, own, everyones),
        "dispatch": dispatch,
        "combine": combine,
    }


# -------------------------------------------------------------------------------------------------
# Processes
# -------------------------------------------------------------------------------------------------


def rows(shared, options):
    """Of all parts that were asked for."""
    samples = 10 if options.quick else 30
    tokens = (1, 64, 1024) if options.quick else TOKENS
    parts = {
        "sums": [sums(shared, list(SIZES), samples)],
        "feed-forward": [feed_forward(name, tokens, samples) for name in FEED_FORWARD],
        "experts": [experts(name, tokens, samples, shared) for name in EXPERTS],
        "mixtures": [mixtures("DeepSeek-V3", tokens, samples)],
    }
    for part in options.parts:
        for measured in parts[part]:
            yield from measured


def serve(number, ranks, options, rendezvous, told):
    torch.cuda.set_device(number)
    dist.init_process_group(
        "nccl", init_method=f"file://{rendezvous}", rank=number, world_size=ranks,
        timeout=timedelta(seconds=options.limit), device_id=torch.device("cuda", number),
    )  # fmt: skip
    shared = memory_of()
    if not isinstance(shared, PeerMemory):
        raise SystemExit(f"no peer memory: {shared}")
    shared.seconds = 10
    with torch.no_grad(), contextlib.closing(rows(shared, options)) as measured:
        for row in measured:
            shared.check()
            if number == 0:
                told.put({"ranks": ranks} | row)
    told.put(None)


def rows_of(ranks, options):
    """Those of one group; None at the end, unless a rank has failed or time is up."""
    context, start = mp.get_context("spawn"), time.monotonic()
    told, left = context.Queue(), ranks
    with tempfile.TemporaryDirectory() as folder:
        args = (ranks, options, Path(folder, "rendezvous"), told)
        processes = [
            context.Process(target=serve, args=(i, *args), daemon=True) for i in range(ranks)
        ]
        for process in processes:
            process.start()
        while left and time.monotonic() - start < options.limit:
            if told.empty():
                if any(p.exitcode for p in processes):
                    break
                time.sleep(0.05)
                continue
            row = told.get()
            left -= row is None
            if row is not None:
                yield row
        for process in processes:
            process.join(5) if not left else process.kill()
    if not left:
        yield None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    every = [torch.cuda.device_count()]
    parser.add_argument("--ranks", type=int, nargs="+", default=every, help="one group each")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="all")
    parser.add_argument("--quick", action="store_true", help="fewer tokens and samples")
    parser.add_argument("--limit", type=float, default=600, help="seconds of a group")
    parser.add_argument("--json", type=Path, help="where rows go, with the GPU's name")
    options = parser.parse_args()
    facts = machine.software("cuda") | {"gpu": torch.cuda.get_device_name()}
    found, whole = [], True
    for ranks in options.ranks:
        row = {}
        for row in rows_of(ranks, options):
            if row is None:
                break
            found.append(row)
            print(json.dumps(row), flush=True)
            if options.json:
                content = {"environment": facts, "rows": found}
                options.json.write_text(json.dumps(content, indent=1) + "\n")
        whole = whole and row is None
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
