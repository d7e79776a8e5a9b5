"""One problem: what is called, what says whether it is right, and what it is compared with."""

from collections.abc import Callable
from dataclasses import dataclass, field

from . import timing


@dataclass
class Case:
    """`calls` (ours) and `outs` (where they write) are for each set of operands, by layout of the
    scales; the row's `time` is of the first layout, "" where there are no scales. right(out, i)
    says whether `out` is right for set i.

    moved: bytes of all inputs and outputs, on average over the sets; work: operations, 0 where only
    memory counts. others: by name, what makes the calls of a baseline, or raises where there is
    none; agrees(got, out) says whether what such a call returned is what ours wrote to `out`.
    reads: for each set, what a kernel that only reads would read. drop_in: makes the call of the
    competition's entry point on the first set, and says whether its result is right.
    has_one_result: exact data has one right result, to the bit, in whatever order sums are taken.
    """

    shape: str
    moved: float
    work: float
    calls: dict[str, list[Callable]]
    outs: dict[str, list]
    right: Callable[[object, int], bool]
    others: dict[str, Callable[[], list[Callable]]]
    agrees: Callable[[object, object], bool]
    reads: list[list] = field(default_factory=list)
    drop_in: Callable[[], tuple[Callable, Callable[[], bool]]] | None = None
    has_one_result: bool = True

    @property
    def layout(self):
        """That of the row's `time`."""
        return next(iter(self.calls))


@dataclass
class InOrder:
    """Calls that are timed as one; returns what they did."""

    calls: list[Callable]

    def __call__(self):
        return [call() for call in self.calls]


class Unavailable(Exception):
    """What a baseline raises that is not there; the reason is shown."""


def rotated(sets, nbytes, device):
    """As many of the sets as a rotation of operands of `nbytes` needs."""
    return sets[: timing.rotation(nbytes, device)]
