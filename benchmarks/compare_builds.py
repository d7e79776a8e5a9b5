"""Two builds in turns in one process: `python benchmarks/compare_builds.py OLD/_C.abi3.so`.

The package on sys.path is the new build; the old one is a compiled extension by its path. Every row
of the benchmark is called in both on the same operands, whose results must be right and the same to
the bit, and replayed in turns with the old build once more: what that differs from itself by is the
spread. A row is worse where its median of ROUNDS is more than LIMIT and more than that spread above
the old one's. Calls of tiny problems are timed as wall time. Exits with 2 where a result is wrong,
with 1 where a row is worse.
"""

import argparse
import importlib.util
import json
import statistics
import sys
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

import nvfp4kern
from nvfp4kern.bench import exact, gaussian, others, products, shapes, timing
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


def in_old(old, call):
    """The same call of the other build."""
    return partial(getattr(old, call.func.__name__), *call.args, **call.keywords)


def tensors(outs):
    """Of all results of one layout."""
    for out in outs:
        yield from out if isinstance(out, (list, tuple)) else [out]


def same(case, layout, calls):
    """Whether these calls, too, write the right results, to the bit those of the package."""
    outs = case.outs[layout]
    for call in case.calls[layout]:
        call()
    copies = [tensor.clone() for tensor in tensors(outs)]
    for tensor in tensors(outs):
        tensor.zero_()
    for call in calls:
        call()
    right = all(case.right(out, i) for i, out in enumerate(outs))
    return right and all(map(torch.equal, tensors(outs), copies))


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
    verdict = "WRONG" if found.get("wrong") else "worse" if found["worse"] else ""
    if not found.get("wrong"):
        print(
            f"{found['row']:<52}{found['old']:10.2f}{found['new']:10.2f}{found['ratio']:8.3f}"
            f"{found['spread']:8.3f}  {verdict}",
            flush=True,
        )
    else:
        print(f"{found['row']:<52}  WRONG RESULT, not timed", flush=True)
    return found


def rows(old, sets, operators, device, source):
    """The benchmark's rows, in both layouts of scales."""
    for shape in shapes.chosen(sets, operators):
        make = getattr(products, shape.make, None) or getattr(others, shape.make)
        torch.manual_seed(0)
        case = make(source, device, **shape.sizes)
        for layout, calls in case.calls.items():
            theirs = [in_old(old, call) for call in calls]
            name = " ".join(filter(None, (shape.op, case.shape, layout)))
            if not same(case, layout, theirs):
                yield {"row": name, "wrong": True}
                continue
            yield row(name, medians({"old": theirs, "new": calls, "again": theirs}, device))


# ---------------------------------------------------------------------------------------------
# Whole calls
# ---------------------------------------------------------------------------------------------


def wall(call, idle):
    """Microseconds of a call as Python sees it, the GPU idle before it."""
    times = []
    for _ in range(CALLS):
        idle()
        begin = perf_counter()
        call()
        times.append((perf_counter() - begin) * 1e6)
    return statistics.median(times)


def tiny(device):
    """(name, function of _C, its arguments and keywords)"""
    rng = np.random.default_rng(0)
    matrix, vector = data.full_range(rng, 16, 16), data.full_range(rng, 1, 16)
    arrays = matrix.codes, vector.codes, matrix.scales, vector.scales
    operands = [torch.from_numpy(np.asarray(array)).to(device) for array in arrays]
    out = torch.empty(16, 1, dtype=torch.float16, device=device)
    yield "gemv out=", "gemv", operands, {"out": out}
    one = data.competition("gemv", (128, 256, 1), benign=False, device=device)
    yield "drop-in gemv", "competition_gemv", [one.data], {}
    groups = [(m, 7168, 256, 1) for m in (40, 76, 168, 72, 164, 148, 196, 160)]
    sizes = groups if device == "cuda" else [(1, 1, 16, 1)] * 4
    many = data.competition("group_gemm", sizes, benign=False, device=device)
    yield f"drop-in group_gemm, {len(sizes)} groups", "competition_group_gemm", [many.data], {}


def overhead(old, device):
    idle = torch.cuda.synchronize if device == "cuda" else lambda: None
    for name, function, arguments, keywords in tiny(device):
        calls = {
            build: partial(getattr(module, function), *arguments, **keywords)
            for build, module in (("old", old), ("new", nvfp4kern._C), ("again", old))
        }
        taken = {build: [] for build in calls}
        for _ in range(ROUNDS):
            for build, call in calls.items():
                taken[build].append(wall(call, idle))
        yield row(f"call: {name}", {b: statistics.median(times) for b, times in taken.items()})


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
    found = [show(line) for line in overhead(old, device)]
    timed = rows(old, arguments.shapes, arguments.op, device, DATA[arguments.data])
    for line in timed:
        found.append(show(line))
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    wrong = sum(line.get("wrong", False) for line in found)
    worse = sum(line.get("worse", False) for line in found)
    ratios = [line["ratio"] for line in found if "ratio" in line]
    print(
        f"{len(found)} rows, {wrong} wrong, {worse} worse; median {statistics.median(ratios):.3f}"
    )
    return 2 if wrong else 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
