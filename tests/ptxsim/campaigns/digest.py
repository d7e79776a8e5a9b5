"""What the kernels compute, bit by bit, to a file: one of the simulated GPU, one of a real one.

UNITS, and every operator of the package on every GPU row, on exact and on rounding data. compare.py
says where two such files differ.
"""

import json
import os
import time
from unittest import mock

import numpy as np
from rows import TABLE

from .. import gpu
from .units import UNITS

SIZES = ("small", "deep", "wide")
WIDE = (70, 136, 1024)  # M, N, K: more than one tile of everything


def collect(arrays, formats, on_hardware, cc="9.0", only="", tell=lambda text: None):
    """Fills {name: array} and {name: format}, with names that begin with `only`."""

    def keep(name, results):
        for form, array in results.items():
            arrays[f"{name} {form}"], formats[f"{name} {form}"] = array, form

    def timed(name, make):
        if not name.startswith(only):
            return
        begin = time.monotonic()
        keep(name, make())
        tell(f"{time.monotonic() - begin:6.2f} s  {name}")

    if on_hardware:
        gpu.on_hardware()
    else:
        gpu.configure(cc=cc, sms=132, spin_limit=50_000_000)
    for name, make in UNITS.items():
        timed(name, make)
    if "operators".startswith(only) or only.startswith("operators"):
        for name, make in operators(on_hardware):
            timed(name, make)
    if not on_hardware:
        bad = [f for f in gpu.report()["findings"] if f["severity"] in "EW"]
        assert not bad, bad


# --- The package's operators ---


def operators(on_hardware):
    """(name, what runs it) for every row, operator, size and kind of data."""
    if not on_hardware:
        from .. import fake_cuda  # noqa: F401  before anything asks torch for a GPU
    import cuda_calls

    import nvfp4kern

    available = [row["name"] for row in nvfp4kern.backends() if row["available"]]
    for row in TABLE:
        for name in cuda_calls.OPERATORS if row in available else ():
            for size in SIZES:
                for kind in ("exact", "rounding"):
                    full = f"operators {row} {name} {size} {kind}"
                    yield full, lambda row=row, call=(name, size, kind): result_of(row, *call)


def result_of(row, name, size, kind):
    """Bits of every output, by number and format; nothing where the row has no kernel for it."""
    import cuda_calls
    import torch

    from nvfp4kern.selftest.calls import rounding

    draw = {"exact": cuda_calls.rng_of, "rounding": rounding}[kind]
    forced = mock.patch.dict(os.environ, {"NVFP4KERN_BACKEND": row})
    with forced, mock.patch.dict(cuda_calls.SIZES, wide=WIDE):
        call = cuda_calls.Call(name, size=size, seed=len(name), draw=draw).fill(len(name))
        if not call.explain()["kernel"].startswith(row):
            return {}
        call.run()
        torch.cuda.synchronize()
        found = {}
        for i, out in enumerate(call.outs):
            tensor = out.tensor.cpu().contiguous()
            form = str(tensor.dtype).removeprefix("torch.")
            width = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[tensor.element_size()]
            flat = tensor.reshape(-1).view(torch.uint8).numpy().view(width)
            found[f"{i}.{form}"] = flat.reshape(tensor.shape).copy()
        return found


# --- Files ---


def write(path, arrays, formats):
    with open(path, "wb") as file:
        np.savez_compressed(file, formats=np.array(json.dumps(formats)), **arrays)


def read(path):
    with np.load(path) as file:
        formats = json.loads(str(file["formats"]))
        return {name: file[name] for name in formats}, formats
