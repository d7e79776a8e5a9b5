"""The cases of gemv, gemm, dual_gemm, grouped_gemm and grouped_dual_gemm. Sizes are those of
shapes.py; `data` is exact.py or gaussian.py."""

from functools import partial

import torch

import nvfp4kern

from . import baselines, drop_ins, humming_layers
from .baselines import (
    BF16,
    DEQUANTIZED,
    DEQUANTIZED_LOOP,
    FLOAT,
    GATED_MM,
    GROUPED_MM,
    LOOP,
    PAIR,
    PAIR_LOOP,
)
from .case import Case, InOrder, Unavailable, rotated
from .operands import Wide, alpha_of, bytes_of, floats, near, poisoned
from .timing import rotation

LAYOUTS = ("blocked", "linear")
"""Of scale factors; the first is that of a row's `time`. The competition hands over both."""


def _by_layout(sets, call, out):
    """Calls and outs of a case: call(set, layout, out)."""
    outs = {layout: [out(one) for one in sets] for layout in LAYOUTS}
    calls = {
        layout: [call(one, layout, mine) for one, mine in zip(sets, outs[layout], strict=True)]
        for layout in LAYOUTS
    }
    return {"calls": calls, "outs": outs}


def _reads(tokens, *weights):
    """The buffers of a product: linear scale factors of tokens, blocked ones of weights."""
    mine = [tokens.halves] if isinstance(tokens, Wide) else [tokens.codes, tokens.linear]
    return mine + [buffer for w in weights for buffer in (w.codes, w.blocked)]


def _tokens(x, layout):
    """Codes and scale factors, or 16-bit tokens, which have none."""
    return (x.halves, None) if isinstance(x, Wide) else (x.codes, x.scales(layout))


def _float_sets(sets, device, dtype=None):
    """Operands as floats, as many sets as floats take to be past the L2."""
    size = sum(2.0 * torch.Size(o.shape).numel() for o in sets[0])
    return [[floats(o, dtype) for o in one] for one in rotated(sets, size, device)]


def _dequantizing(build, sets, device):
    """Every set's call has floats of its own."""
    size = sum(2.0 * torch.Size(o.shape).numel() for o in sets[0])
    return [baselines.dequantizing(build, one) for one in rotated(sets, size, device)]


# --- gemv, gemm ---


def gemv(data, device, m, k, batch):
    moved = batch * ((m + 1) * k * 9 / 16 + 2.0 * m)
    made = [(batch, 1, k), (batch, m, k)]
    sets = [
        [data.operand(device, *shape) for shape in made] for _ in range(rotation(moved, device))
    ]

    def call(operands, layout, out):
        x, w = operands
        scales = (o.scales(layout) for o in (w, x))
        options = {"alpha": alpha_of(x, w), "scale_layout": layout, "out": out}
        return partial(nvfp4kern.gemv, w.codes, x.codes, *scales, **options)

    def matrix_first(x, w):
        return baselines.gemm(w, x)

    def in_bfloat16():
        return [matrix_first(*one) for one in _float_sets(sets, device, torch.bfloat16)]

    more = {BF16: in_bfloat16} if device == "cpu" else {}  # on a GPU it takes as long as fp16
    return Case(
        shape=f"{m}x{k}" + f"x{batch}" * (batch > 1),
        moved=moved,
        work=2.0 * batch * m * k,
        **_by_layout(sets, call, lambda _: poisoned(device, batch, m, 1)),
        right=lambda out, i: data.is_product(out.mT, *sets[i], gemv=True),
        others={
            FLOAT[device]: lambda: [matrix_first(*one) for one in _float_sets(sets, device)],
            **more,
            DEQUANTIZED: lambda: _dequantizing(matrix_first, sets, device),
        },
        agrees=lambda got, ours: near([got], [ours]),
        reads=[_reads(*one) for one in sets],
        drop_in=lambda: drop_ins.gemv(data, *sets[0]),
    )


def gemm(data, device, m, n, k, batch, wide):
    """`wide`: the tokens are fp16."""
    lead = (batch,) if batch > 1 else ()
    moved = batch * (n * k * 9 / 16 + m * k * (2 if wide else 9 / 16) + 2.0 * m * n)
    tokens = data.wide if wide else data.operand
    sets = [
        [tokens(device, *lead, m, k), data.operand(device, *lead, n, k)]
        for _ in range(rotation(moved, device))
    ]

    def call(operands, layout, out):
        x, w = operands
        codes, scales = _tokens(x, layout)
        arguments = codes, w.codes, scales, w.scales(layout)
        options = {"alpha": alpha_of(x, w), "scale_layout": layout, "out": out}
        return partial(nvfp4kern.gemm, *arguments, **options)

    return Case(
        shape=f"{m}x{n}x{k}" + f"x{batch}" * (batch > 1) + " W4A16" * wide,
        moved=moved,
        work=2.0 * batch * m * n * k,
        **_by_layout(sets, call, lambda _: poisoned(device, *lead, m, n)),
        right=lambda out, i: data.is_product(out, *sets[i]),
        others={
            FLOAT[device]: lambda: [baselines.gemm(*one) for one in _float_sets(sets, device)],
            DEQUANTIZED: lambda: _dequantizing(baselines.gemm, sets, device),
            **humming_layers.for_gemm(sets, device),
        },
        agrees=lambda got, ours: near([got], [ours]),
        reads=[_reads(*one) for one in sets],
        drop_in=None if wide else lambda: drop_ins.gemm(data, *sets[0]),
    )


