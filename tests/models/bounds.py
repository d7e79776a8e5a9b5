"""What a quantised module may return for an input: float64, with intervals of docs/contract.md.

Weights come from packing.py, activations are quantised by the package's oracle, which was written
from the contract. Arrays are NumPy's.
"""

from dataclasses import dataclass

import numpy as np

from nvfp4kern.verify import reference
from nvfp4kern.verify.reference import UNIT, Expected

GLOBALS = 3 * UNIT  # roundings of the global scales: two inverses of divisors, and their product
SILU = 2.0**-21  # relative, of silu in fp32, and of the product after it
LOWEST = -1.2784645, -0.2784645  # where silu is least, and what it is there


def quantized(x, scale):
    """x [.., K] as NVFP4 with that global scale sees it; None leaves it."""
    if scale is None:
        return x
    codes, scales, s2 = reference.quantize(x.astype(np.float32), np.float32(scale))
    exact = reference.dequantize(codes, scales).astype(np.float64)  # of codes and block scales
    return exact * np.float64(s2)


def product(a, weight, bias, nvfp4):
    """a [M, K] times weight [N, K], both exact."""
    expected = reference.gemm(a, weight, bias=0.0 if bias is None else bias, nvfp4=nvfp4)
    more = GLOBALS * np.abs(expected.exact)
    return Expected(expected.low - more, expected.exact, expected.high + more)


def rounded(expected, dtype):
    """The interval after rounding to 16 bits; None rounds nothing."""
    if dtype is None:
        return expected
    parts = (reference.round_to(x, dtype) for x in (expected.low, expected.exact, expected.high))
    return Expected(*(x.astype(np.float64) for x in parts))


def silu(x):
    return x / (1 + np.exp(-x))


def gated(gate, up):
    """The interval of silu(gate) * up, computed in fp32."""
    ends = silu(gate.low), silu(gate.high)
    low, high = np.minimum(*ends), np.maximum(*ends)
    low = np.where((gate.low < LOWEST[0]) & (gate.high > LOWEST[0]), LOWEST[1], low)
    corners = [a * b for a in (low, high) for b in (up.low, up.high)]
    low, high = np.minimum.reduce(corners), np.maximum.reduce(corners)
    widen = SILU * np.maximum(np.abs(low), np.abs(high))
    return Expected(low - widen, silu(gate.exact) * up.exact, high + widen)


def quantized_interval(h, scale):
    """What quantising any number of the interval may give: a tie may fall to either side.

    The interval is narrower than a step of a block's scale, so two scales are possible.
    """
    blocks = [x.reshape(len(x), x.shape[-1] // 16, 16) for x in (h.low, h.exact, h.high)]
    least = np.where(blocks[0] * blocks[2] > 0, np.minimum(abs(blocks[0]), abs(blocks[2])), 0)
    most = np.maximum(abs(blocks[0]), abs(blocks[2]))
    values = []
    for size in (least, most, abs(blocks[1])):
        wanted = np.minimum(size.max(-1, keepdims=True) / (6 * scale), 448)
        step = np.minimum(reference.round_to_grid(wanted, 3, -6), 448) * scale
        for x in blocks:
            quotient = np.divide(x, step, out=np.zeros_like(x), where=step > 0)
            size = np.minimum(reference.round_to_grid(abs(quotient), 1, 0), 6)
            values.append(np.copysign(size, quotient) * step)
    low, high = np.minimum.reduce(values), np.maximum.reduce(values)
    parts = (x.reshape(h.exact.shape) for x in (low, values[-2], high))
    return Expected(*parts)


def product_of_interval(a, weight, nvfp4):
    """a [M, K] known within an interval, weight [N, K] exact."""
    middle, half = (a.low + a.high) / 2, (a.high - a.low) / 2
    sum_of_halves = half @ np.abs(weight).T
    around = product(middle, weight, None, nvfp4)
    exact = a.exact @ weight.T
    more = sum_of_halves * (1 + 2.0**-12)  # fp32 errors of what is added, too
    return Expected(around.low - more, exact, around.high + more)


@dataclass
class Expert:
    """Weights of one expert, float64 [N, K]."""

    gate: np.ndarray
    up: np.ndarray
    down: np.ndarray


def experts(x, index, weights, each, scales, dtype):
    """The mixture's output for x [T, H], index and weights [T, k].

    each: an Expert for each number. scales: the global scales of both inputs, None for 16 bits.
    Gate and up are one product that rounds nothing before its activation, nor before it encodes.
    """
    nvfp4 = scales[0] is not None
    a = quantized(x, scales[0])
    total = [np.zeros_like(x) for _ in range(4)]  # low, exact, high, magnitudes
    for slot in range(index.shape[1]):
        for number, expert in enumerate(each):
            rows = np.flatnonzero(index[:, slot] == number)
            gate, up = (product(a[rows], w, None, nvfp4) for w in (expert.gate, expert.up))
            h = gated(gate, up)
            h = quantized_interval(h, scales[1]) if nvfp4 else rounded(h, dtype)
            part = rounded(product_of_interval(h, expert.down, nvfp4), dtype)
            weight = weights[rows, slot, None]
            for sums, values in zip(total, (part.low, part.exact, part.high), strict=False):
                sums[rows] += weight * values
            total[3][rows] += np.abs(weight * part.exact)
    low, exact, high, size = total
    rounding = (index.shape[1] + 2) * UNIT * size
    return Expected(low - rounding, exact, high + rounding)
