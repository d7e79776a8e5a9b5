"""The problems that fit_costs.py times, by family."""

from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True)
class Problem:
    """m tokens of n features; wide: tokens are fp16; blocked: the weights' scale factors are."""

    m: int
    n: int
    k: int
    wide: bool = False
    blocked: bool = False


def _gemms():
    weights = [(1536, 2048), (2048, 8192), (4096, 7168), (7168, 2048), (8192, 8192), (7168, 16384)]
    tokens = [2, 8, 16, 32, 64, 128, 256, 512, 1024]
    return [Problem(m, n, k, blocked=True) for (n, k), m in product(weights, tokens)]


def _routes():
    sizes = [(8, 128), (64, 512), (64, 2048), (128, 4096), (256, 7168), (384, 7168)]
    return [Problem(m, n, k) for (n, k), m in product(sizes, [1, 16, 64, 256, 1024, 4096])]


def _gemvs():
    sizes = [1024, 2048, 7168, 14336, 28672]
    for n, k in product(sizes, sizes):
        yield from (Problem(1, n, k, blocked=blocked) for blocked in (False, True))
    for n, k in product(sizes[1::2], sizes[1::2]):
        for m, wide in [(1, True), (2, False), (4, False), (8, False), (2, True), (8, True)]:
            yield Problem(m, n, k, wide=wide)


def _sm90_gemms():
    few = [(1536, 2048), (2048, 8192), (4096, 7168), (7168, 2048), (8192, 8192), (28672, 4096)]
    for (n, k), m in product(few, [1, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024]):
        yield Problem(m, n, k, blocked=True)
    for (n, k), m in product(few[1::3], [4, 8, 16, 64, 128, 256, 1024]):
        yield Problem(m, n, k)
    yield from (Problem(m, 7168, 16384, blocked=True) for m in (64, 128, 256))
    yield from (Problem(m, 8192, 8192, blocked=True) for m in (2048, 4096))
    yield from (Problem(m, 8192, 8192, wide=True, blocked=True) for m in (8, 16, 64, 256, 1024))


PROBLEMS = {
    "sm80/gemm": _gemms,
    "sm80/route": _routes,
    "sm90/gemv": _gemvs,
    "sm90/gemm": _sm90_gemms,
}
RIVALS = {"sm90/gemm": ("sm90/gemv",)}
"""Families whose tiles a plan compares with its own; in choices they follow these."""
