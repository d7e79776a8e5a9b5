"""What a step of consumer Blackwell's GEMMs costs, by count: its pages have the plan."""

import json
import os
import subprocess
import sys

import pytest
from ptxsim import build
from ptxsim.marks import COMPILES
from rows import TABLE, need

pytestmark = COMPILES
PROGRAM = """
import json, os, sys
from ptxsim import fake_cuda
import torch
fake_cuda.CudaOnHost().__enter__()
import nvfp4kern
family, tokens, step, layout = json.loads(sys.argv[1])
def bytes_of(*shape):
    return torch.randint(0, 120, shape, dtype=torch.uint8).cuda()
def counted(steps):
    k = steps * step
    sf = lambda rows: bytes_of(-(-rows // 128) * 128 if layout == "blocked" else rows, k // 16)
    a, sfa = bytes_of(tokens, k // 2), sf(tokens)
    if family == "kind_f16":
        a, sfa = torch.ones(tokens, k, dtype=torch.float16).cuda(), None
    fake_cuda.library.ptxsim_clear()
    nvfp4kern.gemm(a, bytes_of(128, k // 2), sfa, sf(128), scale_layout=layout)
    return fake_cuda.report()
few, many = counted(8), counted(24)
print(json.dumps({name: (many[name] - few[name]) / 16 for name in sys.argv[2:]}))
"""
NAMES = ("mmas", "shared_wavefronts", "touched_bytes")


WEIGHTS = 128


def compulsory(family, tokens, step, layout):
    """Bytes of a step, in sectors: blocked factors of less than 32 rows lie 16 bytes apart."""
    weights = WEIGHTS * step * 9 // 16
    if family == "kind_f16":
        return weights + tokens * step * 2
    atoms = step // 64
    factors = tokens * 4 * atoms if layout == "linear" else min(tokens, 32) * 16 * atoms
    return weights + tokens * step // 2 + factors


@pytest.mark.slow
@pytest.mark.parametrize("layout", ("linear", "blocked"))
@pytest.mark.parametrize(
    "name, tokens, step, mmas, wavefronts",
    [
        ("gemm:t16", 16, 128, 32, 112),
        ("gemm:t64", 64, 128, 128, 216),
        ("gemm:t128", 128, 128, 256, 432),
        ("kind_f16:t16", 16, 64, 64, 112),
        ("kind_f16:t64", 64, 64, 256, 304),
        ("kind_f16:t128", 128, 64, 512, 608),
    ],
)
def test_a_step(name, tokens, step, mmas, wavefronts, layout):
    """No two lanes want different words of a bank, memory gives what must be read, and no MMA is
    in vain."""
    need("sm120")
    path = os.pathsep.join([str(build.HERE.parent), *(os.path.abspath(p) for p in sys.path if p)])
    family = name.partition(":")[0]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([family, tokens, step, layout]), *NAMES],
        env=os.environ
        | build.environment(family, cc=TABLE["sm120"].cc, wavefronts=1)
        | {"PYTHONPATH": path, "NVFP4KERN_BACKEND": "sm120", "NVFP4KERN_TILE": f"sm120/{name}"}
        | {"NVFP4KERN_BATCH_INVARIANT": "1"},  # the fix-up of a divided K is no step
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["mmas"] == mmas and found["shared_wavefronts"] == wavefronts
    assert found["touched_bytes"] == compulsory(family, tokens, step, layout)
