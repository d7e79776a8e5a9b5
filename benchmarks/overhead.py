"""What a call costs beyond its arithmetic: `python benchmarks/overhead.py`.

The problems are tiny: K = 16, one block of products for each of 16 outputs (drop-ins: of one output
per group). That little arithmetic (0.6 us of a gemv on the CPU) is not subtracted: the table shows
whole calls, as Python sees them. With a GPU: from Python's call until the launch has returned, the
GPU idle, next to a bare launch from C in the same run. Results are checked against the float64
oracle before anything is timed. Exits with 2 where a result is wrong, with 1 where a bar is missed.
"""

import argparse
import statistics
import sys
from datetime import date
from pathlib import Path
from time import perf_counter

import bare_launch
import numpy as np
import torch

import nvfp4kern
from nvfp4kern.bench.measure import environment
from nvfp4kern.bench.report import machine
from nvfp4kern.competition.nvfp4_gemm import custom_kernel as drop_in_gemm
from nvfp4kern.competition.nvfp4_gemv import custom_kernel as drop_in_gemv
from nvfp4kern.competition.nvfp4_group_gemm import custom_kernel as drop_in_group_gemm
from nvfp4kern.results import write as write_results
from nvfp4kern.verify import data, reference

K = 16
BATCHES, CALLS, LAUNCHES = 51, 4000, 2000


def dense_cases():
    """(name, call, result, expected, bar in us or None)"""
    rng = np.random.default_rng(0)
    matrix, vector = data.full_range(rng, 16, K), data.full_range(rng, 1, K)
    expected = reference.gemv(matrix.values, vector.values)
    arrays = (
        matrix.codes,
        vector.codes,
        matrix.scales,
        vector.scales,
        np.zeros((16, 1), np.float16),
    )
    for kind, wrap, bar in [("torch", torch.from_numpy, 2.0), ("NumPy", np.copy, None)]:
        a, b, sfa, sfb, out = map(wrap, arrays)
        row = out.reshape(1, 16)

        def gemv(a=a, b=b, sfa=sfa, sfb=sfb, out=out):
            return nvfp4kern.gemv(a, b, sfa, sfb, out=out)

        def gemv_new(a=a, b=b, sfa=sfa, sfb=sfb):
            return nvfp4kern.gemv(a, b, sfa, sfb)

        def gemm(a=a, b=b, sfa=sfa, sfb=sfb, out=row):
            return nvfp4kern.gemm(b, a, sfb, sfa, out=out)

        yield f"gemv, {kind}, out=", gemv, expected, bar
        yield f"gemv, {kind}, allocating", gemv_new, expected, None
        yield f"gemm, {kind}, out=", gemm, expected, None


def drop_in_cases():
    one = data.competition("gemm", (1, 1, K, 1), benign=False)
    yield "drop-in gemm", lambda: drop_in_gemm(one.data), one, None
    for groups, bar in [(1, None), (4, 12.0), (8, None)]:
        many = data.competition("group_gemm", [(1, 1, K, 1)] * groups, benign=False)
        yield (
            f"drop-in group_gemm, {groups} groups",
            lambda d=many.data: drop_in_group_gemm(d),
            many,
            bar,
        )


def check(got, expected):
    got = got.cpu() if isinstance(got, torch.Tensor) else got
    return reference.check(
        np.asarray(got, np.float32).reshape(expected.exact.shape), expected, "float16"
    ).ok


def check_drop_in(result, case):
    """Every result against the oracle; both are [L, M, N] once permuted back."""
    results = result if isinstance(result, list) else [result]
    c = 12 if results[0].is_cuda else 1
    expected = [reference.gemm(a.values, b.values, c=c) for a, b in case.operands]
    return all(check(r.permute(2, 0, 1), e) for r, e in zip(results, expected, strict=True))


def quartiles(samples):
    low, median, high = statistics.quantiles(samples, n=4)
    return median, low, high


def microseconds(call):
    """Median and quartiles over batches."""
    times = []
    for _ in range(BATCHES):
        start = perf_counter()
        for _ in range(CALLS):
            call()
        times.append((perf_counter() - start) / CALLS * 1e6)
    return quartiles(times)


def launch_microseconds(call):
    """Median and quartiles over single calls, each with the GPU idle."""
    times = []
    for _ in range(LAUNCHES):
        torch.cuda.synchronize()
        start = perf_counter()
        call()
        times.append((perf_counter() - start) * 1e6)
    return quartiles(times[LAUNCHES // 10 :])


SHOWN = []
"""The rows, for --json."""


def show(name, timed, bar=None):
    """Prints a row; whether it misses its bar."""
    median, low, high = timed
    SHOWN.append({"call": name, "time": median, "low": low, "high": high})
    too_slow = bar is not None and median >= bar
    verdict = "MISSED" if too_slow else "ok" if bar else ""
    spread = f"[{low:.2f}, {high:.2f}]"
    print(f"{name:<36}{median:8.2f}{spread:>18}{f'< {bar:.3g}' if bar else '':>8}  {verdict}")
    return too_slow


def run(cases, measure):
    """(wrong, missed) of cases (name, call, right, bar); a wrong one is not timed."""
    wrong = missed = 0
    for name, call, right, bar in cases:
        if right:
            missed += show(name, measure(call), bar)
        else:
            print(f"{name:<36}{'':>34}  WRONG RESULT, not timed")
            wrong += 1
    return wrong, missed


def gpu_cases(bare):
    """The drop-ins, each with its bar: a bare launch and what we may add to it.

    The groups have tiles for every SM, as the competition's have: a small product would be split
    along K, and take a second launch.
    """
    matrix = data.competition("gemv", (128, 256, 1), benign=False, device="cuda")
    groups = [(m, 7168, 256, 1) for m in (40, 76, 168, 72, 164, 148, 196, 160)]
    many = data.competition("group_gemm", groups, benign=False, device="cuda")
    for name, call, case, allowed in [
        ("gemv", lambda: drop_in_gemv(matrix.data), matrix, 2),
        ("group_gemm, 8 groups", lambda: drop_in_group_gemm(many.data), many, 8),
    ]:
        yield f"drop-in {name}, to launch", call, check_drop_in(call(), case), bare + allowed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--json", type=Path, help="write the rows; benchmarks/figures.py reads them"
    )
    arguments = parser.parse_args()
    cases = [(name, call, check(call(), want), bar) for name, call, want, bar in dense_cases()]
    cases += [(name, call, check_drop_in(call(), c), bar) for name, call, c, bar in drop_in_cases()]
    print(f"torch {torch.__version__}, NumPy {np.__version__}, Python {sys.version.split()[0]}")
    print(f"{'call':<36}{'us':>8}{'[quartiles]':>18}{'bar':>8}  verdict")
    wrong, missed = run(cases, microseconds)
    if torch.cuda.is_available():
        bare = quartiles(bare_launch.samples(LAUNCHES)[LAUNCHES // 10 :])
        show(f"bare launch, {torch.cuda.get_device_name()}", bare)
        on_gpu = run(gpu_cases(bare[0]), launch_microseconds)
        wrong, missed = wrong + on_gpu[0], missed + on_gpu[1]
    if arguments.json:
        found = {"machine": machine(environment("cpu")), "date": date.today().isoformat()}
        write_results(arguments.json, found | {"rows": SHOWN})
    return 2 if wrong else 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
