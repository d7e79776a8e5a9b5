"""What each rank of a team on GPUs runs over peer memory; see rank_cases.py."""

import copy
import os
import signal
import threading
import time

import host_peers
import pytest
import torch
import torch.distributed as dist
from exact_layers import ones
from layers import filled
from rank_cases import captured, compiled, own_columns, own_device, poisoned_empty, rank, routed

from nvfp4kern import torch as nk
from nvfp4kern.distributed import ExpertParallel, RowParallel
from nvfp4kern.distributed.peers import PeerMemory, memory_of
from nvfp4kern.nn import NVFP4Experts, NVFP4Linear


def memory():
    found = memory_of()
    assert isinstance(found, PeerMemory), found
    return found


def partial_of(from_rank, n, dtype, seed):
    draw = torch.Generator().manual_seed(1000 * seed + from_rank)
    return (8 * torch.randn(n, generator=draw)).to(dtype)


def in_order(partials, dtype):
    """Their sum in float32, in this order, rounded once."""
    total = torch.zeros_like(partials[0], dtype=torch.float32)
    for each in partials:
        total += each.float()
    return total.to(dtype)


def expected(n, dtype, out_dtype, seed):
    world = range(dist.get_world_size())
    return in_order([partial_of(r, n, dtype, seed) for r in world], out_dtype)


def reduced(sizes, dtype, out_dtype, shots, rounds):
    """How many sums have the expected bits, over calls whose sizes take turns."""
    shared, device, right = memory(), own_device(), 0
    for i in range(rounds):
        for n in sizes:
            own = partial_of(rank(), n, dtype, i).to(device)
            got = shared.all_reduce(own, out_dtype, shots=shots)
            right += torch.equal(got.cpu(), expected(n, dtype, out_dtype, i))
    shared.check()
    return right


def replayed(sizes, replays, late):
    """The same of a graph with a call of each size and number of shots. Every 100th replay the last
    rank is late, by so many seconds on the host, or by as many on the GPU."""
    shared, device = memory(), own_device()
    calls = [(n, shots) for n in sizes for shots in (0, 1, 2)]
    owns = [torch.zeros(n, dtype=torch.bfloat16, device=device) for n, _ in calls]

    def step():
        return [
            shared.all_reduce(own, torch.bfloat16, shots=shots)
            for own, (_, shots) in zip(owns, calls, strict=True)
        ]

    again, results = captured(step, device)
    world = range(dist.get_world_size())
    drawn = [partial_of(r, max(sizes), torch.bfloat16, 7).to(device) for r in world]
    right = 0
    for i in range(replays):
        new = [each.roll(i) for each in drawn]
        for own, (n, _) in zip(owns, calls, strict=True):
            own.copy_(new[rank()][:n])
        if rank() == dist.get_world_size() - 1 and i % 100 == 50:
            time.sleep(late)
        if rank() == dist.get_world_size() - 1 and i % 100 == 99:
            torch.cuda._sleep(int(late * 1.5e9))
        again()
        want = in_order(new, torch.bfloat16)
        right += all(torch.equal(y, want[: len(y)]) for y in results)
    shared.check()
    return right


def row_bits(reduce_dtype, tokens, transport):
    """Whether a layer's result is the sum of the ranks' products, in their order, and what its
    repr says."""
    device = own_device()
    whole = filled(NVFP4Linear(512, 264, dtype=torch.bfloat16), 5).to(device)
    mine = RowParallel.slice_of(whole, reduce_dtype=reduce_dtype, transport=transport)
    x = torch.randn(tokens, 512, generator=torch.Generator().manual_seed(1)).bfloat16().to(device)
    y = mine(own_columns(x, mine))
    product = nk.gemm(
        own_columns(x, mine), mine.weight, None, mine.weight_scale, alpha=mine.weight_scale_2,
        bias=mine.bias if rank() == 0 else None, out_dtype=reduce_dtype or x.dtype,
    )  # fmt: skip
    everyones = [torch.empty_like(product) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, product)
    return torch.equal(y, in_order(everyones, x.dtype)), repr(mine)


def mixed(whole, tokens, k, replays):
    """How often, of so many replays with other tokens and other experts, a rank's result had the
    bits of one GPU with all experts. Each rank has three tokens less than the one before."""
    device = own_device()
    whole = whole.to(device)
    mine = ExpertParallel.slice_of(whole, tokens_per_rank=tokens)
    assert repr(mine).endswith("transport='peer')")
    last = rank() == dist.get_world_size() - 1
    n = max(tokens - 3 * rank(), 0)
    draw = torch.Generator().manual_seed(rank())
    x = torch.zeros(n, whole.hidden_size, dtype=torch.bfloat16, device=device)
    ids = torch.zeros(n, k, dtype=torch.int32, device=device)
    weights = torch.zeros(n, k, device=device)
    again, y = captured(lambda: mine(x, ids, weights), device)
    right = 0
    for i in range(replays):
        x.copy_(ones(n, whole.hidden_size, 2 * i + rank()))
        for there, new in zip((ids, weights), routed(n, whole.num_experts, k, draw), strict=True):
            there.copy_(new)
        if last and i % 100 == 50:
            time.sleep(0.05)
        again()
        right += torch.equal(y, whole(x, ids, weights))
    mine.memory.check()
    return right


