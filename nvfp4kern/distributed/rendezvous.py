"""Whether the GPUs of a group's ranks can see each other's memory, and how they come to do so."""

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .collectives import Group

NO_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
"""Whether torch tries multicast by itself when memory is shared. Multicast of NVLink can put the
GPUs of a host out of service, and nothing here needs it."""
SHARED_GPUS = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
"""Where it is 1, torch and we let several ranks have one GPU, which takes them in turns: right, but
slow, and good for tests. NCCL does not, so any backend is taken then."""
MOST_RANKS = 64


def multicast_is_on(index: int) -> bool:
    """Whether torch would use multicast in this process. Sees to it that it does not, unless it was
    asked for or somebody has been faster."""
    if os.environ.setdefault(NO_MULTICAST, "1") != "1":
        return True
    from torch._C._autograd import DeviceType
    from torch._C._distributed_c10d import _SymmetricMemory

    return _SymmetricMemory.has_multicast_support(DeviceType.CUDA, index)


def gpus_are_shared() -> bool:
    """Whether ranks may have one GPU together."""
    return torch.cuda.is_available() and os.environ.get(SHARED_GPUS) == "1"


def why_not(device: torch.device, world: int) -> str:
    """Why this rank can share no memory, or ""."""
    if world > MOST_RANKS:
        return f"there are {world} ranks, more than {MOST_RANKS}"
    try:
        import torch.distributed._symmetric_memory  # noqa: F401

        if multicast_is_on(device.index):
            return f"NVLink multicast is on in this process, see {NO_MULTICAST}"
    except Exception as error:  # all ranks must hear of it, or the others wait for this one
        return f"this torch has no symmetric memory: {error}"
    return ""


def describe_gpu(device: torch.device) -> tuple[str, ...]:
    """What the others must know of a rank's GPU: host, GPU, what it is called there."""
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", device.index))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return socket.gethostname(), uuid, visible, str(device.index)


def apart(gpus: list[tuple[str, ...]], own: int) -> str:
    """Why the GPUs of the ranks cannot share memory."""
    host, uuid, visible, index = gpus[own]
    for rank, theirs in enumerate(gpus):
        if rank == own:
            continue
        if theirs[0] != host:
            return f"rank {rank} is on another host"
        if theirs[1] == uuid and gpus_are_shared():
            continue
        if theirs[1] == uuid:
            return f"ranks {own} and {rank} have the same GPU"
        if theirs[2] == visible and not torch.cuda.can_device_access_peer(
            int(index), int(theirs[3])
        ):
            return f"the GPU of rank {own} has no access to that of rank {rank}"
    return ""


def told(own: Any, world: int, group: Group) -> list[Any]:
    everyones = [None] * world
    dist.all_gather_object(everyones, own, group=group)
    return everyones


def first(reasons: list[str]) -> str:
    return next((f"rank {i}: {why}" for i, why in enumerate(reasons) if why), "")


def _on_all(call: Callable[[], Any], world: int, group: Group) -> tuple[Any, str]:
    """(what call() gives, ""), or on all ranks (anything, why it has failed on the first one)."""
    made, why = None, ""
    try:
        made = call()
    except Exception as error:  # whatever torch or the driver say
        why = f"{type(error).__name__}: {error}"
    return made, first(told(why, world, group))


def shared_arenas(
    group: Any, rank: int, world: int, device: torch.device, nbytes: int
) -> tuple[list[int], Tensor, Any] | str:
    """(the ranks' addresses, the own arena, torch's handle), or on all ranks why not."""
    arena, why = _on_all(lambda: _arena(device, nbytes), world, group)
    if why:  # nobody waits in rendezvous() for a rank that has no arena
        return why
    shared, why = _on_all(lambda: _rendezvous(group, rank, arena), world, group)
    return why or shared


def _arena(device: torch.device, nbytes: int) -> Tensor:
    """Zero before anybody is told that it is there."""
    from torch._C._distributed_c10d import _SymmetricMemory

    # torch's own empty() may take it out of a pool, so that it begins anywhere in a shared block.
    arena: Tensor = _SymmetricMemory.empty_strided_p2p((nbytes,), (1,), torch.uint8, device)
    arena.zero_()
    torch.cuda.synchronize(device)
    return arena


def _rendezvous(group: Any, rank: int, arena: Tensor) -> tuple[list[int], Tensor, Any]:
    from torch._C._distributed_c10d import _SymmetricMemory

    handle = _SymmetricMemory.rendezvous(arena, group.group_name)
    if handle.multicast_ptr:
        raise RuntimeError("torch has used NVLink multicast")
    if handle.buffer_ptrs[rank] != arena.data_ptr():
        raise RuntimeError("torch shares other memory than it was given")
    return list(handle.buffer_ptrs), arena, handle
