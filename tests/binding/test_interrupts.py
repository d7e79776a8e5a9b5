"""Signals during long calls on the CPU, and interpreters that the package is not for."""

import ctypes
import importlib
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import numpy as np
import pytest

import nvfp4kern as nk
from nvfp4kern.verify import data, reference

ROWS, N, K = 1 << 17, 64, 8192  # half a minute in portable C
UNWRITTEN = 0x5A


class Stop(BaseException):
    pass


@contextmanager
def alarm(handler, seconds):
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["1", "3"], ids=lambda text: f"{text} threads")
def slowly(request, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_BACKEND", "cpu")
    monkeypatch.setenv("NVFP4KERN_CPU", "scalar")
    monkeypatch.setenv("NVFP4KERN_NUM_THREADS", request.param)


def many_rows(matrix):
    """One row, again and again: a long call on little memory."""
    return np.broadcast_to(matrix[:1], (ROWS, matrix.shape[1]))


def unwritten(*shape, dtype="uint8"):
    return (
        np.full(np.prod(shape) * np.dtype(dtype).itemsize, UNWRITTEN, "uint8")
        .view(dtype)
        .reshape(shape)
    )


def long_calls():
    """name -> what takes `out`, and the outputs."""
    rng = np.random.default_rng(0)
    a, b = data.exact_family(rng, 1, K), data.exact_family(rng, N, K)
    codes, scales = many_rows(a.codes), many_rows(a.scales)
    x = rng.standard_normal((N, 1024)).astype(np.float16)
    matrices, groups = (b.codes, scales, b.scales), [ROWS // 2, ROWS // 2]
    offsets = np.cumsum([0, *groups], dtype=np.int32)
    experts = np.stack([b.codes] * 2), scales, np.stack([b.scales] * 2)
    d = unwritten(ROWS, N, dtype="float16")
    q = unwritten(ROWS, 512), unwritten(ROWS, 64)
    ids = unwritten(ROWS, 2, dtype="float32"), unwritten(ROWS, 2, dtype="int32")
    halves = list(zip(*(np.split(t, 2) for t in (codes, scales, d)), strict=True))
    return {
        "gemm": (lambda: nk.gemm(codes, *matrices, out=d), d),
        "dual_gemm": (
            lambda: nk.dual_gemm(codes, b.codes, *matrices, b.scales, out=d),
            d,
        ),
        "contiguous": (
            lambda: nk.grouped_gemm(codes, *experts, offsets=offsets, out=d),
            d,
        ),
        "stack": (
            lambda: nk.grouped_dual_gemm(codes, *experts, offsets, out=d[:, : N // 2]),
            d[:, : N // 2],
        ),
        "list": (
            lambda: nk.grouped_gemm(
                [h[0] for h in halves], [b.codes] * 2, [h[1] for h in halves], [b.scales] * 2,
                out=[h[2] for h in halves],
            ),
            d,
        ),
        "route": (lambda: nk.route(many_rows(x), x, 2, out=ids), ids[1]),
        "quantize": (lambda: nk.quantize(many_rows(x), out=q), q[0]),
    }  # fmt: skip


def small_call_is_right():
    rng = np.random.default_rng(1)
    a, b = data.exact_family(rng, 160, 256), data.exact_family(rng, 512, 256)
    got = nk.gemm(a.codes, b.codes, a.scales, b.scales, out_dtype="float32")
    return np.array_equal(got, reference.gemm(a.values, b.values).rounded("float32"))


@pytest.mark.parametrize("name", list(long_calls()))
def test_a_handler_that_raises_ends_the_call(name, slowly):
    """Part of the output is there, and part is not. The next call is like any."""
    call, out = long_calls()[name]

    def stop(*_):
        raise Stop

    with alarm(stop, 0.1), pytest.raises(Stop):
        call()
    left = (out.reshape(-1).view(np.uint8) == UNWRITTEN).reshape(ROWS, -1).all(axis=1)
    assert 0 < left.sum() < ROWS
    assert small_call_is_right()


def test_a_handler_that_computes(slowly):
    rng = np.random.default_rng(2)
    a, b = data.exact_family(rng, 700, 2048), data.exact_family(rng, 256, 2048)
    right = []
    with alarm(lambda *_: right.append(small_call_is_right()), 0.05):
        got = nk.gemm(a.codes, b.codes, a.scales, b.scales, out_dtype="float32")
    np.testing.assert_array_equal(got, reference.gemm(a.values, b.values).rounded("float32"))
    assert right == [True]


def test_a_handler_runs_in_the_caller_s_floating_point_mode(slowly):
    """And what mode it sets stays, although the call computes in its own."""
    libm, down, up = ctypes.CDLL("libm.so.6"), 0x400, 0x800
    rng = np.random.default_rng(2)
    a, b = data.exact_family(rng, 700, 2048), data.exact_family(rng, 256, 2048)
    want, seen = reference.gemm(a.values, b.values).rounded("float32"), []
    if libm.fesetround(down):
        pytest.skip("the modes have other numbers here")
    try:
        with alarm(lambda *_: seen.append((libm.fegetround(), libm.fesetround(up))), 0.05):
            got = nk.gemm(a.codes, b.codes, a.scales, b.scales, out_dtype="float32")
        seen.append(libm.fegetround())
    finally:
        libm.fesetround(0)
    assert seen == [(down, 0), up]
    np.testing.assert_array_equal(got, want)


def run_python(program):
    settings = {"NVFP4KERN_BACKEND": "cpu", "NVFP4KERN_CPU": "scalar", "NVFP4KERN_NUM_THREADS": "3"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)],
        env=os.environ | settings, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


LONG = """
    import os, signal, sys, threading, time
    import numpy as np
    import nvfp4kern as nk

    codes, scales = np.zeros((64, 4096), "u1"), np.zeros((64, 512), "u1")

    def long_call(rows=1 << 17):
        many = [np.broadcast_to(t[:1], (rows, t.shape[1])) for t in (codes, scales)]
        return nk.gemm(many[0], codes, many[1], scales)
"""


def test_control_c():
    said = run_python(
        LONG
        + """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        long_call()
    except KeyboardInterrupt:
        print("interrupted")
    print(nk.gemm(codes, codes, scales, scales).sum())
    """
    )
    assert said == "interrupted\n0.0\n"


def test_a_handler_that_forks():
    """The child has none of the threads: its call ends by an exception. The parent's goes on."""
    said = run_python(
        LONG
        + """
    child = []
    signal.signal(signal.SIGALRM, lambda *_: child.append(os.fork()))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        d = long_call(4000)
    except nk.BackendError as error:
        assert child == [0] and str(error) == "a signal handler forked this process during the call"
        assert (nk.gemm(codes, codes, scales, scales) == 0).all()
        os._exit(7)
    assert (d == 0).all()
    print(os.waitstatus_to_exitcode(os.waitpid(child[0], 0)[1]))
    """
    )
    assert said == "7\n"


@pytest.mark.skipif(
    "NVFP4KERN_SANITIZED" in os.environ, reason="libasan cannot leave a thread that Python ends"
)
def test_python_may_end_during_calls():
    """It ends daemon threads when they want its lock, which a long call does now and then."""
    run_python(
        LONG
        + """
    for _ in range(3):
        threading.Thread(target=long_call, daemon=True).start()
    time.sleep(0.2)
    """
    )


def subinterpreters():
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            return importlib.import_module(name).__name__
        except ImportError:
            pass
    return None


@pytest.mark.skipif(not subinterpreters(), reason="this Python has no module for them")
def test_subinterpreters_are_refused():
    said = run_python(f"""
    import {subinterpreters()} as interpreters
    import nvfp4kern
    made = interpreters.create()
    program = '''try:
        import nvfp4kern
    except ImportError as error:
        print(error, flush=True)
    '''
    assert not interpreters.run_string(made, program)
    interpreters.destroy(made)
    """)
    assert said in (
        "nvfp4kern works in the main interpreter only, and this is a subinterpreter\n",
        "module nvfp4kern._C does not support loading in subinterpreters\n",
    )
