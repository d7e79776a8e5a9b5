"""The cases of route, quantize and dequantize. Sizes are those of shapes.py."""

from functools import partial

import torch

import nvfp4kern

from . import baselines
from .baselines import COMPILED, EAGER
from .case import Case
from .operands import ALPHA, FLOATS, halves, near, operand, poisoned
from .timing import rotation


def _others(function, arguments_of_sets, device):
    """A baseline in torch as it stands, and compiled."""

    def with_all(call):
        return [partial(call, *arguments) for arguments in arguments_of_sets()]

    return {
        EAGER: lambda: with_all(function),
        COMPILED: lambda: with_all(baselines.compiled(function, device)),
    }


def route(device, m, n, k, top):
    """Logits are exact, so ids are known: ties go to the lower expert."""
    moved = 2.0 * (m + n) * k + 8.0 * m * top
    sets = [[halves(device, rows, k) for rows in (m, n)] for _ in range(rotation(moved, device))]
    kinds = (torch.float32, torch.int32)
    outs = [tuple(poisoned(device, m, top, dtype=t) for t in kinds) for _ in sets]
    calls = [
        partial(nvfp4kern.route, *pair, top, alpha=ALPHA, out=out)
        for pair, out in zip(sets, outs, strict=True)
    ]

    def right(i):
        x, w = (t.double() for t in sets[i])
        order, ids = torch.sort(x @ w.T, stable=True, descending=True)
        weights = torch.softmax(order[:, :top] * ALPHA, -1)
        close = torch.allclose(outs[i][0].double(), weights, rtol=1e-5, atol=0)
        return close and torch.equal(outs[i][1].long(), ids[:, :top])

    return Case(
        shape=f"{m}x{n}x{k}, top {top}",
        moved=moved,
        work=2.0 * m * n * k,
        calls=calls,
        outs=outs,
        right=right,
        others=_others(
            baselines.route,
            lambda: [(x.to(FLOATS[device]) * ALPHA, w.to(FLOATS[device]), top) for x, w in sets],
            device,
        ),
        agrees=lambda got: near([got[0]], [outs[0][0]]),
        reads=sets,
    )


# ---------------------------------------------------------------------------------------------
# Conversions
# ---------------------------------------------------------------------------------------------

STEPS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
"""Where the magnitude of an E2M1 code changes; a tie goes to the even one."""


def _quantized(x, s2):
    """Codes and scales to the bit, by docs/contract.md's formulas; what fl() means there, torch's
    float32 does. s2 None: from the largest value. Values are finite, no block is all zeros."""
    one = torch.ones((), device=x.device)
    largest = x.float().abs().max()
    scale = 2688 * one / largest if s2 is None else one / s2
    blocks = x.float().unflatten(-1, (-1, 16))
    factors = blocks.abs().amax(-1) * (scale * (one / 6))
    factors = factors.clamp(max=448).to(torch.float8_e4m3fn)
    scaled = blocks * (one / (factors.float() * (one / scale)))[..., None]
    codes = 8 * torch.signbit(scaled).byte()
    for i, step in enumerate(STEPS):
        codes += scaled.abs() >= step if i % 2 else scaled.abs() > step
    codes = codes.flatten(-2)
    return codes[..., ::2] | codes[..., 1::2] << 4, factors.view(torch.uint8)


def quantize(device, rows, k, amax):
    """The input is read once, with amax twice."""
    s2 = None if amax else 2.0**-6
    moved = rows * k * (2.0 + 2.0 * amax + 9 / 16)
    count = rotation(moved, device)
    inputs = [torch.randn(rows, k, device=device).bfloat16() for _ in range(count)]
    outs = [
        [poisoned(device, rows, k // per, dtype=torch.uint8) for per in (2, 16)]
        + [poisoned(device, 1, dtype=torch.float32)] * amax
        for _ in inputs
    ]
    calls = [
        partial(nvfp4kern.quantize, x, global_scale=s2 or "amax", out=out)
        for x, out in zip(inputs, outs, strict=True)
    ]
    steps = torch.tensor(STEPS, device=device)

    def agrees(got):
        """All but a few bytes: ties are rounded otherwise there."""
        return (got[0] != outs[0][0]).float().mean().item() < 0.05

    return Case(
        shape=f"{rows}x{k} bf16, {'amax' if amax else 's2 given'}",
        moved=moved,
        work=0.0,
        calls=calls,
        outs=outs,
        right=lambda i: all(map(torch.equal, outs[i][:2], _quantized(inputs[i], s2))),
        others=_others(baselines.quantize, lambda: [(x, s2, steps) for x in inputs], device),
        agrees=agrees,
    )


def dequantize(device, rows, k):
    moved = rows * k * (9 / 16 + 2.0)
    sets = [operand(device, rows, k) for _ in range(rotation(moved, device))]
    outs = [poisoned(device, rows, k) for _ in sets]
    calls = [
        partial(nvfp4kern.dequantize, (o.codes, o.linear, 1.0), out=out)
        for o, out in zip(sets, outs, strict=True)
    ]
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float16, device=device)
    table = torch.cat((table, -table))
    return Case(
        shape=f"{rows}x{k}",
        moved=moved,
        work=0.0,
        calls=calls,
        outs=outs,
        right=lambda i: torch.equal(outs[i], sets[i].values()),
        others=_others(
            baselines.dequantize, lambda: [(o.codes, o.linear, table) for o in sets], device
        ),
        agrees=lambda got: near([got], [outs[0]]),
    )