def dual_gemm(data, device, m, n, k):
    rows = (m, n, n)
    moved = sum(rows) * k * 9 / 16 + 2.0 * m * n
    sets = [[data.operand(device, r, k) for r in rows] for _ in range(rotation(moved, device))]

    def call(operands, layout, out):
        x, gate, up = operands
        codes = (o.codes for o in operands)
        scales = (o.scales(layout) for o in operands)
        alphas = {"alpha1": alpha_of(x, gate), "alpha2": alpha_of(x, up)}
        return partial(nvfp4kern.dual_gemm, *codes, *scales, **alphas, scale_layout=layout, out=out)

    def gated(*values):
        return partial(baselines.gated, *values)

    return Case(
        shape=f"{m}x{n}x{k}",
        moved=moved,
        work=4.0 * m * n * k,
        **_by_layout(sets, call, lambda _: poisoned(device, m, n)),
        right=lambda out, i: data.is_gated_product(out, *sets[i]),
        others={
            PAIR[device]: lambda: [gated(*one) for one in _float_sets(sets, device)],
            DEQUANTIZED: lambda: _dequantizing(gated, sets, device),
        },
        agrees=lambda got, ours: near([got], [ours]),
        reads=[_reads(*one) for one in sets],
        drop_in=lambda: drop_ins.dual_gemm(data, *sets[0]),
    )


# --- grouped_gemm ---


def _loop(build, groups):
    return InOrder([build(group) for group in groups])


def _loop_of_floats(groups):
    return _loop(lambda pair: baselines.gemm(*map(floats, pair)), groups)


def _loop_dequantizing(groups):
    return _loop(lambda pair: baselines.dequantizing(baselines.gemm, pair), groups)


def _grouped_mm(groups):
    """Of groups of one N and one K."""
    if len({w.shape for _, w in groups}) != 1:
        raise Unavailable("it wants one N and one K for all groups")
    rows = torch.tensor([x.shape[0] for x, _ in groups]).cumsum(0)
    a = torch.cat([floats(x, torch.bfloat16) for x, _ in groups])
    b = torch.stack([floats(w, torch.bfloat16) for _, w in groups])
    return baselines.grouped_mm(a, b, rows.to(a.device, torch.int32))


def _products(device):
    """What builds the baselines of grouped_gemm."""
    builds = {LOOP[device]: _loop_of_floats, GROUPED_MM: _grouped_mm}
    return builds | {DEQUANTIZED_LOOP: _loop_dequantizing}


def _grouped_others(builds, sets, moved, device):
    """Baselines on the sets' groups, pairs of tokens and weights."""
    some = rotated(sets, moved * 32 / 9, device)
    return {
        name: lambda build=build: [build(groups) for groups in some]
        for name, build in builds.items()
    }


def _as_list(result):
    return result if isinstance(result, list) else [result]


def grouped_gemm(data, device, groups):
    """The list form; `groups`: (m, n, k) each."""
    moved = sum((m + n) * k * 9 / 16 + 2.0 * m * n for m, n, k in groups)
    sets = [
        [(data.operand(device, m, k), data.operand(device, n, k)) for m, n, k in groups]
        for _ in range(rotation(moved, device))
    ]

    def call(pairs, layout, out):
        sides = list(zip(*pairs, strict=True))
        codes = ([o.codes for o in side] for side in sides)
        scales = ([o.scales(layout) for o in side] for side in sides)
        options = {"scale_layout": layout, "alpha": [alpha_of(*pair) for pair in pairs], "out": out}
        return partial(nvfp4kern.grouped_gemm, *codes, *scales, **options)

    def one_buffer(pairs):
        """As many bytes in one buffer: there are more than the reading kernel takes."""
        both = [o for pair in pairs for o in pair]
        return [torch.cat([t.flatten() for o in both for t in (o.codes, o.linear)])]

    return Case(
        shape=f"m={','.join(str(m) for m, *_ in groups)} {groups[0][1]}x{groups[0][2]}",
        moved=moved,
        work=2.0 * sum(m * n * k for m, n, k in groups),
        **_by_layout(sets, call, lambda _: [poisoned(device, m, n) for m, n, _ in groups]),
        right=lambda outs, i: all(
            data.is_product(out, *pair) for out, pair in zip(outs, sets[i], strict=True)
        ),
        others=_grouped_others(_products(device), sets, moved, device),
        agrees=lambda got, ours: near(_as_list(got), ours),
        reads=[one_buffer(pairs) for pairs in sets] if device == "cuda" else [],
        drop_in=lambda: drop_ins.group_gemm(data, sets[0]),
    )


