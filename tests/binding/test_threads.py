"""Several threads at once, and processes made by fork."""

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from functools import partial

import numpy as np
import pytest
from threads import in_threads

import nvfp4kern
from nvfp4kern.verify import data, reference

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(1)
M, N, K = 16, 48, 256


class Problem:
    """Inputs of one size, and the bits that every call on them must give."""

    def __init__(self, m=M, n=N, k=K, wrap=np.ascontiguousarray):
        a, b = data.exact_family(RNG, m, k), data.exact_family(RNG, n, k)
        self.want = reference.gemm(a.values, b.values).rounded("float32")
        self.inputs = [wrap(x) for x in (a.codes, b.codes, a.scales, b.scales)]

    def call(self):
        return nvfp4kern.gemm(*self.inputs, out_dtype="float32")

    def right(self):
        return np.array_equal(np.asarray(self.call()), self.want)


SHARED = Problem()


def operators():
    """name -> a call, for every operator and kind of tensor."""
    a, b = data.full_range(RNG, M, K), data.full_range(RNG, N, K)
    q = [a.codes, b.codes, a.scales, b.scales]
    t = [torch.from_numpy(x) for x in q]
    x = torch.from_numpy(RNG.standard_normal((M, K)).astype(np.float16))
    w = torch.from_numpy(RNG.standard_normal((N, K)).astype(np.float16))
    offsets = torch.tensor([0, 5, 5, M], dtype=torch.int32)
    experts = data.full_range(RNG, 3, N, K)
    return {
        "gemm-numpy": lambda: nvfp4kern.gemm(*q),
        "gemm-torch": lambda: nvfp4kern.gemm(*t, out_dtype="bfloat16"),
        "gemm-w4a16": lambda: nvfp4kern.gemm(x, t[1], None, t[3]),
        "gemv": lambda: nvfp4kern.gemv(t[1], t[0][:1], t[3], t[2][:1]),
        "dual": lambda: nvfp4kern.dual_gemm(t[0], t[1], t[1], t[2], t[3], t[3]),
        "list": lambda: nvfp4kern.grouped_gemm([t[0]] * 3, [t[1]] * 3, [t[2]] * 3, [t[3]] * 3),
        "contiguous": lambda: nvfp4kern.grouped_gemm(
            q[0], experts.codes, q[2], experts.scales, offsets=offsets.numpy()
        ),
        "stack": lambda: nvfp4kern.grouped_dual_gemm(
            x, experts.codes, None, experts.scales, offsets, alpha=1e-4
        ),
        "route": lambda: nvfp4kern.route(x, w, 4, permutation=True),
        "quantize": lambda: nvfp4kern.quantize(x, global_scale="amax", scale_layout="blocked"),
        "blocked": lambda: nvfp4kern.to_blocked(q[2]),
    }


def bits(result):
    if isinstance(result, (list, tuple)):
        return [bits(item) for item in result]
    if isinstance(result, torch.Tensor):
        return result.contiguous().view(torch.uint8).numpy().tobytes()
    return np.asarray(result).tobytes()


def test_operators_run_concurrently():
    calls = operators()
    want = {name: bits(call()) for name, call in calls.items()}

    def repeat(name):
        for _ in range(50):
            assert bits(calls[name]()) == want[name], name

    in_threads(*(partial(repeat, name) for name in calls))


def test_one_operator_from_many_threads():
    problems = [SHARED] * 4 + [Problem(m=M + i) for i in range(4)]

    def repeat(problem):
        for _ in range(100):
            assert problem.right()

    in_threads(*(partial(repeat, problem) for problem in problems))


