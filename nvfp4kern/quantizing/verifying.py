"""Compares what was written with what it was made of: each layer's error, each copy's bytes."""

import math
from pathlib import Path

import torch

from .. import torch as nk
from ..checkpoint.files import CheckpointError, Files
from ..checkpoint.formats import read_plan
from ..checkpoint.plan import Layer, refuse
from ..checkpoint.report import inspect
from .choice import Choice, Weight
from .weights import Reader

__all__ = ["Errors", "verify_folder"]

Errors = dict[str, float]
"""Layer -> |W - Q| / |W|, by the root of the sums of squares."""
ELEMENTS = 1 << 18
MOST = 0.5
"""A larger error is not one of rounding: NVFP4 leaves about 0.1, more where most of a weight is far
below its largest element."""


def verify_folder(files: Files, choice: Choice, folder: Path) -> Errors:
    """Raises CheckpointError where the folder is not what these weights and all else became."""
    weights = [each for of_tensor in choice.weights.values() for each in of_tensor]
    with Files(folder) as written:
        plan = read_plan(written)
        refuse(inspect(written, plan).problems)
        if set(plan.layers) != {weight.name for weight in weights}:
            raise CheckpointError(f"{folder.name}: has other layers than were quantised")
        quantised = {weight.tensor for weight in weights}
        for name, layers in choice.biases.items():
            for each in layers:
                both = written.read(f"{each.name}.bias"), files.read(name, each.of_bias)
                if not torch.equal(*(value.view(torch.uint8) for value in both)):
                    raise CheckpointError(f"{name}: the copy differs")
        for name in files.tensors.keys() - quantised - choice.biases.keys():
            pairs = zip(files.pieces(name), written.pieces(name), strict=True)
            if any(a != b for a, b in pairs):
                raise CheckpointError(f"{name}: the copy differs")
        reader = Reader(files)
        found = {
            weight.name: _error(reader, weight, written, plan.layers[weight.name])
            for weight in weights
        }
    for name, error in found.items():
        if not error <= MOST:
            raise CheckpointError(f"{name}: a relative error of {error:.3g}, at most {MOST}")
    return found


def _error(reader: Reader, weight: Weight, written: Files, layer: Layer) -> float:
    source = layer.sources["weight_scale_2"]
    scale = written.read(source.name).reshape(())
    scale = 1 / scale if source.divisor else scale
    wrong = norm = 0.0
    for at, piece in reader.pieces(weight, ELEMENTS):
        rows = (slice(at, at + len(piece)),)
        codes = written.read(layer.sources["weight"].name, rows)
        factors = written.read(layer.sources["weight_scale"].name, rows)
        values = nk.dequantize((codes, factors, scale), out_dtype=torch.float32)
        exact = piece.float()
        wrong += float((values - exact).square().sum(dtype=torch.float64))
        norm += float(exact.square().sum(dtype=torch.float64))
    return math.sqrt(wrong / norm) if norm else math.sqrt(wrong)
