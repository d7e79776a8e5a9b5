"""Which slice of a layer a rank has."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..nn.frozen import SAME_SIZE
from .collectives import Group


@dataclass(frozen=True)
class Cut:
    """The slice of a tensor that a rank has: ranges of one dimension, side by side.

    dim: the dimension. whole: its extent in the layer that was cut.
    ranges: start and stop of each, in the order in which the rank has them.
    """

    dim: int
    whole: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def extent(self) -> int:
        """What the rank has of the dimension."""
        return sum(stop - start for start, stop in self.ranges)

    def of(self, whole: Tensor) -> Tensor:
        """A copy of the rank's slice of a tensor."""
        stored = whole.view(SAME_SIZE.get(whole.dtype, whole.dtype))  # torch.cat knows no e4m3
        ranges = [stored.narrow(self.dim, start, stop - start) for start, stop in self.ranges]
        return torch.cat(ranges, self.dim).view(whole.dtype)

    def shape_of_whole(self, own: tuple[int, ...]) -> torch.Size:
        """The shape of a tensor whose slice has the shape `own`."""
        return torch.Size((*own[: self.dim], self.whole, *own[self.dim + 1 :]))

    def per(self, elements: int) -> "Cut":
        """The same cut where `elements` along the dimension are stored as one: a byte, a block."""
        ranges = tuple((start // elements, stop // elements) for start, stop in self.ranges)
        return Cut(self.dim, self.whole // elements, ranges)

    def overlaps(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """What the rank has of start..stop of the whole: (first, first in its slice, extent)."""
        before = 0
        for low, high in self.ranges:
            first, last = max(low, start), min(high, stop)
            if first < last:
                yield first, before + first - low, last - first
            before += high - low


class Slice(nn.Module):
    """What the layers of all ranks have in common.

    `cuts` says which parameters are slices, by name; the others are whole, and the same on all
    ranks. `rank` and `world` are the process's number in `group` and how many there are. `agreed`
    has what its ranks have said about their calls.
    """

    cuts: Mapping[str, Cut]
    group: Group
    rank: int
    world: int
    agreed: set[str]

    def own(self, name: str, whole: Tensor) -> Tensor:
        """A copy of what the rank has of the whole layer's parameter."""
        return self.cuts[name].of(whole) if name in self.cuts else whole.detach().clone()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank} of {self.world}"


def evenly(size: int, rank: int, world: int) -> tuple[int, int]:
    """Start and stop of a rank's range: side by side, and the first ones may be longer by 1."""
    each, more = divmod(size, world)
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)
