"""What else computes the same on a GPU: cuBLAS on operands dequantised beforehand, eager torch.

Each function returns a call on its operands. Operands of products are plain floats: dequantising
them is not timed.
"""

from functools import partial

import torch
from torch.nn import functional

LARGEST = 6 * 448.0


def gemm(a, b):
    """a [.., M, K], b [.., N, K]; one token is cuBLAS's gemv."""
    out = a.new_empty(*a.shape[:-1], b.shape[-2])
    return partial(torch.matmul, a, b.transpose(-1, -2), out=out)


def dual_gemm(a, b1, b2):
    """Two products and what comes after them."""

    def call():
        return functional.silu(a @ b1.T) * (a @ b2.T)

    return call


def group_loop(a, b):
    calls = [gemm(*pair) for pair in zip(a, b, strict=True)]

    def call():
        for one in calls:
            one()

    return call


def has_grouped_mm(groups):
    """Whether this torch has a grouped product, and these groups one N and one K."""
    return hasattr(functional, "grouped_mm") and len({(n, k) for _, n, k, _ in groups}) == 1


def grouped_mm(a, b):
    """torch's own, in bf16: the only type that it takes."""
    rows = torch.tensor([len(x) for x in a]).cumsum(0).to(a[0].device, torch.int32)
    tokens, weights = torch.cat(a).bfloat16(), torch.stack(b).bfloat16()
    return partial(functional.grouped_mm, tokens, weights.transpose(-1, -2), offs=rows)


def route(x, w, k):
    """Top-k of the logits, softmax over them."""

    def call():
        logits, ids = torch.topk(x @ w.T, k)
        return functional.softmax(logits.float(), -1), ids.int()

    return call


def quantize(x, s2=None):
    """The bytes' values in eager torch: codes as sign and index, unpacked; s2 None: from amax."""
    steps = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=x.device)

    def call():
        scale = s2 if s2 is not None else x.abs().amax().float() / LARGEST
        blocks = x.float().unflatten(-1, (-1, 16))
        factors = (blocks.abs().amax(-1) / (6 * scale)).to(torch.float8_e4m3fn)
        scaled = blocks / (factors.float() * scale)[..., None]
        codes = torch.bucketize(scaled.abs(), steps, out_int32=True) + 8 * (scaled < 0)
        codes = codes.flatten(-2).to(torch.uint8)
        return codes[..., ::2] | codes[..., 1::2] << 4, factors

    return call


def dequantize(codes, scales):
    """Eager torch, through a table."""
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float16, device=codes.device)
    table = torch.cat((table, -table))

    def call():
        both = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
        factors = scales.view(torch.float8_e4m3fn).half().repeat_interleave(16, -1)
        return table[both.int()] * factors

    return call
