"""A bare cuLaunchKernelEx of an empty kernel, from C: what no library's call can be faster than."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

from nvfp4kern.bench import driver

PTX = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry empty() { ret; }\n"

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
    kernel, config, cuda = driver.load(PTX, "empty"), driver.config(1, 32), driver.library()
    driver.check(cuda.cuLaunchKernelEx(ctypes.byref(config), kernel, None, None), "a first launch")
    us, stream = (ctypes.c_double * count)(), ctypes.c_void_p(config.stream)
    launch, wait = cuda.cuLaunchKernelEx, cuda.cuStreamSynchronize
    compiled()(launch, wait, ctypes.byref(config), kernel, stream, count, us)
    return list(us)
