"""Operands of products: NVFP4 and 16-bit tensors, their values, and what both kinds of data share.

exact.py and gaussian.py make them of random numbers and say which results are right on them.
"""

from dataclasses import dataclass, replace

import torch

import nvfp4kern

FLOATS = {"cuda": torch.float16, "cpu": torch.float32}
"""What baselines multiply."""

COMPARED = 2**26
"""Elements of the weights that are compared at a time, as float64."""


@dataclass
class Operand:
    """NVFP4 [.., rows, K] with its scale factors in both layouts. `scale` is the global scale:
    value = code * scale factor * scale."""

    codes: torch.Tensor
    linear: torch.Tensor
    blocked: torch.Tensor | None
    scale: float

    @property
    def shape(self):
        return (*self.codes.shape[:-1], 2 * self.codes.shape[-1])

    @property
    def device(self):
        return self.codes.device.type

    @property
    def terms(self):
        """Numbers along K that a sum adds: the products of a block are summed exactly."""
        return self.linear.shape[-1]

    def scales(self, layout):
        """The scale factors, in the layout of that name."""
        return getattr(self, layout)

    def matrix(self, g):
        """Matrix g of several; g may be a slice."""
        parts = {name: getattr(self, name)[g] for name in ("codes", "linear", "blocked")}
        return replace(self, **parts)

    def of_rows(self, rows):
        """Some rows, without blocked scale factors: an atom holds those of other rows, too. `rows`:
        a slice or indices."""
        return replace(self, codes=self.codes[rows], linear=self.linear[rows], blocked=None)

    def values(self, rows=slice(None)):
        """code * scale factor, exactly, in fp16."""
        codes, scales = self.codes[..., rows, :], self.linear[..., rows, :]
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float16, device=codes.device)
        both = torch.cat((table, -table))[torch.stack((codes & 15, codes >> 4), -1).int()]
        factors = scales.view(torch.float8_e4m3fn).half()
        return (both.unflatten(-2, (-1, 8)) * factors[..., None, None]).flatten(-3)


@dataclass
class Wide:
    """16-bit [.., rows, K], value = scale * number: with NVFP4 weights, W4A16."""

    halves: torch.Tensor
    scale: float

    @property
    def shape(self):
        return tuple(self.halves.shape)

    @property
    def device(self):
        return self.halves.device.type

    @property
    def terms(self):
        return self.halves.shape[-1]

    def of_rows(self, rows):
        return replace(self, halves=self.halves[rows])

    def values(self, rows=slice(None)):
        return self.halves[..., rows, :]


def operand(codes, linear, scale):
    """An Operand of codes and linear scale factors."""
    return Operand(codes, linear, nvfp4kern.to_blocked(linear), scale)


def alpha_of(a, b):
    """What a product of two operands is multiplied by, as float32 has it."""
    return torch.tensor(a.scale * b.scale, dtype=torch.float32).item()


def bytes_of(*operands):
    """Bytes of the operands of a product, without the padding of scale factors."""
    return sum(
        float(o.halves.nbytes) if isinstance(o, Wide) else o.codes.nbytes * 9 / 8 for o in operands
    )


def poison(tensor):
    """Bytes that no right result has (NaN, -1), so that an element that is not written shows."""
    tensor.view(torch.uint8).fill_(255)
    return tensor


def poisoned(device, *shape, dtype=torch.float16):
    return poison(torch.empty(shape, dtype=dtype, device=device))


def row_slices(weights):
    """Slices of the weights' rows, each of at most COMPARED elements."""
    *lead, rows, k = weights.shape
    step = max(1, COMPARED // (max(1, torch.Size(lead).numel()) * max(1, k)))
    return (slice(row, min(rows, row + step)) for row in range(0, rows, step))


def floats(o, dtype=None):
    """The values, scaled, in the type that baselines multiply."""
    made = torch.empty(o.shape, dtype=dtype or FLOATS[o.device], device=o.device)
    for rows in row_slices(o):
        made[..., rows, :] = o.scale * o.values(rows).float()
    return made


def near(got, want):
    """Whether a baseline's results are ours but for roundings: within one per cent of the norm."""
    got, want = (torch.cat([t.reshape(-1).double() for t in ts]) for ts in (got, want))
    return bool((got - want).norm() <= 0.01 * want.norm())
