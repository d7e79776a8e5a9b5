"""The cases of experts alone (gate and up together, then down) and of whole layers of a mixture,
as nvfp4kern.nn runs them. Sizes are those of shapes.py; `data` is exact.py or gaussian.py.

Each step is checked on what the step before wrote. Of these values no sum is exact, so the bound
of gaussian.py holds from the second step on, and results of two builds may differ within it.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch

import nvfp4kern

from . import baselines, gaussian, humming_layers
from .case import Case, InOrder
from .operands import Operand, Wide, alpha_of, floats, near, poisoned
from .others import combined, quantized_bytes
from .products import LAYOUTS, halves
from .timing import rotation

CHECKED = 32
"""Experts of a set whose rows are compared, at most; all rows must be finite."""

GLOBAL_SCALE = 2.0**-6
"""Of what lies between the products: known beforehand, as a calibrated model's is."""

OTHERWISE = 1e-3
"""The part of quantised bytes that another tile's sums may round otherwise, at most."""


@dataclass
class Mixture:
    """What both kinds of case have. `scale`: of the numbers between the products."""

    data: object
    device: str
    experts: int
    top: int
    hidden: int
    intermediate: int
    tokens: int
    dtype: torch.dtype

    def __post_init__(self):
        self.rows = self.tokens * self.top
        self.scale = self.data.wide("cpu", 1, self.intermediate).scale
        self.size = 3 * self.hidden * self.intermediate

    @property
    def work(self):
        return 2.0 * self.rows * self.size

    def moved(self, results):
        """Bytes of the weights of experts that have tokens, of tokens and of rows of results."""
        busy = self.experts * (1 - (1 - self.top / self.experts) ** self.tokens)
        return busy * self.size * 9 / 16 + 2.0 * self.hidden * (self.tokens + results)

    def wide(self, rows, k):
        made = self.data.wide(self.device, rows, k)
        return replace(made, halves=made.halves.to(self.dtype))

    def weights(self):
        """Gates and ups, and downs."""
        up = self.data.operand(self.device, self.experts, 2 * self.intermediate, self.hidden)
        return up, self.data.operand(self.device, self.experts, self.hidden, self.intermediate)

    def poisoned(self, *shape, dtype=None):
        return poisoned(self.device, *shape, dtype=dtype or self.dtype)

    def gate_up(self, x, up, layout, offsets, rows, **more):
        """The call of the first product, on tokens that it gathers."""
        codes, factors = (x.halves, None) if isinstance(x, Wide) else (x.codes, x.linear)
        given = codes, up.codes, factors, up.scales(layout), offsets
        more |= {"alpha": self.full(alpha_of(x, up), self.experts, 2 * self.intermediate)}
        more |= {"scale_layout": ("linear", layout), "rows": rows, "rows_per_token": self.top}
        return partial(nvfp4kern.grouped_dual_gemm, *given, **more)

    def down(self, h, down, layout, offsets, out):
        codes, factors = (h.halves, None) if isinstance(h, Wide) else (h.codes, h.linear)
        more = {"offsets": offsets, "alpha": self.full(alpha_of(h, down), self.experts)}
        more |= {"scale_layout": ("linear", layout), "out": out}
        given = codes, down.codes, factors, down.scales(layout)
        return partial(nvfp4kern.grouped_gemm, *given, **more)

    def full(self, value, *shape):
        """An alpha for each expert, or each row of its weights, as in a checkpoint."""
        return torch.full(shape, value, device=self.device)

    def are_products(self, operands, gated, is_gated, y, offsets, rows):
        """Whether `gated` has the gated products of x, and y the products of h, in the rows of a
        sample of the experts. operands: x, h, weights."""
        x, h, up, down = operands
        tokens, ends = rows.long() // self.top, offsets.tolist()
        busy = [g for g in range(self.experts) if ends[g] < ends[g + 1]]
        for g in busy[:: -(-len(busy) // CHECKED)]:
            mine = slice(ends[g], ends[g + 1])
            both = halves(up.matrix(g))
            if not is_gated(gated[mine], x.of_rows(tokens[mine]), *both):
                return False
            if not gaussian.is_product(y[mine], h.of_rows(mine), down.matrix(g)):
                return False
        return bool(y.isfinite().all())

    def case(self, label, sets, call, outs, right, results, others):
        """call(set, layout, out) for each layout that `outs` has."""
        calls = {
            layout: [call(one, layout, out) for one, out in zip(sets, some, strict=True)]
            for layout, some in outs.items()
        }
        return Case(
            shape=f"{label} {self.intermediate}x{self.hidden}, {self.tokens} tokens",
            moved=self.moved(results),
            work=self.work,
            calls=calls,
            outs=outs,
            right=right,
            agrees=lambda got, ours: near([got[-1]], [ours[-1]]),
            others=others,
            has_one_result=False,
        )


def experts(data, device, label, tokens, dtype, **sizes):
    """Tokens pick experts at random, and are sorted beforehand."""
    of = Mixture(data, device, tokens=tokens, dtype=getattr(torch, dtype), **sizes)
    draw, sets = torch.Generator().manual_seed(0), []
    for _ in range(rotation(of.moved(of.rows), device)):
        ids = torch.rand(tokens, of.experts, generator=draw).topk(of.top).indices.int()
        _, offsets, rows, _ = baselines.sort_by_expert(ids.to(device), of.experts)
        sets.append((of.wide(tokens, of.hidden), *of.weights(), offsets, rows))

    def call(one, layout, out):
        (x, up, down, offsets, rows), (h, y) = one, out
        first = of.gate_up(x, up, layout, offsets, rows, out=h)
        return InOrder([first, of.down(Wide(h, of.scale), down, layout, offsets, y)])

    def right(out, i):
        (x, up, down, offsets, rows), (h, y) = sets[i], out
        operands = x, Wide(h, of.scale), up, down
        return of.are_products(operands, h, data.is_gated_product, y, offsets, rows)

    def poisoned_outs():
        return of.poisoned(of.rows, of.intermediate), of.poisoned(of.rows, of.hidden)

    outs = {layout: [poisoned_outs() for _ in sets] for layout in LAYOUTS}
    others = humming_layers.for_experts(sets, of.top, of.scale, device)
    others[baselines.GATED_MM] = lambda: [in_bfloat16(*one, of.top, of.scale) for one in sets]
    return of.case(f"{label} {dtype}", sets, call, outs, right, of.rows, others=others)


def in_bfloat16(x, up, down, offsets, rows, top, scale):
    """The call of torch's own products, of weights dequantised beforehand."""
    tokens, ends = floats(x, torch.bfloat16), offsets[1:]
    up, down = (floats(w, torch.bfloat16) for w in (up, down))
    down *= scale

    def product(a, w):
        return baselines.grouped_mm(a, w, ends)()

    gather = baselines.fused(lambda tokens, at: tokens[at // top], x.device)
    gate = baselines.fused(baselines.gate, x.device)
    return InOrder([lambda: product(gate(product(gather(tokens, rows), up)), down)])


ROUTED = 6
"""Results of route, with which a layer's begin."""


def layer(data, device, label, tokens, quantized, **sizes):
    """`quantized`: W4A4. Scale factors are linear, as checkpoints have them."""
    of = Mixture(data, device, tokens=tokens, dtype=torch.float16, **sizes)
    sets = [
        (of.wide(tokens, of.hidden), of.wide(of.experts, of.hidden), *of.weights())
        for _ in range(rotation(of.moved(tokens), device))
    ]

    def poisoned_outs():
        """Of route, codes and scale factors of tokens where quantized, of the products, the sum."""
        integers, given = partial(of.poisoned, dtype=torch.int32), (tokens, of.top)
        made = [of.poisoned(*given, dtype=torch.float32), integers(*given), integers(of.experts)]
        made += [integers(of.experts + 1), integers(of.rows), integers(of.rows)]
        if quantized:
            sizes = [(tokens, of.hidden), (of.rows, of.intermediate)]
            parts = [(rows, k // part) for rows, k in sizes for part in (2, 16)]
            made += [of.poisoned(*part, dtype=torch.uint8) for part in parts]
        else:
            made.append(of.poisoned(of.rows, of.intermediate))
        return (*made, of.poisoned(of.rows, of.hidden), of.poisoned(tokens, of.hidden))

    def operands(one, between):
        """What the two products read, and the weights."""
        x, _, *weights = one
        if not quantized:
            return x, Wide(between[0], of.scale), *weights
        scales = GLOBAL_SCALE * x.scale, GLOBAL_SCALE * of.scale
        pairs = between[:2], between[2:]
        x, h = (Operand(*p, None, scale) for p, scale in zip(pairs, scales, strict=True))
        return x, h, *weights

    def call(one, layout, out):
        (tokens_of, gate, *_), routed, (*between, y, result) = one, out[:ROUTED], out[ROUTED:]
        x, h, up, down = operands(one, between)
        weights, _, _, offsets, rows, row_of = routed
        given = tokens_of.halves, gate.halves, of.top
        more = {"alpha": alpha_of(tokens_of, gate), "permutation": True, "return_row_of": True}
        steps = [partial(nvfp4kern.route, *given, **more, out=routed)]
        more = {"out": between[0]}
        if quantized:
            scale = {"global_scale": GLOBAL_SCALE}
            steps.append(partial(nvfp4kern.quantize, given[0], **scale, out=between[:2]))
            more = {"quantized": True, "out": between[2:], **scale}
        steps.append(of.gate_up(x, up, layout, offsets, rows, **more))
        steps.append(of.down(h, down, layout, offsets, y))
        steps.append(partial(nvfp4kern.combine, y, row_of, weights, out=result))
        return InOrder(steps)

    def right(out, i):
        (tokens_of, gate, *_), (*between, y, result) = sets[i], out[ROUTED:]
        weights, ids, *order = out[:ROUTED]
        if not data.is_routed(weights, ids, tokens_of, gate):
            return False
        if not all(map(torch.equal, order, baselines.sort_by_expert(ids, of.experts))):
            return False
        _, offsets, rows, row_of = order
        found = operands(sets[i], between)
        gated, is_gated = between[0], data.is_gated_product
        if quantized:
            gated = of.gate_up(found[0], found[2], "linear", offsets, rows, out_dtype="float32")()
            is_gated = gaussian.is_gated_product
            if not are_quantized(between[:2], tokens_of.halves, 0):
                return False
            if not are_quantized(between[2:], gated, OTHERWISE):
                return False
        return of.are_products(found, gated, is_gated, y, offsets, rows) and torch.equal(
            result, combined(y, row_of, weights)
        )

    outs = {"linear": [poisoned_outs() for _ in sets]}
    label += " W4A4" if quantized else " W4A16"
    case = of.case(label, sets, call, outs, right, tokens, others={})
    if not quantized:
        ours = case.calls["linear"], [out[:ROUTED] for out in outs["linear"]]
        case.others = humming_layers.for_layers(sets, *ours, of.top, of.scale, device)
    return case


def are_quantized(got, x, most):
    """Whether these are the codes and scale factors of x, but for a part of the bytes."""
    want = quantized_bytes(x, GLOBAL_SCALE)
    return all((a != b).float().mean().item() <= most for a, b in zip(got, want, strict=True))
