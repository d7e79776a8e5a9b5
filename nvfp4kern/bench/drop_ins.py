"""The competition's entry points on operands of ours, in the tuples that its harness makes.

Each function returns a call and what says whether its result is right. There is no alpha, and
scale factors come in both layouts.
"""

from functools import partial

import torch
from torch.nn import functional

import nvfp4kern
from nvfp4kern.competition import nvfp4_dual_gemm, nvfp4_gemm, nvfp4_gemv, nvfp4_group_gemm

from .operands import Operand

PADDED = 128
"""Rows that a gemv's vector is padded to."""


def _batched(o):
    return o.matrix(None) if o.codes.ndim == 2 else o


def _codes(o):
    return o.codes.permute(1, 2, 0).view(torch.float4_e2m1fn_x2)


def _linear(o):
    return o.linear.view(torch.float8_e4m3fn).permute(1, 2, 0)


def _permuted(o):
    batch, rows, cols = o.blocked.shape
    atoms = o.blocked.view(batch, rows // 128, cols // 4, 32, 4, 4)
    return atoms.view(torch.float8_e4m3fn).permute(3, 4, 1, 5, 2, 0)


def _result(operands, n):
    batch, m, _ = operands[0].codes.shape
    device = operands[0].codes.device
    c = torch.full((batch, m, n), torch.nan, dtype=torch.float16, device=device)
    return c.permute(1, 2, 0)


def _tuple(operands, n):
    given = [_batched(o) for o in operands]
    parts = [part(o) for part in (_codes, _linear, _permuted) for o in given]
    return *parts, _result(given, n)


def _plain(c):
    """[M, N, L] -> [L, M, N]."""
    return c.permute(2, 0, 1)


def gemv(data, vector, matrix):
    vector, matrix = map(data.without_alpha, (vector, matrix))
    padding = (0, 0, 0, PADDED - 1)
    codes, linear = (functional.pad(part, padding) for part in (vector.codes, vector.linear))
    padded = Operand(codes, linear, nvfp4kern.to_blocked(linear), vector.scale)
    given = _tuple((matrix, padded), 1)
    return (
        partial(nvfp4_gemv.custom_kernel, given),
        lambda: data.is_product(_plain(given[-1]).mT, vector, matrix, gemv=True),
    )


def gemm(data, a, b):
    a, b = (_batched(data.without_alpha(o)) for o in (a, b))
    given = _tuple((a, b), b.codes.shape[-2])
    return (
        partial(nvfp4_gemm.custom_kernel, given),
        lambda: data.is_product(_plain(given[-1]), a, b),
    )


def dual_gemm(data, *operands):
    operands = [_batched(data.without_alpha(o)) for o in operands]
    given = _tuple(operands, operands[1].codes.shape[-2])
    return (
        partial(nvfp4_dual_gemm.custom_kernel, given),
        lambda: data.is_gated_product(_plain(given[-1]), *operands),
    )


def group_gemm(data, pairs):
    """Linear scale factors are on the host there."""
    pairs = [[data.without_alpha(o) for o in pair] for pair in pairs]
    tuples = [_tuple(pair, pair[1].codes.shape[-2]) for pair in pairs]
    abc = [(a, b, c) for a, b, *_, c in tuples]
    linear = [(sfa.cpu(), sfb.cpu()) for _, _, sfa, sfb, *_ in tuples]
    permuted = [(sfa, sfb) for *_, sfa, sfb, _ in tuples]
    sizes = [(c.shape[0], c.shape[1], 2 * a.shape[1], 1) for a, _, c in abc]
    return (
        partial(nvfp4_group_gemm.custom_kernel, (abc, linear, permuted, sizes)),
        lambda: all(
            data.is_product(_plain(c)[0], *pair) for (_, _, c), pair in zip(abc, pairs, strict=True)
        ),
    )
