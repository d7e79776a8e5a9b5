"""What goes into a rank's slice of a layer, of what goes into the whole one."""

from collections.abc import Iterator
from typing import Any, TypeAlias

from ..distributed import Cut

Index: TypeAlias = tuple[Any, ...]
"""Of numbers and slices, one for each of a tensor's first dimensions."""


def own_slices(
    cut: Cut, index: Index, source_index: Index, source_shape: tuple[int, ...]
) -> Iterator[tuple[Index, Index]]:
    """(index of the slice, index of the source) of what a rank has of a fill.

    index: where in the whole tensor the fill goes. source_index: what of the source it takes. One
    number serves any slice.
    """
    at = _complete(index, cut.dim + 1)
    where = at[cut.dim]
    if isinstance(where, int):
        for _, own, _ in cut.overlaps(where, where + 1):
            yield (*at[: cut.dim], own, *at[cut.dim + 1 :]), source_index
        return
    start, stop, _ = where.indices(cut.whole)
    dim = cut.dim - sum(isinstance(each, int) for each in at[: cut.dim])
    for first, own, extent in cut.overlaps(start, stop):
        target = (*at[: cut.dim], slice(own, own + extent), *at[cut.dim + 1 :])
        if source_shape in ((), (1,)):
            yield target, source_index
        else:
            yield target, _narrowed(source_index, source_shape, dim, first - start, extent)


def _narrowed(index: Index, shape: tuple[int, ...], dim: int, offset: int, extent: int) -> Index:
    """The index of `extent` elements along a dimension of tensor[index], from `offset` on."""
    full = _complete(index, len(shape))
    kept = [i for i, each in enumerate(full) if not isinstance(each, int)]
    at = kept[dim]
    start = full[at].indices(shape[at])[0] + offset
    narrowed = (*full[:at], slice(start, start + extent), *full[at + 1 :])
    while narrowed and narrowed[-1] == slice(None):
        narrowed = narrowed[:-1]
    return narrowed


def _complete(index: Index, dimensions: int) -> Index:
    return (*index, *(slice(None),) * (dimensions - len(index)))
