"""NVFP4 as a tuple, and the sizes of its scale buffers, as integers: no array library is needed."""

from typing import Any, Generic, TypeAlias, TypeVar, overload

from .arrays import restored, stored, tell_torch
from .types import Layout

Array = TypeVar("Array")

SF_VEC = 16
"""Elements along K that share one scale."""

ATOM_ROWS, ATOM_COLS = 128, 4
"""Rows and scales of one atom (512 bytes) of the blocked layout."""


class NVFP4(tuple[Array, Array, "Array | float"], Generic[Array]):
    """A quantised tensor: value = code * scale * global_scale.

    A tuple of three with names, which also knows how the scales lie, as no array of them can say.
    """

    _fields = __match_args__ = ("data", "scales", "global_scale")

    scale_layout: Layout | None
    """'linear' or 'blocked'. None where nobody has said it, and for `quantize(.., offsets=)`, whose
    experts each begin an atom."""

    def __new__(
        cls,
        data: Array,
        scales: Array,
        global_scale: Array | float,
        scale_layout: Layout | None = None,
    ) -> "NVFP4[Array]":
        tell_torch(cls)
        self = tuple.__new__(cls, (data, scales, global_scale))
        self.scale_layout = scale_layout
        return self

    @property
    def data(self) -> Array:
        """fp4 codes, two per byte: [.., M, K/2]."""
        return self[0]

    @property
    def scales(self) -> Array:
        """e4m3 scales, linear [.., M, K/16] or blocked."""
        return self[1]

    @property
    def global_scale(self) -> Array | float:
        """The multiplier that undoes it: a float or a 1-element float32 tensor."""
        return self[2]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the numbers: [.., M, K]."""
        data: Any = self[0]
        *outer, last = data.shape
        return *outer, last * (1 if str(data.dtype).endswith("float4_e2m1fn") else 2)

    def to(self, device: Any) -> "NVFP4[Array]":
        """The same on another device, by the `to` of torch's tensors."""
        data, scales, global_scale = (
            (part if isinstance(part, (float, int)) else part.to(device), dtype)
            for part, dtype in map(stored, self)
        )
        return nvfp4_of(data, scales, global_scale, self.scale_layout)

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, **parts: Any) -> "NVFP4[Any]":
        return NVFP4(**(self._asdict() | {"scale_layout": self.scale_layout} | parts))

    def __repr__(self) -> str:
        parts = self._asdict() | {"scale_layout": self.scale_layout}
        return f"NVFP4({', '.join(f'{name}={part!r}' for name, part in parts.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, copy and torch.save."""
        return nvfp4_of, (*map(stored, self), self.scale_layout)


Stored: TypeAlias = tuple[Any, str | None]


def nvfp4_of(
    data: Stored, scales: Stored, global_scale: Stored, scale_layout: Layout | None = None
) -> NVFP4[Any]:
    """The inverse of NVFP4.__reduce__. Older pickles have no layout."""
    return NVFP4(restored(*data), restored(*scales), restored(*global_scale), scale_layout)


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
