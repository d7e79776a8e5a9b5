"""The num_ functions of tests/ptxsim as a shared library, for the tests of them."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
SOURCES = sorted(HERE.glob("num_*.c"))
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-fPIC", "-shared"]

FORMATS = ["f64", "f32", "tf32", "f16", "bf16", "e5m2", "e4m3", "e3m2", "e2m3", "e2m1", "ue8m0"]
ROUNDINGS = ["rn", "rz", "rm", "rp", "rna"]
OPS = "add sub mul fma div sqrt rcp min max abs neg copysign div_approx rsqrt ex2 lg2 sin cos tanh"
OPS = OPS.split()
COMPARISONS = "eq ne lt le gt ge equ neu ltu leu gtu geu num nan".split()


class Mode(ctypes.Structure):
    """num_mode."""

    _flags = ["ftz", "sat", "satfinite", "relu", "nan", "abs", "xorsign"]
    _fields_ = [("round", ctypes.c_uint8)] + [(name, ctypes.c_bool) for name in _flags]


def mode(rounding="rn", **flags):
    return Mode(round=ROUNDINGS.index(rounding), **flags)


DEFAULT = mode()


@functools.cache
def library():
    """Built once a process; the folder goes with it."""
    folder = tempfile.TemporaryDirectory(prefix="ptxsim_num_")
    path = Path(folder.name, "num.so")
    command = [shutil.which("cc"), *FLAGS, "-o", path, *SOURCES, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    loaded = ctypes.CDLL(str(path))
    loaded._folder = folder
    return loaded


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
