"""The cases of gemv, gemm, dual_gemm and grouped_gemm. Sizes are those of shapes.py."""

from functools import partial

import torch

import nvfp4kern

from . import baselines, drop_ins
from .baselines import BF16, DEQUANTIZED, DEQUANTIZED_LOOP, FLOAT, GROUPED_MM, LOOP, PAIR
from .case import Case, Unavailable, rotated
from .operands import (
    ALPHA,
    Wide,
    bytes_of,
    floats,
    halves,
    is_gated_product,
    is_product,
    near,
    operand,
    poisoned,
)
from .timing import rotation

GATED_ALPHA = ALPHA / 4
"""Brings silu's argument to where it bends."""


def _reads(tokens, *weights):
    """The buffers of a product, the weights' scales as they lie."""
    mine = [tokens.halves] if isinstance(tokens, Wide) else [tokens.codes, tokens.linear]
    return mine + [buffer for w in weights for buffer in (w.codes, w.blocked)]


def _float_sets(sets, device, alpha=ALPHA, dtype=None):
    """Operands as floats, the first scaled, as many sets as floats take to be past the L2."""
    size = sum(2.0 * torch.Size(o.shape).numel() for o in sets[0])
    return [
        [floats(o, scale, dtype) for o, scale in zip(one, (alpha, 1.0, 1.0), strict=False)]
        for one in rotated(sets, size, device)
    ]


def _dequantizing(build, sets, device, alpha=ALPHA):
    """Every set's call brings floats of its own."""
    size = sum(2.0 * torch.Size(o.shape).numel() for o in sets[0])
    return [baselines.dequantizing(build, one, alpha) for one in rotated(sets, size, device)]


# ---------------------------------------------------------------------------------------------
# gemv, gemm
# ---------------------------------------------------------------------------------------------


def gemv(device, m, k, batch):
    moved = batch * ((m + 1) * k * 9 / 16 + 2.0 * m)
    made = [(batch, 1, k), (batch, m, k)]
    sets = [[operand(device, *shape) for shape in made] for _ in range(rotation(moved, device))]
    outs = [poisoned(device, batch, m, 1) for _ in sets]
    calls = [
        partial(
            nvfp4kern.gemv, w.codes, x.codes, w.blocked, x.blocked,
            alpha=ALPHA, scale_layout="blocked", out=out,
        )
        for (x, w), out in zip(sets, outs, strict=True)
    ]  # fmt: skip

    def matrix_first(x, w):
        return baselines.gemm(w, x)

    def in_bfloat16():
        return [matrix_first(*one) for one in _float_sets(sets, device, dtype=torch.bfloat16)]

    more = {BF16: in_bfloat16} if device == "cpu" else {}  # on a GPU it takes as long as fp16

    return Case(
        shape=f"{m}x{k}" + f"x{batch}" * (batch > 1),
        moved=moved,
        work=2.0 * batch * m * k,
        calls=calls,
        outs=outs,
        right=lambda i: is_product(outs[i].mT, *sets[i]),
        others={
            FLOAT[device]: lambda: [matrix_first(*one) for one in _float_sets(sets, device)],
            **more,
            DEQUANTIZED: lambda: _dequantizing(matrix_first, sets, device),
        },
        agrees=lambda got: near([got], [outs[0]]),
        reads=[_reads(*one) for one in sets],
        drop_in=lambda: drop_ins.gemv(*sets[0]),
    )


