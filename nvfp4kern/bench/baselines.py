"""The baselines: cuBLAS on operands dequantised beforehand, torch eager or compiled.

Operands of products are plain floats: dequantising them is timed only where the name says so.
"""

from functools import partial

import torch
from torch.nn import functional

import nvfp4kern

from .case import Unavailable
from .operands import FLOATS, Operand, floats

LARGEST = 6 * 448.0
FLOAT = {"cuda": "cuBLAS fp16", "cpu": "torch fp32"}
LOOP = {"cuda": "cuBLAS fp16, a loop", "cpu": "torch fp32, a loop"}
BF16 = "torch bf16"
PAIR = {"cuda": "cuBLAS fp16, two and silu", "cpu": "torch fp32, two and silu"}
PAIR_LOOP = {name: f"{pair}, a loop" for name, pair in PAIR.items()}
DEQUANTIZED = "dequantize + matmul"
DEQUANTIZED_LOOP = "dequantize + matmul, a loop"
GROUPED_MM = "torch grouped_mm bf16"
GATED_MM = "torch grouped_mm bf16 and silu"
EAGER, COMPILED = "torch eager", "torch.compile"


def gemm(a, b):
    """A call for a [.., M, K] and b [.., N, K]; of one token it is cuBLAS's gemv."""
    out = a.new_empty(*a.shape[:-1], b.shape[-2])
    return partial(torch.matmul, a, b.mT, out=out)


def gated(a, b1, b2):
    """Two products, and silu of the first times the second."""
    return functional.silu(a @ b1.mT) * (a @ b2.mT)


def dequantizing(build, operands):
    """The call build(*floats) of operands, which every call dequantises first."""
    made, steps = [], []
    for o in operands:
        if isinstance(o, Operand):
            made.append(torch.empty(o.shape, dtype=FLOATS[o.device], device=o.device))
            given = {"out": made[-1], "out_dtype": made[-1].dtype}
            steps.append(partial(nvfp4kern.dequantize, (o.codes, o.linear, o.scale), **given))
        else:
            made.append(floats(o))
    product = build(*made)

    def call():
        for step in steps:
            step()
        return product()

    return call


def grouped_mm(a, b, ends):
    """A call of torch's own, bf16 only: tokens [M, K], weights [G, N, K], each group's end."""
    if not hasattr(functional, "grouped_mm"):
        raise Unavailable(f"torch {torch.__version__} has no grouped_mm")
    return partial(functional.grouped_mm, a, b.mT, offs=ends)


def compiled(function, device):
    """By inductor, for these shapes. Without the reset the eighth compilation runs eagerly."""
    if device == "cpu":
        raise Unavailable("compiled code is timed on a GPU only")
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, dynamic=False)


def fused(function, device):
    """What a baseline does between its products, compiled where that is."""
    return compiled(function, device) if device == "cuda" else function


def gate(both):
    """silu of the first half of the columns, times the second half."""
    first, second = both.chunk(2, dim=-1)
    return functional.silu(first) * second


def route(x, w, k):
    """Top-k of the logits, softmax over them."""
    logits, ids = torch.topk(x @ w.T, k)
    return functional.softmax(logits.float(), -1), ids.int()


def sort_by_expert(ids, experts):
    """Of ids that are all experts': counts, offsets, the sorted rows and their inverse."""
    sorted_ids, rows = ids.flatten().sort(stable=True)
    numbers = torch.arange(max(experts + 1, len(rows)), device=ids.device, dtype=torch.int32)
    offsets = torch.searchsorted(sorted_ids, numbers[: experts + 1], out_int32=True)
    row_of = torch.empty_like(sorted_ids).scatter_(0, rows, numbers[: len(rows)])
    return offsets.diff(), offsets, rows.int(), row_of


def combine(products, row_of, weights):
    """Each token's rows, weighted and added in float32."""
    rows = products[row_of].view(*weights.shape, -1).float()
    return (rows * weights[..., None]).sum(1).to(products.dtype)


def quantize(x, scale, steps):
    """Codes and scale factors. `scale` is the global scale, or None: from the largest value.
    `steps`: where E2M1 rounds up."""
    if scale is None:
        scale = x.abs().amax().float() / LARGEST
    blocks = x.float().unflatten(-1, (-1, 16))
    factors = (blocks.abs().amax(-1) / (6 * scale)).to(torch.float8_e4m3fn)
    scaled = blocks / (factors.float() * scale)[..., None]
    codes = torch.bucketize(scaled.abs(), steps, out_int32=True) + 8 * (scaled < 0)
    codes = codes.flatten(-2).to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, factors


def dequantize(codes, scales, table):
    """By a table of the values of codes."""
    both = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
    factors = scales.view(torch.float8_e4m3fn).half().repeat_interleave(16, -1)
    return table[both.int()] * factors
