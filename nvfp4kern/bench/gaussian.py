"""Data as models have it: what quantize(.., "amax") makes of normally distributed numbers.

Its bits change more from one operand to the next than those of exact.py, which draws more power.
A result is right within the bound of docs/contract.md around the float64 product; of a matrix with
many tokens a sample of rows is compared, over all of their columns.
"""

import torch

import nvfp4kern

from . import operands
from .operands import Wide, alpha_of

NAME = "gaussian"
SAMPLE = 16
"""Rows of a result that are compared with float64."""

LOWERED = 10
"""Powers of two that scale factors are lowered by where no alpha keeps fp16 from overflowing."""

ROUNDING = 2.0**-24
"""The relative error of one rounding to float32, at most."""


def _scale(k):
    """Of each of two operands: results of any K have a variance of about 1."""
    return k**-0.25


def operand(device, *shape):
    x = torch.randn(shape, dtype=torch.bfloat16, device=device)
    q = nvfp4kern.quantize(x, global_scale="amax")
    scale = q.global_scale.item() * _scale(shape[-1])
    return operands.operand(q.data.view(torch.uint8), q.scales.view(torch.uint8), scale)


def wide(device, *shape):
    return Wide(torch.randn(shape, dtype=torch.float16, device=device), _scale(shape[-1]))


def without_alpha(o):
    """The operand for a call that takes no alpha: its scale factors have smaller exponents."""
    lowered = (o.linear.int() - 8 * LOWERED).clamp(min=8).byte()
    return operands.operand(o.codes, lowered, 1.0)


def _sample(a):
    rows = a.shape[-2]
    return (
        torch.randperm(rows)[:SAMPLE].sort().values.to(a.device) if rows > SAMPLE else slice(None)
    )


def _products(a, rows, c, *weights):
    """alpha * a[rows] @ b.T for b of each of the weights and how far a sum may be from it, float64:
    pairs of columns and a list of such pairs."""
    x = a.values(rows).double()
    for columns in operands.row_slices(weights[0]):
        found = []
        for b in weights:
            w, alpha = b.values(columns).double(), alpha_of(a, b)
            exact, terms = alpha * (x @ w.mT), max(a.terms, b.terms)
            magnitude = alpha * (x.abs() @ w.abs().mT)
            error = c * ROUNDING * (terms + 8) * magnitude + ROUNDING * exact.abs() + 2.0**-149
            found.append((exact, error))
        yield columns, found


def _constant(device, gemv=False):
    """The contract's c: 1 where every addition rounds to nearest, 12 where tensor cores add."""
    return 1 if device == "cpu" or gemv else 12


def _within(got, exact, error):
    low, high = (exact - error).to(got.dtype), (exact + error).to(got.dtype)
    return bool(((low <= got) & (got <= high)).all())  # not so where got is NaN


def is_product(got, a, b, gemv=False):
    """Whether got [.., M, N] is alpha * a @ b.T within the bound, in a sample of rows, and finite
    in all."""
    rows, c = _sample(a), _constant(a.device, gemv)
    return bool(got.isfinite().all()) and all(
        _within(got[..., rows, :][..., columns], exact, error)
        for columns, ((exact, error),) in _products(a, rows, c, b)
    )


def is_gated_product(got, a, b1, b2):
    """Likewise for silu(h) * u; silu rises by at most 1.1."""
    rows, c = _sample(a), _constant(a.device)
    if not got.isfinite().all():
        return False
    for columns, ((h, h_error), (u, u_error)) in _products(a, rows, c, b1, b2):
        gate = torch.nn.functional.silu(h)
        gate_error = 1.1 * h_error + 8 * ROUNDING * gate.abs() + 2.0**-126
        exact = gate * u
        error = gate_error * (u.abs() + u_error) + gate.abs() * u_error + ROUNDING * exact.abs()
        if not _within(got[..., rows, :][..., columns], exact, error):
            return False
    return True


def is_routed(weights, ids, x, w):
    """Whether each row's ids are distinct experts in the order of their logits, none left out that
    is larger by more than the bound, and the weights their softmax."""
    found = list(_products(x, slice(None), _constant(x.device), w))
    logits, errors = (torch.cat([pair[0][i] for _, pair in found], -1) for i in (0, 1))
    error, ids = errors.amax(-1, keepdim=True), ids.long()
    if ids.min() < 0 or ids.max() >= logits.shape[1] or (ids.sort().values.diff() == 0).any():
        return False
    chosen = logits.gather(-1, ids)
    rest = logits.scatter(-1, ids, -torch.inf).amax(-1, keepdim=True)
    in_order = (chosen.diff() <= 2 * error).all() and (rest <= chosen + 2 * error).all()
    want = torch.softmax(chosen, -1)
    spread = (chosen - chosen.amax(-1, keepdim=True)).abs() + 1
    near = torch.expm1(2 * error) + ROUNDING * (ids.shape[1] + 16 + 2 * spread)
    return bool(in_order and ((weights - want).abs() <= want * near + 2.0**-126).all())
