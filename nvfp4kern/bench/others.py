"""The cases of route, sort_by_expert, combine, quantize and dequantize. Sizes are those of
shapes.py; `data` is exact.py or gaussian.py."""

from functools import partial

import torch

import nvfp4kern
from nvfp4kern.layout import blocked_bytes, linear_shape

from . import baselines
from .baselines import COMPILED, EAGER
from .case import Case
from .operands import alpha_of, floats, near, poisoned
from .timing import rotation


def _others(function, arguments_of_sets, device):
    """A baseline in torch as it stands, and compiled."""

    def with_all(call):
        return [partial(call, *arguments) for arguments in arguments_of_sets()]

    return {
        EAGER: lambda: with_all(function),
        COMPILED: lambda: with_all(baselines.compiled(function, device)),
    }


def route(data, device, m, n, k, top):
    moved = 2.0 * (m + n) * k + 8.0 * m * top
    sets = [[data.wide(device, rows, k) for rows in (m, n)] for _ in range(rotation(moved, device))]
    dtypes = (torch.float32, torch.int32)
    outs = [tuple(poisoned(device, m, top, dtype=t) for t in dtypes) for _ in sets]
    calls = [
        partial(nvfp4kern.route, x.halves, w.halves, top, alpha=alpha_of(x, w), out=out)
        for (x, w), out in zip(sets, outs, strict=True)
    ]
    return Case(
        shape=f"{m}x{n}x{k}, top {top}",
        moved=moved,
        work=2.0 * m * n * k,
        calls={"": calls},
        outs={"": outs},
        right=lambda out, i: data.is_routed(*out, *sets[i]),
        others=_others(baselines.route, lambda: [(*map(floats, one), top) for one in sets], device),
        agrees=lambda got, ours: near([got[0]], [ours[0]]),
        reads=[[x.halves, w.halves] for x, w in sets],
    )


def sort_by_expert(data, device, label, tokens, top, experts):
    """A token's experts differ, as a router's do."""
    at = torch.Generator().manual_seed(0)
    drawn = torch.rand(tokens, experts, generator=at).argsort(-1)[:, :top]
    ids = drawn.int().to(device).contiguous()
    sizes = (experts, experts + 1, tokens * top, tokens * top)
    out = tuple(poisoned(device, size, dtype=torch.int32) for size in sizes)
    want = baselines.sort_by_expert(ids, experts)

    def agrees(got, ours):
        return all(map(torch.equal, got, ours))

    return Case(
        shape=f"{label} {experts}, {tokens} tokens, top {top}",
        moved=12.0 * tokens * top + 8.0 * experts,
        work=0.0,
        calls={"": [partial(nvfp4kern.sort_by_expert, ids, experts, out=out)]},
        outs={"": [out]},
        right=lambda out, i: agrees(out, want),
        others=_others(baselines.sort_by_expert, lambda: [(ids, experts)], device),
        agrees=agrees,
    )


def combined(products, row_of, weights):
    """The weighted sums to the bit, in the contract's order."""
    total = torch.zeros(len(weights), products.shape[1], device=products.device)
    for rows, weight in zip(row_of.view(weights.shape).T, weights.T, strict=True):
        total += products[rows].float() * weight[:, None]
    return total.to(products.dtype)


def combine(data, device, label, tokens, top, h):
    """All experts are here."""
    moved = tokens * (top * (2.0 * h + 8) + 2 * h)
    rows = tokens * top
    sets = []
    for i in range(rotation(moved, device)):
        at = torch.Generator().manual_seed(i)
        row_of = torch.randperm(rows, generator=at).to(device, torch.int32)
        weights = torch.rand(tokens, top, generator=at).to(device)
        sets.append((data.wide(device, rows, h).halves.bfloat16(), row_of, weights))
    outs = [poisoned(device, tokens, h, dtype=torch.bfloat16) for _ in sets]
    calls = [partial(nvfp4kern.combine, *one, out=out) for one, out in zip(sets, outs, strict=True)]

    return Case(
        shape=f"{label} {h}, {tokens} tokens, top {top}",
        moved=moved,
        work=0.0,
        calls={"": calls},
        outs={"": outs},
        right=lambda out, i: torch.equal(out, combined(*sets[i])),
        others=_others(baselines.combine, lambda: sets, device),
        agrees=lambda got, ours: near([got], [ours]),
    )


# --- Conversions ---

STEPS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
"""Where the magnitude of an E2M1 code changes; a tie goes to the even one."""


def nearest(magnitudes):
    """Codes of magnitudes."""
    codes = torch.zeros_like(magnitudes, dtype=torch.uint8)
    for i, step in enumerate(STEPS):
        codes += magnitudes >= step if i % 2 else magnitudes > step
    return codes


