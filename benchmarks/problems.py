"""What is timed: for each operator a Case with sets of operands, a float64 check, and baselines.

Codes are random, scales 0.5 to 1.9, so that nothing overflows fp16 and cuBLAS can have the values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import baselines
import timing
import torch

import nvfp4kern

ALPHA = 2.0**-7  # keeps results in the range of fp16
FLOATS = {"cuda": torch.float16, "cpu": torch.float32}  # of the baselines
NAMES = {"cuda": "cuBLAS fp16", "cpu": "torch fp32"}


@dataclass
class Case:
    """One problem. `calls`, `right` and `others` (by name): for each set of operands.

    moved: bytes of all inputs and outputs; work: operations, 0 where only memory counts.
    """

    op: str
    shape: str
    moved: float
    work: float
    calls: list[Callable]
    right: Callable[[int], bool]
    others: dict[str, list[Callable]]


@dataclass
class Operand:
    """NVFP4 [.., rows, K] with its scales in both layouts."""

    codes: torch.Tensor
    linear: torch.Tensor
    blocked: torch.Tensor

    @property
    def values(self):
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
        table = torch.cat((table, -table)).to(self.codes.device)
        both = torch.stack((self.codes & 15, self.codes >> 4), -1).flatten(-2)
        factors = self.linear.view(torch.float8_e4m3fn).double()
        return table[both.int()] * factors.repeat_interleave(16, -1)


def operand(device, *shape):
    *rows, k = shape
    codes = torch.randint(0, 256, (*rows, k // 2), dtype=torch.uint8, device=device)
    linear = torch.randint(0x30, 0x40, (*rows, k // 16), dtype=torch.uint8, device=device)
    return Operand(codes, linear, nvfp4kern.to_blocked(linear))


def bytes_of(*operand_shapes):
    return sum(torch.Size(shape).numel() for shape in operand_shapes) * 9 / 16


def dequantized(sets, device):
    """As many sets in the type that baselines multiply as a rotation of that type needs."""
    count = timing.rotation(sum(4.0 * o.codes.numel() for o in sets[0]), device)
    return [[o.values.to(FLOATS[device]) for o in operands] for operands in sets[:count]]


def product(a, b):
    """a @ b.T and the sum of magnitudes, float64."""
    b = b.transpose(-1, -2)
    return a @ b, a.abs() @ b.abs()


def close(got, exact, total, k):
    """Whether |got - exact| is within the tensor cores' bound and one rounding to fp16."""
    bound = 12 * 2.0**-24 * (k / 16 + 8) * total + 2.0**-11 * exact.abs() + 2.0**-24
    return bool(((got.double() - exact).abs() <= bound).all())


# ---------------------------------------------------------------------------------------------
# Products
# ---------------------------------------------------------------------------------------------


def _one_product(op, device, text, a_shape, b_shape):
    """a @ b.T by gemv (the matrix first) or gemm; shapes [.., rows, K]."""
    out_shape, k = (*a_shape[:-1], b_shape[-2]), a_shape[-1]
    results = torch.Size(out_shape).numel()
    moved = bytes_of(a_shape, b_shape) + 2.0 * results
    count = timing.rotation(moved, device)
    sets = [(operand(device, *a_shape), operand(device, *b_shape)) for _ in range(count)]
    outs = [torch.empty(out_shape, dtype=torch.float16, device=device) for _ in sets]
    function = partial(getattr(nvfp4kern, op), alpha=ALPHA, scale_layout="blocked")
    calls = [
        partial(function, a.codes, b.codes, a.blocked, b.blocked, out=out)
        for (a, b), out in zip(sets, outs, strict=True)
    ]

    def right(i):
        a, b = (o.values for o in sets[i])
        return close(outs[i], *product(a, b * ALPHA), k)

    others = {NAMES[device]: [baselines.gemm(*pair) for pair in dequantized(sets, device)]}
    return Case(op, text, moved, 2.0 * results * k, calls, right, others)


def gemv(device, m, k, batch):
    return _one_product("gemv", device, f"{m}x{k}x{batch}", (batch, m, k), (batch, 1, k))


def gemm(device, m, n, k, batch=1):
    lead = (batch,) if batch > 1 else ()
    return _one_product("gemm", device, f"{m}x{n}x{k}", (*lead, m, k), (*lead, n, k))


def dual_gemm(device, m, n, k, batch=1):
    """silu's slope is at most 1.1; evaluating it costs as much as 8 units of the result."""
    rows = (m, n, n)
    moved = bytes_of(*((r, k) for r in rows)) + 2.0 * m * n
    count = timing.rotation(moved, device)
    sets = [[operand(device, r, k) for r in rows] for _ in range(count)]
    outs = [torch.empty(m, n, dtype=torch.float16, device=device) for _ in sets]
    alpha = ALPHA / 4
    options = {"scale_layout": "blocked", "alpha1": alpha, "alpha2": alpha}
    calls = [
        partial(
            nvfp4kern.dual_gemm,
            *(o.codes for o in three),
            *(o.blocked for o in three),
            **options,
            out=out,
        )
        for three, out in zip(sets, outs, strict=True)
    ]

    def right(i):
        a, b1, b2 = (o.values for o in sets[i])
        (h, h_total), (u, u_total) = product(a, b1 * alpha), product(a, b2 * alpha)
        act = torch.nn.functional.silu(h)
        total = 1.1 * h_total * u.abs() + act.abs() * u_total + 8 * u.abs()
        return close(outs[i], act * u, total, k)

    halves = dequantized(sets, device)
    others = {f"{NAMES[device]}, two and silu": [baselines.dual_gemm(*three) for three in halves]}
    return Case("dual_gemm", f"{m}x{n}x{k}", moved, 4.0 * m * n * k, calls, right, others)


