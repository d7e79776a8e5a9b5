"""Small calls of the GEMM operators, drawn by a seed: sizes, layouts, strides, types, batches.

What is drawn has NaN around and between rows, as padding of blocked scale factors and as poison of
outputs. Most draws are of the exact family: a GPU must then write the bytes that the CPU writes,
guards included. The rest has all codes and scale factors: the oracle's interval must hold.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from drawn_needs import NOTHING
from generators import (
    AROUND,
    DTYPES,
    ORDERS,
    Guarded,
    floats,
    from_numpy,
    layout_of,
    rng_of,
    scale_bytes,
    scales,
    values,
)

import nvfp4kern
from nvfp4kern.verify import data, reference

TOKENS = ("NVFP4", "float16", "bfloat16")
OF_HALVES = ("halves_along_k", "halves_along_n")
"""Contiguous, of 16-bit weights that lie so."""
OPERATORS = ("gemm", "dual_gemm", "contiguous", "rows", "list", "one launch", *OF_HALVES)
OPERATORS += ("halves_by_rows", "activated", "alike list")
NAN = 0x7F
ATOM_ROWS = 128  # whose blocked scale factors lie together
EXACT = (None, "relu")  # activations


@dataclass
class Drawn:
    """A call that can be made on any device. `expected` has the oracle's answers: (output, rows,
    interval); other rows belong to nobody."""

    function: str
    make: object
    """device -> (positional arguments, options without out, list of Guarded)"""
    expected: object
    """c, which scales the error bound -> the answers"""
    dtype: str
    exact: bool
    """The CPU's bytes are the only right ones."""
    said: dict = field(default_factory=dict)

    def run(self, device):
        """The Guarded outputs."""
        args, options, outs = self.made(device)
        getattr(nvfp4kern, self.function)(*args, **options)
        return outs

    def explain(self, device):
        args, options, _ = self.made(device)
        return nvfp4kern.explain(self.function, *args, **options)

    def made(self, device):
        args, options, outs = self.make(device)
        out = [o.tensor for o in outs]
        return args, options | {"out": out if isinstance(args[0], list) else out[0]}, outs

    def check(self, outs, c, oracle=True):
        """Raises AssertionError where the outputs are wrong."""
        assert all(out.guards_intact() for out in outs), f"guards: {self.said}"
        if self.exact:
            for i, (ours, theirs) in enumerate(zip(outs, self.run("cpu"), strict=True)):
                differ = ours.buffer.view(torch.uint8).cpu() != theirs.buffer.view(torch.uint8)
                assert not differ.any(), f"output {i}, {int(differ.sum())} bytes: {self.said}"
        for i, rows, interval in self.expected(c) if oracle else ():
            verdict = reference.check(values(outs[i].tensor)[..., rows, :], interval, self.dtype)
            assert verdict.ok, f"output {i}, rows {rows}, {verdict}: {self.said}"


# --- Operands ---


