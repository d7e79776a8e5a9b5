"""Quantising the weight of one layer rows by rows: none of it is held but a piece, or the matrix of
an expert whose rows do not lie together."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..checkpoint.files import CheckpointError, Files
from ..layout import NVFP4, SF_VEC
from ..nn.gptq import Compensation
from ..nn.recipes import Recipe, global_scale_of, quantize_weight
from .choice import Weight

ELEMENTS = {"amax": 1 << 20, "four_six": 1 << 20, "mse": 1 << 18, "gptq": 1 << 22}
"""Of a piece. Recipe "mse" holds several arrays of its size, and "gptq" goes through columns,
whose steps cost the same for few rows."""


class Reader:
    """Reads weights in pieces, into the same memory.

    Rows that lie across or by turns are spread over all of an expert's matrix. So this is read
    once, and held until another one is: pieces of it would read all of it again, each of them.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        self._buffer = bytearray()
        self._spread: tuple[tuple[str, int], Tensor] | None = None
        self._largest: dict[tuple[str, int], Tensor] = {}
        self._scales: dict[str, Tensor] = {}

    def pieces(self, weight: Weight, elements: int) -> Iterator[tuple[int, Tensor]]:
        """(first row in the layer, rows): each is valid until the next."""
        step = max(elements // weight.columns, 1)
        expert, first = weight.index or (None, 0)
        spread = weight.tensor in self.files.made
        needed = 0 if spread else min(step, weight.rows) * weight.columns * 4
        if len(self._buffer) < needed:
            self._buffer = bytearray(needed)
        for at in range(0, weight.rows, step):
            rows = slice(first + at, first + min(at + step, weight.rows))
            if expert is not None and spread:
                yield at, self._matrix(weight.tensor, expert)[rows]
            else:
                index = (rows,) if expert is None else (expert, rows)
                yield at, self.files.read(weight.tensor, index, self._buffer)

    def _matrix(self, tensor: str, expert: int) -> Tensor:
        key = tensor, expert
        if self._spread is None or self._spread[0] != key:
            self._spread = None  # its memory may be needed
            self._spread = key, self.files.read(tensor, (expert,))
        return self._spread[1]

    def largest(self, weight: Weight) -> Tensor:
        """The largest magnitude, float32 []. Raises CheckpointError for NaN and infinities."""
        key = weight.name, weight.rows
        if key not in self._largest:
            found = torch.zeros(())
            for _, piece in self.pieces(weight, ELEMENTS["amax"]):
                low, high = piece.aminmax()  # NaN where one is
                found = torch.maximum(found, torch.maximum(-low, high).float())
            if not found.isfinite():
                what = "has NaN or infinities, expected finite values"
                raise CheckpointError(f"{weight.tensor}: {what}")
            self._largest[key] = found
        return self._largest[key]

    def global_scale(self, members: list[Weight], recipe: Recipe) -> Tensor:
        """float32 [], the one of a whole group."""
        group = members[0].group
        if group not in self._scales:
            largest = torch.stack([self.largest(each) for each in members]).amax()
            pieces = (p for each in members for _, p in self.pieces(each, ELEMENTS[recipe]))
            self._scales[group] = global_scale_of(largest, recipe, pieces)
        return self._scales[group]


def quantized(
    reader: Reader,
    weight: Weight,
    global_scale: Tensor,
    recipe: Recipe,
    compensation: Compensation | None = None,
) -> Iterator[tuple[int, NVFP4[Tensor]]]:
    """(first row, codes and scale factors of rows) of the whole weight."""
    for at, piece in reader.pieces(weight, ELEMENTS[recipe]):
        yield at, quantize_weight(piece, recipe, global_scale, compensation)


def as_stored(made: Tensor, divisor: bool) -> tuple[Tensor, Tensor]:
    """(the multiplier, what the file has) of a global scale. divisor: the file has its inverse.

    The multiplier is what a reader makes of the file's number.
    """
    if not divisor:
        return made, made
    stored = 1 / made
    return 1 / stored, stored


def sizes(weight: Weight) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Part of an NVFP4 layer -> (dtype, shape)."""
    n, k = weight.rows, weight.columns
    return {
        "weight": ("uint8", (n, k // 2)),
        "weight_scale": ("float8_e4m3fn", (n, k // SF_VEC)),
    }