def gemm(device, m, n, k, batch, wide):
    """`wide`: the tokens are fp16."""
    lead = (batch,) if batch > 1 else ()
    moved = batch * (n * k * 9 / 16 + m * k * (2 if wide else 9 / 16) + 2.0 * m * n)

    def tokens():
        return Wide(halves(device, *lead, m, k)) if wide else operand(device, *lead, m, k)

    sets = [[tokens(), operand(device, *lead, n, k)] for _ in range(rotation(moved, device))]
    outs = [poisoned(device, *lead, m, n) for _ in sets]
    calls = []
    for (x, w), out in zip(sets, outs, strict=True):
        mine = (x.halves, None) if wide else (x.codes, x.blocked)
        arguments = mine[0], w.codes, mine[1], w.blocked
        options = {"alpha": ALPHA, "scale_layout": "blocked", "out": out}
        calls.append(partial(nvfp4kern.gemm, *arguments, **options))
    return Case(
        shape=f"{m}x{n}x{k}" + f"x{batch}" * (batch > 1) + " W4A16" * wide,
        moved=moved,
        work=2.0 * batch * m * n * k,
        calls=calls,
        outs=outs,
        right=lambda i: is_product(outs[i], *sets[i]),
        others={
            FLOAT[device]: lambda: [baselines.gemm(*one) for one in _float_sets(sets, device)],
            DEQUANTIZED: lambda: _dequantizing(baselines.gemm, sets, device),
        },
        agrees=lambda got: near([got], [outs[0]]),
        reads=[_reads(*one) for one in sets],
        drop_in=None if wide else lambda: drop_ins.gemm(*sets[0]),
    )


def dual_gemm(device, m, n, k):
    rows = (m, n, n)
    moved = sum(rows) * k * 9 / 16 + 2.0 * m * n
    sets = [[operand(device, r, k) for r in rows] for _ in range(rotation(moved, device))]
    outs = [poisoned(device, m, n) for _ in sets]
    options = {"scale_layout": "blocked", "alpha1": GATED_ALPHA, "alpha2": GATED_ALPHA}
    calls = [
        partial(
            nvfp4kern.dual_gemm, *(o.codes for o in one), *(o.blocked for o in one),
            **options, out=out,
        )
        for one, out in zip(sets, outs, strict=True)
    ]  # fmt: skip

    def gated(*values):
        return partial(baselines.gated, *values)

    return Case(
        shape=f"{m}x{n}x{k}",
        moved=moved,
        work=4.0 * m * n * k,
        calls=calls,
        outs=outs,
        right=lambda i: is_gated_product(outs[i], *sets[i], GATED_ALPHA),
        others={
            PAIR[device]: lambda: [gated(*o) for o in _float_sets(sets, device, GATED_ALPHA)],
            DEQUANTIZED: lambda: _dequantizing(gated, sets, device, GATED_ALPHA),
        },
        agrees=lambda got: near([got], [outs[0]]),
        reads=[_reads(*one) for one in sets],
        drop_in=lambda: drop_ins.dual_gemm(*sets[0]),
    )


# ---------------------------------------------------------------------------------------------
# grouped_gemm
# ---------------------------------------------------------------------------------------------


def _loop(build, groups):
    return baselines.in_order([build(group) for group in groups])


def _loop_of_floats(groups):
    return _loop(lambda pair: baselines.gemm(floats(pair[0], ALPHA), floats(pair[1])), groups)


def _loop_dequantizing(groups):
    return _loop(lambda pair: baselines.dequantizing(baselines.gemm, pair, ALPHA), groups)


def _grouped_mm(groups):
    """Of groups of one N and one K."""
    if len({w.shape for _, w in groups}) != 1:
        raise Unavailable("it wants one N and one K for all groups")
    rows = torch.tensor([x.shape[0] for x, _ in groups]).cumsum(0)
    a = torch.cat([floats(x, ALPHA, torch.bfloat16) for x, _ in groups])
    b = torch.stack([floats(w, dtype=torch.bfloat16) for _, w in groups])
    return baselines.grouped_mm(a, b, rows.to(a.device, torch.int32))


def _grouped_others(sets, moved, device):
    """Baselines on the sets' groups, pairs of tokens and weights."""
    some = rotated(sets, moved * 32 / 9, device)
    builds = {
        LOOP[device]: _loop_of_floats,
        GROUPED_MM: _grouped_mm,
        DEQUANTIZED_LOOP: _loop_dequantizing,
    }
    return {
        name: lambda build=build: [build(groups) for groups in some]
        for name, build in builds.items()
    }


def _as_list(result):
    return result if isinstance(result, list) else [result]


