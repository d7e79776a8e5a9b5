"""Kernels from PTX text over the CUDA driver, on torch's context and current stream."""

import ctypes
import os
from functools import cache

import torch


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    ]


@cache
def library():
    return ctypes.CDLL(os.environ.get("NVFP4KERN_LIBCUDA") or "libcuda.so.1")


def check(result, what):
    if result:
        name = ctypes.c_char_p(b"an unknown error")
        library().cuGetErrorName(result, ctypes.byref(name))
        raise RuntimeError(f"{what}: {name.value.decode()} ({result})")


def load(ptx, name):
    """The kernel called `name`. It stays loaded, as nothing keeps count of who uses it."""
    torch.cuda.synchronize()  # torch's context is current from here on
    image, kernel, none = ctypes.c_void_p(), ctypes.c_void_p(), [None, None, 0]
    check(
        library().cuLibraryLoadData(ctypes.byref(image), ptx.encode(), *none, *none),
        "cuLibraryLoadData",
    )
    check(
        library().cuLibraryGetKernel(ctypes.byref(kernel), image, name.encode()),
        "cuLibraryGetKernel",
    )
    return kernel


def config(grid, block):
    """A launch of `grid` CTAs of `block` threads on torch's current stream."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    return LaunchConfig((grid, 1, 1), (block, 1, 1), 0, stream)


def launch(kernel, grid, block, argument):
    """A kernel with one parameter, a ctypes structure."""
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    how = config(grid, block)
    check(
        library().cuLaunchKernelEx(ctypes.byref(how), kernel, parameters, None),
        "cuLaunchKernelEx",
    )
