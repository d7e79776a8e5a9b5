"""Experts' operands, and results checked expert by expert: for the tests of grouped operators."""

import numpy as np
import torch
from generators import (
    POISON,
    Guarded,
    Halves,
    assert_right,
    codes,
    elements,
    floats,
    halves_like,
    layout_of,
    rng_of,
    run,
    scale_bytes,
    scales,
    unchanged,
    values,
)

import nvfp4kern
from nvfp4kern.verify import data, reference

OFFSETS = {
    "even": [0, 20, 40, 60],
    "empty experts": [0, 0, 59, 59, 60, 60],
    "rows of nobody": [3, 10, 10, 41],
    "two atoms": [0, 129, 130, 300],
    "one": [0, 7],
    "all empty": [0, 0, 0],
}


def group_operands(rng, make, groups, dtype=None):
    """Pairs of (m, n, k) each; tokens are of a 16-bit dtype, if one is given."""

    def tokens(m, k):
        return halves_like(make, rng, dtype, m, k) if dtype else make(rng, m, k)

    return [(tokens(m, k), make(rng, n, k)) for m, n, k in groups]


def list_of(pairs, device, forms=("linear", "linear")):
    """The arguments of grouped_gemm."""
    sides = list(zip(*pairs, strict=True))
    args = [[elements(o, device) for o in side] for side in sides]
    for side, form in zip(sides, forms, strict=True):
        coded = [not isinstance(o, Halves) for o in side]
        sf = [
            scales(o, form, rng_of(9), device) if c else None
            for o, c in zip(side, coded, strict=True)
        ]
        args.append(sf if any(coded) else None)
    return args


def run_list(pairs, device, *, forms=("linear", "linear"), dtype="float16", order="row", **options):
    """Tokens are Operands or Halves."""
    args = list_of(pairs, device, forms)
    outs = [Guarded((len(a), len(b)), dtype, device, order) for a, b in zip(*args[:2], strict=True)]
    out = [o.tensor for o in outs]
    layout = layout_of(forms[0]), layout_of(forms[1])
    with unchanged(*args, list(options.values())):
        result = nvfp4kern.grouped_gemm(*args, out=out, scale_layout=layout, **options)
    assert result is out and all(o.guards_intact() for o in outs)
    return [values(t) for t in out]


def expert_of(offsets, rows):
    """For each row its expert, or -1."""
    owner = np.full(rows, -1)
    for g, (first, end) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        owner[first:end] = g
    return owner


def check_rows(got, offsets, expected_of, dtype, exact=False):
    """Each expert's rows as expected_of(g, rows) says; rows of nobody still hold the poison."""
    owner = expert_of(offsets, len(got))
    assert (got[owner < 0] == POISON).all()
    for g in range(len(offsets) - 1):
        rows = slice(offsets[g], offsets[g + 1])
        assert_right(got[rows], expected_of(g, rows), dtype, exact, g)


def int32(offsets, device):
    return torch.tensor(offsets, dtype=torch.int32, device=device)


def drawn(rng, offsets, count, tokens, per_token):
    """int32 [count]: every token is there, some often; rows of nobody hold what names none."""
    most = tokens * per_token - 1
    rows = rng.permutation(np.append(rng.integers(0, most + 1, count), [0, most]))[:count]
    bad = np.array([-1, -(2**31), 2**31 - 1, most + 1])
    nobody = expert_of(offsets, count) < 0
    return np.where(nobody, rng.choice(bad, count), rows).astype(np.int32)


