"""Calls during which the C library fails: faults.c, built by gcc and preloaded."""

import ctypes
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = "faults.so"
MEMORY, MAP, THREAD, OPEN, READ, WRITE, STAT, NAME, CLOSE = (1 << i for i in range(9))
SHORT = -1


def preloaded():
    """Starts this process again with faults.c, where it is not there yet. Every object of Python is
    a malloc then."""
    there = Path(os.environ.pop("LD_PRELOAD", ""))
    if there.name == LIBRARY:
        shutil.rmtree(there.parent)
        return
    library = Path(tempfile.mkdtemp()) / LIBRARY
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", library, SOURCE, "-ldl", "-pthread"], check=True)
    os.environ |= {"LD_PRELOAD": str(library), "PYTHONMALLOC": "malloc"}
    os.execv(sys.executable, [sys.executable, *sys.argv])


@cache
def functions():
    library = ctypes.CDLL(None)
    library.faults_disarm.restype = ctypes.c_long
    library.faults_arm.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_int]
    library.faults_what.restype = ctypes.c_char_p
    return library.faults_arm, library.faults_disarm, library.faults_what


def during(call, kinds, first=1, last=0, error=errno.ENOMEM):
    """Calls; of what it calls of these kinds, the ones numbered first..last fail with `error`.

    Returns (result, exception or None, how many there were, what failed).
    """
    arm, disarm, what = functions()
    result = raised = seen = None
    try:
        arm(kinds, first, last, error)
        result = call()
    except BaseException as e:
        raised = e
    while seen is None:
        try:
            seen = disarm()
        except MemoryError:
            pass
    return result, raised, seen, what().decode(errors="replace").strip()
