"""What a drawn call is, and its operands: how they are drawn by a seed.

What is drawn has NaN around and between rows, as padding of blocked scale factors and as poison of
outputs.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from drawn_needs import NOTHING
from generators import (
    AROUND,
    DTYPES,
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

NAN = 0x7F


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

    def row_scale(self, *shape):
        """A factor of each token, now and then: (device -> the argument, its values or None).

        Its numbers are of another stream: what a seed draws beside it does not change.
        """
        rng = self.rng.spawn(1)[0]
        if not (step := (0, 0, 1, 3)[rng.integers(4)]):
            return lambda d: None, None
        of = rng.standard_normal(shape).astype(np.float32)
        return lambda d: floats(np.repeat(of, step, -1), "float32", d)[..., ::step], of

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
