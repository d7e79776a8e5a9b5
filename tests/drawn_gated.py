"""Small calls of grouped_dual_gemm for a tile, drawn by a seed like those of drawn_calls.py."""

import numpy as np
from drawn_calls import TOKENS, activation_of, offsets_of, sizes_of
from drawn_needs import NOTHING
from drawn_operands import Draw, Drawn, without_none
from generators import DTYPES, ORDERS, Guarded, from_numpy, rng_of

from nvfp4kern.verify import reference

OPERATOR = 100  # of the seed: none of drawn_calls.py


def parted(of_rows, interleaved):
    """What is of the rows of b, [.., 2 n]: that of gates, that of ups."""
    if interleaved:
        return of_rows[..., 0::2], of_rows[..., 1::2]
    return np.split(of_rows, 2, axis=-1)


def alphas_of(draw, experts, n, interleaved):
    """(the argument or None, alpha of gates, of ups: [experts, n] each)"""
    shape = draw.of((None, (1,), (experts,), (experts, 2), (experts, 2 * n)))
    if shape is None:
        return None, *np.ones((2, experts, n))
    alpha = 2.0**-6 * draw.rng.standard_normal(shape).astype(np.float32)
    pair = np.stack([alpha, alpha], -1) if len(shape) == 1 else alpha
    gates, ups = parted(pair, interleaved and pair.shape[-1] > 2)
    return alpha, *(np.broadcast_to(half.reshape(-1, half.shape[-1]), (experts, n))
                    for half in (gates, ups))  # fmt: skip


def stack_of(draw, exact, experts, n, k):
    """Not all tiles take ups whose blocked scale factors begin within an atom."""
    while True:
        found = draw.weights(exact, experts, 2 * n, k)
        if found[2] == "linear" or n % 128 == 0 or draw.needs.ups_within_atoms:
            return found


def draw_gated(tokens, kind, seed, work=1 << 22, always_exact=False, needs=NOTHING):
    draw = Draw(rng_of(seed, OPERATOR, TOKENS.index(kind), tokens), always_exact, needs)
    exact, activation = draw.exact(), activation_of(draw)
    _, n, k = sizes_of(draw, tokens, work // 2)
    how, offsets, count = offsets_of(draw, tokens)
    experts = len(offsets) - 1
    if how == "many":
        n, k = draw.upto(20), draw.of((32, 64, 128))
    by_rows = draw.of((True, False))
    m, per_token = (draw.upto(count + 3), draw.of((1, 2, 8))) if by_rows else (count, 1)
    a, sfa, form_a, av = draw.tokens(kind, exact, m, k, offsets=None if by_rows else offsets)
    b, sfb, form_b, bv = stack_of(draw, exact, experts, n, k)
    interleaved = form_b == "linear" and draw.of((True, False))
    alpha, gates, ups = alphas_of(draw, experts, n, interleaved)
    bias, bias_of = draw.bias(experts, 2 * n)
    biases = parted(np.broadcast_to(bias_of, (experts, 2 * n)), interleaved)
    factors, factors_of = draw.row_scale(m)
    dtype, order = draw.of(DTYPES), draw.of(ORDERS)
    rows = draw.rng.integers(0, m * per_token, count).astype(np.int32)
    rows[: offsets[0]] = rows[offsets[-1] :] = -1
    token_of = rows // per_token if by_rows else np.arange(count)

    def make(device):
        options = {
            "alpha": None if alpha is None else from_numpy(alpha, device),
            "row_scale": factors(device),
            "bias": bias(device),
            "gate_up": "interleaved" if interleaved else "halves",
            "rows": from_numpy(rows, device) if by_rows else None,
            "rows_per_token": per_token if by_rows else None,
            "scale_layout": (form_a, form_b),
        }  # fmt: skip
        options |= activation
        args = a(device), b(device), sfa(device), sfb(device), from_numpy(offsets, device)
        return args, without_none(options), [Guarded((count, n), dtype, device, order)]

    def expected(c):
        x, w = av(), bv()
        for g in range(experts):
            part = slice(offsets[g], offsets[g + 1])
            options = activation | {"alpha1": gates[g], "alpha2": ups[g]}
            options |= {"bias1": biases[0][g], "bias2": biases[1][g]}
            options |= {"c": c, "nvfp4": kind == "NVFP4"}
            if factors_of is not None:
                options["row_scale"] = factors_of[token_of[part]]
            rows = (w[g][0::2], w[g][1::2]) if interleaved else (w[g][:n], w[g][n:])
            yield 0, part, reference.dual_gemm(x[token_of[part]], *rows, **options)

    exact = exact and activation["activation"] in ("identity", "relu")
    said = {"operator": "gated", "tokens": kind, "tile of": tokens, "seed": seed, "kind": how}
    said |= {"experts": experts, "rows": count, "m": m, "n": n, "k": k, "per_token": per_token}
    said |= {"interleaved": interleaved, "bias": np.ndim(bias_of) > 0}
    said["row_scale"] = factors_of is not None
    said |= activation | {"forms": (form_a, form_b), "out": (dtype, order)}
    return Drawn("grouped_dual_gemm", make, expected, dtype, exact, said)
