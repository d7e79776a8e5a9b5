"""The kernels between GPUs under compute-sanitizer, each rank in a process of its own:

    python tests/sanitize_peers.py --ranks 2 memcheck racecheck

Every kernel runs, in sizes that leave threads and ranks without work, and every result is checked.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from nvfp4kern.distributed.peers import PeerMemory, memory_of
from nvfp4kern.distributed.rendezvous import SHARED_GPUS

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
SUMS = [(BF16, BF16), (F16, F32), (F32, F16)]
ROOM, K, H, EXPERTS = 11, 3, 520, 9


def table(*shape, seed, dtype):
    made = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=made).to(dtype)


def in_order(parts):
    total = torch.zeros_like(parts[0], dtype=torch.float32)
    for each in parts:
        total += each.float()
    return total


def sums(shared):
    for dtype, out in SUMS:
        for shots in (1, 2):
            for n in (8, 1000, 40_000):
                parts = [table(n, seed=r, dtype=dtype) for r in range(shared.world)]
                got = shared.all_reduce(parts[shared.rank].cuda(), out, shots=shots)
                assert torch.equal(got.cpu(), in_order(parts).to(out)), (dtype, out, shots, n)
                yield


def routes(rank):
    """int32 [n, K] of a rank: fewer tokens than ROOM on some, none on one of many."""
    n = max(ROOM - 5 * rank, 0)
    made = torch.Generator().manual_seed(90 + rank)
    ids = torch.rand(n, EXPERTS, generator=made).topk(K).indices.int()
    ids[::4, 1] = -1
    return ids


def experts(shared):
    rank, world = shared.rank, shared.world
    everyones = [routes(r) for r in range(world)]
    ids = everyones[rank]
    weights = table(len(ids), K, seed=7 + rank, dtype=torch.float32)
    codes = [torch.randint(0, 256, (len(e), 256), generator=torch.Generator().manual_seed(r))
             for r, e in enumerate(everyones)]  # fmt: skip
    codes = [each.to(torch.uint8) for each in codes]
    for scaled in (0, 1):
        for dtype in (F16, BF16, F32):
            scales = codes[rank][:, :32].contiguous().cuda() if scaled else None
            got, sf, local = shared.dispatch(codes[rank].cuda(), scales, ids.cuda(), EXPERTS, ROOM)
            for r, chosen in enumerate(everyones):
                here = local[r * ROOM : (r + 1) * ROOM].cpu()
                wanted = (here[: len(chosen)] >= 0).any(1)
                assert bool((here[len(chosen) :] == -1).all())
                rows = got[r * ROOM : r * ROOM + len(chosen)].cpu()[wanted]
                assert torch.equal(rows, codes[r][wanted])
                if sf is not None:
                    rows = sf[r * ROOM : r * ROOM + len(chosen)].cpu()[wanted]
                    assert torch.equal(rows, codes[r][wanted, :32])
            products = table(world * ROOM * K, H, seed=5, dtype=dtype)
            slots = torch.arange(world * ROOM * K, dtype=torch.int32)
            row_of = torch.where(local.flatten().cpu() >= 0, slots, -1).int()
            args = products.cuda(), row_of.cuda(), ids.cuda(), weights.cuda(), None, EXPERTS, dtype
            y = shared.combine(*args)
            own = products.view(world, ROOM, K, H)[rank, : len(ids)].float()
            known = ((ids >= 0) & (ids < EXPERTS)).float()
            parts = [own[:, j] * weights[:, j, None] * known[:, j, None] for j in range(K)]
            if len(ids):
                assert torch.equal(y.cpu(), in_order(parts).to(dtype)), (scaled, dtype)
            yield


def serve(rank, ranks, rendezvous):
    gpus = torch.cuda.device_count()
    torch.cuda.set_device(rank % gpus)
    os.environ[SHARED_GPUS] = str(int(ranks > gpus))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks
    )  # NCCL is never asked for anything
    shared = memory_of()
    assert isinstance(shared, PeerMemory), shared
    shared.seconds = 300  # of ranks that a sanitizer slows down
    calls = sum(1 for each in (sums, experts) for _ in each(shared))
    torch.cuda.synchronize()
    shared.check()
    dist.barrier()
    print(f"rank {rank} of {ranks}: {calls} calls, all right", flush=True)


def watched(tool, ranks, limit):
    """What all ranks said, and whether none failed."""
    sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
    env = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    env["PATH"] += ":/usr/local/cuda/bin"
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(ranks):
            own = [sys.executable, __file__, "--ranks", str(ranks), "--rank", str(rank)]
            said = Path(folder, f"said.{rank}").open("w+")
            command = [*(sanitizer if tool else []), *own, "--rendezvous", f"{folder}/rendezvous"]
            started = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=env)
            processes.append((started, said))
        codes = []
        for process, said in processes:
            try:
                codes.append(process.wait(limit))
            except subprocess.TimeoutExpired:
                for each, _ in processes:
                    each.kill()
                codes.append(124)
            said.seek(0)
            print(f"-- {tool or 'no tool'}:\n{said.read()[-4000:]}", flush=True)
    return not any(codes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tools", nargs="*", default=["", "memcheck", "racecheck"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--limit", type=float, default=240, help="seconds of a tool")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        serve(options.rank, options.ranks, options.rendezvous)
        return 0
    return 0 if all([watched(tool, options.ranks, options.limit) for tool in options.tools]) else 1


if __name__ == "__main__":
    sys.exit(main())
