"""Threads that write what calls of others read: `python tests/races.py SECONDS [subject ..]`.

Every subject's callers and writers run together for so many seconds. Results may be anything then,
but no byte outside the outputs changes, and no exception comes but those of bad values. Once the
writers are done, the calls compute what they did before. `tests/sanitize.sh --races SECONDS` runs
it under AddressSanitizer.
"""

import os
import sys
import threading
import time
from functools import partial
from itertools import chain

import numpy as np

import nvfp4kern as nk

M, N, K, G, TOP_K = 300, 48, 64, 5, 4
RNG = np.random.default_rng(0)
GUARD = 0xA5
WHAT_BAD_VALUES_RAISE = (ValueError, nk.BackendError)


class Guarded:
    """A contiguous output between bytes that nobody may write."""

    SPARE = 4096
    made = []

    def __init__(self, shape, dtype):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.all = np.full(size + 2 * self.SPARE, GUARD, np.uint8)
        self.array = self.all[self.SPARE : -self.SPARE].view(dtype).reshape(shape)
        Guarded.made.append(self)

    def intact(self):
        return (self.all[: self.SPARE] == GUARD).all() and (self.all[-self.SPARE :] == GUARD).all()


def out_of(shape, dtype):
    return Guarded(shape, dtype).array


def random_bytes(*shape, most=256):
    return RNG.integers(0, most, shape, np.uint8)


