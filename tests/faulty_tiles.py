"""Faults of tiles for the self-test: with this imported, as by a sitecustomize.py on PYTHONPATH,

    FAULTY_TILES=sm90/gemm:w8=hang,sm90/gemm:w64=wrong,sm90/gemm:t32=kill

makes calls that have the tile never end, write a wrong byte, or kill their process.
"""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

import nvfp4kern
from nvfp4kern.selftest.left_out import OPERATORS, tile_of

FAULTS = dict(
    entry.rsplit("=", 1) for entry in os.environ.get("FAULTY_TILES", "").split(",") if entry
)


def hang(result):
    if "PTXSIM_CC" not in os.environ and torch.cuda.is_available():
        torch.cuda._sleep(1 << 62)  # a kernel that does not end
        torch.cuda.synchronize()
    time.sleep(3600)


def wrong(result):
    while isinstance(result, (list, tuple)):
        result = result[0]
    result.view(torch.uint8).flatten()[0] ^= 1


def kill(result):
    os.kill(os.getpid(), signal.SIGKILL)


def faulty(function):
    @functools.wraps(function)
    def call(*arguments, **options):
        fault = FAULTS.get(tile_of(nvfp4kern.explain(function.__name__, *arguments, **options)))
        result = function(*arguments, **options)
        if fault:
            globals()[fault](result)
        return result

    return call


for name in OPERATORS if FAULTS else ():
    made = faulty(getattr(nvfp4kern._C, name))
    setattr(nvfp4kern, name, made)
    setattr(nvfp4kern._C, name, made)


def on_simulated_gpu(folder, arguments, cc, **variables):
    """The self-test with these arguments, whose processes have the simulated GPU and the faults."""
    from ptxsim import build
    from ptxsim.campaigns.shipped import SMS

    Path(folder, "sitecustomize.py").write_text(f"import ptxsim.fake_cuda, {__name__}\n")
    path = [str(folder), str(Path(__file__).parent), *(os.path.abspath(p) for p in sys.path if p)]
    return subprocess.run(
        [sys.executable, "-m", "nvfp4kern", "selftest", "--device", "cuda", *map(str, arguments)],
        env=os.environ
        | build.environment(cc=cc, sms=SMS[cc])
        | {"PYTHONPATH": os.pathsep.join(path), "NVFP4KERN_BACKEND": ""}
        | variables,
        capture_output=True,
        text=True,
    )
