"""What tiles compute of the tokens of contiguous experts, for test_tiles.py."""

import numpy as np
import torch
from generators import assert_ok, codes, floats, rng_of, scales, values
from test_grouped_gemm import blocked_by_expert

import nvfp4kern
from nvfp4kern.verify import data, reference


def check_experts(device, c, sizes, n, k, forms=("linear", "linear"), dtype=None, full=False):
    """NVFP4 weights; tokens are NVFP4, or 16-bit of this dtype. Some rows belong to no expert."""
    make = data.full_range if full else data.exact_family
    offsets = np.cumsum([2, *sizes]).astype(np.int32)
    rng, m = rng_of(n, k, len(sizes)), int(offsets[-1]) + 3
    b = make(rng, len(sizes), n, k)
    alpha, bias = (rng.integers(1, 4, (len(sizes), n)).astype(np.float32) for _ in range(2))
    options = {
        "offsets": torch.from_numpy(offsets).to(device), "out_dtype": "float32",
        "alpha": floats(alpha, "float32", device), "bias": floats(bias, "float32", device),
        "scale_layout": forms,
    }  # fmt: skip
    sfb = scales(b, forms[1], rng, device, 0x7F)
    if dtype:
        a = data.small_integers(rng, m, k, most=3)
        left, sfa = floats(a, dtype, device), None
    else:
        tokens = make(rng, m, k)
        a, left, sfa = tokens.values, codes(tokens, device), scales(tokens, "linear", rng, device)
        if forms[0] == "blocked":
            sfa = blocked_by_expert(tokens, offsets, device, rng)
    got = values(nvfp4kern.grouped_gemm(left, codes(b, device), sfa, sfb, **options))
    for e in range(len(sizes)):
        rows = slice(offsets[e], offsets[e + 1])
        expected = reference.gemm(a[rows], b.values[e], alpha=alpha[e], bias=bias[e], c=c)
        if full:
            assert_ok(reference.check(got[rows], expected, "float32"), e)
        else:
            assert_ok(reference.check_bits(got[rows], expected.rounded("float32")), e)
