"""gemm against torch._scaled_mm with NVFP4 operands, where torch has such a product."""

from functools import partial

import numpy as np
import torch

import nvfp4kern

from ..verify import data, reference, shapes
from . import on_device

SHAPES = [(128, 128, 128), (256, 384, 512)]


def _compared(m, n, k, exact, device):
    make = data.exact_family if exact else data.full_range
    a, b = (make(np.random.default_rng(rows), rows, k) for rows in (m, n))
    codes = [on_device.to_device(o.codes, device).view(torch.float4_e2m1fn_x2) for o in (a, b)]
    scales = [on_device.to_device(reference.to_blocked(o.scales), device) for o in (a, b)]
    scales = [s.view(torch.float8_e4m3fn) for s in scales]
    try:
        theirs = torch._scaled_mm(codes[0], codes[1].t(), *scales, out_dtype=torch.bfloat16)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return {"ok": None, "why": str(error).splitlines()[0][:160]}
    ours = nvfp4kern.gemm(*codes, *scales, scale_layout="blocked", out_dtype="bfloat16")
    want = reference.gemm(a.values, b.values, c=on_device.C[device])
    ours, theirs = (t.cpu().float().numpy() for t in (ours, theirs))
    row = on_device.judged(reference.check(ours, want, "bfloat16"))
    within = reference.check(theirs, want, "bfloat16")
    row |= {"torch_within_bound": bool(within.ok), "other_bits": int((ours != theirs).sum())}
    if exact and row["other_bits"]:
        row |= {"ok": False, "wrong": f"{row['other_bits']} results are not torch's, on exact data"}
    return row


def items(device, extent):
    tests = [shape[:3] for shape in shapes.GEMM_TESTS if extent != "quick"]
    benchmarks = [shape[:3] for shape in shapes.GEMM_BENCHMARKS if extent == "all"]
    for m, n, k in SHAPES + tests + benchmarks:
        for exact in (True, False):
            label = f"{m}x{n}x{k}, {'exact' if exact else 'full range'}"
            yield label, partial(_compared, m, n, k, exact, device)
