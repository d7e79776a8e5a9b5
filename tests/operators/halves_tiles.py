"""What the families that multiply experts' 16-bit weights compute."""

import numpy as np
import torch
from generators import assert_ok, floats, rng_of, run

import nvfp4kern
from nvfp4kern.verify import data, reference


def check_experts_of_halves(
    device, c, sizes, n, k, *, dtype="float16", along_n=False, full=False, out="float32"
):
    """Experts with so many rows; five more belong to none."""
    rng, offsets = rng_of(n, k, len(sizes)), np.cumsum([2, *sizes]).astype(np.int32)
    m, experts = int(offsets[-1]) + 3, len(sizes)
    if full:
        a, b = (
            data.halves(rng, dtype, *shape).astype(np.float64)
            for shape in ((m, k), (experts, n, k))
        )
    else:
        a, b = (data.small_integers(rng, *shape, most=3) for shape in ((m, k), (experts, n, k)))
    weights = floats(b, dtype, device)
    if along_n:
        weights = weights.mT.contiguous().mT
    alpha, bias = (rng.integers(1, 4, (experts, n)).astype(np.float32) for _ in range(2))
    got = run(
        nvfp4kern.grouped_gemm, floats(a, dtype, device), weights,
        shape=(m, n), device=device, dtype=out, offsets=torch.from_numpy(offsets).to(device),
        alpha=floats(alpha, "float32", device), bias=floats(bias, "float32", device),
    )  # fmt: skip
    for e in range(experts):
        rows = slice(offsets[e], offsets[e + 1])
        expected = reference.gemm(a[rows], b[e], alpha=alpha[e], bias=bias[e], c=c)
        if full:
            assert_ok(reference.check(got[rows], expected, out), e)
        else:
            assert_ok(reference.check_bits(got[rows], expected.rounded(out)), e)


def check_sm90_kind_f16(tile, device, c):
    tokens = tile["tile_m"]
    few = min(tokens, 64)
    for dtype in ("float16", "bfloat16"):
        for along_n in (False, True):
            options = {"dtype": dtype, "along_n": along_n}
            check_experts_of_halves(device, c, (few + 3, 0, 1, few), 136, 208, **options)
            check_experts_of_halves(device, c, (3, 9), 72, 1104, full=True, out=dtype, **options)
    check_experts_of_halves(device, c, (tokens + 5, 2), 40, 96, out="bfloat16")
    check_experts_of_halves(device, c, (0, 7, 0), 133, 64)
    check_experts_of_halves(device, c, (5, 4), 8, 16, along_n=True)
    check_experts_of_halves(device, c, (1,), 1, 16)
