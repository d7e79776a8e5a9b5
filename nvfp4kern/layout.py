"""NVFP4 as a tuple, and the sizes of its scale buffers, as integers: no array library is needed."""

from typing import Any, Generic, NamedTuple, TypeVar, overload

from .arrays import restored, stored

Array = TypeVar("Array")

SF_VEC = 16
"""Elements along K that share one scale."""

ATOM_ROWS, ATOM_COLS = 128, 4
"""Rows and scales of one atom (512 bytes) of the blocked layout."""


class NVFP4(NamedTuple, Generic[Array]):
    """A quantised tensor: value = code * scale * global_scale."""

    data: Array
    """fp4 codes, two per byte: [.., M, K/2]."""
    scales: Array
    """e4m3 scales, linear [.., M, K/16] or blocked."""
    global_scale: Array | float
    """The multiplier that undoes it: a float or a 1-element float32 tensor."""

    def to(self, device: Any) -> "NVFP4[Array]":
        """The same on another device, by the `to` of torch's tensors."""
        parts = []
        for part, dtype in map(stored, self):
            parts.append((part if isinstance(part, (float, int)) else part.to(device), dtype))
        return nvfp4_of(*parts)

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, copy and torch.save."""
        return nvfp4_of, tuple(map(stored, self))


def nvfp4_of(*parts: tuple[Any, str | None]) -> NVFP4[Any]:
    """The inverse of NVFP4.__reduce__."""
    return NVFP4(*(restored(part, dtype) for part, dtype in parts))


def _ceil_div(x: int, y: int) -> int:
    return -(-x // y)


def scale_columns(k: int) -> int:
    """Scales per row of K elements."""
    if k % SF_VEC:
        raise ValueError(f"k: {k}, expected a multiple of {SF_VEC}")
    return k // SF_VEC


def linear_shape(rows: int, k: int) -> tuple[int, int]:
    """Shape of the linear scales of a [rows, K] tensor."""
    return rows, scale_columns(k)


def blocked_shape(rows: int, k: int) -> tuple[int, int]:
    """Padded shape of the blocked scales of a [rows, K] tensor."""
    return (
        _ceil_div(rows, ATOM_ROWS) * ATOM_ROWS,
        _ceil_div(scale_columns(k), ATOM_COLS) * ATOM_COLS,
    )


def blocked_bytes(rows: int, k: int) -> int:
    """Size of the blocked scales of a [rows, K] tensor."""
    padded_rows, padded_columns = blocked_shape(rows, k)
    return padded_rows * padded_columns


def blocked_offset(row: int, column: int, k: int) -> int:
    """Byte offset in the blocked scales of `row` and of the 16 elements from K = 16 * column on."""
    atom = row // ATOM_ROWS * _ceil_div(scale_columns(k), ATOM_COLS) + column // ATOM_COLS
    return (
        atom * ATOM_ROWS * ATOM_COLS
        + row % 32 * 16
        + row // 32 % 4 * ATOM_COLS
        + column % ATOM_COLS
    )


def grouped_blocked_shape(rows: int, k: int, groups: int) -> tuple[int, int]:
    """Padded shape for the blocked scales of `rows` rows of `groups` experts, whichever have them.

    Every expert begins an atom of its own. `quantize(..., offsets=)` returns this shape.
    """
    return (rows // ATOM_ROWS + groups) * ATOM_ROWS, blocked_shape(0, k)[1]


@overload
def global_scale_from_divisor(divisor: float) -> float: ...
@overload
def global_scale_from_divisor(divisor: Array) -> Array: ...
def global_scale_from_divisor(divisor):
    """The global scale from its inverse, which compressed-tensors checkpoints store.

    Takes a float or a tensor.
    """
    return 1.0 / divisor