def nvfp4(*shape):
    """Codes and finite scale factors of a matrix or a batch."""
    *rows, k = shape
    return random_bytes(*rows, k // 2), random_bytes(*rows, k // 16, most=0x70)


class Subject:
    """`calls`, and `written`: arrays that a writer fills with what `values` draws."""

    def __init__(self, calls, written, values):
        self.calls, self.written, self.values = calls, written, values
        self.right = [array.copy() for array in written]

    def write(self):
        for array in self.written:
            array[...] = self.values(array)

    def restore(self):
        for array, right in zip(self.written, self.right, strict=True):
            array[...] = right


def any_number(array):
    """Good and bad offsets and ids, near ones and far ones, of which some are at one end."""
    most = RNG.choice([8, M, 2**20, 2**31 - 1])
    numbers = RNG.integers(-most, most, array.shape, np.int64).astype(np.int32)
    return np.sort(numbers, axis=-1) if RNG.random() < 0.5 else numbers


def inputs():
    (a, sfa), (b, sfb) = nvfp4(M, K), nvfp4(N, K)
    x = RNG.standard_normal((M, K)).astype(np.float16)
    alpha = RNG.standard_normal(N).astype(np.float32)
    d, h = out_of((M, N), np.float16), out_of((M, N), np.float32)
    codes, sf = out_of((M, K // 2), np.uint8), out_of((384, 4), np.uint8)
    one = out_of((1,), np.float32)
    q = {"out": (codes, sf, one), "global_scale": "amax", "scale_layout": "blocked"}
    calls = [
        lambda: nk.gemm(a, b, sfa, sfb, alpha=alpha, bias=alpha, out=d),
        lambda: nk.dual_gemm(a, b, b, sfa, sfb, sfb, alpha1=alpha, out=h),
        lambda: nk.quantize(x, **q),
    ]
    written = [a, b, sfa, sfb, x, alpha]
    return Subject(
        calls,
        written,
        lambda t: np.resize(random_bytes(999), t.nbytes).view(t.dtype).reshape(t.shape),
    )


def offsets():
    a, sfa = nvfp4(M, K)
    (b, sfb), (wide, sf_wide) = nvfp4(G, N, K), nvfp4(G, 64, K)
    at = np.array([0, 70, 70, 200, 260, M], np.int32)
    x = RNG.standard_normal((M, K)).astype(np.float16)
    blocked = nk.quantize(x, offsets=at, scale_layout="blocked").scales.copy()
    rows = RNG.integers(0, M * TOP_K, M, np.int32)
    d, e, f, g = (out_of((M, N), np.float16) for _ in range(4))
    row_of, weights = RNG.integers(-1, M, M * TOP_K, np.int32), np.ones((M, TOP_K), np.float32)
    products = RNG.standard_normal((M, N)).astype(np.float16)
    h = out_of((M, N // 2), np.float16)
    by_rows = {"rows": rows, "rows_per_token": TOP_K}
    codes, sf = out_of((M, K // 2), np.uint8), out_of(blocked.shape, np.uint8)
    half, whole = (
        {"quantized": True, "out": (out_of((M, n // 2), np.uint8), out_of((M, n // 16), np.uint8))}
        for n in (32, 64)
    )
    layouts = "blocked", "linear"
    calls = [
        lambda: nk.grouped_gemm(a, b, sfa, sfb, offsets=at, out=d),
        lambda: nk.grouped_gemm(a, b, blocked, sfb, offsets=at, scale_layout=layouts, out=e),
        lambda: nk.grouped_gemm(a, b, sfa, sfb, offsets=at, out=f, **by_rows),
        lambda: nk.grouped_dual_gemm(a, b, sfa, sfb, at, out=h, **by_rows),
        lambda: nk.grouped_dual_gemm(a, wide, sfa, sf_wide, at, **half, **by_rows),
        lambda: nk.grouped_gemm(a, wide, sfa, sf_wide, offsets=at, **whole, **by_rows),
        lambda: nk.quantize(x, offsets=at, scale_layout="blocked", out=(codes, sf)),
        lambda: nk.combine(products, row_of, weights, out=g),
    ]

    first = {id(t): t.copy() for t in (at, rows, row_of)}
    return Subject(
        calls, [at, rows, row_of], lambda t: first[id(t)] if RNG.random() < 0.5 else any_number(t)
    )


def ids():
    x, w = (RNG.standard_normal((rows, K)).astype(np.float16) for rows in (M, N))
    shapes = [(M, TOP_K), (M, TOP_K), (N,), (N + 1,), (M * TOP_K,), (M * TOP_K,)]
    some = [*shapes[:2], (N // 2,), (N // 2 + 1,), *shapes[4:]]
    types = [np.float32] + 5 * [np.int32]
    outs, local_outs = ([*map(out_of, sizes, types)] for sizes in (shapes, some))
    local = RNG.integers(-1, N // 2, N, np.int32)
    both = {"permutation": True, "return_row_of": True}
    mapped = {"expert_map": local, "num_local_experts": N // 2}
    given, sorted_outs = (
        RNG.integers(0, N, (M, TOP_K), np.int32),
        [out_of(s, np.int32) for s in shapes[2:]],
    )
    calls = [
        lambda: nk.route(x, w, TOP_K, **both, out=tuple(outs)),
        lambda: nk.route(x, w, TOP_K, **both, **mapped, out=tuple(local_outs)),
        lambda: nk.sort_by_expert(given, N, out=tuple(sorted_outs)),
    ]
    written = [*outs[1:], *local_outs[1:], given, local]
    return Subject(calls, written, any_number)


def environment():
    (a, sfa), (b, sfb) = nvfp4(4, K), nvfp4(4, K)  # small: most of a call is about its settings
    outs = [out_of((4, 4), np.float16) for _ in range(3)]
    calls = [partial(nk.gemm, a, b, sfa, sfb, out=out) for out in outs]
    subject = Subject([*calls, nk.backends], [], None)
    variables = {
        "BACKEND": ["cpu", "sm80", "abacus", ""],
        "CPU": ["scalar", ""],
        "NUM_THREADS": ["1", "3", "40", "0", "x" * 100],
        "BATCH_INVARIANT": ["yes", "0", "maybe"],
        "TILE": ["sm80/gemm:t64," * 30, "none", ""],
        "PTX_DIR": ["/nowhere", "x" * 5000],
        "PDL": ["weights", "no", "2"],
    }
    added = []

    def write():
        for _ in range(50):
            added.append(f"NVFP4KERN_RACE_{len(added)}")
            os.environ[added[-1]] = "x" * 50
        name = str(RNG.choice(list(variables)))
        os.environ[f"NVFP4KERN_{name}"] = str(RNG.choice(variables[name]))
        if len(added) > 2000:
            restore()

    def restore():
        for name in chain(added, (f"NVFP4KERN_{name}" for name in variables)):
            os.environ.pop(name, None)
        added.clear()

    subject.write, subject.restore = write, restore
    return subject


SUBJECTS = (inputs, offsets, ids, environment)


def bits(result):
    if isinstance(result, tuple):
        return [bits(item) for item in result]
    return result.tobytes() if isinstance(result, np.ndarray) else result


def run(subjects, seconds):
    """Raises what a thread raised."""
    stop, failures = threading.Event(), []
    want = [[bits(call()) for call in subject.calls] for subject in subjects]

    def repeat(job, allowed=()):
        try:
            while not stop.is_set():
                try:
                    job()
                except allowed:
                    pass
        except BaseException as error:  # noqa: B036
            failures.append(error)
            stop.set()

    jobs = [(call, WHAT_BAD_VALUES_RAISE) for subject in subjects for call in subject.calls]
    jobs += [(subject.write, ()) for subject in subjects]
    threads = [threading.Thread(target=repeat, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    for subject in subjects:
        subject.restore()
    assert all(output.intact() for output in Guarded.made)
    for subject, expected in zip(subjects, want, strict=True):
        assert [bits(call()) for call in subject.calls] == expected


if __name__ == "__main__":
    asked = sys.argv[2:] or [subject.__name__ for subject in SUBJECTS]
    sys.setswitchinterval(1e-5)
    end = time.monotonic() + float(sys.argv[1])
    run([subject() for subject in SUBJECTS if subject.__name__ in asked], end - time.monotonic())
    print(f"{', '.join(asked)}: as it must be")
