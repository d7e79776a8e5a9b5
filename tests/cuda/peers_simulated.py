"""Ranks one after the other, in one process on the simulated GPU: what other ranks would have
written lies in the arenas already, so nobody waits in vain. Its standard output is JSON."""

import json
import os
import sys

import numpy as np
from ptxsim import build

os.environ.update(build.environment("peer", cc="8.0", sms=4))

import torch  # noqa: E402
from ptxsim import fake_cuda  # noqa: E402

fake_cuda.CudaOnHost().__enter__()

from nvfp4kern import _C  # noqa: E402

ARENA, RECORDS, CTAS, RANKS = 33 << 20, 16 << 20, 128, 64
HEADER = 128 + 2 * CTAS * RANKS * 4
PLAIN = (ARENA - HEADER - RECORDS) // 2 // 16 * 16
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class Group:
    def __init__(self, world, seconds=1):
        self.world = world
        self.arenas = [torch.zeros(ARENA, dtype=torch.uint8, device="cuda") for _ in range(world)]
        self.word = torch.zeros(1, dtype=torch.int32, device="cuda")
        addresses = [arena.data_ptr() for arena in self.arenas]
        numbers = [*addresses, self.word.data_ptr(), int(seconds * 1e9)]
        self.peers = torch.tensor(numbers, dtype=torch.int64, device="cuda").view(torch.int32)
        self.peers = self.peers.view(-1, 2)

    def bytes_of(self, rank):
        """An arena as it is, for reading and writing."""
        with torch._C.DisableTorchFunction():
            return fake_cuda.plain(self.arenas[rank]).numpy()

    def reduce(self, rank, partial, out, shots):
        _C._peer_reduce(self.peers, self.arenas[rank], rank, partial, out, shots)


def ahead(group, partials, epoch, shots, results):
    """Writes to all arenas what all other ranks write in an epoch, as peer_config.h has it."""
    raw = [np.asarray(p.cpu().view(torch.uint8)) for p in partials]
    out = np.asarray(results.cpu().view(torch.uint8))
    for to in range(group.world):
        arena = group.bytes_of(to)
        records = arena[HEADER + epoch % 2 * RECORDS // 2 :]
        plain = arena[HEADER + RECORDS + epoch % 2 * PLAIN :]
        flags = arena[128:HEADER].view(np.uint32).reshape(2, CTAS, RANKS)
        eights = len(partials[0]) // 8
        share = -(-eights // group.world) * 8 * partials[0].element_size()
        for r in (r for r in range(group.world) if r != to):
            if shots == 1:
                words = raw[r].view(np.uint32).reshape(-1, 2)
                made = np.full((len(words), 4), epoch, np.uint32)
                made[:, 0::2] = words
                at = r * made.nbytes
                records[at : at + made.nbytes] = made.reshape(-1).view(np.uint8)
                continue
            flags[:, :, r] = epoch
            mine = raw[r][to * share : (to + 1) * share]
            plain[r * share : r * share + len(mine)] = mine
            size = share // partials[0].element_size() * results.element_size()
            begin = group.world * share + r * size
            theirs = out[r * size : (r + 1) * size]
            plain[begin : begin + len(theirs)] = theirs


def sums(world, n, dtype, out_dtype, shots):
    """Whether two epochs' sums are right on every rank, and whether a rank wrote what `ahead` says
    it writes: one that comes first, so that the others' arenas hold zeros."""
    group, draw = Group(world), torch.Generator().manual_seed(n)
    found = []
    for epoch in (1, 2):
        partials = [torch.randn(n, generator=draw).to(DTYPES[dtype]) for _ in range(world)]
        total = torch.zeros(n)
        for each in partials:
            total += each.float()
        want = total.to(DTYPES[out_dtype])
        ahead(group, partials, epoch, shots, want)
        told = [group.bytes_of(r).copy() for r in range(world)]
        for rank in range(world):
            for r in range(world):  # this rank has not written yet
                if r != rank and shots == 1:
                    at = HEADER + epoch % 2 * RECORDS // 2 + rank * 2 * partials[0].nbytes
                    group.bytes_of(r)[at : at + 2 * partials[0].nbytes] = 0
            out = torch.full((n,), torch.nan, dtype=DTYPES[out_dtype], device="cuda")
            group.reduce(rank, partials[rank].cuda(), out, shots)
            found.append(torch.equal(out.cpu(), want))
        for rank in range(world):
            found.append(bool((group.bytes_of(rank)[128:] == told[rank][128:]).all()))
            assert group.bytes_of(rank)[:12].view(np.uint32).tolist() == [epoch, 0, 0]
    return found


def alone(shots):
    """What a rank's result and the words hold where nobody comes, and again where the others have,
    but too late."""
    group = Group(3, seconds=1e-6)
    partial = torch.ones(64, device="cuda").bfloat16()
    found = []
    for epoch in (1, 2):
        if epoch == 2:
            ahead(group, [partial] * 3, epoch, shots, 3 * partial)
        out = torch.zeros_like(partial)
        group.reduce(1, partial, out, shots)
        found.append(bool(out.cpu().isnan().all()))
    return found, group.word.tolist(), group.bytes_of(1)[:12].view(np.uint32).tolist()


print(json.dumps([globals()[name](*args) for name, args in json.loads(sys.argv[1])]))
print(json.dumps(fake_cuda.report()["findings"]))
