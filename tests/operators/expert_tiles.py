"""What tiles compute of contiguous experts, for test_tiles.py."""

import numpy as np
from expert_calls import Matrices, Stack, Tokens, check_rows, drawn
from generators import floats, from_numpy, rng_of

from nvfp4kern.verify import data, reference

LINEAR = ("linear", "linear")
PER_TOKEN = 3


class Experts:
    """Experts of these sizes, and rows of nobody before and behind them.

    Tokens are NVFP4, or of a 16-bit `dtype`; so are weights whose kind says it. Rows are tokens, or
    name one of `tokens`, where that is given.
    """

    def __init__(
        self, matrices, device, sizes, n, k, forms, *, dtype, kind=None, tokens=None, full=False
    ):
        self.offsets, self.rng = np.cumsum([2, *sizes]), rng_of(n, k, len(sizes))
        self.count, self.exact, self.options = int(self.offsets[-1]) + 3, not full, {}
        options = {"make": data.full_range if full else data.exact_family, "dtype": dtype}
        self.b = matrices(
            self.rng, device, len(sizes), n, k, form=forms[1], kind=kind or "NVFP4", **options
        )
        options["kind"] = "W4A16" if dtype else "NVFP4"
        of_each = {} if tokens is None or dtype else {"form": forms[0]}
        self.a = Tokens(self.rng, device, tokens or self.count, k, **options, **of_each)
        self.tokens = self.a.values
        if tokens is not None:
            rows = drawn(self.rng, self.offsets, self.count, tokens, PER_TOKEN)
            self.options = {"rows": from_numpy(rows, device), "rows_per_token": PER_TOKEN}
            self.tokens = self.a.of(rows // PER_TOKEN)
        elif forms[0] == "blocked" and not dtype:
            self.a.block_by_expert(self.offsets, self.rng)
        # Tensor cores add 16 products of 16-bit numbers at a time, too.
        self.expected = {"nvfp4": dtype is None or kind is not None}

    def check(self, options, out, **expected):
        a, b, options = self.a, self.b, self.options | options
        count = {"form": a.form, "count": self.count, "dtype": out}
        got = b.run(a.tensor, a.sf, self.offsets, **count, **options)
        expected_of = b.expect(self.tokens, **self.expected, **expected)
        check_rows(got, self.offsets, expected_of, out, self.exact and b.parts == 1)


def check_experts(device, c, sizes, n, k, forms=LINEAR, dtype=None, *, out="float32", **how):
    """`how`: see Experts."""
    of = Experts(Matrices, device, sizes, n, k, forms, dtype=dtype, **how)
    vectors = {x: of.rng.integers(1, 4, (len(sizes), n)).astype("f4") for x in ("alpha", "bias")}
    given = {name: floats(vector, "float32", device) for name, vector in vectors.items()}
    of.check(given, out, c=c, **vectors)


def check_activated_experts(device, c, sizes, n, k, forms=LINEAR, dtype=None, **how):
    """Every activation, and an alpha at which it neither vanishes nor overflows."""
    of = Experts(Matrices, device, sizes, n, k, forms, dtype=dtype, full=dtype is None, **how)
    of.exact = False  # they are rounded more than once
    alpha = of.rng.standard_normal((len(sizes), n)).astype(np.float32) * 2.0**-12
    bias = of.rng.standard_normal((len(sizes), n)).astype(np.float32)
    given = {"alpha": floats(alpha, "float32", device), "bias": floats(bias, "float32", device)}
    for activation in reference.ALONE:
        what = {"activation": activation}
        of.check(given | what, "float32", c=c, alpha=alpha, bias=bias, **what)


def check_gated_experts(
    device, c, sizes, n, k, forms=LINEAR, dtype=None, activation="silu", full=None, **how
):
    """The same for n gates and n ups of each expert, with full-range data unless 16-bit."""
    how["full"] = dtype is None if full is None else full
    of = Experts(Stack, device, sizes, n, k, forms, dtype=dtype, **how)
    alpha = of.rng.standard_normal((len(sizes), 2 * n)).astype(np.float32) * 2.0**-12
    expected = {"alpha1": alpha[:, :n], "alpha2": alpha[:, n:], "activation": activation, "c": c}
    options = {"alpha": floats(alpha, "float32", device), "activation": activation}
    of.check(options, "float32", **expected)


def check_experts_of_one_matrix(device, c, sizes, n, k, *args, **how):
    """All have the same codes, each with its scale factors."""
    of = Experts(Matrices, device, sizes, n, k, *args, dtype=None, **how)
    of.b.operand.codes[1:] = of.b.operand.codes[0]
    of.b.values, of.b.codes = of.b.operand.values, of.b.codes[:1].expand(len(sizes), -1, -1)
    of.check({}, "float32", c=c)


def check_16_bit_experts(device, c, sizes, n, k, dtype="float16", *, along_n=False, **how):
    """Of weights that have 16 bits, too, and lie as [experts, N, K], or as [experts, K, N]."""
    kind = "16-bit transposed" if along_n else "16-bit"
    check_experts(device, c, sizes, n, k, LINEAR, dtype, kind=kind, **how)


def check_sm90_kind_f16(tile, device, c):
    tokens = tile["tile_m"]
    few = min(tokens, 64)
    for dtype in ("float16", "bfloat16"):
        for along_n in (False, True):
            options = {"dtype": dtype, "along_n": along_n}
            check_16_bit_experts(device, c, (few + 3, 0, 1, few), 136, 208, **options)
            check_16_bit_experts(device, c, (3, 9), 72, 1104, full=True, out=dtype, **options)
    check_16_bit_experts(device, c, (tokens + 5, 2), 40, 96, out="bfloat16")
    check_16_bit_experts(device, c, (0, 7, 0), 133, 64)
    check_16_bit_experts(device, c, (5, 4), 8, 16, along_n=True)
    check_16_bit_experts(device, c, (1,), 1, 16)
