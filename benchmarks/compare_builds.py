"""Two builds in turns in one process: `python benchmarks/compare_builds.py OLD/_C.abi3.so`.

The package on sys.path is the new build; the old one is a compiled extension by its path. Every row
of the benchmark is called in both on the same operands, whose results must be right and the same to
the bit, and replayed in turns with the old build once more: what that differs from itself by is the
spread. A row is worse where its median of ROUNDS is more than LIMIT and more than that spread above
the old one's. Calls of tiny problems are timed as wall time. A row that raises is listed as failed,
and the next one follows. Exits with 2 where a row is wrong or failed, with 1 where one is worse.
"""

import argparse
import importlib.util
import statistics
import sys
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

import nvfp4kern
from nvfp4kern import results
from nvfp4kern.bench import exact, gaussian, measure, shapes, timing
from nvfp4kern.bench.case import InOrder
from nvfp4kern.verify import data

ROUNDS = 5
LIMIT = 0.03
CALLS = 2000
DATA = {"exact": exact, "gaussian": gaussian}


def extension(path):
    """The module of a compiled extension, beside the one that the package has."""
    spec = importlib.util.spec_from_file_location("old_build._C", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FailedError(Exception):
    """A row cannot be measured; says which build raised what."""


@contextmanager
def of_build(name):
    """Names the build whose call raises."""
    try:
        yield
    except Exception as error:
        raise FailedError(f"the {name} build: {type(error).__name__}: {error}") from error


def attempted(name, measure):
    """What `measure` returns, or a row that says why there is none."""
    try:
        return measure()
    except FailedError as error:
        return {"row": name, "failed": str(error)}
    except Exception as error:
        return {"row": name, "failed": f"{type(error).__name__}: {error}"}


def in_old(old, call):
    """The same call of the other build."""
    if isinstance(call, InOrder):
        return InOrder([in_old(old, one) for one in call.calls])
    return partial(getattr(old, call.func.__name__), *call.args, **call.keywords)


def tensors(outs):
    """Of all results of one layout."""
    for out in outs:
        yield from out if isinstance(out, (list, tuple)) else [out]


def same(case, layout, calls):
    """Whether these calls, too, write the right results, where there is but one to the bit those of
    the package."""
    outs = case.outs[layout]

    def is_right():
        return all(case.right(out, i) for i, out in enumerate(outs))

    with of_build("new"):
        for call in case.calls[layout]:
            call()
    if not case.has_one_result and not is_right():
        return False
    copies = [tensor.clone() for tensor in tensors(outs)]
    for tensor in tensors(outs):
        tensor.zero_()
    with of_build("old"):
        for call in calls:
            call()
    equal = not case.has_one_result or all(map(torch.equal, tensors(outs), copies))
    return equal and is_right()


def medians(contenders, device):
    """{name: median of ROUNDS medians} in turns."""
    if device == "cpu":
        ready, time_all = contenders, timing.host_in_turns
    else:
        ready = {name: timing.captured(calls) for name, calls in contenders.items()}
        time_all = timing.in_turns
    taken = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, time in time_all(ready).items():
            taken[name].append(time.median)
    return {name: statistics.median(times) for name, times in taken.items()}


def row(name, times):
    """What a line of the table says."""
    old, again, new = times["old"], times["again"], times["new"]
    ratio, spread = new / old, abs(again / old - 1)
    return {
        "row": name,
        "old": old,
        "new": new,
        "ratio": ratio,
        "spread": spread,
        "worse": ratio > 1 + max(LIMIT, spread),
    }


def show(found):
    if "failed" in found:
        print(f"{found['row']:<52}  FAILED, {found['failed'].splitlines()[0]}", flush=True)
    elif found.get("wrong"):
        print(f"{found['row']:<52}  WRONG RESULT, not timed", flush=True)
    else:
        print(
            f"{found['row']:<52}{found['old']:10.2f}{found['new']:10.2f}{found['ratio']:8.3f}"
            f"{found['spread']:8.3f}  {'worse' if found['worse'] else ''}",
            flush=True,
        )


def compared(old, case, layout, name, device):
    """A row: checked, and timed where its results are right."""
    with of_build("old"):
        theirs = [in_old(old, call) for call in case.calls[layout]]
    if not same(case, layout, theirs):
        return {"row": name, "wrong": True}
    contenders = {"old": theirs, "new": case.calls[layout], "again": theirs}
    return row(name, medians(contenders, device))


def rows(old, sets, operators, device, source):
    """The benchmark's rows, in both layouts of scales."""
    for shape in shapes.chosen(sets, operators):
        make = partial(measure.made, shape, device, source, seed=0)
        case = attempted(f"{shape.op} {shape.sizes}", make)
        if isinstance(case, dict):
            yield case
            continue
        for layout in case.calls:
            name = " ".join(filter(None, (shape.op, case.shape, layout)))
            yield attempted(name, partial(compared, old, case, layout, name, device))


# --- Whole calls ---


def wall(call, idle):
    """Microseconds of a call as Python sees it, the GPU idle before it."""
    times = []
    for _ in range(CALLS):
        idle()
        begin = perf_counter()
        call()
        times.append((perf_counter() - begin) * 1e6)
    return statistics.median(times)


def tiny_product(m, n, k, device):
    rng = np.random.default_rng(0)
    a, b = data.full_range(rng, m, k), data.full_range(rng, n, k)
    arrays = a.codes, b.codes, a.scales, b.scales
    operands = [torch.from_numpy(array).to(device) for array in arrays]
    return operands, {"out": torch.empty(m, n, dtype=torch.float16, device=device)}


def tiny_drop_in(operator, sizes, device):
    return [data.competition(operator, sizes, benign=False, device=device).data], {}


def tiny(device):
    """(name, function of _C, what makes its arguments and keywords)"""
    groups = [(m, 7168, 256, 1) for m in (40, 76, 168, 72, 164, 148, 196, 160)]
    sizes = groups if device == "cuda" else [(1, 1, 16, 1)] * 4
    one, many = ("gemv", (128, 256, 1)), ("group_gemm", sizes)
    tokens = 64 if device == "cuda" else 4  # on a GPU too many for a gemv
    yield "gemv out=", "gemv", partial(tiny_product, 16, 1, 16)
    yield "gemm out=", "gemm", partial(tiny_product, tokens, 128, 256)
    yield "drop-in gemv", "competition_gemv", partial(tiny_drop_in, *one)
    name = f"drop-in group_gemm, {len(sizes)} groups"
    yield name, "competition_group_gemm", partial(tiny_drop_in, *many)


def whole_call(old, name, function, make, device):
    """A row of wall times."""
    idle = torch.cuda.synchronize if device == "cuda" else lambda: None
    arguments, keywords = make(device)
    calls, taken = {}, {"old": [], "new": [], "again": []}
    for build, module in (("old", old), ("new", nvfp4kern._C), ("again", old)):
        with of_build(build):
            calls[build] = partial(getattr(module, function), *arguments, **keywords)
    for _ in range(ROUNDS):
        for build, call in calls.items():
            with of_build(build):
                taken[build].append(wall(call, idle))
    return row(name, {build: statistics.median(times) for build, times in taken.items()})


def overhead(old, device):
    for name, function, make in tiny(device):
        title = f"call: {name}"
        yield attempted(title, partial(whole_call, old, title, function, make, device))


# --- The command ---


def summary(found):
    """The last line, and the exit status."""
    failed = sum("failed" in line for line in found)
    wrong = sum(line.get("wrong", False) for line in found)
    worse = sum(line.get("worse", False) for line in found)
    ratios = [line["ratio"] for line in found if "ratio" in line]
    median = f"median {statistics.median(ratios):.3f}" if ratios else "nothing was timed"
    line = f"{len(found)} rows, {failed} failed, {wrong} wrong, {worse} worse; {median}"
    return line, 2 if failed or wrong else 1 if worse else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("--shapes", nargs="+", choices=shapes.SETS, default=["quick"])
    parser.add_argument("--op", nargs="+", choices=shapes.OPERATORS, default=shapes.OPERATORS)
    parser.add_argument("--data", choices=DATA, default="exact")
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    old = extension(arguments.old)
    print(f"{'row':<52}{'old':>10}{'new':>10}{'ratio':>8}{'spread':>8}")
    found = []
    timed = rows(old, arguments.shapes, arguments.op, device, DATA[arguments.data])
    for line in chain(overhead(old, device), timed):
        show(line)
        found.append(line)
        if arguments.json:
            results.write(arguments.json, found)
    line, status = summary(found)
    print(line)
    return status


if __name__ == "__main__":
    sys.exit(main())
