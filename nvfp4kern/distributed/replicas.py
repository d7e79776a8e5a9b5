"""Experts that several ranks have, and which of these a token goes to.

Logical experts are those that a router chooses. Physical ones are their copies, which lie side by
side over the ranks: "redundant experts", as DeepSeek-V3 calls them.
"""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from .cut import evenly

TURNS = 64
"""Copies of an expert, at most. Tokens take turns at them."""


def checked(physical_to_logical: Sequence[int], experts: int) -> tuple[int, ...]:
    """The map itself.

    Raises ValueError for a number that is none of the experts, for one of them that is missing, and
    for more copies than TURNS.
    """
    found = tuple(map(int, physical_to_logical))
    counts = dict.fromkeys(range(experts), 0)
    for expert in found:
        if expert not in counts:
            raise ValueError(f"physical_to_logical: {expert}, expected 0 to {experts - 1}")
        counts[expert] += 1
    for expert, copies in counts.items():
        if not 1 <= copies <= TURNS:
            what = f"{copies} copies of expert {expert}"
            raise ValueError(f"physical_to_logical: {what}, expected 1 to {TURNS}")
    return found


def runs(logical: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Start and stop of ranges that are these numbers, one after the other."""
    found: list[tuple[int, int]] = []
    for expert in logical:
        if found and found[-1][1] == expert:
            found[-1] = found[-1][0], expert + 1
        else:
            found.append((expert, expert + 1))
    return tuple(found)


def turns(
    physical_to_logical: Sequence[int], experts: int, rank: int | None, world: int
) -> list[list[int]]:
    """[experts + 1, TURNS]: the copy of an expert for each turn. The last row is nobody's, -1.

    rank: whose tokens these are. It takes its own copies where it has some, so that it sends less.
        The ranks without begin with different ones, so that copies get as many tokens even where
        each rank has one token. None: all ranks have the same tokens, and so choose alike.
    """
    copies: list[list[int]] = [[] for _ in range(experts)]
    for copy, expert in enumerate(physical_to_logical):
        copies[expert].append(copy)
    ranges = (range(*evenly(len(physical_to_logical), r, world)) for r in range(world))
    owner = [r for r, own in enumerate(ranges) for _ in own]
    table = []
    for all_ in copies:
        owners = {owner[copy] for copy in all_}
        here = [copy for copy in all_ if owner[copy] == rank] or all_
        first = sum(r not in owners for r in range(rank or 0))
        table.append([here[(first + turn) % len(here)] for turn in range(TURNS)])
    return [*table, [-1] * TURNS]


def physical(ids: Tensor, table: Tensor) -> Tensor:
    """ids int32 [T, k] of logical experts -> those of copies. Token t has turn t % TURNS. Numbers
    that are no expert's become -1."""
    experts = len(table) - 1
    turn = torch.arange(len(ids), dtype=torch.int32, device=ids.device) % TURNS
    rows = ids.where((ids >= 0) & (ids < experts), experts)
    at = rows * TURNS + turn[:, None]
    return table.flatten().index_select(0, at.flatten()).view(ids.shape)


def digest(physical_to_logical: Sequence[int]) -> str:
    """By which ranks see whether they have the same map."""
    text = ",".join(map(str, physical_to_logical))
    return f"{len(physical_to_logical)}:{zlib.crc32(text.encode()):08x}"