def pitched(array, aligned, extra, device):
    """Rows `aligned` bytes from each other, and batches likewise, NaN in between."""
    *batch, rows, cols = array.shape
    pitch = -(-cols // aligned) * aligned + extra[0] * aligned
    strides = [1, pitch, pitch * rows + extra[1] * aligned][: array.ndim][::-1]
    size = strides[0] * (batch[0] if batch else rows)
    buffer = torch.full((size + 2 * AROUND,), 0xFF, dtype=torch.uint8)
    torch.as_strided(buffer, array.shape, strides, AROUND).copy_(torch.from_numpy(array))
    return torch.as_strided(buffer.to(device), array.shape, strides, AROUND)


def by_expert(array, offsets):
    """device -> scale factors as quantize(offsets=) lays them out, NaN as padding."""
    blocked = reference.to_blocked_by_expert(array, offsets)
    used = reference.to_blocked_by_expert(np.ones_like(array), offsets)
    return lambda device: scale_bytes(np.where(used == 1, blocked, np.uint8(NAN)), device)


class Draw:
    """The random numbers of one call, and what they were taken for."""

    def __init__(self, rng, always_exact=False, needs=NOTHING):
        self.rng, self.always_exact, self.needs = rng, always_exact, needs

    def exact(self):
        return self.upto(4) > 1 or self.always_exact

    def of(self, options):
        return options[self.rng.integers(len(options))]

    def upto(self, most, least=1):
        return int(self.rng.integers(least, most + 1))

    def operand(self, exact, *shape):
        return (data.exact_family if exact else data.full_range)(self.rng, *shape)

    def weights(self, exact, *shape):
        """What tensor maps can say: (device -> codes, device -> scale factors, layout, values); the
        last is a function, too: few calls ask the oracle."""
        operand = self.operand(exact, *shape)
        extra = self.upto(2, 0), self.upto(1, 0)
        place = (lambda d: from_numpy(operand.codes, d)) if shape[-1] % 32 == 0 else None
        if place is None or self.of((True, False)):
            place = lambda d: pitched(operand.codes, 16, extra, d)  # noqa: E731
        form = self.of(("linear", "blocked", "flat", "permuted"))
        sf = self.factors(operand, form, 4)
        return place, sf, layout_of(form), lambda: operand.values

    def weights_of(self, dtype, exact, along, *shape):
        """Likewise, of 16-bit elements that are contiguous along "k" or "n". All experts may have
        one matrix."""
        experts, *shape = shape
        shape = (1 if self.upto(6) == 1 else experts, *shape)
        w = data.small_integers(self.rng, *shape, most=3)
        if not exact:
            w = data.halves(self.rng, dtype, *shape)
        extra = 8 * self.upto(2, 0), self.upto(2, 0)

        def place(device):
            rows = w if along == "k" else w.swapaxes(1, 2)
            whole = -rows.shape[2] % 8 + extra[0]  # rows of whole 16 bytes
            padded = np.pad(rows, [(0, 0), (0, extra[1]), (0, whole)], constant_values=np.nan)
            there = floats(padded, dtype, device)[:, : rows.shape[1], : rows.shape[2]]
            return (there if along == "k" else there.mT).expand(experts, -1, -1)

        of_all = lambda: np.broadcast_to(w.astype(np.float64), (experts, *shape[1:]))  # noqa: E731
        return place, lambda d: None, "linear", of_all

    def factors(self, operand, form, aligned):
        if form == "linear":
            aligned, extra = aligned * self.of((1, 2, 4)), (self.upto(2, 0), self.upto(1, 0))
            return lambda d: pitched(operand.scales, aligned, extra, d)
        seed = self.upto(1 << 30)
        byte = self.of((NAN, NAN, None))
        return lambda d: scales(operand, form, rng_of(seed), d, byte)

    def tokens(self, kind, exact, *shape, offsets=None):
        """(device -> elements, device -> scale factors or None, layout, -> values)

        With offsets each expert's blocked scale factors begin an atom.
        """
        if kind != "NVFP4":
            x = data.small_integers(self.rng, *shape, most=3)
            if not exact:
                x = data.halves(self.rng, kind, *shape)
            wide = 8 * self.upto(2, 0)

            def place(device):
                padding = [(0, 0)] * (len(shape) - 1) + [(0, wide)]
                padded = np.pad(x, padding, constant_values=np.nan)
                return floats(padded, kind, device)[..., : shape[-1]]

            return place, lambda d: None, "linear", lambda: x.astype(np.float64)
        operand = self.operand(exact, *shape)
        extra = self.upto(3, 0), self.upto(2, 0)
        form = self.of(("linear", "blocked", "flat", "permuted"))
        sf = self.factors(operand, form, 1)
        if offsets is not None and form != "linear":
            sf = by_expert(operand.scales, offsets)
        return (
            lambda d: pitched(operand.codes, self.needs.pitch, extra, d), sf, layout_of(form),
            lambda: operand.values,
        )  # fmt: skip

    def alpha(self, n):
        """(device -> the argument, its values); n: how many there may be."""
        kind = self.of(("none", "none", "float", "one", "all", "strided"))
        if kind == "none":
            return lambda d: None, 1.0
        of = self.rng.standard_normal(n if kind in ("all", "strided") else 1).astype(np.float32)
        if kind == "float":
            return lambda d: float(of[0]), of[0]
        if kind == "strided":
            return lambda d: from_numpy(np.repeat(of, 2), d)[::2], of
        return lambda d: from_numpy(of, d), of

    def bias(self, *shape):
        if not (step := self.of((0, 0, 1, 2))):
            return lambda d: None, 0.0
        dtype = self.of(DTYPES)
        of = data.halves(self.rng, dtype, *shape, scale=10)
        return lambda d: floats(np.repeat(of, step, -1), dtype, d)[..., ::step], of

    def k(self, most):
        """Now and then one that fills any ring more than once, or none of whole steps."""
        small = self.of((32, 64, 96, 128, 160, 192, 256, 320, 448, 576))
        if self.upto(5) == 1 and most >= 1088:
            return self.of([k for k in (1088, 1344, 1408, 2880, 4608, 5152) if k <= most])
        return self.of((16, 48, 80)) if self.upto(8) == 1 else min(small, max(most // 32 * 32, 32))


def without_none(options):
    return {name: value for name, value in options.items() if value is not None}


# --- Operators ---


def sizes_of(draw, tokens, work):
    """M, N, K of about `work` multiplications at most, as tiles of so many tokens take them."""
    fills_a_ring = min(5152 if tokens <= 32 else 1408, work >> 9)
    k = draw.k(max(work // 128 // max(tokens, 8), fills_a_ring))
    m = draw.of((1, draw.upto(9), draw.upto(tokens), tokens, tokens + draw.upto(tokens)))
    n = draw.of((1, draw.upto(40), draw.upto(130), 128, 64, 16 * draw.upto(12)))
    if draw.needs.lanes:
        n = draw.of((n, draw.upto(3 * draw.needs.lanes)))
        m = draw.of((m, m, draw.upto(3 * ATOM_ROWS)))
        m, n = draw.of(((m, n), (n, m)))
    return m, n, draw.needs.whole(k + draw.needs.more_k)


def draw_gemm(draw, tokens, kind, work):
    exact, (m, n, k) = draw.exact(), sizes_of(draw, tokens, work)
    batch = draw.of((None, None, None, 1, 2, 3, "many"))
    if batch == "many":
        batch, m, n, k = draw.upto(150, 130), draw.upto(3), draw.upto(20), draw.of((32, 64, 128))
        k = draw.needs.whole(k + draw.needs.more_k)
    lead = () if batch is None else (batch,)
    shared = draw.of((True, False))
    a, sfa, form_a, av = draw.tokens(kind, exact, *lead, m, k)
    b, sfb, form_b, bv = draw.weights(exact, *(() if shared else lead), n, k)
    (alpha, alpha_of), (bias, bias_of) = draw.alpha(n), draw.bias(n)
    dtype, order = draw.of(DTYPES), draw.of(ORDERS)

    def make(device):
        options = {"alpha": alpha(device), "bias": bias(device), "scale_layout": (form_a, form_b)}
        args = a(device), b(device), sfa(device), sfb(device)
        return args, without_none(options), [Guarded((*lead, m, n), dtype, device, order)]

    def expected(c):
        whole = reference.gemm(av(), bv(), alpha=alpha_of, bias=bias_of, c=c, nvfp4=kind == "NVFP4")
        yield 0, slice(None), whole

    said = {"m": m, "n": n, "k": k, "batch": batch, "shared": shared, "forms": (form_a, form_b)}
    return Drawn("gemm", make, expected, dtype, exact, said | {"out": (dtype, order)})


def activation_of(draw):
    """Options of gated operators, and of the oracle."""
    activation = "relu" if draw.always_exact else draw.of(tuple(reference.ACTIVATIONS))
    options = {"activation": activation}
    if activation in ("silu", "swiglu_oai") and draw.of((True, False)):
        options["limit"] = draw.of((0.5, 7.0, 30.0))
    if activation == "swiglu_oai" and draw.of((True, False)):
        options["activation_scale"] = 0.75
    return options


def draw_dual_gemm(draw, tokens, kind, work):
    m, n, k = sizes_of(draw, tokens, work)
    exact, activation = draw.exact(), activation_of(draw)
    lead = draw.of(((), (), (1,), (2,)))
    a, sfa, form_a, av = draw.tokens(kind, exact, *lead, m, k)
    first = draw.weights(exact, *lead, n, k)
    second = draw.weights(exact, *lead, n, k)
    while second[2] != first[2]:  # one layout for both
        second = draw.weights(exact, *lead, n, k)
    alphas = [draw.alpha(n) for _ in range(2)]
    scaled = [2.0**-6 * of for _, of in alphas]
    biases = [draw.bias(n) for _ in range(2)]
    dtype, order = draw.of(DTYPES), draw.of(ORDERS)

    def make(device):
        weights = first[0](device), second[0](device)
        options = activation | {"scale_layout": (form_a, first[2])}
        for i, alpha in enumerate(scaled):
            given = np.atleast_1d(np.float32(alpha))
            options[f"alpha{i + 1}"] = from_numpy(given, device)
            options[f"bias{i + 1}"] = biases[i][0](device)
        args = a(device), *weights, sfa(device), first[1](device), second[1](device)
        return args, options, [Guarded((*lead, m, n), dtype, device, order)]

    def expected(c):
        options = activation | {"alpha1": scaled[0], "alpha2": scaled[1]}
        options |= {"bias1": biases[0][1], "bias2": biases[1][1]}
        ups = first[3](), second[3]()
        yield 0, slice(None), reference.dual_gemm(av(), *ups, c=c, nvfp4=kind == "NVFP4", **options)

    said = {"m": m, "n": n, "k": k, "batch": lead, "forms": (form_a, first[2])}
    exact = exact and activation["activation"] in ("identity", "relu")
    said |= activation | {"biases": [np.ndim(of) > 0 for _, of in biases], "out": (dtype, order)}
    return Drawn("dual_gemm", make, expected, dtype, exact, said)


def offsets_of(draw, tokens):
    """Offsets, and the number of rows: a few experts, one with everything, or very many."""
    kind = draw.of(("few", "few", "one", "many"))
    if kind == "many":
        most = min(1024 if tokens < 64 else 400, draw.needs.experts)
        counts = draw.rng.integers(0, 2, draw.of((140, 200, most)))
        counts[draw.upto(len(counts) - 1, 0)] = draw.upto(min(tokens, 64))
        counts[np.cumsum(counts) > 160] = 0
    else:
        few = min(tokens, 64)
        counts = draw.rng.integers(0, few + 2, draw.upto(5)) * draw.upto(1, 0)
        counts = np.append(counts, draw.upto(few + 3))
        if kind == "one":
            counts[:-1] = 0
        draw.rng.shuffle(counts)
    offsets = np.cumsum([draw.upto(3, 0), *counts]).astype(np.int32)
    return kind, offsets, int(offsets[-1]) + draw.upto(3, 0)


def draw_experts(draw, tokens, kind, work, by_rows=False, along=None, activation=None):
    """`along` which dimension weights are contiguous, if they are of 16 bits."""
    exact = draw.exact()
    _, n, k = sizes_of(draw, tokens, work)
    how, offsets, count = offsets_of(draw, tokens)
    experts = len(offsets) - 1
    if how == "many":
        n, k = draw.upto(20), draw.of((32, 64, 128))
    m, per_token = count, 1
    if by_rows:
        m, per_token = draw.upto(count + 3), draw.of((1, 1, 2, 8))
    a, sfa, form_a, av = draw.tokens(kind, exact, m, k, offsets=None if by_rows else offsets)
    if along:
        b, sfb, form_b, bv = draw.weights_of(kind, exact, along, experts, n, k)
    else:
        b, sfb, form_b, bv = draw.weights(exact, experts, n, k)
    alpha = draw.of((None, (1,), (experts,), (experts, n)))
    alpha = None if alpha is None else draw.rng.standard_normal(alpha).astype(np.float32)
    bias, bias_of = draw.bias(experts, n)
    dtype, order = draw.of(DTYPES), draw.of(ORDERS)
    rows = draw.rng.integers(0, m * per_token, count).astype(np.int32)
    rows[: offsets[0]] = rows[offsets[-1] :] = -1
    token_of = rows // per_token if by_rows else np.arange(count)

    def make(device):
        options = {
            "offsets": from_numpy(offsets, device), "bias": bias(device),
            "alpha": None if alpha is None else from_numpy(alpha, device),
            "rows": from_numpy(rows, device) if by_rows else None,
            "rows_per_token": per_token if by_rows else None, "scale_layout": (form_a, form_b),
            "activation": activation,
        }  # fmt: skip
        args = a(device), b(device), sfa(device), sfb(device)
        return args, without_none(options), [Guarded((count, n), dtype, device, order)]

    def expected(c):
        scale, x, w = 1.0 if alpha is None else alpha, av(), bv()
        for g in range(experts):
            part = slice(offsets[g], offsets[g + 1])
            by = scale if np.size(scale) == 1 else scale[g]
            add = bias_of if np.ndim(bias_of) == 0 else bias_of[g]
            of = {"activation": activation or "identity", "nvfp4": kind == "NVFP4"}
            yield 0, part, reference.gemm(x[token_of[part]], w[g], alpha=by, bias=add, c=c, **of)

    said = {"experts": experts, "rows": count, "m": m, "n": n, "k": k, "forms": (form_a, form_b)}
    said |= {"kind": how, "out": (dtype, order), "per_token": per_token, "activation": activation}
    return Drawn("grouped_gemm", make, expected, dtype, exact and activation in EXACT, said)


def draw_activated(draw, *args):
    by_rows = draw.of((True, False))
    activation = "relu" if draw.always_exact else draw.of(reference.ALONE)
    return draw_experts(draw, *args, by_rows=by_rows, activation=activation)


def draw_list(draw, tokens, kind, work, together=False, alike=False):
    """Groups share types and layouts alone. Those of one launch are more, and of more tokens; alike
    ones have the same N and K, and no more than the tile's tokens."""
    exact, count = draw.exact(), draw.upto(6, 2) if together else draw.upto(4)
    most = tokens if together else min(tokens, 64)
    dtype, order = draw.of(DTYPES), draw.of(ORDERS)
    groups, layouts = [], None
    while len(groups) < count:
        m, n, k = sizes_of(draw, most, work // 2)
        m = draw.of((0, m, m, m)) if groups else m
        if alike:
            m, (n, k) = min(m, tokens), groups[0][1:3] if groups else (n, k)
        a, b = draw.tokens(kind, exact, m, k), draw.weights(exact, n, k)
        layouts = layouts or (a[2], b[2])
        if (a[2], b[2]) == layouts:
            alpha, (_, bias) = draw.alpha(n), draw.bias(n)
            groups.append((m, n, k, a, b, alpha, np.broadcast_to(np.float32(bias), (n,))))
    with_alpha, with_bias = draw.of((True, False)), draw.of((True, False))

    def make(device):
        a, b, sfa, sfb = ([g[of][i](device) for g in groups] for i in (0, 1) for of in (3, 4))
        args = [a, b, sfa if kind == "NVFP4" else None, sfb]
        options = {"scale_layout": layouts}
        if with_alpha:
            options["alpha"] = [from_numpy(np.atleast_1d(np.float32(g[5][1])), device)
                                for g in groups]  # fmt: skip
        if with_bias:
            options["bias"] = [floats(g[6], "float32", device) for g in groups]
        return args, options, [Guarded((g[0], g[1]), dtype, device, order) for g in groups]

    def expected(c):
        for i, g in enumerate(groups):
            alpha = g[5][1] if with_alpha else 1.0
            bias = g[6] if with_bias else 0.0
            yield (
                i,
                slice(None),
                reference.gemm(
                    g[3][3](), g[4][3](), alpha=alpha, bias=bias, c=c, nvfp4=kind == "NVFP4"
                ),
            )

    said = {"groups": [g[:3] for g in groups], "forms": layouts, "out": (dtype, order)}
    return Drawn("grouped_gemm", make, expected, dtype, exact, said)


MAKERS = {
    "gemm": draw_gemm,
    "dual_gemm": draw_dual_gemm,
    "contiguous": draw_experts,
    "rows": lambda *args: draw_experts(*args, by_rows=True),
    "list": draw_list,
    "one launch": lambda *args: draw_list(*args, together=True),
    "alike list": lambda *args: draw_list(*args, alike=True),
    "halves_along_k": lambda *args: draw_experts(*args, along="k"),
    "halves_along_n": lambda *args: draw_experts(*args, along="n"),
    "halves_by_rows": lambda *args: draw_experts(*args, along="k", by_rows=True),
    "activated": draw_activated,
}


def drawn(operator, kind, tokens, seed, work=1 << 22, always_exact=False, needs=NOTHING):
    """The call of a seed for tiles of so many tokens, of about so many multiplications."""
    of_all = OPERATORS.index(operator), TOKENS.index(kind), tokens
    draw = Draw(rng_of(seed, *of_all), always_exact, needs)
    call = MAKERS[operator](draw, tokens, kind, work)
    call.said |= {"operator": operator, "tokens": kind, "tile of": tokens, "seed": seed}
    return call
