"""Experts' operands, and results checked expert by expert: for the tests of grouped operators."""

import numpy as np
import torch
from generators import (
    POISON,
    Guarded,
    assert_ok,
    codes,
    floats,
    layout_of,
    rng_of,
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


def group_operands(rng, make, groups):
    return [(make(rng, m, k), make(rng, n, k)) for m, n, k in groups]


def run_list(pairs, device, *, forms=("linear", "linear"), dtype="float16", order="row", **options):
    outs = [Guarded((len(a.codes), len(b.codes)), dtype, device, order) for a, b in pairs]
    args = [[codes(o, device) for o in side] for side in zip(*pairs, strict=True)]
    for side, form in zip(zip(*pairs, strict=True), forms, strict=True):
        args.append([scales(o, form, rng_of(9), device) for o in side])
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


def blocked_by_expert(operand, offsets, device, rng):
    """Scales as quantize(offsets=) lays them out, garbage where its padding is."""
    blocked = reference.to_blocked_by_expert(operand.scales, offsets)
    used = reference.to_blocked_by_expert(np.ones_like(operand.scales), offsets)
    noise = rng.integers(1, 256, blocked.shape, np.uint8)
    return scale_bytes(np.where(used == 1, blocked, noise), device)


def check_rows(got, offsets, expected_of, dtype, exact=False):
    """Each expert's rows as expected_of(g, rows) says; rows of nobody still hold the poison."""
    owner = expert_of(offsets, len(got))
    assert (got[owner < 0] == POISON).all()
    for g in range(len(offsets) - 1):
        rows = slice(offsets[g], offsets[g + 1])
        expected = expected_of(g, rows)
        if exact:
            assert_ok(reference.check_bits(got[rows], expected.rounded(dtype)), g)
        else:
            assert_ok(reference.check(got[rows], expected, dtype), g)


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

    def __init__(self, rng, device, tokens, k, *, kind="NVFP4", form="linear", make=None):
        self.form, self.halves = form, kind != "NVFP4"
        if self.halves:
            x = data.small_integers(rng, tokens, k, most=3)
            self.values, self.tensor, self.sf = x, floats(x, "bfloat16", device), None
            return
        operand = (make or data.exact_family)(rng, tokens, k)
        self.values, self.tensor = operand.values, codes(operand, device)
        self.sf = scales(operand, form, rng, device, 0x7F)

    def gathered(self, index):
        """(a, sfa, its layout) of a call without `rows`, whose row p is token index[p]."""
        take = torch.from_numpy(np.asarray(index)).long().to(self.tensor.device)
        a = self.tensor if self.halves else self.tensor.view(torch.uint8)
        if self.halves:
            return a[take], None, "linear"
        sf = self.sf.view(torch.uint8)
        if self.form not in ("linear", "strided"):
            sf = nvfp4kern.from_blocked(sf, len(a), 2 * a.shape[1] // 16).reshape(len(a), -1)
        return a[take], sf[take].contiguous(), "linear"


def weights(rng, device, experts, n, k, kind="NVFP4", make=None):
    """(b, sfb, their values)"""
    if kind.startswith("16-bit"):
        w = data.small_integers(rng, experts, n, k, most=3)
        b = floats(w, "bfloat16", device)
        return (
            b.transpose(1, 2).contiguous().transpose(1, 2) if "transposed" in kind else b,
            None,
            w,
        )
    operand = (make or data.exact_family)(rng, experts, n, k)
    return codes(operand, device), scales(operand, "linear", rng, device), operand.values


class Stack:
    """`b` of experts, [G, 2 n, k], and its scale factors in a form of SCALE_FORMS."""

    def __init__(self, rng, device, experts, n, k, *, make=data.exact_family, form="linear"):
        self.operand, self.n, self.form = make(rng, experts, 2 * n, k), n, form
        self.codes = codes(self.operand, device)
        self.sf = scales(self.operand, form, rng, device, 0x7F)

    def expect(self, a, **options):
        """expected(g, rows) of tokens [rows, k]; alphas are [G, n] or a number."""
        w, n = self.operand.values, self.n

        def expected(g, rows):
            alphas = {
                name: np.broadcast_to(options[name], (len(w), n))[g] if name in options else 1.0
                for name in ("alpha1", "alpha2")
            }
            rest = {name: value for name, value in options.items() if name not in alphas}
            return reference.dual_gemm(a[rows], w[g][:n], w[g][n:], **alphas, **rest)

        return expected


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
