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
    def __init__(self, world, seconds=1, word=None):
        self.world = world
        self.arenas = [torch.zeros(ARENA, dtype=torch.uint8, device="cuda") for _ in range(world)]
        self.word = torch.zeros(1, dtype=torch.int32, device="cuda") if word is None else word
        addresses = [arena.data_ptr() for arena in self.arenas]
        numbers = [*addresses, self.word.data_ptr(), int(seconds * 1e9)]
        self.peers = torch.tensor(numbers, dtype=torch.int64, device="cuda").view(torch.int32)
        self.peers = self.peers.view(-1, 2)

    def bytes_of(self, rank):
        """An arena as it is, for reading and writing."""
        with torch._C.DisableTorchFunction():
            return fake_cuda.plain(self.arenas[rank]).numpy()

    def count_from(self, epoch):
        """As if so many launches had been before, of which no trace is left."""
        for rank in range(self.world):
            self.bytes_of(rank)[:4].view(np.uint32)[0] = epoch

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
        vectors = len(partials[0]) // 8
        share = -(-vectors // group.world) * 8 * partials[0].element_size()
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


def sums(world, n, dtype, out_dtype, shots, before=0):
    """Whether two epochs' sums are right on every rank, and whether a rank wrote what `ahead` says
    it writes: one that comes first, so that the others' arenas hold zeros."""
    group, draw = Group(world), torch.Generator().manual_seed(n)
    found = []
    group.count_from(before)
    for epoch in ((before + 1) % 2**32, (before + 2) % 2**32):
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
            assert group.bytes_of(rank)[:16].view(np.uint32).tolist() == [epoch, 0, 0, 0]
    return found


def alone(shots, before=0):
    """What a rank's result and the words hold where nobody comes, and again where the others have,
    but too late."""
    group = Group(3, seconds=1e-6)
    partial = torch.ones(64, device="cuda").bfloat16()
    found = []
    group.count_from(before)
    for epoch in (before + 1, before + 2):
        if epoch == before + 2:
            ahead(group, [partial] * 3, epoch, shots, 3 * partial)
        out = torch.zeros_like(partial)
        group.reduce(1, partial, out, shots)
        found.append(bool(out.cpu().isnan().all()))
    return found, group.word.tolist(), group.bytes_of(1)[:16].view(np.uint32).tolist()


def elsewhere(shots):
    """What a launch in another arena gives where nobody comes, after one in the first arena has
    waited for rank 2 in vain; and the words then. Its own limit is so long that the simulator would
    call the wait a livelock."""
    first, partial = Group(3, seconds=1e-6), torch.ones(64, device="cuda").bfloat16()
    ahead(first, [partial] * 3, 1, shots, 3 * partial)
    first.bytes_of(1)[128:HEADER].view(np.uint32).reshape(-1, RANKS)[:, 2] = 0
    records = first.bytes_of(1)[HEADER + RECORDS // 2 :]
    records[4 * partial.nbytes : 6 * partial.nbytes] = 0
    second, out = Group(3, word=first.word), torch.zeros_like(partial)
    first.reduce(1, partial, torch.zeros_like(partial), shots)
    second.reduce(1, partial, out, shots)
    words = first.bytes_of(1)[8:16].view(np.uint32).tolist()
    header = second.bytes_of(1)[:16].view(np.uint32).tolist()
    return bool(out.cpu().isnan().all()), first.word.tolist(), words, header


def experts(world, room, k, h, total, scaled, dtype):
    """Whether every rank gets the tokens that its experts are to have, and then what combine gives
    of all experts' products.

    Ranks come one after the other twice. The first time they wait in vain, but have sent; then
    their launches count from the beginning again, and find what the others have sent.
    """
    group, draw, found = Group(world, seconds=1e-6), torch.Generator().manual_seed(h), []
    each, more = divmod(total, world)
    firsts = [r * each + min(r, more) for r in range(world + 1)]
    n = [max(room - r, 0) for r in range(world)]
    tokens = [torch.randint(0, 256, (m, h), generator=draw).byte() for m in n]
    scales = [t[:, : h // 16].contiguous() if scaled else None for t in tokens]
    ids = [torch.randint(-1, total + 1, (m, k), generator=draw).int() for m in n]
    kinds = [torch.float32, torch.bfloat16, torch.float16]
    weights = [torch.randn(m, k, generator=draw).to(kinds[r % 3]) for r, m in enumerate(n)]
    residual = [torch.randn(m, h, generator=draw) if r % 2 else None for r, m in enumerate(n)]
    whole = {}  # (rank, token, selection) -> its product
    gpu = [None if each is None else each.cuda() for each in scales]
    outs = {}

    def again(call):
        for turn in range(2):
            for rank in range(world):
                call(rank, turn)
            if turn == 0:
                for rank in range(world):
                    group.bytes_of(rank)[:16] = 0
                group.word.zero_()

    def dispatch(rank, turn):
        rows = world * room
        out = torch.full((rows, h), 0xFF, dtype=torch.uint8, device="cuda")
        sf = torch.full((rows, h // 16), 0xFF, dtype=torch.uint8, device="cuda") if scaled else None
        local = torch.full((rows, k), 77, dtype=torch.int32, device="cuda")
        args = group.peers, group.arenas[rank], rank, tokens[rank].cuda(), gpu[rank]
        _C._peer_dispatch(*args, ids[rank].cuda(), total, out, sf, local)
        outs[rank] = out.cpu(), None if sf is None else sf.cpu(), local.cpu()

    again(dispatch)
    for rank in range(world):
        out, sf, local = outs[rank]
        for source in range(world):
            for t in range(room):
                at = source * room + t
                mine = torch.full((k,), -1)
                if t < n[source]:
                    chosen = ids[source][t]
                    here = (chosen >= firsts[rank]) & (chosen < firsts[rank + 1])
                    mine = torch.where(here, chosen - firsts[rank], -1)
                found.append(bool((local[at] == mine).all()))
                if (mine >= 0).any():
                    found.append(bool((out[at] == tokens[source][t]).all()))
                    found.append(sf is None or bool((sf[at] == scales[source][t]).all()))
    products, row_of = [], []
    for rank in range(world):
        local = outs[rank][2].reshape(-1)
        rows = torch.full((world * room * k,), -1, dtype=torch.int32)
        chosen = (local >= 0).nonzero()[:, 0]
        rows[chosen] = torch.randperm(len(chosen), generator=draw).int()
        made = torch.randn(world * room * k, h, generator=draw).to(DTYPES[dtype])
        for at in chosen.tolist():
            whole[at // (room * k), at % (room * k) // k, at % k] = made[rows[at]]
        products.append(made)
        row_of.append(rows)
    for rank in range(world):
        group.bytes_of(rank)[:16] = 0

    def combine(rank, turn):
        out = torch.full((n[rank], h), torch.nan, dtype=DTYPES[dtype], device="cuda")
        extra = residual[rank] if residual[rank] is None else residual[rank].cuda()
        args = group.peers, group.arenas[rank], rank, products[rank].cuda(), row_of[rank].cuda()
        _C._peer_combine(*args, ids[rank].cuda(), weights[rank].cuda(), extra, total, out)
        outs[rank] = out.cpu()

    for arena in range(world):  # what dispatch has left is of no launch of combine's
        group.bytes_of(arena)[128 : HEADER + RECORDS] = 0
    again(combine)
    for rank in range(world):
        for t in range(n[rank]):
            total_of = torch.zeros(h)
            for j in range(k):
                product = whole.get((rank, t, j))
                if product is not None:
                    total_of = total_of + weights[rank][t, j].float() * product.float()
            if residual[rank] is not None:
                total_of = total_of + residual[rank][t]
            found.append(torch.equal(outs[rank][t], total_of.to(DTYPES[dtype])))
    return len(found), sum(found), group.word.tolist()


print(json.dumps([globals()[name](*args) for name, args in json.loads(sys.argv[1])]))
print(json.dumps(fake_cuda.report()["findings"]))
