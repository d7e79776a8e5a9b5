"""Two digests: where their results differ, and which differences are explained.

The simulator rounds approximate functions correctly; a GPU stays within the bounds that PTX states
for them. EXPLAINED has these and what an operator makes of them; all else has to be the same bits.
"""

import fnmatch
from typing import NamedTuple

import numpy as np

from . import digest

HALVES = ("float16", "bfloat16")
FLOATS = ("f32", "float32", *HALVES)


class Bound(NamedTuple):
    """How far two results may lie apart, besides the rounding of a relative or absolute bound."""

    why: str
    ulps: int = 0
    relative: float = 0.0
    absolute: float = 0.0

    def holds(self, a, b, form):
        """Of bits, element by element. What is not finite has to be the same."""
        x, y = values(a, form), values(b, form)
        close = np.abs(ordinals(a, form) - ordinals(b, form)) <= self.ulps
        if self.relative or self.absolute:
            size = np.maximum(np.abs(x), np.abs(y))
            rounding = np.spacing(size) / 2
            room = np.maximum(self.relative * size.astype(np.float64), self.absolute) + rounding
            close |= np.abs(x.astype(np.float64) - y) <= room
        return (a == b) | (close & np.isfinite(x) & np.isfinite(y))


EXPLAINED = {  # patterns of names
    "scalar ex2.approx f32": Bound("PTX: 2 ulps", ulps=2),
    "scalar lg2.approx f32": Bound("PTX: 2^-22", relative=2.0**-22, absolute=2.0**-22),
    "scalar rcp.approx f32": Bound("PTX: 1 ulp", ulps=1),
    "scalar rsqrt.approx f32": Bound("PTX: 2^-22.9 of it", relative=2.0**-22.9),
    "scalar sqrt.approx f32": Bound("PTX: 2^-23 of it", relative=2.0**-23),
    "scalar div.approx f32": Bound("PTX: 2 ulps", ulps=2),
    "scalar tanh.approx f32": Bound("PTX: 2^-11 of it", relative=2.0**-11),
    "operators * dual_gemm * 0.float16": Bound("silu has ex2.approx, then rounds", ulps=1),
    "operators * contiguous_dual * 0.float16": Bound("as dual_gemm", ulps=1),
    "operators * contiguous_dual_interleaved * 0.float16": Bound("as dual_gemm", ulps=1),
    "operators * route * 0.float32": Bound("softmax has ex2.approx above and below", ulps=4),
    "operators * route_of_floats * 0.float32": Bound("as route", ulps=4),
    "operators * route_of_logits * 0.float32": Bound("as route", ulps=4),
    "operators * route_sqrt_softplus * 0.float32": Bound("as route", ulps=4),
    "operators * route_sigmoid * 0.float32": Bound("sigmoid has ex2.approx", ulps=4),
    "operators * route_dense * 0.float16": Bound("softmax has ex2.approx, then rounds", ulps=1),
}


def bound_of(name):
    found = [bound for pattern, bound in EXPLAINED.items() if fnmatch.fnmatchcase(name, pattern)]
    return found[0] if found else None


def values(bits, form):
    """Bits of a float format as float32."""
    form = form.split(".")[-1]
    if form == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16 if form == "float16" else np.float32).astype(np.float32)


def ordinals(bits, form):
    """Ordinals of floats, whose difference counts ulps; NaN is one number."""
    form = form.split(".")[-1]
    if form in FLOATS:
        width = bits.itemsize * 8
        value = bits.astype(np.int64)
        sign, magnitude = value >> (width - 1), value & ((1 << (width - 1)) - 1)
        top = {"float16": 0x7C00, "bfloat16": 0x7F80}.get(form, 0x7F800000)
        magnitude = np.where(magnitude > top, top + 1, magnitude)
        return np.where((sign == 1) & (magnitude <= top), -magnitude, magnitude)
    packed = form in ("f16x2", "b32", "b16")
    return bits.view(np.uint16).astype(np.int64) if packed else bits.astype(np.int64)


class Comparison(NamedTuple):
    """Lines on results, and how many results and elements both files have."""

    missing: list
    unexplained: list
    explained: list
    results: int
    elements: int

    def summary(self):
        same = self.results - len(self.unexplained) - len(self.explained)
        missing = f", {len(self.missing)} missing" if self.missing else ""
        return (
            f"{self.results} results, {self.elements} elements: {same} the same,"
            f" {len(self.explained)} explained, {len(self.unexplained)} not{missing}"
        )


def compare(one, other):
    """What differs between two files, in the order of their names."""
    (ours, formats), (theirs, _) = digest.read(one), digest.read(other)
    missing = [f"{name}: only in {one}" for name in ours if name not in theirs]
    missing += [f"{name}: only in {other}" for name in theirs if name not in ours]
    both = [name for name in ours if name in theirs]
    unexplained, explained = [], []
    for name in both:
        a, b, form, bound = ours[name], theirs[name], formats[name], bound_of(name)
        if a.shape != b.shape or a.dtype != b.dtype:
            unexplained.append(f"{name}: {a.dtype}{a.shape} against {b.dtype}{b.shape}")
            continue
        if (a == b).all():
            continue
        line = f"{name}: {difference(a, b, form)}"
        beyond = int((~bound.holds(a, b, form)).sum()) if bound else 0
        if bound is None:
            unexplained.append(line)
        elif beyond:
            unexplained.append(f"{line}; {beyond} by more than is explained ({bound.why})")
        else:
            explained.append(f"{line} ({bound.why})")
    return Comparison(
        missing, unexplained, explained, len(both), sum(ours[name].size for name in both)
    )


def difference(a, b, form):
    unequal = a != b
    first = tuple(int(i) for i in np.argwhere(unequal)[0])
    x, y = ordinals(a, form), ordinals(b, form)
    return (
        f"{unequal.sum()} of {a.size} differ, by {np.abs(x - y).max()} ulps at most; first"
        f" {list(first)}: {int(a[first]):#x} against {int(b[first]):#x}"
    )
