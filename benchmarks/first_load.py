"""Seconds until a fresh process has loaded every kernel for the first GPU, its context made before.

With machine code, and with the PTX alone, which the driver compiles:

    NVFP4KERN_ARCHS=sm80 pip install .
    CUDA_CACHE_DISABLE=1 python benchmarks/first_load.py
    CUDA_CACHE_DISABLE=1 CUDA_FORCE_PTX_JIT=1 python benchmarks/first_load.py

`--json FILE` adds the figure to that file; benchmarks/figures.py reads it.
"""

import argparse
import ctypes
import json
import os
import time
from datetime import date
from pathlib import Path

import nvfp4kern
from nvfp4kern import machine
from nvfp4kern.results import write as write_results


def seconds():
    driver = ctypes.CDLL(os.environ.get("NVFP4KERN_LIBCUDA") or "libcuda.so.1")
    results = driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
    if any(results):
        raise SystemExit(f"no context on the first GPU: {results}")
    start = time.perf_counter()
    nvfp4kern.warmup("cuda:0")
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the figure to this file")
    file = parser.parse_args().json
    code = "PTX" if os.environ.get("CUDA_FORCE_PTX_JIT") == "1" else "machine code"
    taken = seconds()
    print(f"{code}: {taken:.2f} s")
    if file:
        found = json.loads(file.read_text()) if file.is_file() else {}
        found |= machine.nvidia_smi(("name", "driver_version"))[0]
        found["date"] = date.today().isoformat()
        found["seconds"] = found.get("seconds", {}) | {code: taken}
        write_results(file, found)


if __name__ == "__main__":
    main()
