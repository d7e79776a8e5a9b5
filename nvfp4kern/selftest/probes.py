"""What documents leave open of tensor cores, asked one by one. The device's answers are kept."""

from functools import partial

import numpy as np

import nvfp4kern

from ..verify import data, reference
from . import on_device

M, N, K = 40, 136, 512
ONE = 0x38
"""The scale factor 1."""
CODE_ONE, MINUS_ZERO = 0x22, 0x88
"""Two codes."""


def _gemm(a, b, device):
    """fp32 sums of operands whose scale factors lie as they are."""
    given = (a.codes, b.codes, a.scales, b.scales)
    return nvfp4kern.gemm(*on_device.to_device(given, device), out_dtype="float32").cpu().numpy()


def _operands():
    rng = np.random.default_rng(0)
    return data.exact_family(rng, M, K), data.exact_family(rng, N, K)


def nan_scale_factors(device):
    """NaN for exactly the row and the column that have one, 0x7F and 0xFF, on codes of zero."""
    a, b = _operands()
    a.scales[3, 5], b.scales[7, 30] = 0x7F, 0xFF
    a.codes[3, 40:48] = b.codes[7, 240:248] = 0
    want = np.zeros((M, N), bool)
    want[3], want[:, 7] = True, True
    nan = np.isnan(_gemm(a, b, device))
    return {"ok": bool((nan == want).all()), "nan": int(nan.sum()), "expected": int(want.sum())}


def sign_of_scale_factors(device):
    """Bit 7 of a scale factor counts for nothing."""
    a, b = _operands()
    plain = _gemm(a, b, device)
    a.scales[::3] |= 0x80
    b.scales[1::2, ::3] |= 0x80
    other = int((_gemm(a, b, device).view(np.int32) != plain.view(np.int32)).sum())
    return {"ok": other == 0, "other_bits": other}


def minus_zero(device):
    """A sum of products that are all -0 is +0."""
    a, b = _operands()
    a.codes[...], b.codes[...] = MINUS_ZERO, CODE_ONE
    negative = int(np.signbit(_gemm(a, b, device)).sum())
    return {"ok": negative == 0, "negative": negative}


def _power(exponents):
    return reference.encode_scales(2.0 ** np.asarray(exponents, np.float64))


def _cancelling(device, blocks):
    """2^p, 2^(p - r) and -2^p in these blocks of K, for row r: the largest r whose sum is not 0."""
    r = np.arange(32)
    p = np.clip(r - 5, 2, 16)
    a = data.Operand(np.zeros((32, K // 2), np.uint8), np.full((32, K // 16), ONE, np.uint8))
    b = data.Operand(np.full((N, K // 2), CODE_ONE, np.uint8), np.full((N, K // 16), ONE, np.uint8))
    first, middle, last = blocks
    for block, code in ((first, 0x02), (middle, 0x02), (last, 0x0A)):
        a.codes[:, 8 * block] = code
        a.scales[:, block], b.scales[:, block] = _power(p - 8), _power(8)
    a.scales[:, middle], b.scales[:, middle] = _power(p - r + 6), _power(-6)
    got = _gemm(a, b, device)[:, 0]
    return {"ok": None, "kept": int(r[got != 0].max(initial=-1)), "sums": got.tolist()}


def bits_within_a_product(device):
    """Of 64 products along K: how far apart two may lie so that the smaller one still counts."""
    return _cancelling(device, (0, 1, 2))


def bits_of_the_accumulator(device):
    """Likewise of three such sums, one after the other."""
    return _cancelling(device, (0, 9, 17))


def overlapping_kernels(device, chains):
    """Calls, each on what the one before wrote: the same bits with and without overlap."""
    rng = np.random.default_rng(1)
    x = on_device.to_device(data.halves(rng, "float16", 64, 1024).astype(np.float16), device)
    w = data.full_range(rng, 1024, 1024)
    w.scales[...] = rng.integers(2, 9, w.scales.shape)  # values stay as large as they are
    codes, scales = on_device.to_device((w.codes, w.scales), device)

    def chain():
        y = x
        for _ in range(8):
            q = nvfp4kern.quantize(y, scale_layout="linear", global_scale="amax")
            alpha = q.global_scale
            y = nvfp4kern.gemm(q.data, codes, q.scales, scales, alpha=alpha, out_dtype="float16")
        return y.cpu().numpy().view(np.int16)

    with on_device.settings(PDL="0"):
        want = chain()
    other = sum(int((chain() != want).sum()) for _ in range(chains))
    zeros = int((want & 0x7FFF == 0).sum())  # of values that vanish nothing is learnt
    return {"ok": other == 0 and zeros < want.size // 2, "other_bits": other, "chains": chains}


PROBES = (
    nan_scale_factors, sign_of_scale_factors, minus_zero, bits_within_a_product,
    bits_of_the_accumulator,
)  # fmt: skip


def items(device, extent):
    for probe in PROBES:
        yield probe.__name__, partial(probe, device)
    chains = 1 if extent == "quick" else 50
    yield overlapping_kernels.__name__, partial(overlapping_kernels, device, chains)
