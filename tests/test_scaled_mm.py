"""Against torch._scaled_mm, a kernel that nobody here wrote.

E2M1 codes are exact E4M3 values, so an fp8 product of the codes is the NVFP4 product wherever the
scales are constant: over the tensor, or along K. Where a device multiplies NVFP4 itself, that is
compared too.
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
        return torch._scaled_mm(a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=dtype)
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
    total = reference.matmul(a.values, b.values)[1]
    assert data.is_exact(a.values, b.values, total)  # so that both must agree to the bit
    assert got.dtype == want.dtype == getattr(torch, dtype)
    assert_ok(reference.check_bits(values(got), values(want)))


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
    # Exact row by row: a row's own scale only moves its binary point.
    unscaled = [data.Operand(o.codes, np.full_like(o.scales, 0x38)) for o in (a, b)]
    total = reference.matmul(*(o.values for o in unscaled))[1]
    assert data.is_exact(*(o.values for o in unscaled), total)
    got = ours(a, b, device, dtype)
    assert_ok(reference.check_bits(values(got), values(want)))


@pytest.mark.parametrize("m, n, k", [(128, 128, 128), (256, 384, 512)])
def test_nvfp4_itself(device, m, n, k):
    """On the devices whose torch multiplies NVFP4: every scale, blocked."""
    a, b = data.exact_family(rng_of(m), m, k), data.exact_family(rng_of(n), n, k)
    blocked = [scale_bytes(reference.to_blocked(o.scales), device) for o in (a, b)]
    args = codes(a, device), codes(b, device)
    want = scaled_mm(*args, *blocked, torch.float16)
    got = nvfp4kern.gemm(*args, *blocked, scale_layout="blocked")
    assert_same(got, want, a, b, "float16")