def routed(experts, top, tokens, draw):
    """How many of the tokens each expert gets where every token picks `top` of them at random."""
    chosen = torch.rand(tokens, experts, generator=draw).topk(top).indices
    return torch.bincount(chosen.flatten(), minlength=experts).tolist()


class Mixture:
    """Sets of tokens, weights [experts, n, k] and offsets, on the host. Experts without tokens are
    not read. `wide`: the tokens are fp16. `active`: bytes that a call reads, on average, and those
    of `out` columns of a result."""

    def __init__(self, data, device, experts, top, n, k, tokens, wide, out):
        self.rows, self.device = tokens * top, device
        expected = experts * (1 - (1 - top / experts) ** tokens)
        written = 2.0 * self.rows * out
        self.active = expected * n * k * 9 / 16 + self.rows * k * (2 if wide else 9 / 16) + written
        made = data.wide if wide else data.operand
        draw = torch.Generator().manual_seed(0)  # the same for any data
        self.sets = []
        for _ in range(rotation(self.active, device)):
            ends = torch.tensor([0, *routed(experts, top, tokens, draw)]).cumsum(0).int()
            one = made(device, self.rows, k), data.operand(device, experts, n, k), ends
            self.sets.append(one)
        self.groups = [
            [(x.of_rows(slice(i, j)), w.matrix(g)) for g, i, j in self.busy(ends)]
            for x, w, ends in self.sets
        ]
        read = sum(bytes_of(*(o for pair in one for o in pair)) for one in self.groups)
        self.moved = read / len(self.sets) + written
        self.reads = [
            _reads(x, w.matrix(slice(len(one))))
            for (x, w, _), one in zip(self.sets, self.groups, strict=True)
        ]

    @staticmethod
    def busy(ends):
        """(expert, its first row, the row after its last) of those with tokens."""
        ranges = list(zip(ends.tolist(), ends[1:].tolist(), strict=False))
        return [(g, i, j) for g, (i, j) in enumerate(ranges) if j > i]

    def are_right(self, out, i, is_right):
        """Whether is_right(rows of the result, tokens, weights) of every expert of set i."""
        return all(
            is_right(out[first:end], *pair)
            for (_, first, end), pair in zip(
                self.busy(self.sets[i][2]), self.groups[i], strict=True
            )
        )

    def by_layout(self, function, columns):
        """Calls and outs of a case. The layout is that of the weights' scale factors; the tokens'
        are linear."""

        def call(operands, layout, out):
            x, w, ends = operands
            codes, scales = _tokens(x, "linear")
            options = {"offsets": ends.to(self.device), "alpha": alpha_of(x, w), "out": out}
            options |= {"scale_layout": ("linear", layout)}
            return partial(function, codes, w.codes, scales, w.scales(layout), **options)

        return _by_layout(self.sets, call, lambda _: poisoned(self.device, self.rows, columns))


def mixture(data, device, experts, top, n, k, label, tokens, wide):
    """The contiguous form with offsets on the device."""
    of = Mixture(data, device, experts, top, n, k, tokens, wide, n)
    others = _grouped_others(_products(device), of.groups, of.active, device)
    return Case(
        shape=f"{label} {n}x{k}, {tokens} tokens" + " W4A16" * wide,
        moved=of.moved,
        work=2.0 * of.rows * n * k,
        **of.by_layout(nvfp4kern.grouped_gemm, n),
        right=lambda out, i: of.are_right(out, i, data.is_product),
        others=others | humming_layers.for_mixture(of.sets, device),
        agrees=lambda got, ours: near(_as_list(got), [ours]),
        reads=of.reads,
    )


# --- grouped_dual_gemm ---


def halves(w):
    """Gate and up of an expert's stack."""
    rows = w.shape[0] // 2
    return w.of_rows(slice(rows)), w.of_rows(slice(rows, None))


def _loop_of_pairs(groups):
    return _loop(
        lambda pair: partial(baselines.gated, *map(floats, (pair[0], *halves(pair[1])))), groups
    )


def _gated_mm(groups):
    product = _grouped_mm(groups)
    return lambda: baselines.gate(product())


def gated_mixture(data, device, experts, top, n, k, label, tokens, wide):
    """Experts whose stacks have n gates and n ups, on tokens as in mixture."""
    of = Mixture(data, device, experts, top, 2 * n, k, tokens, wide, n)
    builds = {PAIR_LOOP[device]: _loop_of_pairs, GATED_MM: _gated_mm}
    return Case(
        shape=f"{label} 2x{n}x{k}, {tokens} tokens" + " W4A16" * wide,
        moved=of.moved,
        work=4.0 * of.rows * n * k,
        **of.by_layout(nvfp4kern.grouped_dual_gemm, n),
        right=lambda out, i: of.are_right(
            out, i, lambda rows, x, w: data.is_gated_product(rows, x, *halves(w))
        ),
        others=_grouped_others(builds, of.groups, of.active, device),
        agrees=lambda got, ours: near(_as_list(got), [ours]),
        reads=of.reads,
    )
