"""Processes of one group of torch.distributed that run functions, so that a group serves many
tests."""

import io
import multiprocessing
import os
import queue
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from nvfp4kern.distributed.rendezvous import SHARED_GPUS

SECONDS = 60
"""After which a collective that not all ranks have reached fails."""


def packed(thing):
    """Bytes: pickle alone knows no e4m3."""
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def unpacked(content):
    return torch.load(io.BytesIO(content), weights_only=False)


def _serve(rank, world, rendezvous, backend, calls, results):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # no name of this machine need resolve
    torch.set_num_threads(1)
    device = None
    if backend == "nccl":
        torch.cuda.set_device(rank)
        device = torch.device("cuda", rank)
    if backend == SHARED_GPUS:
        os.environ[SHARED_GPUS] = "1"
        torch.cuda.set_device(rank % torch.cuda.device_count())
        backend = "gloo"
    dist.init_process_group(
        backend,
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=SECONDS),
        device_id=device,
    )
    while True:
        call = calls.get()
        try:
            function, args = unpacked(call)
            answer = True, function(*args)
        except BaseException:
            answer = False, traceback.format_exc()
        results.put(packed((rank, *answer)))


class Team:
    """`world` processes. They end with close(), or with this one.

    backend: of torch.distributed, or SHARED_GPUS for ranks that take turns on too few GPUs,
    `turns` of them on one.
    """

    def __init__(self, world, folder, backend="gloo"):
        self.turns = -(-world // torch.cuda.device_count()) if backend == SHARED_GPUS else 1
        context = multiprocessing.get_context("spawn")
        self.calls = [context.SimpleQueue() for _ in range(world)]
        self.results = context.Queue()
        self.processes = [
            context.Process(
                target=_serve,
                args=(rank, world, folder / "rendezvous", backend, calls, self.results),
                daemon=True,
            )
            for rank, calls in enumerate(self.calls)
        ]
        for process in self.processes:
            process.start()
        self.broken = False

    def run(self, function, *args):
        """function(*args) on every rank; what they return, by rank."""
        for calls in self.calls:
            calls.put(packed((function, args)))
        found = {}
        for _ in self.calls:
            rank, fine, answer = self._answer()
            if not fine:  # the others may wait for it
                self.close()
                raise AssertionError(f"rank {rank}: {answer}")
            found[rank] = answer
        return [found[rank] for rank in sorted(found)]

    def _answer(self):
        for _ in range(2 * SECONDS):
            try:
                return unpacked(self.results.get(timeout=1))
            except queue.Empty:
                dead = [str(i) for i, p in enumerate(self.processes) if not p.is_alive()]
                if dead:
                    return ", ".join(dead), False, "has died"
        return "none", False, f"has answered in {2 * SECONDS} seconds"

    def close(self):
        self.broken = True
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join()
        for each in (self.results, *self.calls):
            each.close()
