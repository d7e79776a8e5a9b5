"""The simulator's cvt against the CUDA headers' own conversions, compiled for the host."""

import ctypes
import functools
import re
import shutil

import numpy as np
import pytest
from ptxsim import num_library as num
from ptxsim import num_oracle as oracle

pytestmark = [
    pytest.mark.skipif(not num.cuda_headers(), reason="no CUDA headers: nvcc"),
    pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler"),
]

SOURCE = num.HERE / "num_cuda_headers.cpp"
NAMES = re.findall(r"^CONVERSION\((\w+),", SOURCE.read_text(), flags=re.M)
rng = np.random.default_rng(8)


@functools.cache
def headers():
    folders = [f"-I{folder}" for folder in num.cuda_headers()]
    flags = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", *folders]
    return ctypes.CDLL(str(num.compiled("headers.so", shutil.which("c++"), flags, [SOURCE])))


def wide_codes():
    """f32 of any kind, and with the few bits and the exponents where narrow formats round."""
    count = 100_000
    fields = rng.integers(90, 165, count, dtype=np.uint64) << np.uint64(23)
    bits = rng.integers(0, 1 << 12, count, dtype=np.uint64) << np.uint64(11)
    signs = rng.integers(0, 2, count, dtype=np.uint64) << np.uint64(31)
    near = fields | bits | signs | rng.integers(0, 3, count, dtype=np.uint64)
    ends = np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001], np.uint64)
    return np.concatenate([rng.integers(0, 1 << 32, count, dtype=np.uint64), near, ends])


def source_codes(source):
    if source == "f32":
        return wide_codes()
    if source == "f64":
        above = num.convert("f64", "f32", wide_codes())  # and the next double: a sticky bit
        return above + rng.integers(0, 2, len(above), dtype=np.uint64)
    return np.arange(1 << oracle.SHAPES.get(source, (8,))[0], dtype=np.uint64)


@pytest.mark.parametrize("name", NAMES)
def test_conversions_are_those_of_the_headers(name):
    to, source, *modifiers = name.split("_")
    rounding = next((m for m in modifiers if m in num.ROUNDINGS), "rn")
    x = source_codes(source)
    want = np.empty_like(x)
    getattr(headers(), name)(ctypes.c_int64(x.size), num.pointer(x), num.pointer(want))
    got = num.convert(to, source, x, num.mode(rounding, satfinite="satfinite" in modifiers))
    assert (got == want).all()


def test_every_conversion_is_listed():
    assert len(NAMES) == 26