def rounded(whole, tokens, k):
    """Whether experts whose sums are rounded have the bits of one GPU, where bits may not depend on
    what else is in a call, and how many of them are numbers."""
    device = own_device()
    whole = whole.to(device)
    mine = ExpertParallel.slice_of(whole, tokens_per_rank=tokens, transport="peer")
    n = max(tokens - 3 * rank(), 0)
    draw = torch.Generator().manual_seed(rank())
    x = torch.randn(n, whole.hidden_size, generator=draw).bfloat16().to(device)
    ids = torch.rand(n, whole.num_experts, generator=draw).topk(k).indices.int().to(device)
    weights = torch.rand(n, k, generator=draw).to(device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
        y, want = mine(x, ids, weights), whole(x, ids, weights)
    mine.memory.check()
    return torch.equal(y, want), int((y.isfinite() & (y != 0)).sum()), y.numel()


def mixture_replayed(moe, tokens, replays):
    """How often, of so many replays, a mixture whose shared experts run while tokens travel had the
    bits of one GPU. Each rank has three tokens less than the one before."""
    device = own_device()
    whole = moe.to(device)
    cut = copy.copy(whole)  # the same router and shared experts
    cut._modules = whole._modules.copy()
    cut.experts = ExpertParallel.slice_of(whole.experts, tokens_per_rank=tokens)
    n, hidden = max(tokens - 3 * rank(), 0), whole.experts.hidden_size
    x = torch.zeros(n, hidden, dtype=torch.bfloat16, device=device)
    again, y = captured(lambda: cut(x), device)
    right = 0
    for i in range(replays):
        x.copy_(ones(n, hidden, 2 * i + rank()))
        again()
        right += torch.equal(y, whole(x))
    cut.experts.memory.check()
    return right


def trained(moe, x):
    """(result, gradient of the shared experts' weight) of a mixture cut and of the whole one."""
    found = []
    for cut in (True, False):
        each = copy.deepcopy(moe)
        if cut:
            each.experts = ExpertParallel.slice_of(each.experts)
        y = each(x)
        y.float().square().sum().backward()
        found.append((y.detach(), each.shared_experts.weight.grad))
    return found


def endless_call(what, shared, device):
    """A sum, or a mixture whose tokens are of experts on all ranks."""
    if what == "sum":
        own = torch.ones(4096, dtype=torch.bfloat16, device=device)
        return lambda: shared.all_reduce(own, torch.bfloat16)
    mine = ExpertParallel.slice_of(filled(NVFP4Experts(256, 96, 8), 5).to(device))
    ids = torch.arange(32, dtype=torch.int32, device=device).view(16, 2) % 8
    x, weights = (torch.ones(16, n, dtype=torch.bfloat16, device=device) for n in (256, 2))
    return lambda: mine(x, ids, weights)


def left_alone(how, seconds, what):
    """What rank 0 is told, and after how long, where the last rank never comes, is killed before it
    comes, when it has been there, or while both replay a graph."""
    shared, device = memory(), own_device()
    shared.seconds = seconds
    call = endless_call(what, shared, device)
    again, _ = captured(call, device)
    torch.cuda.synchronize()
    dist.barrier()
    leaves = rank() == dist.get_world_size() - 1
    if how == "killed after":
        again()
        torch.cuda.synchronize()
        shared.check()  # nobody misses a rank that has done its part
    if leaves and how == "absent":
        return None
    if leaves and how != "killed within":
        os.kill(os.getpid(), signal.SIGKILL)
    if leaves:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    start, said = time.monotonic(), "nothing"
    try:
        while time.monotonic() < start + 10 * seconds:
            again()
            torch.cuda.synchronize()
            shared.check()
            if how != "killed within":
                break
    except RuntimeError as error:
        said = str(error)
    took = time.monotonic() - start
    torch.cuda.synchronize()
    start = time.monotonic()
    again()
    torch.cuda.synchronize()
    try:
        call()
        later = "nothing"
    except RuntimeError as error:
        later = str(error)
    return said, took, later, time.monotonic() - start


def over_hosts(whole, inputs, options):
    """The rank's result for its own (x, ids, weights), and that of the whole layer. Nobody has
    written what is NaN."""
    with pytest.MonkeyPatch.context() as patch:
        host_peers.use(patch)
        mine = ExpertParallel.slice_of(whole, **options)
        x, ids, weights = inputs[rank() if mine.tokens == "own" else 0]
        patch.setattr(torch, "empty", poisoned_empty)
        patch.setattr(torch.Tensor, "new_empty", poisoned_new_empty)
        return mine(x, ids, weights), whole(x, ids, weights), repr(mine)


def poisoned_new_empty(self, *size, dtype=None):
    shape = size[0] if size and not isinstance(size[0], int) else size
    return poisoned_empty(shape, dtype=dtype or self.dtype)


def row_over_hosts(layer, x, options):
    """The same of a linear layer's columns: the result, and the sum of the products in order."""
    with pytest.MonkeyPatch.context() as patch:
        host_peers.use(patch)
        mine = RowParallel.slice_of(layer, **options)
        y = mine(own_columns(x, mine))
    product = nk.gemm(
        own_columns(x, mine), mine.weight, None, mine.weight_scale, alpha=mine.weight_scale_2,
        bias=mine.bias if rank() == 0 else None, out_dtype=options["reduce_dtype"] or x.dtype,
    )  # fmt: skip
    return y, in_order(host_peers.everyones(product), x.dtype)


def compiled_over_hosts(whole, given, options):
    """Whether torch.compile takes experts whole, and gives the same bits."""
    with pytest.MonkeyPatch.context() as patch:
        host_peers.use(patch)
        return compiled(ExpertParallel.slice_of(whole, **options), given)


def compiled_row_over_hosts(layer, x):
    with pytest.MonkeyPatch.context() as patch:
        host_peers.use(patch)
        mine = RowParallel.slice_of(layer)
        return compiled(mine, (own_columns(x, mine),))


def over_hosts_too(function, *args):
    """What GPUs run."""
    with pytest.MonkeyPatch.context() as patch:
        host_peers.use(patch)
        return function(*args)
