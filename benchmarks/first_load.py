"""Seconds until a fresh process has loaded every kernel for the first GPU, its context made before.

With the PTX alone, which the driver compiles, against machine code:

    NVFP4KERN_ARCHS=sm80 pip install .
    CUDA_FORCE_PTX_JIT=1 CUDA_CACHE_DISABLE=1 python benchmarks/first_load.py
    python benchmarks/first_load.py
"""

import ctypes
import os
import time

import nvfp4kern


def main():
    driver = ctypes.CDLL(os.environ.get("NVFP4KERN_LIBCUDA") or "libcuda.so.1")
    results = driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
    if any(results):
        raise SystemExit(f"no context on the first GPU: {results}")
    start = time.perf_counter()
    nvfp4kern.warmup("cuda:0")
    print(f"{time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
