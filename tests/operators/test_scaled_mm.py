"""Against torch._scaled_mm, a kernel that nobody here wrote.

E2M1 codes are exact E4M3 values, so an fp8 product of the codes is the NVFP4 product wherever the
scales are constant: over the tensor, along K, or over 128 of it. Where a device multiplies NVFP4
itself, that is compared too.

Ours must be exact here. So must torch's be on a CPU; a GPU's tensor cores align and truncate, so
there its product need only lie in the interval that the contract grants tensor cores.
"""

import numpy as np
import pytest
import torch
from generators import assert_ok, codes, rng_of, scale_bytes, values

import nvfp4kern
from nvfp4kern.verify import data, reference

SHAPES = [(16, 16, 16), (32, 48, 64), (128, 64, 512), (48, 272, 2048)]
FP8 = torch.float8_e4m3fn


def scaled_mm(a, b, scale_a, scale_b, dtype):
    """torch's fp8 product, or a skip that says why there is none."""
    try:
        return torch._scaled_mm(
            a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=dtype, use_fast_accum=False
        )
    except (RuntimeError, NotImplementedError, ValueError) as error:
        pytest.skip(f"torch._scaled_mm cannot do it here: {str(error).splitlines()[0]}")


def operands(rng, m, n, k, scale_of):
    """Two operands of all codes; scale_of(rows) gives scale bytes [rows, 1], the same along K."""
    made = []
    for rows in (m, n):
        operand = data.full_range(rng, rows, k)
        operand.scales[:] = scale_of(rows)
        made.append(operand)
    return made


def as_fp8(operand, device):
    return torch.from_numpy(reference.decode_e2m1(operand.codes)).to(device).to(FP8)


def ours(a, b, device, dtype):
    args = codes(a, device), codes(b, device)
    sf = scale_bytes(a.scales, device), scale_bytes(b.scales, device)
    return nvfp4kern.gemm(*args, *sf, out_dtype=dtype)


def assert_same(got, want, a, b, dtype):
    """Both are the exact product, torch's on a GPU within the bound of tensor cores."""
    exact, total = reference.matmul(a.values, b.values)
    assert got.dtype == want.dtype == getattr(torch, dtype)
    assert_ok(reference.check_bits(values(got), reference.round_to(exact, dtype)))
    if want.device.type == "cpu":
        assert_ok(reference.check_bits(values(want), values(got)))
    else:
        e = reference.error_bound(exact, total, a.values.shape[1] / 16, c=12)
        assert_ok(reference.check(values(want), reference.Expected.within(exact, e), dtype))


@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "float16"))
@pytest.mark.parametrize("scale", (1.0, 0.5, 2.0**-9, 256.0))
@pytest.mark.parametrize("m, n, k", SHAPES)
def test_constant_scales_are_tensorwise_fp8(device, m, n, k, scale, dtype):
    a, b = operands(rng_of(m, n, k), m, n, k, lambda _: reference.encode_scales(scale))
    factor = torch.tensor(scale, device=device)
    want = scaled_mm(as_fp8(a, device), as_fp8(b, device), factor, factor, getattr(torch, dtype))
    assert_same(ours(a, b, device, dtype), want, a, b, dtype)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize("m, n, k", SHAPES[:3])
def test_scales_constant_along_k_are_rowwise_fp8(device, m, n, k, dtype):
    rng = rng_of(m, n, k)
    powers = reference.encode_scales(2.0 ** np.arange(-4, 5))
    a, b = operands(rng, m, n, k, lambda rows: rng.choice(powers, (rows, 1)))
    rows = [
        torch.from_numpy(reference.decode_scales(o.scales[:, :1]).astype(np.float32)).to(device)
        for o in (a, b)
    ]
    want = scaled_mm(
        as_fp8(a, device), as_fp8(b, device), rows[0], rows[1].t(), getattr(torch, dtype)
    )
    assert_same(ours(a, b, device, dtype), want, a, b, dtype)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize("m, n, k", [(16, 16, 128), (128, 64, 512), (48, 272, 2048)])
def test_scales_constant_over_128_are_blockwise_fp8(device, m, n, k, dtype):
    """Powers of two within a factor of 16, so that the sums stay exact."""
    rng = rng_of(m, n, k)
    powers = reference.encode_scales(2.0 ** np.arange(-1, 2))

    def by_block(rows):
        return np.repeat(rng.choice(powers, (rows, k // 128)), 8, axis=1)

    a, b = operands(rng, m, n, k, by_block)
    scale_a, scale_b = (
        torch.from_numpy(reference.decode_scales(o.scales[:, ::8]).astype(np.float32)).to(device)
        for o in (a, b)
    )
    scale_a, scale_b = scale_a.t().contiguous().t(), scale_b.t().contiguous()  # rows innermost
    want = scaled_mm(as_fp8(a, device), as_fp8(b, device), scale_a, scale_b, getattr(torch, dtype))
    assert_same(ours(a, b, device, dtype), want, a, b, dtype)


@pytest.mark.parametrize("m, n, k", [(128, 128, 128), (256, 384, 512)])
def test_nvfp4_itself(device, m, n, k):
    """On the devices whose torch multiplies NVFP4: every scale, blocked."""
    a, b = data.exact_family(rng_of(m), m, k), data.exact_family(rng_of(n), n, k)
    blocked = [scale_bytes(reference.to_blocked(o.scales), device) for o in (a, b)]
    args = codes(a, device), codes(b, device)
    want = scaled_mm(*args, *blocked, torch.float16)
    got = nvfp4kern.gemm(*args, *blocked, scale_layout="blocked")
    assert_same(got, want, a, b, "float16")
