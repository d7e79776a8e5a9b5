"""Stands in for the kernels between GPUs on ranks of gloo: the same functions, by collectives. So
the layers' part of peer memory runs on CPUs."""

import torch
import torch.distributed as dist

from nvfp4kern import torch as nk
from nvfp4kern.distributed import experts, linear, peers
from nvfp4kern.distributed.cut import evenly


def everyones(own):
    """Tensors of any sizes."""
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, own)
    return told


class HostKernels:
    @staticmethod
    def _peer_reduce(table, arena, rank, partial, out, shots):
        total = torch.zeros(partial.shape)
        for each in everyones(partial):
            total += each.float()
        out.copy_(total)

    @staticmethod
    def _peer_dispatch(
        table, arena, rank, tokens, scales, ids, total, out_tokens, out_scales, out_ids
    ):
        world = dist.get_world_size()
        first, end = evenly(total, rank, world)
        room = len(out_ids) // world
        assert arena.numel() >= peers.FIXED_BYTES + 2 * world * room * tokens.shape[1]
        out_ids.fill_(-1)
        for source, (theirs, sf, chosen) in enumerate(everyones((tokens, scales, ids))):
            rows = slice(source * room, source * room + len(chosen))
            here = (chosen >= first) & (chosen < end)
            out_ids[rows] = torch.where(here, chosen - first, -1)
            wanted = here.any(1)
            out_tokens[rows][wanted] = theirs[wanted]
            if sf is not None:
                out_scales[rows][wanted] = sf[wanted]

    @staticmethod
    def _peer_combine(table, arena, rank, products, row_of, ids, weights, residual, total, out):
        world, (n, k) = dist.get_world_size(), ids.shape
        selections = len(row_of) // world
        found = torch.zeros(selections, products.shape[1], dtype=products.dtype)
        for theirs, rows in everyones((products, row_of)):
            mine = rows[rank * selections : (rank + 1) * selections]
            found[mine >= 0] = theirs[mine[mine >= 0].long()]
        owned = torch.where((ids >= 0) & (ids < total), torch.arange(n * k).view(n, k), -1).int()
        nk.combine(found, owned.flatten(), weights, residual=residual, out=out)


def use(monkeypatch):
    """Layers that are made from here on have peer memory."""
    rank, world = dist.get_rank(), dist.get_world_size()
    memory = peers.PeerMemory(rank, [0] * world, torch.zeros(32 << 20, dtype=torch.uint8))
    monkeypatch.setattr(peers, "_C", HostKernels)
    for module in (experts, linear):
        monkeypatch.setattr(module, "choose", lambda transport, group: (memory, ""))
    return memory
