"""Small calls of route for a tile of the routers, drawn by a seed: sizes, pitches, scores, expert
groups, what is returned. Logits are exact, with many ties, so there is one right order."""

import numpy as np
import torch
from generators import DTYPES, Guarded, floats, rng_of, values

import nvfp4kern
from nvfp4kern.verify import data, reference, routing

MOST_SELECTED = 32
MOST_OVER = 130
"""Experts, more than a tile's."""


class DrawnRoute:
    """Like Drawn of drawn_operands.py, but weights are approximations on a GPU: the oracle is
    always asked."""

    def __init__(self, said, x, w, dtype, options, bias, scale, out_dtype):
        self.said, self.x, self.w, self.dtype = said, x, w, dtype
        self.options, self.bias, self.scale, self.out_dtype = options, bias, scale, out_dtype
        m, n = len(x), len(w)
        k = self.said["selects"]
        self.outs = [((m, n if options["dense"] else k), out_dtype), ((m, k), torch.int32)]
        if options["permutation"]:
            self.outs += [(shape, torch.int32) for shape in ((n,), (n + 1,), (m * k,))]

    @property
    def is_plain(self):
        """Whether Hopper has a shorter kernel for it."""
        biased = self.bias is not None and self.options["score"] != "sigmoid"
        plain = self.options["score"] in ("topk_softmax", "softmax_topk", "sigmoid")
        return plain and not biased and self.scale is None

    def made(self, device):
        """(positional arguments, options, list of Guarded); NaN between rows."""

        def pitched(array):
            wide = -array.shape[1] % 8 + self.said["gap"]  # rows of whole 16 bytes
            padded = np.pad(array, [(0, 0), (0, wide)], constant_values=np.nan)
            return floats(padded, self.dtype, device)[:, : array.shape[1]]

        outs = [Guarded(shape, dtype, device) for shape, dtype in self.outs]
        options = self.options | {"out": [out.tensor for out in outs], "out_dtype": self.out_dtype}
        for name, numbers in (("correction_bias", self.bias), ("per_expert_scale", self.scale)):
            if numbers is not None:
                options[name] = floats(numbers, "float32", device)
        return (pitched(self.x), pitched(self.w), self.said["selects"]), options, outs

    def run(self, device):
        args, options, outs = self.made(device)
        nvfp4kern.route(*args, **options)
        return outs

    def explain(self, device):
        args, options, _ = self.made(device)
        return nvfp4kern.explain("route", *args, **options)

    def check(self, outs, c, oracle=True):
        """Raises AssertionError where the outputs are wrong."""
        assert all(out.guards_intact() for out in outs), f"guards: {self.said}"
        got, ids, *sorted_by_expert = (values(out.tensor) for out in outs)
        ids, wanted = ids.astype(np.int64), ("score", "n_group", "topk_group", "scaling_factor")
        of = {name: self.options[name] for name in wanted}
        of |= {"correction_bias": self.bias, "per_expert_scale": self.scale}
        o = routing.Options(self.said["selects"], **of)
        logit, e = routing.logits(self.x, self.w, self.options["alpha"], c)
        key, far = routing.keys(logit, 0 * e, o)
        for row in range(len(ids)):
            wrong = routing.wrong_ids(ids[row], key[row], far[row], o)
            assert not wrong, f"row {row}, {wrong}: {self.said}"
        if self.bias is None:  # else keys are approximations, too
            assert (ids == routing.select(key, o)).all(), f"ids: {self.said}"
        want = routing.weights(logit, 0 * e, ids, o)
        if self.options["dense"]:
            at = np.take_along_axis(got, ids, -1)
            assert (routing.scatter(at, ids, len(self.w)) == got).all(), f"zeros: {self.said}"
            got = at
        verdict = reference.check(got, want, self.out_dtype)
        assert verdict.ok, f"weights, {verdict}: {self.said}"
        if sorted_by_expert:
            order = routing.permutation(ids, len(self.w))
            for i, (ours, theirs) in enumerate(zip(sorted_by_expert, order, strict=True)):
                assert (ours == theirs).all(), f"output {2 + i}: {self.said}"


def draw_route(tokens, experts, dtype, seed, work):
    """The call of a seed for a tile of these, of about so many multiplications."""
    rng = rng_of(seed, tokens, experts, DTYPES.index(dtype))
    of = lambda options: options[rng.integers(len(options))]  # noqa: E731
    upto = lambda most: int(rng.integers(1, most + 1))  # noqa: E731
    groups, m = of((1, 1, 2, 8)), of((1, upto(9), upto(tokens), tokens, tokens + upto(tokens)))
    n = of((upto(40), upto(experts), experts, experts + upto(MOST_OVER), 256))
    n = -(-n // groups) * groups
    k = of((upto(80), 16 * upto(40), 1408, 2064, 2880, 7168))
    k = min(k, max(work // (m * n), 64))
    kept = upto(groups)
    said = {
        "m": m,
        "n": n,
        "k": k,
        "tile": (tokens, experts),
        "seed": seed,
        "gap": of((0, 0, 8, 24)),
    }
    said |= {"selects": upto(min(MOST_SELECTED, n // groups * kept)), "dtype": dtype}
    dense = of((False, False, True))
    options = {
        "score": of(routing.SCORES),
        "n_group": groups,
        "topk_group": kept,
        "scaling_factor": of((1.0, 2.5)),
        "alpha": of((1.0, 2.0**-4)),
        "dense": dense,
        "permutation": not dense and of((True, False)),
    }
    bias, scale = (
        rng.standard_normal(n).astype(np.float32) if of((True, False)) else None for _ in range(2)
    )
    most = of((1, 2))
    x, w = data.small_integers(rng, m, k, most=most), data.small_integers(rng, n, k, most=most)
    return DrawnRoute(said | options, x, w, dtype, options, bias, scale, of(("float32", *DTYPES)))
