"""Operands of more than 2^32 bytes and outputs of more than 2^31 elements: no index wraps around.

Memory that is zero is never touched here, so that the CPU's operands cost next to nothing.
"""

import numpy as np
import pytest
import torch
from conftest import SLOW
from generators import POISON, assert_ok, codes, rng_of, scale_bytes, values

import nvfp4kern
from nvfp4kern.verify import data, reference

pytestmark = [pytest.mark.any_path, pytest.mark.large]
GIB = 2**30


def need(device, gib):
    if device == "cpu":
        with open("/proc/meminfo") as lines:
            free = next(int(line.split()[1]) for line in lines if "MemAvailable" in line) * 1024
    else:
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
    if free < gib * GIB:
        pytest.skip(f"needs {gib} GiB of memory, {free / GIB:.1f} are free")


def skip_on_a_cpu(device, request):
    if device == "cpu" and not request.config.getoption("--all"):
        pytest.skip(SLOW)


def zeros(shape, device):
    """On the CPU pages come into being when they are written."""
    if device == "cpu":
        return torch.from_numpy(np.zeros(shape, np.uint8))
    return torch.zeros(shape, dtype=torch.uint8, device=device)


@pytest.mark.parametrize("form", ("linear", "blocked"))
def test_gemv_operand_beyond_4_gib(device, form):
    """Dense rows, zero but for a few, the last among them."""
    need(device, 3 if device == "cpu" else 6)
    m, k = 2**17 + 3, 2**16
    chosen = [0, 1, 65536, 131071, 131072, m - 1]
    rows, vector = data.exact_family(rng_of(1), len(chosen), k), data.exact_family(rng_of(2), 1, k)
    a = zeros((m, k // 2), device)
    assert a.numel() > 2**32
    a[chosen] = codes(rows, device, native=False)
    if form == "linear":
        sfa = zeros((m, k // 16), device)
        sfa[chosen] = scale_bytes(rows.scales, device, native=False)
    else:
        atoms = zeros((reference.padded(m, 128) // 128, k // 64, 32, 4, 4), device)
        for at, row in enumerate(chosen):
            part = torch.from_numpy(rows.scales[at].reshape(-1, 4)).to(device)
            atoms[row // 128, :, row % 32, row // 32 % 4] = part
        sfa = atoms.view(-1)
    got = nvfp4kern.gemv(
        a,
        codes(vector, device, native=False),
        sfa,
        scale_bytes(vector.scales, device, native=False),
        scale_layout=(form, "linear"),
        out_dtype="float32",
    )
    want = np.zeros((m, 1))
    want[chosen] = reference.matmul(rows.values, vector.values)[0]
    assert_ok(reference.check_bits(values(got), want))


@pytest.mark.parametrize("op", ("gemv", "gemm", "dual_gemm", "grouped_gemm", "dequantize"))
def test_rows_more_than_4_gib_apart(device, op):
    """Few rows in a buffer of 10 GiB, of which the CPU maps a few pages."""
    need(device, 2 if device == "cpu" else 12)
    rows, k = 3, 64
    far = data.exact_family(rng_of(3), rows, k)
    near = data.exact_family(rng_of(4), 1 if op == "gemv" else 5, k)
    buffer = zeros((2 * 5 * GIB + k,), device)
    a = torch.as_strided(buffer, (rows, k // 2), (5 * GIB, 1))
    sfa = torch.as_strided(buffer, (rows, k // 16), (5 * GIB, 1), k // 2)
    a.copy_(codes(far, device, native=False))
    sfa.copy_(scale_bytes(far.scales, device, native=False))
    b, sfb = codes(near, device, native=False), scale_bytes(near.scales, device, native=False)
    want = reference.gemm(far.values, near.values).rounded("float16")
    if op == "dequantize":
        got, want = nvfp4kern.dequantize((a, sfa, 1.0)), far.values
    elif op == "dual_gemm":
        got = nvfp4kern.dual_gemm(a, b, b, sfa, sfb, sfb, activation="identity")
        expected = reference.dual_gemm(far.values, near.values, near.values, activation="identity")
        want = expected.rounded("float16")
    elif op == "grouped_gemm":
        (got,) = nvfp4kern.grouped_gemm([a], [b], [sfa], [sfb])
    else:
        got = getattr(nvfp4kern, op)(a, b, sfa, sfb)
    assert_ok(reference.check_bits(values(got), want))


def test_combine_of_rows_more_than_4_gib_apart(device):
    need(device, 2 if device == "cpu" else 12)
    buffer = zeros((2 * 5 * GIB + 64,), device).view(torch.float16)
    products = torch.as_strided(buffer, (3, 16), (5 * GIB // 2, 1))
    products.copy_(torch.tensor([[1.0], [2.0], [4.0]]).expand(3, 16))
    row_of = torch.tensor([2, 0, 1, -1], dtype=torch.int32, device=device)
    got = nvfp4kern.combine(products, row_of, torch.ones((2, 2), device=device))
    assert got.tolist() == [[5.0] * 16, [2.0] * 16]


def test_gemm_output_beyond_2_to_the_31(device, request):
    skip_on_a_cpu(device, request)
    need(device, 7)
    m, n, k = 2**15 + 5, 2**16 + 3, 16
    assert m * n > 2**31
    a, b = data.exact_family(rng_of(5), m, k), data.exact_family(rng_of(6), n, k)
    out = torch.full((m, n), POISON, dtype=torch.float16, device=device)
    args = [codes(o, device) for o in (a, b)] + [scale_bytes(o.scales, device) for o in (a, b)]
    assert nvfp4kern.gemm(*args, out=out) is out
    for first in (0, 2**15 - 2, m - 8):
        part = slice(first, first + 8)
        want = reference.gemm(a.values[part], b.values).rounded("float16")
        assert_ok(reference.check_bits(values(out[part]), want))
    columns = [0, 1, 2**15, 2**16 - 1, n - 1]
    want = reference.gemm(a.values, b.values[columns]).rounded("float16")
    assert_ok(reference.check_bits(values(out[:, columns]), want))


def test_quantize_beyond_2_to_the_31(device, request):
    """The input is one row, repeated; the codes are not."""
    skip_on_a_cpu(device, request)
    need(device, 4)
    rows, k = 2**21 + 3, 1024
    x = data.halves(rng_of(7), "float16", 1, k)
    given = torch.from_numpy(x).to(device).half().expand(rows, k)
    assert given.numel() > 2**31
    q = nvfp4kern.quantize(given)
    want_codes, want_scales, _ = reference.quantize(x)
    for part in (slice(0, 2), slice(2**21 - 1, rows)):
        assert (q.data[part].view(torch.uint8).cpu().numpy() == want_codes).all()
        assert (q.scales[part].view(torch.uint8).cpu().numpy() == want_scales).all()