class Tokens:
    """`a` of a kind, [tokens, k], and its scale factors in a form of SCALE_FORMS."""

    def __init__(
        self, rng, device, tokens, k, *, kind="NVFP4", form="linear", make=data.exact_family,
        dtype="bfloat16",
    ):  # fmt: skip
        self.form, self.halves = form, kind != "NVFP4"
        if self.halves:
            self.values, self.sf = halves_like(make, rng, dtype, tokens, k).values, None
            self.tensor = floats(self.values, dtype, device)
            return
        self.operand = make(rng, tokens, k)
        self.values, self.tensor = self.operand.values, codes(self.operand, device)
        self.sf = scales(self.operand, form, rng, device, 0x7F)

    def block_by_expert(self, offsets, rng):
        """Scales as quantize(offsets=) lays them out, garbage where its padding is."""
        blocked = reference.to_blocked_by_expert(self.operand.scales, offsets)
        used = reference.to_blocked_by_expert(np.ones_like(self.operand.scales), offsets)
        noise = rng.integers(1, 256, blocked.shape, np.uint8)
        self.form, device = "blocked", self.tensor.device
        self.sf = scale_bytes(np.where(used == 1, blocked, noise), device)

    def of(self, index):
        """The values of tokens; what names none is clamped."""
        return self.values[np.clip(index, 0, len(self.values) - 1)]

    def gathered(self, index):
        """(a, sfa) of a call without `rows`, whose row p is token index[p], of linear sfa."""
        take = torch.from_numpy(np.asarray(index)).long().to(self.tensor.device)
        a = self.tensor if self.halves else self.tensor.view(torch.uint8)
        if self.halves:
            return a[take], None
        sf = self.sf.view(torch.uint8)
        if self.form not in ("linear", "strided"):
            sf = nvfp4kern.from_blocked(sf, len(a), 2 * a.shape[1] // 16).reshape(len(a), -1)
        return a[take], sf[take].contiguous()


class Matrices:
    """`b` of grouped_gemm, [G, n, k] of a kind, and its scale factors in a form of SCALE_FORMS."""

    name, parts = "grouped_gemm", 1
    kinds = ("NVFP4", "W4A16", "16-bit", "16-bit transposed")

    def __init__(
        self, rng, device, experts, n, k, *, kind="NVFP4", make=data.exact_family, form="linear",
        dtype="bfloat16",
    ):  # fmt: skip
        self.device, self.n, self.form = device, n, form
        rows = self.parts * n
        if kind.startswith("16-bit"):
            numbers = halves_like(make, rng, dtype, experts, rows, k, scale=1)
            self.values, self.sf = numbers.values, None
            b = floats(self.values, dtype, device)
            transposed = b.transpose(1, 2).contiguous().transpose(1, 2)
            self.codes = transposed if "transposed" in kind else b
            return
        self.operand = make(rng, experts, rows, k)
        self.values, self.codes = self.operand.values, codes(self.operand, device)
        self.sf = scales(self.operand, form, rng, device, 0x7F)

    def call(self, a, sfa, offsets, *, form="linear", **options):
        """(arguments, options) of tokens whose scale factors have a form of SCALE_FORMS."""
        layout = {"scale_layout": (layout_of(form), layout_of(self.form))}
        offsets = {"offsets": int32(offsets, self.device)}
        return (a, self.codes, sfa, self.sf), offsets | layout | options

    def new(self, *given, **options):
        args, options = self.call(*given, **options)
        return getattr(nvfp4kern, self.name)(*args, **options)

    def explain(self, *given, **options):
        args, options = self.call(*given, **options)
        return nvfp4kern.explain(self.name, *args, **options)

    def run(self, a, *given, count=None, dtype="float16", order="row", **options):
        """The values of a guarded output of `count` rows."""
        args, options = self.call(a, *given, **options)
        shape = len(a) if count is None else count, self.n
        function = getattr(nvfp4kern, self.name)
        options |= {"device": self.device, "dtype": dtype, "order": order}
        return run(function, *args, shape=shape, **options)

    def expect(self, a, **options):
        """expected(g, rows) of tokens [rows, k]; alpha and bias are [G, n] or a number, row_scale
        is [rows]."""

        def expected(g, rows):
            return reference.gemm(a[rows], self.values[g], **self.of_expert(options, g, rows))

        return expected

    def of_expert(self, options, g, rows):
        shape = len(self.values), self.n
        vectors = {"alpha", "bias", "alpha1", "alpha2", "bias1", "bias2"} & options.keys()
        options = options | {name: np.broadcast_to(options[name], shape)[g] for name in vectors}
        if "row_scale" in options:
            options["row_scale"] = options["row_scale"][rows]
        return options

    def check(self, got, offsets, a, c, dtype="float16"):
        """Of data whose sums are exact: what dual_gemm makes of them is rounded more than once."""
        exact = self.parts == 1
        check_rows(got, offsets, self.expect(a, **({} if exact else {"c": c})), dtype, exact)


class Stack(Matrices):
    """`b` of grouped_dual_gemm, [G, 2 n, k]."""

    name, parts = "grouped_dual_gemm", 2
    kinds = ("NVFP4", "W4A16")

    def expect(self, a, **options):
        """An alpha is of gates and ups."""
        if "alpha" in options:
            options["alpha1"] = options["alpha2"] = options.pop("alpha")

        def expected(g, rows):
            gates, ups = self.values[g][: self.n], self.values[g][self.n :]
            return reference.dual_gemm(a[rows], gates, ups, **self.of_expert(options, g, rows))

        return expected

    def interleave(self):
        """Turns its rows, whose scale factors are linear, into those of gate_up="interleaved"."""
        self.codes, self.sf = map(interleaved, (self.codes, self.sf))


def interleaved(of_rows):
    """[G, 2 n, ..] of gates, then of ups, with one of each in turn."""
    of_bytes = of_rows.view(torch.uint8) if of_rows.element_size() == 1 else of_rows
    return of_bytes.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2).contiguous()


def alphas_of(kind, rng, experts, n):
    """(alpha as given, alpha of gates, alpha of ups)"""
    shapes = {"none": (), "float": (), "one": (1,), "expert": (experts,), "pair": (experts, 2)}
    drawn = rng.standard_normal(shapes.get(kind, (experts, 2 * n))).astype(np.float32) * 1e-4
    if kind == "none":
        return None, 1.0, 1.0
    if kind == "float":
        return float(drawn), drawn, drawn
    if kind in ("one", "expert"):
        return drawn, drawn.reshape(-1, 1), drawn.reshape(-1, 1)
    gates, ups = np.split(drawn, 2, axis=1)
    return drawn, gates, ups