def grouped_gemm(device, groups):
    """The list form; `groups`: (m, n, k) each."""
    moved = sum((m + n) * k * 9 / 16 + 2.0 * m * n for m, n, k in groups)
    sets = [
        [(operand(device, m, k), operand(device, n, k)) for m, n, k in groups]
        for _ in range(rotation(moved, device))
    ]
    outs = [[poisoned(device, m, n) for m, n, _ in groups] for _ in sets]
    calls = []
    for pairs, out in zip(sets, outs, strict=True):
        a, b = zip(*pairs, strict=True)
        codes, scales = ([[getattr(o, what) for o in side] for side in (a, b)]
                         for what in ("codes", "blocked"))  # fmt: skip
        options = {"scale_layout": "blocked", "alpha": ALPHA, "out": out}
        calls.append(partial(nvfp4kern.grouped_gemm, *codes, *scales, **options))

    def one_buffer(pairs):
        """More buffers than the reading kernel takes: as many bytes, together."""
        both = [o for pair in pairs for o in pair]
        return [torch.cat([t.flatten() for o in both for t in (o.codes, o.linear)])]

    return Case(
        shape=f"m={','.join(str(m) for m, *_ in groups)} {groups[0][1]}x{groups[0][2]}",
        moved=moved,
        work=2.0 * sum(m * n * k for m, n, k in groups),
        calls=calls,
        outs=outs,
        right=lambda i: all(
            is_product(out, *pair) for out, pair in zip(outs[i], sets[i], strict=True)
        ),
        others=_grouped_others(sets, moved, device),
        agrees=lambda got: near(_as_list(got), outs[0]),
        reads=[one_buffer(pairs) for pairs in sets] if device == "cuda" else [],
        drop_in=lambda: drop_ins.group_gemm(sets[0]),
    )


def _routed(experts, top, tokens):
    """How many of the tokens each expert gets where every token picks `top` of them at random."""
    chosen = torch.rand(tokens, experts).topk(top).indices
    return torch.bincount(chosen.flatten(), minlength=experts).tolist()


def mixture(device, experts, top, n, k, label, tokens):
    """The contiguous form with offsets on the device. Who gets no token is not read."""
    expected = experts * (1 - (1 - top / experts) ** tokens)
    rows = tokens * top
    active = expected * n * k * 9 / 16 + rows * (k * 9 / 16 + 2.0 * n)
    sets = []
    for _ in range(rotation(active, device)):
        counts = _routed(experts, top, tokens)
        sets.append((operand(device, rows, k), operand(device, experts, n, k), counts))
    outs = [poisoned(device, rows, n) for _ in sets]
    calls, groups = [], []
    for (x, w, counts), out in zip(sets, outs, strict=True):
        ends = torch.tensor([0, *counts]).cumsum(0).int()
        bounds = list(zip(ends.tolist(), ends[1:].tolist(), strict=False))
        mine = [(g, i, j) for g, (i, j) in enumerate(bounds) if j > i]
        groups.append([(x.row_range(i, j), w.matrix(g), out[i:j]) for g, i, j in mine])
        options = {"offsets": ends.to(device), "alpha": ALPHA, "out": out}
        options |= {"scale_layout": ("linear", "blocked")}
        arguments = x.codes, w.codes, x.linear, w.blocked
        calls.append(partial(nvfp4kern.grouped_gemm, *arguments, **options))
    moved = sum(sum(bytes_of(x, w) + out.nbytes for x, w, out in one) for one in groups)
    return Case(
        shape=f"{label} {n}x{k}, {tokens} tokens",
        moved=moved / len(sets),
        work=2.0 * rows * n * k,
        calls=calls,
        outs=outs,
        right=lambda i: all(is_product(out, x, w) for x, w, out in groups[i]),
        others=_grouped_others([[(x, w) for x, w, _ in one] for one in groups], active, device),
        agrees=lambda got: near(_as_list(got), [outs[0]]),
        reads=[
            _reads(x, w.matrix(slice(len(one))))
            for (x, w, _), one in zip(sets, groups, strict=True)
        ],
    )
