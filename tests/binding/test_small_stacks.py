"""A caller's thread with a small stack or no memory. A crash ends a process: each test has one."""

import os
import subprocess
import sys

import pytest

CALLS = """
import threading
import torch
from nvfp4kern.selftest import calls, trees

torch.use_deterministic_algorithms(True)  # new memory is filled: rows of no expert stay as they are

def digests():
    found = {}
    for name, make in calls.OPERATORS.items():
        function, args, options = make(calls.rounding(1), 40, 130, 512)
        result = []
        thread = threading.Thread(target=lambda: result.append(function(*args, **options)))
        thread.start()
        thread.join()
        found[name] = trees.digest(trees.leaves(result))
    return found

want = digests()
for kilobytes in 96, 300, 560, 640:  # from about 550 on a caller computes by itself
    threading.stack_size(kilobytes << 10)
    got = digests()
    assert got == want, (kilobytes, [name for name in want if got[name] != want[name]])
"""


@pytest.mark.parametrize("threads, path", [("1", ""), ("3", "scalar")])
def test_every_operator(threads, path):
    settings = {"NVFP4KERN_NUM_THREADS": threads, "NVFP4KERN_CPU": path}
    env = os.environ | settings | {"NVFP4KERN_BACKEND": "cpu"}
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


def test_several_at_once():
    """More callers wait than there are threads, beside one that computes all the time."""
    program = """
import threading
import numpy as np
from nvfp4kern._C import gemm

codes, scales = np.ones((300, 8), np.uint8), np.ones((300, 1), np.uint8)
done = threading.Event()

def call(ended):
    out = np.zeros((300, 300), np.float16)
    while not ended():
        gemm(codes, codes, scales, scales, out=out)

threading.Thread(target=call, args=(done.is_set,)).start()
threading.stack_size(128 << 10)
waiting = [threading.Thread(target=call, args=(iter([False] * 50 + [True]).__next__,))
           for _ in range(6)]
for each in waiting:
    each.start()
for each in waiting:
    each.join()
done.set()
"""
    run = [sys.executable, "-c", program]
    env = os.environ | {"NVFP4KERN_NUM_THREADS": "2"}
    done = subprocess.run(run, capture_output=True, text=True, env=env, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(
    "NVFP4KERN_SANITIZED" in os.environ, reason="libasan's own memory is beyond the limit"
)
def test_no_thread_to_compute_on():
    """Neither room on the stack nor for another thread: an error, and the process goes on."""
    program = """
import resource, sys, threading
import numpy as np
import nvfp4kern as nk
from nvfp4kern._C import gemm

codes, scales = np.ones((3, 8), np.uint8), np.ones((3, 1), np.uint8)
out = np.zeros((3, 3), np.float16)
gemm(codes, codes, scales, scales, out=out)

def call():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
    try:
        gemm(codes, codes, scales, scales, out=out)
    except nk.BackendError as error:
        print(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)

threading.stack_size(128 << 10)
thread = threading.Thread(target=call)
thread.start()
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("this thread has less than 512 kB of stack left"), done.stdout


def test_no_memory_for_a_thread_s_variables():
    """glibc ends the process where it has none for them: a thread's first call asks before."""
    program = """
import ctypes, resource, threading
import numpy as np
from nvfp4kern._C import backends, gemm

codes, scales = np.ones((3, 8), np.uint8), np.ones((3, 1), np.uint8)
out = np.zeros((3, 3), np.float16)
gemm(codes, codes, scales, scales, out=out)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]

def call():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
    held = 0
    while libc.malloc(1 << 13):
        held += 1
    for function, args in (gemm, (codes, codes, scales, scales)), (backends, ()):
        try:
            function(*args)
        except MemoryError:
            print("no memory")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    gemm(codes, codes, scales, scales, out=out)

thread = threading.Thread(target=call)
thread.start()
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "no memory\nno memory\n"), done.stderr
