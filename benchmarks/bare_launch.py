"""A bare cuLaunchKernelEx of an empty kernel, from C: what no library's call can be faster than."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch

PTX = b".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry empty() { ret; }\n"

SOURCE = r"""
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

/* us[i]: the i-th launch, with nothing running */
void measure(int (*launch)(void *, void *, void **, void **), int (*wait)(void *), void *config,
             void *kernel, void *stream, int count, double *us)
{
    for (int i = 0; i < count; i++) {
        double begin = now();
        launch(config, kernel, 0, 0);
        us[i] = now() - begin;
        wait(stream);
    }
}
"""


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


def compiled():
    """The C above, as a function."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "launch.c"), Path(folder, "launch.so")
        source.write_text(SOURCE)
        command = ["gcc", "-O2", "-shared", "-fPIC", "-o", library, source]
        subprocess.run(command, check=True)
        return ctypes.CDLL(library).measure


def samples(count):
    """Microseconds of `count` launches on torch's current stream."""
    torch.cuda.synchronize()  # torch's context is current from here on
    driver = ctypes.CDLL("libcuda.so.1")
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuModuleLoadData(ctypes.byref(module), PTX) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"empty") == 0
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    config = LaunchConfig((1, 1, 1), (32, 1, 1), 0, stream)
    assert driver.cuLaunchKernelEx(ctypes.byref(config), kernel, None, None) == 0
    us = (ctypes.c_double * count)()
    wait = driver.cuStreamSynchronize
    compiled()(driver.cuLaunchKernelEx, wait, ctypes.byref(config), kernel, stream, count, us)
    return list(us)