def quantized_bytes(x, s2):
    """Codes and scale factors to the bit, by docs/contract.md's formulas: torch's float32 rounds as
    fl() there. s2 None: from the largest value. Values are finite, no block is all zeros."""
    one = torch.ones((), device=x.device)
    largest = x.float().abs().max()
    scale = 2688 * one / largest if s2 is None else one / s2
    blocks = x.float().unflatten(-1, (-1, 16))
    factors = blocks.abs().amax(-1) * (scale * (one / 6))
    factors = factors.clamp(max=448).to(torch.float8_e4m3fn)
    scaled = blocks * (one / (factors.float() * (one / scale)))[..., None]
    codes = (nearest(scaled.abs()) + 8 * torch.signbit(scaled).byte()).flatten(-2)
    return codes[..., ::2] | codes[..., 1::2] << 4, factors.view(torch.uint8)


def four_six_bytes(x, s2):
    """The same of the recipe four_six."""
    one = torch.ones((), device=x.device)  # on a GPU torch divides by no number: it multiplies
    s2 = x.float().abs().max() / (1536 * one) if s2 is None else s2 * one
    blocks = x.float().unflatten(-1, (-1, 16))
    magnitudes, made = blocks.abs(), []
    halves = torch.arange(4, device=x.device) * 0.5  # no table, which a graph cannot copy
    grid = torch.cat([halves, 2 * halves[2:], 4 * halves[2:]])
    for target in (6, 4):
        factors = magnitudes.amax(-1) / (target * s2)
        factors = factors.clamp(max=448).to(torch.float8_e4m3fn)
        step = (factors.float() * s2)[..., None]
        codes = nearest(magnitudes / step)
        errors = (grid[codes.int()] * step - magnitudes).square()
        sums = errors[..., ::2] + errors[..., 1::2]
        for apart in (4, 2, 1):
            sums = sums[..., :apart] + sums[..., apart:]
        made.append((codes, factors.view(torch.uint8)[..., None], sums))
    (six, sf_six, wrong), (four, sf_four, less) = made
    codes = torch.where(less < wrong, four, six) + 8 * torch.signbit(blocks).byte()
    codes, factors = codes.flatten(-2), torch.where(less < wrong, sf_four, sf_six)[..., 0]
    return codes[..., ::2] | codes[..., 1::2] << 4, factors


def quantize(data, device, rows, k, amax, recipe="amax"):
    """The input is read once, with amax twice."""
    s2 = None if amax else 2.0**-6
    moved = rows * k * (2.0 + 2.0 * amax + 9 / 16)
    inputs = [data.wide(device, rows, k).halves.bfloat16() for _ in range(rotation(moved, device))]
    shapes = {"linear": linear_shape(rows, k), "blocked": (blocked_bytes(rows, k),)}

    def poisoned_like(shape):
        tensors = [poisoned(device, *size, dtype=torch.uint8) for size in ((rows, k // 2), shape)]
        return tensors + [poisoned(device, 1, dtype=torch.float32)] * amax

    outs = {layout: [poisoned_like(shape) for _ in inputs] for layout, shape in shapes.items()}
    calls = {
        layout: [
            partial(
                nvfp4kern.quantize, x, global_scale=s2 or "amax", scale_layout=layout, out=out,
                recipe=recipe,
            )
            for x, out in zip(inputs, outs[layout], strict=True)
        ]
        for layout in shapes
    }  # fmt: skip
    steps = torch.tensor(STEPS, device=device)

    if recipe == "amax":
        bytes_of, baseline, more = quantized_bytes, baselines.quantize, (steps,)
    else:
        bytes_of, baseline, more = four_six_bytes, four_six_bytes, ()

    def right(out, i):
        codes, factors = bytes_of(inputs[i], s2)
        want = factors if out[1].ndim == 2 else nvfp4kern.to_blocked(factors).flatten()
        return torch.equal(out[0], codes) and torch.equal(out[1], want)

    def agrees(got, ours):
        """All but a few bytes: ties are rounded otherwise there."""
        return (got[0] != ours[0]).float().mean().item() < 0.05

    by = "four_six, " * (recipe == "four_six")
    return Case(
        shape=f"{rows}x{k} bf16, {by}{'amax' if amax else 's2 given'}",
        moved=moved,
        work=0.0,
        calls=calls,
        outs=outs,
        right=right,
        others=_others(baseline, lambda: [(x, s2, *more) for x in inputs], device),
        agrees=agrees,
    )


def dequantize(data, device, rows, k):
    moved = rows * k * (9 / 16 + 2.0)
    sets = [data.operand(device, rows, k) for _ in range(rotation(moved, device))]
    outs = {layout: [poisoned(device, rows, k) for _ in sets] for layout in ("linear", "blocked")}
    calls = {
        layout: [
            partial(
                nvfp4kern.dequantize, (o.codes, o.scales(layout), 1.0),
                scale_layout=layout, out=out,
            )
            for o, out in zip(sets, some, strict=True)
        ]
        for layout, some in outs.items()
    }  # fmt: skip
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float16, device=device)
    table = torch.cat((table, -table))
    return Case(
        shape=f"{rows}x{k}",
        moved=moved,
        work=0.0,
        calls=calls,
        outs=outs,
        right=lambda out, i: torch.equal(out, sets[i].values()),
        others=_others(
            baselines.dequantize, lambda: [(o.codes, o.linear, table) for o in sets], device
        ),
        agrees=lambda got, ours: near([got], [ours]),
    )