def grouped_gemm(device, *groups):
    """The list form; `groups`: (m, n, k, 1) each."""
    moved = sum(bytes_of((m, k), (n, k)) + 2.0 * m * n for m, n, k, _ in groups)
    count = timing.rotation(moved, device)
    sets = [
        [operand(device, rows, k) for m, n, k, _ in groups for rows in (m, n)] for _ in range(count)
    ]
    sizes = [(m, n) for m, n, _, _ in groups]
    outs = [[torch.empty(size, dtype=torch.float16, device=device) for size in sizes] for _ in sets]
    calls = []
    for operands, out in zip(sets, outs, strict=True):
        codes, scales = [o.codes for o in operands], [o.blocked for o in operands]
        lists = codes[::2], codes[1::2], scales[::2], scales[1::2]
        options = {"scale_layout": "blocked", "alpha": ALPHA, "out": out}
        calls.append(partial(nvfp4kern.grouped_gemm, *lists, **options))

    def right(i):
        pairs = zip(sets[i][::2], sets[i][1::2], outs[i], groups, strict=True)
        return all(
            close(out, *product(a.values, b.values * ALPHA), k) for a, b, out, (*_, k, _) in pairs
        )

    halves = dequantized(sets, device)
    others = {f"{NAMES[device]}, a loop": [baselines.group_loop(x[::2], x[1::2]) for x in halves]}
    if device == "cuda" and baselines.has_grouped_mm(groups):
        others["torch grouped_mm bf16"] = [baselines.grouped_mm(x[::2], x[1::2]) for x in halves]
    text = f"m={','.join(str(m) for m, *_ in groups)} {groups[0][1]}x{groups[0][2]}"
    work = 2.0 * sum(m * n * k for m, n, k, _ in groups)
    return Case("grouped_gemm", text, moved, work, calls, right, others)


def route(device, m, n, k, top=4):
    """Integers, so that logits are exact: ids are unique, ties go to the lower expert."""
    moved = 2.0 * (m + n) * k + 8.0 * m * top
    count = timing.rotation(moved, device)
    sets = [
        [torch.randint(-2, 3, (rows, k), device=device).half() for rows in (m, n)]
        for _ in range(count)
    ]
    kinds = (torch.float32, torch.int32)
    outs = [tuple(torch.empty(m, top, dtype=t, device=device) for t in kinds) for _ in sets]
    calls = [
        partial(nvfp4kern.route, *pair, top, alpha=ALPHA, out=out)
        for pair, out in zip(sets, outs, strict=True)
    ]

    def right(i):
        logits = product(*(t.double() for t in sets[i]))[0]
        order = torch.sort(logits, stable=True, descending=True).indices[:, :top]
        want = torch.softmax(logits.gather(-1, order) * ALPHA, -1)
        weights, ids = outs[i]
        near = torch.allclose(weights.double(), want, rtol=1e-5, atol=0)
        return near and torch.equal(ids.long(), order)

    others = {"eager torch": [baselines.route(*pair, top) for pair in sets]}
    return Case("route", f"{m}x{n}x{k}", moved, 2.0 * m * n * k, calls, right, others)


# ---------------------------------------------------------------------------------------------
# Conversions
# ---------------------------------------------------------------------------------------------


def quantize(device, rows, k, amax=False):
    """The input is read once, with amax twice. The CPU backend says what the bytes must be."""
    s2 = "amax" if amax else 2.0**-6
    moved = rows * k * (2.0 + 2.0 * amax + 9 / 16)
    count = timing.rotation(moved, device)
    inputs = [torch.randn(rows, k, device=device).bfloat16() for _ in range(count)]
    outs = [
        [torch.empty(rows, k // per, dtype=torch.uint8, device=device) for per in (2, 16)]
        + [torch.empty(1, device=device)] * amax
        for _ in inputs
    ]
    calls = [
        partial(nvfp4kern.quantize, x, global_scale=s2, out=out)
        for x, out in zip(inputs, outs, strict=True)
    ]

    def right(i):
        """Some rows, that with the largest value among them, are enough for the CPU."""
        largest = inputs[i].abs().amax(-1).argmax().cpu()
        chosen = torch.cat((torch.arange(0, rows, max(1, rows // 64)), largest[None]))
        want = nvfp4kern.quantize(inputs[i].cpu()[chosen], global_scale=s2)
        got = [out.cpu()[chosen] for out in outs[i][:2]]
        return all(map(torch.equal, got, (t.view(torch.uint8) for t in want[:2])))

    given = None if amax else s2
    others = {"eager torch": [baselines.quantize(x, given) for x in inputs]}
    text = f"{rows}x{k} bf16, {'amax' if amax else 's2 given'}"
    return Case("quantize", text, moved, 0.0, calls, right, others)


def dequantize(device, rows, k):
    moved = bytes_of((rows, k)) + 2.0 * rows * k
    sets = [operand(device, rows, k) for _ in range(timing.rotation(moved, device))]
    outs = [torch.empty(rows, k, dtype=torch.float16, device=device) for _ in sets]
    calls = [
        partial(nvfp4kern.dequantize, (o.codes, o.linear, 1.0), out=out)
        for o, out in zip(sets, outs, strict=True)
    ]

    def right(i):
        return torch.equal(outs[i].double(), sets[i].values)

    others = {"eager torch": [baselines.dequantize(o.codes, o.linear) for o in sets]}
    return Case("dequantize", f"{rows}x{k}", moved, 0.0, calls, right, others)
