"""The num_ functions of tests/ptxsim as a shared library, for the tests of them."""

import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent / "num"
SOURCES = sorted(HERE.glob("num_*.c"))
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-fPIC", "-shared"]

FORMATS = ["f64", "f32", "f16", "bf16", "e5m2", "e4m3", "e2m1"]
ROUNDINGS = ["rn", "rz", "rm", "rp", "rna"]
OPS = "add sub mul fma div sqrt rcp min max abs neg copysign div_approx rsqrt ex2 lg2 tanh".split()


class Mode(ctypes.Structure):
    """num_mode."""

    _flags = ["ftz", "sat", "satfinite", "relu", "nan"]
    _fields_ = [("round", ctypes.c_uint8)] + [(name, ctypes.c_bool) for name in _flags]


def mode(rounding="rn", **flags):
    return Mode(round=ROUNDINGS.index(rounding), **flags)


DEFAULT = mode()


@functools.cache
def _temporary():
    return tempfile.TemporaryDirectory(prefix="ptxsim_num_")


def build_folder():
    """What tests build goes here, and away with the process."""
    return Path(_temporary().name)


def compiled(name, program, flags, sources, libraries=()):
    """The path of what a compiler made."""
    target = build_folder() / name
    done = subprocess.run(
        [program, *flags, "-o", target, *sources, *libraries], capture_output=True, text=True
    )
    assert done.returncode == 0 and not done.stderr, done.stderr[-3000:]
    return target


@functools.cache
def library():
    """The num_ functions."""
    return ctypes.CDLL(str(compiled("num.so", shutil.which("cc"), FLAGS, SOURCES, ["-lm"])))


@functools.cache
def cuda_headers():
    """The folders that cuda_fp16.h and cuda/std need, of the toolkit that nvcc belongs to."""
    nvcc = shutil.which("nvcc")
    if not nvcc:
        return []
    command = [nvcc, "--dryrun", "-c", "-x", "cu", "/dev/null", "-o", "/dev/null"]
    lines = subprocess.run(command, capture_output=True, text=True).stderr.splitlines()
    included = " ".join(line for line in lines if "INCLUDES=" in line)
    folders = [Path(folder) for folder in re.findall(r'-I([^" ]+)', included)]
    return [folder / "cccl" for folder in folders] + folders


def function(name, result, *arguments):
    found = getattr(library(), name)
    found.restype, found.argtypes = result, arguments
    return found


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def codes(x):
    return np.ascontiguousarray(x, dtype=np.uint64)


def values(format, x):
    x = codes(x)
    out = np.empty(x.shape, np.float64)
    library().num_batch_value(
        FORMATS.index(format), ctypes.c_int64(x.size), pointer(x), pointer(out)
    )
    return out


def convert(to, source, x, mode=DEFAULT):
    x = codes(x)
    out = np.empty_like(x)
    library().num_batch_convert(
        FORMATS.index(to),
        FORMATS.index(source),
        mode,
        ctypes.c_int64(x.size),
        pointer(x),
        pointer(out),
    )
    return out


def arith(op, format, a, b=None, c=None, mode=DEFAULT):
    a = codes(a)
    b, c = (np.zeros_like(a) if x is None else codes(x) for x in (b, c))
    out = np.empty_like(a)
    library().num_batch_arith(
        OPS.index(op),
        FORMATS.index(format),
        mode,
        ctypes.c_int64(a.size),
        *map(pointer, (a, b, c, out)),
    )
    return out


def to_integer(bits, signed, source, x, mode):
    x = codes(x)
    out = np.empty_like(x)
    library().num_batch_to_integer(
        bits,
        int(signed),
        FORMATS.index(source),
        mode,
        ctypes.c_int64(x.size),
        pointer(x),
        pointer(out),
    )
    return out


def from_integer(to, signed, x, mode):
    x = codes(x)
    out = np.empty_like(x)
    library().num_batch_from_integer(
        FORMATS.index(to), int(signed), mode, ctypes.c_int64(x.size), pointer(x), pointer(out)
    )
    return out
