"""What tiles compute of the tokens of contiguous experts, for test_tiles.py."""

import numpy as np
from expert_calls import Matrices, Stack, Tokens, check_rows
from generators import floats, rng_of

from nvfp4kern.verify import data

LINEAR = ("linear", "linear")


class Experts:
    """Tokens of experts, NVFP4 or 16-bit of a dtype, some of nobody, and NVFP4 weights."""

    def __init__(self, matrices, device, sizes, n, k, forms, dtype, make):
        self.offsets, self.rng = np.cumsum([2, *sizes]), rng_of(n, k, len(sizes))
        self.b = matrices(self.rng, device, len(sizes), n, k, make=make, form=forms[1])
        options = {"kind": "W4A16", "dtype": dtype} if dtype else {"make": make}
        self.a = Tokens(self.rng, device, int(self.offsets[-1]) + 3, k, **options)
        if forms[0] == "blocked" and not dtype:
            self.a.block_by_expert(self.offsets, self.rng)

    def check(self, exact, options, **expected):
        a, b = self.a, self.b
        got = b.run(a.tensor, a.sf, self.offsets, form=a.form, dtype="float32", **options)
        check_rows(got, self.offsets, b.expect(a.values, **expected), "float32", exact)


def check_experts(device, c, sizes, n, k, forms=LINEAR, dtype=None, full=False):
    make = data.full_range if full else data.exact_family
    of = Experts(Matrices, device, sizes, n, k, forms, dtype, make)
    vectors = {x: of.rng.integers(1, 4, (len(sizes), n)).astype("f4") for x in ("alpha", "bias")}
    given = {name: floats(vector, "float32", device) for name, vector in vectors.items()}
    of.check(not full, given, c=c, **vectors)


def check_gated_experts(device, c, sizes, n, k, forms=LINEAR, dtype=None, activation="silu"):
    """The same for n gates and n ups of each expert, with full-range data unless 16-bit."""
    make = data.exact_family if dtype else data.full_range
    of = Experts(Stack, device, sizes, n, k, forms, dtype, make)
    alpha = of.rng.standard_normal((len(sizes), 2 * n)).astype(np.float32) * 2.0**-12
    expected = {"alpha1": alpha[:, :n], "alpha2": alpha[:, n:], "nvfp4": dtype is None}
    expected |= {"activation": activation, "c": c}
    options = {"alpha": floats(alpha, "float32", device), "activation": activation}
    of.check(False, options, **expected)
