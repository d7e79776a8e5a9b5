"""Data on which every right result is known to the bit.

All 16 codes occur, scale factors are 1 to 1.875 in eighths, 16-bit values multiples of 1/32 up to
4. Products are multiples of 2^-9, and their signs are random. A sum of some ten thousand of them
stays far below the 2^24 such multiples that float32 holds exactly, in any order of summation. So a
result is the float64 product, rounded once.
"""

from dataclasses import replace

import torch

from . import operands
from .operands import Wide, alpha_of

NAME = "exact"
SCALE = 2.0**-4
"""A power of two: scaling by it is exact. Sums of up to 2^15 products become small against fp16."""


def operand(device, *shape):
    *rows, k = shape
    codes = torch.randint(0, 256, (*rows, k // 2), dtype=torch.uint8, device=device)
    linear = torch.randint(0x38, 0x40, (*rows, k // 16), dtype=torch.uint8, device=device)
    return operands.operand(codes, linear, SCALE)


def wide(device, *shape):
    """fp16 multiples of 1/32 between -4 and 4."""
    numbers = torch.randint(-128, 129, shape, dtype=torch.int16, device=device)
    return Wide(numbers.half() / 32, SCALE)


def without_alpha(o):
    """The operand for a call that takes no alpha."""
    return replace(o, scale=1.0)


def _products(a, *weights):
    """alpha * a @ b.T for b of each of the weights, float64: pairs of columns and a list."""
    rows = a.values().double()
    for columns in operands.row_slices(weights[0]):
        yield columns, [alpha_of(a, b) * (rows @ b.values(columns).double().mT) for b in weights]


def is_product(got, a, b, gemv=False):
    """Whether got [.., M, N] is alpha * a @ b.T in every bit; of a gemv, too."""
    return all(
        torch.equal(got[..., columns], exact.to(got.dtype)) for columns, (exact,) in _products(a, b)
    )


def is_gated_product(got, a, b1, b2):
    """Whether got is silu(h) * u, rounded; silu may err by a part in 2^20 before that."""
    for columns, (h, u) in _products(a, b1, b2):
        exact = torch.nn.functional.silu(h) * u
        want, here = exact.to(got.dtype), got[..., columns]
        eps = torch.finfo(got.dtype).eps
        near = (here.double() - exact).abs() <= exact.abs() * (eps / 2 + 2.0**-20) + 2.0**-24
        if not (near | (here == want)).all():
            return False
    return True


def is_routed(weights, ids, x, w):
    """Whether the experts are those of the largest logits, the lower one of equals first, and the
    weights their softmax."""
    top = ids.shape[1]
    logits = torch.cat([exact for _, (exact,) in _products(x, w)], -1)
    order, best = torch.sort(logits, stable=True, descending=True)
    want = torch.softmax(order[:, :top], -1)
    close = torch.allclose(weights.double(), want, rtol=1e-5, atol=0)
    return close and torch.equal(ids.long(), best[:, :top])
