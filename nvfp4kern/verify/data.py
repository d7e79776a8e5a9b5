"""Seeded inputs: NVFP4 operands, 16-bit operands and the competition's tuples."""

from dataclasses import dataclass

import numpy as np

from .reference import (
    SF_VEC,
    dequantize,
    encode_scales,
    padded,
    round_to,
    to_blocked,
)


@dataclass
class Operand:
    """codes [.., rows, K/2] and scales [.., rows, K/16], uint8."""

    codes: np.ndarray
    scales: np.ndarray

    @property
    def values(self):
        return dequantize(self.codes, self.scales)


def full_range(rng, *shape):
    """[.., rows, K] of all 16 codes and of all 127 scale bytes that are not NaN."""
    *rows, k = shape
    codes = rng.integers(0, 256, (*rows, k // 2), np.uint8)
    return Operand(codes, every_scale(rng, (*rows, k // SF_VEC)))


def every_scale(rng, shape):
    """Scale bytes 0..126 in random order, each about as often as any other."""
    evenly = np.resize(rng.permutation(127), int(np.prod(shape)))
    return rng.permutation(evenly).astype(np.uint8).reshape(shape)


def exact_family(rng, *shape, low=-1, high=1):
    """All 16 codes under scales 0 and 2^low .. 2^high.

    With two such operands (high - low <= 2, K <= 8192 or so) every partial sum is a multiple of
    2^(2 low - 2) that fits 24 bits; `is_exact` tells.
    """
    *rows, k = shape
    codes = rng.integers(0, 256, (*rows, k // 2), np.uint8)
    values = np.concatenate([[0.0], 2.0 ** np.arange(low, high + 1)])
    return Operand(codes, encode_scales(values)[rng.integers(0, len(values), (*rows, k // SF_VEC))])


def _lowest_bit(values):
    values = np.abs(values[values != 0])
    if values.size == 0:
        return 1.0
    mantissa, exponent = np.frexp(values)
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    return float(np.ldexp((whole & -whole).astype(np.float64), exponent - 53).min())


def is_exact(a, b, total):
    """Whether all sums of a*b are exact in float32, in any order; `total` is sum |a*b|."""
    return bool((total < _lowest_bit(a) * _lowest_bit(b) * 2.0**24).all())


def noisy_padding(rng, rows, cols, byte=None):
    """Padding for to_blocked of [rows, cols]: `byte`, or random bytes that are not 0, some NaN."""
    shape = (padded(rows, 128), padded(cols, 4))
    if byte is not None:
        return np.full(shape, byte, np.uint8)
    return rng.integers(1, 256, shape, np.uint8)


def halves(rng, dtype, *shape, scale=1.0):
    """Normally distributed values of float16 or bfloat16."""
    return round_to(rng.standard_normal(shape) * scale, dtype)


def small_integers(rng, *shape, most=4):
    """Integers in -most..most, exact in every 16-bit format."""
    return rng.integers(-most, most + 1, shape).astype(np.float32)


# --- The competition's tuples ---


@dataclass
class Tuple:
    """`data` is what a harness hands over.

    `operands` ([L, rows, K]) and `results` are for the oracle: one list of operands and one result
    for each group, or one of each.
    """

    data: tuple
    operands: list
    results: list


def _torch_codes(packed, device):
    """[L, rows, K/2] bytes -> the [rows, K/2, L] float4_e2m1fn_x2 view."""
    import torch

    tensor = torch.from_numpy(packed).to(device).permute(1, 2, 0)
    return tensor.view(torch.float4_e2m1fn_x2)


def _torch_scales(scales, device):
    """[L, rows, K/16] bytes -> the [rows, K/16, L] float8_e4m3fn view."""
    import torch

    return torch.from_numpy(scales).to(device).view(torch.float8_e4m3fn).permute(1, 2, 0)


def _torch_permuted(scales, rng, device):
    """[L, rows, K/16] bytes -> the [32, 4, rest_m, 4, rest_k, L] view with random padding."""
    import torch

    batch, rows, cols = scales.shape
    shape = (batch, padded(rows, 128), padded(cols, 4))
    blocked = to_blocked(scales, rng.integers(1, 256, shape, np.uint8))
    atoms = blocked.reshape(batch, shape[1] // 128, shape[2] // 4, 32, 4, 4)
    tensor = torch.from_numpy(atoms).to(device).view(torch.float8_e4m3fn)
    return tensor.permute(3, 4, 1, 5, 2, 0)


def _torch_result(batch, m, n, device):
    import torch

    return torch.full((batch, m, n), torch.nan, dtype=torch.float16, device=device).permute(1, 2, 0)


# The competition's own data: bytes 0..3, or codes 0, .5, 1, 1.5 with signs.
_BENIGN_MASK = {"gemv": 0x03, "gemm": 0x03, "dual_gemm": 0xBB, "group_gemm": 0xBB}


def _operand(rng, problem, benign, batch, rows, k):
    if not benign:
        return full_range(rng, batch, rows, k)
    codes = rng.integers(0, 256, (batch, rows, k // 2), np.uint8) & np.uint8(_BENIGN_MASK[problem])
    scales = rng.integers(1, 4, (batch, rows, k // SF_VEC)).astype(np.float64)
    return Operand(codes, encode_scales(scales))


def competition(problem, shape, *, seed=0, benign=True, device="cpu"):
    """The tuple of "gemv", "gemm", "dual_gemm" or "group_gemm" for one shape of `shapes`.

    With `benign` the data is as the competition makes it, else of all codes and all scale bytes.
    Results are filled with NaN.
    """
    rng = np.random.default_rng(seed)
    if problem == "group_gemm":
        groups = [_competition_group(rng, benign, *size, device) for size in shape]
        abc, linear, permuted, operands, results = zip(*groups, strict=True)
        data = (list(abc), list(linear), list(permuted), list(shape))
        return Tuple(data, list(operands), list(results))

    if problem == "gemv":
        m, k, batch = shape
        rows, n = [m, 128], 1
    else:
        m, n, k, batch = shape
        rows = [m, n] if problem == "gemm" else [m, n, n]
    operands = [_operand(rng, problem, benign, batch, r, k) for r in rows]
    result = _torch_result(batch, m, n, device)
    data = (
        *(_torch_codes(o.codes, device) for o in operands),
        *(_torch_scales(o.scales, device) for o in operands),
        *(_torch_permuted(o.scales, rng, device) for o in operands),
        result,
    )
    if problem == "gemv":  # the vector is padded; row 0 alone counts
        operands[1] = Operand(operands[1].codes[:, :1], operands[1].scales[:, :1])
    return Tuple(data, [operands], [result])


def _competition_group(rng, benign, m, n, k, batch, device):
    a, b = (_operand(rng, "group_gemm", benign, batch, rows, k) for rows in (m, n))
    result = _torch_result(batch, m, n, device)
    abc = (_torch_codes(a.codes, device), _torch_codes(b.codes, device), result)
    linear = (_torch_scales(a.scales, "cpu"), _torch_scales(b.scales, "cpu"))
    permuted = (_torch_permuted(a.scales, rng, device), _torch_permuted(b.scales, rng, device))
    return abc, linear, permuted, [a, b], result
