"""Random operands on which every right result is known to the bit, and the comparison with it.

Codes are all 16, scales 1 to 1.875 in eighths, 16-bit values multiples of 1/32 up to 4. Products
are multiples of 2^-9, and sums of some ten thousand of them, their signs being random, stay far
below the 2^24 such units that float32 holds exactly, whatever the order of summation. So a result
is the float64 product, rounded once.
"""

from dataclasses import dataclass

import torch

import nvfp4kern

ALPHA = 2.0**-7
"""A power of two: scaling by it is exact. Sums of up to 2^15 products become small against fp16."""

FLOATS = {"cuda": torch.float16, "cpu": torch.float32}
"""What baselines multiply: both hold an operand's values exactly."""

CHUNK = 2**26
"""Elements of the weights that are compared at a time, as float64."""


@dataclass
class Operand:
    """NVFP4 [.., rows, K] with its scales in both layouts."""

    codes: torch.Tensor
    linear: torch.Tensor
    blocked: torch.Tensor

    @property
    def shape(self):
        return (*self.codes.shape[:-1], 2 * self.codes.shape[-1])

    def matrix(self, g):
        """[g] of several; a slice of them, too."""
        return Operand(self.codes[g], self.linear[g], self.blocked[g])

    def row_range(self, begin, end):
        """Some rows, without blocked scales: atoms have others' rows, too."""
        return Operand(self.codes[begin:end], self.linear[begin:end], None)

    def values(self, rows=slice(None)):
        """code * scale, exactly, fp16."""
        codes, scales = self.codes[..., rows, :], self.linear[..., rows, :]
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float16, device=codes.device)
        both = torch.cat((table, -table))[torch.stack((codes & 15, codes >> 4), -1).int()]
        factors = scales.view(torch.float8_e4m3fn).half()
        return (both.unflatten(-2, (-1, 8)) * factors[..., None, None]).flatten(-3)


@dataclass
class Wide:
    """16-bit [.., rows, K]: with NVFP4 weights, W4A16."""

    halves: torch.Tensor

    @property
    def shape(self):
        return tuple(self.halves.shape)

    def values(self, rows=slice(None)):
        return self.halves[..., rows, :]


def operand(device, *shape):
    *rows, k = shape
    codes = torch.randint(0, 256, (*rows, k // 2), dtype=torch.uint8, device=device)
    linear = torch.randint(0x38, 0x40, (*rows, k // 16), dtype=torch.uint8, device=device)
    return Operand(codes, linear, nvfp4kern.to_blocked(linear))


def halves(device, *shape):
    """fp16 multiples of 1/32 between -4 and 4."""
    return torch.randint(-128, 129, shape, dtype=torch.int16, device=device).half() / 32


def bytes_of(*operands):
    """What the operands of a product take, scales without padding."""
    return sum(
        float(o.halves.nbytes) if isinstance(o, Wide) else o.codes.nbytes * 9 / 8 for o in operands
    )


def poison(tensor):
    """Bytes that no right result has (NaN, -1), so that an element that is not written shows."""
    tensor.view(torch.uint8).fill_(255)
    return tensor


def poisoned(device, *shape, dtype=torch.float16):
    return poison(torch.empty(shape, dtype=dtype, device=device))


def _chunks(weights):
    """Slices of the weights' rows, each of at most CHUNK elements."""
    *lead, rows, k = weights.shape
    step = max(1, CHUNK // (max(1, torch.Size(lead).numel()) * max(1, k)))
    return (slice(row, min(rows, row + step)) for row in range(0, rows, step))


def floats(o, scale=1.0, dtype=None):
    """scale * the values in the type that baselines multiply."""
    device = o.codes.device if isinstance(o, Operand) else o.halves.device
    made = torch.empty(o.shape, dtype=dtype or FLOATS[device.type], device=device)
    for rows in _chunks(o):
        made[..., rows, :] = scale * o.values(rows)
    return made


def exact_products(a, *weights):
    """a @ b.T for b of each of the weights, float64: pairs of columns and a list of results."""
    rows = a.values().double()
    for columns in _chunks(weights[0]):
        yield columns, [rows @ b.values(columns).double().mT for b in weights]


def is_product(got, a, b, alpha=ALPHA):
    """Whether got [.., M, N] is alpha * a @ b.T in every bit."""
    return all(
        torch.equal(got[..., columns], (alpha * exact).to(got.dtype))
        for columns, (exact,) in exact_products(a, b)
    )


def is_gated_product(got, a, b1, b2, alpha):
    """Whether got is silu(h) * u, rounded; silu may err by a part in 2^20 before that."""
    for columns, (h, u) in exact_products(a, b1, b2):
        exact = torch.nn.functional.silu(alpha * h) * (alpha * u)
        want, here = exact.to(got.dtype), got[..., columns]
        near = (here.double() - exact).abs() <= exact.abs() * (2.0**-11 + 2.0**-20) + 2.0**-24
        if not (near | (here == want)).all():
            return False
    return True


def near(got, want):
    """Whether another's results are ours but for roundings: one per cent of the norm."""
    got, want = (torch.cat([t.reshape(-1).double() for t in ts]) for ts in (got, want))
    return bool((got - want).norm() <= 0.01 * want.norm())
