"""What tiles compute of the tokens of contiguous experts, for test_tiles.py."""

import numpy as np
import torch
from expert_calls import blocked_by_expert
from generators import assert_ok, codes, floats, rng_of, scales, values

import nvfp4kern
from nvfp4kern.verify import data, reference


class Experts:
    """Tokens of experts, some of nobody, and NVFP4 weights [experts, rows, k]."""

    def __init__(self, device, sizes, rows, k, forms, dtype, full):
        make = data.full_range if full else data.exact_family
        self.offsets = np.cumsum([2, *sizes]).astype(np.int32)
        self.rng, m = rng_of(rows, k, len(sizes)), int(self.offsets[-1]) + 3
        self.b = make(self.rng, len(sizes), rows, k)
        sfb = scales(self.b, forms[1], self.rng, device, 0x7F)
        if dtype:
            self.a = data.small_integers(self.rng, m, k, most=3)
            left, sfa = floats(self.a, dtype, device), None
        else:
            tokens = make(self.rng, m, k)
            self.a, left = tokens.values, codes(tokens, device)
            sfa = scales(tokens, "linear", self.rng, device)
            if forms[0] == "blocked":
                sfa = blocked_by_expert(tokens, self.offsets, device, self.rng)
        self.args = left, codes(self.b, device), sfa, sfb
        self.options = {
            "offsets": torch.from_numpy(self.offsets).to(device), "out_dtype": "float32",
            "scale_layout": forms,
        }  # fmt: skip

    def check(self, got, expected, exact):
        """expected(tokens, weights, expert)"""
        for e, w in enumerate(self.b.values):
            rows = slice(self.offsets[e], self.offsets[e + 1])
            want = expected(self.a[rows], w, e)
            if exact:
                assert_ok(reference.check_bits(got[rows], want.rounded("float32")), e)
            else:
                assert_ok(reference.check(got[rows], want, "float32"), e)


def check_experts(device, c, sizes, n, k, forms=("linear", "linear"), dtype=None, full=False):
    """NVFP4 weights; tokens are NVFP4, or 16-bit of this dtype. Some rows belong to no expert."""
    of = Experts(device, sizes, n, k, forms, dtype, full)
    alpha, bias = (of.rng.integers(1, 4, (len(sizes), n)).astype(np.float32) for _ in range(2))
    vectors = {"alpha": floats(alpha, "float32", device), "bias": floats(bias, "float32", device)}
    got = values(nvfp4kern.grouped_gemm(*of.args, **of.options, **vectors))

    def expected(a, w, e):
        return reference.gemm(a, w, alpha=alpha[e], bias=bias[e], c=c)

    of.check(got, expected, exact=not full)


def check_gated_experts(
    device, c, sizes, n, k, forms=("linear", "linear"), dtype=None, activation="silu"
):
    """The same for n gates and n ups of each expert, with full-range data unless 16-bit."""
    of = Experts(device, sizes, 2 * n, k, forms, dtype, full=dtype is None)
    alpha = of.rng.standard_normal((len(sizes), 2 * n)).astype(np.float32) * 2.0**-12
    options = {"alpha": floats(alpha, "float32", device), "activation": activation}
    got = values(nvfp4kern.grouped_dual_gemm(*of.args, **of.options, **options))

    def expected(a, w, e):
        alphas = {"alpha1": alpha[e, :n], "alpha2": alpha[e, n:]}
        given = {"activation": activation, "c": c, "nvfp4": dtype is None}
        return reference.dual_gemm(a.astype(np.float64), w[:n], w[n:], **alphas, **given)

    of.check(got, expected, exact=False)
