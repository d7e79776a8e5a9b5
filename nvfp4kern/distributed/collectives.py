"""What the ranks of a group say to each other. Sizes are the same on all of them: `agree` asks."""

from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from ..nn.frozen import wants_gradient
from ..torch.ops import has_tangent

Group: TypeAlias = Any
"""A ProcessGroup of torch.distributed, or None for all processes."""

REDUCE_DTYPES = (None, torch.float32)
HEADER = 512
"""Bytes in which a rank says how it calls a layer."""


def _named(since_2_13: str, before: str) -> Any:
    """A function of torch.distributed."""
    return getattr(dist, since_2_13 if hasattr(dist, since_2_13) else before)


def rank_and_world(group: Group) -> tuple[int, int]:
    """This process's number in the group, and how many there are.

    Raises ValueError before torch.distributed.init_process_group, and for a group of others.
    """
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError("group: this process is not in it")
    return rank, dist.get_world_size(group)


def gathered(own: Tensor, world: int, group: Group) -> Tensor:
    """[n, ..] of each rank -> [world n, ..], in the order of the ranks."""
    everyone = own.new_empty(world * len(own), *own.shape[1:])
    _named("all_gather_single", "all_gather_into_tensor")(everyone, own, group=group)
    return everyone


def reduced(partial: Tensor, group: Group) -> Tensor:
    """The sum over the ranks, on all of them. In place."""
    dist.all_reduce(partial, group=group)
    return partial


def reduced_rows(partial: Tensor, world: int, group: Group) -> Tensor:
    """[world n, ..] -> the rank's [n, ..] of the sum over the ranks."""
    own = partial.new_empty(len(partial) // world, *partial.shape[1:])
    _named("reduce_scatter_single", "reduce_scatter_tensor")(own, partial, group=group)
    return own


def agree(agreed: set[str], x: Tensor, world: int, group: Group, **values: Any) -> None:
    """Raises ValueError, on all ranks, where they call a layer with different values.

    The collectives do not: they take bytes of one rank for another's dtype, and end the process
    where sizes differ. On a CPU every call asks. A GPU would have to be waited for, so there it is
    asked once for each set of values but `tokens`, which `agreed` collects, and neither while a
    graph is captured nor in compiled code.
    """
    if torch.compiler.is_compiling() or x.is_meta:
        return
    if x.device.type != "cpu":
        del values["tokens"]
    own = ", ".join(f"{name}={value}" for name, value in values.items())
    if own in agreed or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    said = bytearray(own.encode().ljust(HEADER)[:HEADER])
    everyones = gathered(torch.frombuffer(said, dtype=torch.uint8).to(x.device), world, group)
    for rank, row in enumerate(everyones.view(world, HEADER).tolist()):
        theirs = bytes(row).decode(errors="replace").rstrip()
        if theirs != own:
            pairs = zip(theirs.split(", "), own.split(", "), strict=False)
            differ = "; ".join(f"{there}, here {here}" for there, here in pairs if there != here)
            raise ValueError(f"rank {rank} of the group has {differ}; expected the same on all")
    if x.device.type != "cpu":
        agreed.add(own)


def refuse_gradients(**inputs: Tensor | None) -> None:
    for name, value in inputs.items():
        if value is not None and (wants_gradient(value) or has_tangent(value)):
            reason = "wants a gradient, or has a tangent; layers across ranks are for inference"
            raise NotImplementedError(f"{name}: {reason}")
