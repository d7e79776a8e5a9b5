"""Small calls of the GEMM operators, drawn by a seed: sizes, layouts, strides, types, batches.

Most draws are of the exact family: a GPU must then write the bytes that the CPU writes, guards
included. The rest has all codes and scale factors: the oracle's interval must hold.
"""

import numpy as np
from drawn_needs import NOTHING
from drawn_operands import Draw, Drawn, without_none
from generators import DTYPES, ORDERS, Guarded, floats, from_numpy, rng_of

from nvfp4kern.verify import reference

TOKENS = ("NVFP4", "float16", "bfloat16")
OF_HALVES = ("halves_along_k", "halves_along_n")
"""Contiguous, of 16-bit weights that lie so."""
OPERATORS = ("gemm", "dual_gemm", "contiguous", "rows", "list", "one launch", *OF_HALVES)
OPERATORS += ("halves_by_rows", "activated", "alike list")
ATOM_ROWS = 128  # whose blocked scale factors lie together
EXACT = (None, "relu")  # activations


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
    factors, factors_of = draw.row_scale(*lead, m)
    dtype, order = draw.of(DTYPES), draw.of(ORDERS)

    def make(device):
        options = {"alpha": alpha(device), "bias": bias(device), "scale_layout": (form_a, form_b)}
        options["row_scale"] = factors(device)
        args = a(device), b(device), sfa(device), sfb(device)
        return args, without_none(options), [Guarded((*lead, m, n), dtype, device, order)]

    def expected(c):
        of = {"alpha": alpha_of, "row_scale": factors_of, "bias": bias_of}
        yield 0, slice(None), reference.gemm(av(), bv(), c=c, nvfp4=kind == "NVFP4", **of)

    said = {"m": m, "n": n, "k": k, "batch": batch, "shared": shared, "forms": (form_a, form_b)}
    said |= {"row_scale": factors_of is not None, "out": (dtype, order)}
    return Drawn("gemm", make, expected, dtype, exact, said)


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
    factors, factors_of = draw.row_scale(*lead, m)
    dtype, order = draw.of(DTYPES), draw.of(ORDERS)

    def make(device):
        weights = first[0](device), second[0](device)
        options = activation | {"scale_layout": (form_a, first[2]), "row_scale": factors(device)}
        for i, alpha in enumerate(scaled):
            given = np.atleast_1d(np.float32(alpha))
            options[f"alpha{i + 1}"] = from_numpy(given, device)
            options[f"bias{i + 1}"] = biases[i][0](device)
        args = a(device), *weights, sfa(device), first[1](device), second[1](device)
        return args, options, [Guarded((*lead, m, n), dtype, device, order)]

    def expected(c):
        options = activation | {"alpha1": scaled[0], "alpha2": scaled[1]}
        options |= {"bias1": biases[0][1], "bias2": biases[1][1], "row_scale": factors_of}
        ups = first[3](), second[3]()
        yield 0, slice(None), reference.dual_gemm(av(), *ups, c=c, nvfp4=kind == "NVFP4", **options)

    said = {"m": m, "n": n, "k": k, "batch": lead, "forms": (form_a, first[2])}
    exact = exact and activation["activation"] in ("identity", "relu")
    said |= activation | {"biases": [np.ndim(of) > 0 for _, of in biases], "out": (dtype, order)}
    said["row_scale"] = factors_of is not None
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
    factors, factors_of = draw.row_scale(m)
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
            "activation": activation, "row_scale": factors(device),
        }  # fmt: skip
        args = a(device), b(device), sfa(device), sfb(device)
        return args, without_none(options), [Guarded((count, n), dtype, device, order)]

    def expected(c):
        scale, x, w = 1.0 if alpha is None else alpha, av(), bv()
        for g in range(experts):
            part = slice(offsets[g], offsets[g + 1])
            by = scale if np.size(scale) == 1 else scale[g]
            add = bias_of if np.ndim(bias_of) == 0 else bias_of[g]
            of = {"activation": activation or "identity", "nvfp4": kind == "NVFP4", "c": c}
            if factors_of is not None:
                of["row_scale"] = factors_of[token_of[part]]
            yield 0, part, reference.gemm(x[token_of[part]], w[g], alpha=by, bias=add, **of)

    said = {"experts": experts, "rows": count, "m": m, "n": n, "k": k, "forms": (form_a, form_b)}
    said |= {"kind": how, "out": (dtype, order), "per_token": per_token, "activation": activation}
    said["row_scale"] = factors_of is not None
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
            alpha, (_, bias), factors = draw.alpha(n), draw.bias(n), draw.row_scale(m)
            bias = np.broadcast_to(np.float32(bias), (n,))
            groups.append((m, n, k, a, b, alpha, bias, factors))
    with_alpha, with_bias = draw.of((True, False)), draw.of((True, False))
    with_factors = any(g[7][1] is not None for g in groups)

    def make(device):
        a, b, sfa, sfb = ([g[of][i](device) for g in groups] for i in (0, 1) for of in (3, 4))
        args = [a, b, sfa if kind == "NVFP4" else None, sfb]
        options = {"scale_layout": layouts}
        if with_alpha:
            options["alpha"] = [from_numpy(np.atleast_1d(np.float32(g[5][1])), device)
                                for g in groups]  # fmt: skip
        if with_bias:
            options["bias"] = [floats(g[6], "float32", device) for g in groups]
        if with_factors:
            options["row_scale"] = [g[7][0](device) for g in groups]
        return args, options, [Guarded((g[0], g[1]), dtype, device, order) for g in groups]

    def expected(c):
        for i, g in enumerate(groups):
            of = {"alpha": g[5][1] if with_alpha else 1.0, "bias": g[6] if with_bias else 0.0}
            of |= {"row_scale": g[7][1], "c": c, "nvfp4": kind == "NVFP4"}
            yield i, slice(None), reference.gemm(g[3][3](), g[4][3](), **of)

    said = {"groups": [g[:3] for g in groups], "forms": layouts, "out": (dtype, order)}
    said["row_scale"] = with_factors
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