def test_the_gil_is_released():
    """With an endless switch interval another thread runs only where the calling one lets it.

    On a busy machine it may wake too late, hence many calls: had they kept the GIL, it would
    never run during one.
    """
    problem = Problem(m=256, n=1024, k=2048)
    assert problem.right()  # and what only a first call does is done

    def ran_during_a_call():
        order = []

        def body():
            order.append("before")
            problem.call()
            order.append("after")

        thread = threading.Thread(target=body)
        thread.start()
        while not order:
            time.sleep(0)  # offers the GIL: with this interval nobody takes it
        order.append("meanwhile")
        thread.join()
        return order == ["before", "meanwhile", "after"]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        assert any(ran_during_a_call() for _ in range(1000))
    finally:
        sys.setswitchinterval(interval)


def test_messages_belong_to_their_thread():
    def provoke(wrong):
        sfa = np.zeros((M, wrong), np.uint8)
        a, b, _, sfb = SHARED.inputs
        out = np.empty((M, N), np.float16)  # given, so that the error is found without the GIL
        messages = set()
        for _ in range(500):
            with pytest.raises(ValueError) as caught:
                nvfp4kern.gemm(a, b, sfa, sfb, out=out)
            messages.add(str(caught.value))
        (message,) = messages
        assert message.startswith("sfa: ") and f"({M}, {wrong})" in message

    def succeed():
        for _ in range(500):
            assert SHARED.right()

    in_threads(*(partial(provoke, 100 + i) for i in range(6)), succeed)


def test_first_calls_may_coincide():
    """A fresh interpreter whose very first calls come from eight threads."""
    run_python("""
        import threading
        import numpy as np, torch
        import nvfp4kern as nk
        barrier, right = threading.Barrier(8), []
        def body(i):
            x = np.full((4, 32), 6, np.float32) if i % 2 else torch.full((4, 32), 6.0)
            barrier.wait(60)
            q = nk.quantize(x)
            d = nk.gemm(q.data, q.data, q.scales, q.scales, out_dtype="float32")
            right.append(bool((d == 36 * 32).all()))
        threads = [threading.Thread(target=body, args=(i,)) for i in range(8)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert right == [True] * 8, right
    """)


# --- fork ---


def run_python(program):
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def child_exit_code(body):
    """Forks; the child's code is 0 where body() is true."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: fork in a process with threads
        pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = 0 if body() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def all_right():
    return SHARED.right() and Problem(m=3).right() and Problem(wrap=torch.from_numpy).right()


def fails_properly():
    a, b, _, sfb = SHARED.inputs
    try:
        nvfp4kern.gemm(a, b, np.zeros((M, 1), np.uint8), sfb)
    except ValueError as error:
        return str(error).startswith("sfa: ")
    return False


def test_fork_after_use():
    assert all_right()
    for _ in range(5):
        assert child_exit_code(all_right) == 0
        assert child_exit_code(fails_properly) == 0
    assert all_right()


def test_fork_of_a_fork():
    assert child_exit_code(lambda: all_right() and child_exit_code(all_right) == 0) == 0


def test_fork_while_a_thread_computes():
    stop, failures = threading.Event(), []

    def body():
        while not stop.is_set():
            if not SHARED.right():
                failures.append("wrong")

    thread = threading.Thread(target=body)
    thread.start()
    try:
        codes = [child_exit_code(lambda: SHARED.right() and fails_properly()) for _ in range(20)]
    finally:
        stop.set()
        thread.join()
    assert codes == [0] * 20 and not failures


def test_use_in_the_child_before_the_parent():
    run_python("""
        import os
        import numpy as np
        import nvfp4kern as nk
        x = np.full((4, 32), 6, np.float32)  # code 6, scale 1
        def right():
            q = nk.quantize(x)
            d = nk.gemm(q.data, q.data, q.scales, q.scales, out_dtype="float32")
            return (d == 36 * 32).all()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if right() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert right()
    """)


def compute(m):
    """For a worker process: returns through a pipe."""
    problem = Problem(m=m)
    return problem.call(), problem.want


def test_multiprocessing_by_fork():
    assert SHARED.right()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for got, want in pool.map(compute, range(1, 9)):
                np.testing.assert_array_equal(got, want)
