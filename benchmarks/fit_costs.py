"""Fits the costs that plans choose tiles by: `python benchmarks/fit_costs.py sweep | fit`.

`sweep sm80/gemm --json sweep.json`, on a GPU, times every tile of a family on a list of problems.
NVFP4KERN_TILE forces the tile; the plan still chooses the split. The results are checked first.

`fit sweep.json` needs no GPU, only a C compiler: cost_models/ compiles the plan's own model with
its costs as variables. It finds the costs whose predictions are nearest to the sweep, and says how
far the picked choice is from the best of each problem, before and after. `--write` puts them into
the family's _costs.h. Only ratios choose: the mean error of a problem counts little, but where
times of two families are compared.
"""

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from textwrap import wrap

import numpy as np
from fit_problems import PROBLEMS, RIVALS, Problem

ROOT = Path(__file__).parents[1]
MODELS = Path(__file__).parent / "cost_models"
CFLAGS = "-std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Wno-unused -fPIC -shared".split()
# Only what the models use is linked: the plans' other halves want a driver and kernels.
CFLAGS += "-fvisibility=hidden -ffunction-sections -fdata-sections -Wl,--gc-sections".split()
DEFINE = re.compile(r"^#define (\w+_\w+) ([\d.e+-]+)( *)(/\*.*)?$", flags=re.M)
FROM = re.compile(r"^ \* From .*?(?=^ \*$|\*/)", flags=re.M | re.S)


# --- Families ---


def header_of(family):
    row, name = family.split("/")
    return ROOT / "csrc" / row / name / f"{row}_{name}_costs.h"


def costs_in(text):
    """{name: value} of a _costs.h."""
    return {name: float(value) for name, value, *_ in DEFINE.findall(text)}


def tiles_of(family):
    """What NVFP4KERN_TILE names, by index: the family's tiles and its rivals'."""
    import nvfp4kern

    families, names = (family, *RIVALS.get(family, ())), nvfp4kern._C._tiles()
    return [name for of in families for name in names if name.startswith(f"{of}:")]


# --- The model ---


class Gpu(ctypes.Structure):
    """model_gpu."""

    _fields_ = [
        ("sms", ctypes.c_int32),
        ("smem_per_cta", ctypes.c_int32),
        ("smem_per_sm", ctypes.c_int32),
        ("clusters", ctypes.c_int32 * 9 * 2),
    ]


def gpu_of(facts):
    """What a sweep's file says of its GPU."""
    gpu = Gpu(*(facts[name] for name in ("sms", "smem_per_cta", "smem_per_sm")))
    for counts, sizes in zip(gpu.clusters, facts["clusters"], strict=True):
        counts[:] = sizes
    return gpu


class _Problem(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in "mnk"]
    _fields_ += [(name, ctypes.c_int32) for name in ("wide", "blocked")]


class _Choice(ctypes.Structure):
    _fields_ = [("tile", ctypes.c_int32), ("split", ctypes.c_int32), ("grid", ctypes.c_int64)]


class Model:
    """A family's, compiled from its plan. Choices are (tile, split, grid) as explain shows them."""

    def __init__(self, family, gpu):
        self.header = header_of(family)
        self.start = costs_in(self.header.read_text())
        self.names, self.gpu = list(self.start), gpu
        self.mean_weight = MEAN_WEIGHT_OF_TIMES if family in RIVALS else MEAN_WEIGHT
        with tempfile.TemporaryDirectory() as folder:
            self._library = self._compiled(family.replace("/", "_"), Path(folder))
        self._library.model_us.restype = ctypes.c_double
        self._library.model_pick.restype = ctypes.c_bool
        self._costs = (ctypes.c_double * len(self.names)).in_dll(self._library, "model_costs")
        self.costs = np.array(list(self.start.values()))

    def _compiled(self, name, folder):
        guard = re.search(r"#ifndef (\w+)", self.header.read_text())[1]
        variables = [f"#define {name} model_costs[{i}]" for i, name in enumerate(self.names)]
        variables = [f"#define {guard}", f"#define COST_COUNT {len(self.names)}", *variables]
        variables += ["extern double model_costs[COST_COUNT];", ""]
        (folder / "costs.h").write_text("\n".join(variables))
        command = [*os.environ.get("CC", "cc").split(), *CFLAGS, f"-I{folder}", f"-I{ROOT}/csrc"]
        command += ['-DCOSTS="costs.h"', str(MODELS / f"{name}.c")]
        # The build's header declares the kernels. A model launches none, and has objects of their
        # names: those that tables have addresses of, and nothing else names.
        header = folder / "cuda_kernels.h"
        header.write_text("")
        text = subprocess.run([*command, "-E"], check=True, capture_output=True, text=True).stdout
        kernels = set(re.findall(r"&(sm\d+_\w+)", text)) - set(re.findall(r"[^&](sm\d+_\w+)", text))
        stand_ins = "".join(f"static cuda_kernel {kernel};\n" for kernel in sorted(kernels))
        header.write_text(f'#include "cuda/cuda_image.h"\n{stand_ins}')
        subprocess.run([*command, "-o", str(folder / "model.so")], check=True)
        return ctypes.CDLL(str(folder / "model.so"))

    @property
    def costs(self):
        return np.array(self._costs)

    @costs.setter
    def costs(self, values):
        self._costs[:] = list(values)

    def us(self, problem, choice):
        """ValueError where the plan has no such choice."""
        given = _Problem(**vars(problem)), _Choice(*choice)
        found = self._library.model_us(*map(ctypes.byref, (self.gpu, *given)))
        if found < 0:
            raise ValueError(f"{problem}: no choice {choice} of this build's plan")
        return found

    def pick(self, problem, tile=-1, invariant=False):
        """The plan's choice, or None."""
        found, given = _Choice(), _Problem(**vars(problem))
        can = self._library.model_pick(
            ctypes.byref(self.gpu), ctypes.byref(given), tile, invariant, ctypes.byref(found)
        )
        return (found.tile, found.split, found.grid) if can else None


# --- The sweep ---


def _case(family, problem):
    """The benchmark's case of a problem, and its calls."""
    from nvfp4kern.bench import gaussian, others, products

    m, n, k = problem.m, problem.n, problem.k
    if family == "sm80/route":
        case = others.route(gaussian, "cuda", m, n, k, min(8, n))
        return case, ""
    case = products.gemm(gaussian, "cuda", m, n, k, 1, problem.wide)
    return case, "blocked" if problem.blocked else "linear"


def _choice_of(plan, tiles):
    split = max(plan.get(name, 0) for name in ("steps_per_cta", "split", "cluster"))
    names = [tile.partition(":")[2] for tile in tiles]
    return names.index(plan["tile"]), split, plan["grid"]


def choices(family, call):
    """{choice: settings} of every tile that can do the call, and of the sums that depend on no
    other row, which no split may share."""
    import nvfp4kern
    from nvfp4kern.selftest.left_out import settings

    found, tiles = {}, tiles_of(family)
    for tile, invariant in product(tiles, ("", "1")):
        forced = {"TILE": tile, "BATCH_INVARIANT": invariant, "BACKEND": family.partition("/")[0]}
        try:
            with settings(**forced):
                plan = nvfp4kern.explain(call.func.__name__, *call.args, **call.keywords)
        except nvfp4kern.BackendError:
            continue
        found.setdefault(_choice_of(plan, tiles), forced)
    return found


def _timed(case, layout, forced_by_choice):
    """{choice: microseconds}, replayed in turns."""
    from nvfp4kern.bench import timing
    from nvfp4kern.selftest.left_out import settings

    replays, calls = {}, case.calls[layout]
    for choice, forced in forced_by_choice.items():
        with settings(**forced):
            calls[0]()
            if not case.right(case.outs[layout][0], 0):
                raise RuntimeError(f"{case.shape}: wrong with {forced}")
            replays[choice] = timing.captured(calls)
    return {choice: time.median for choice, time in timing.in_turns(replays).items()}


def sweep(family, path, problems=None, timed=_timed):
    """Writes problem by problem: an interruption costs the one that it falls into."""
    from gpu_facts import facts

    from nvfp4kern import results
    from nvfp4kern.bench import gaussian, measure

    result = {"family": family, "gpu": facts(), "rows": []}
    result["environment"] = measure.environment("cuda", gaussian)
    for problem in problems or PROBLEMS[family]():
        case, layout = _case(family, problem)
        forced = choices(family, case.calls[layout][0])
        for choice, us in timed(case, layout, forced).items():
            row = {"problem": vars(problem), "choice": choice, "us": us}
            result["rows"].append(row)
        results.write(path, result)
        print(f"{family} {case.shape}: {len(forced)} choices", flush=True)
    return result


# --- The fit ---

MEAN_WEIGHT = 0.1
"""Of a problem's mean error, beside the errors around it."""
MEAN_WEIGHT_OF_TIMES = 0.5
"""The same, where a plan compares the family's times with those of other models."""

STARTS = 16
EXACT = 1e-12


def by_problem(result):
    """{Problem: {choice: microseconds}}"""
    found = {}
    for row in result["rows"]:
        found.setdefault(Problem(**row["problem"]), {})[tuple(row["choice"])] = row["us"]
    return found


def _residuals(model, measured):
    """Logarithms of predicted over measured: around each problem's mean, and that mean. Choices far
    from the best count less."""
    for problem, times in measured.items():
        us = np.array(list(times.values()))
        errors = np.log([model.us(problem, choice) for choice in times]) - np.log(us)
        weights = us.min() / us
        mean = np.average(errors, weights=weights)
        yield from weights * (errors - mean)
        yield model.mean_weight * mean


def _descended(at, logs, steps=60):
    """Levenberg and Marquardt: (sum of squares, logarithms)."""
    now, damping, width = at(logs), 1e-2, 1e-4
    for _ in range(steps):
        sides = [at(logs + width * one) - at(logs - width * one) for one in np.eye(len(logs))]
        slopes = np.array(sides).T / (2 * width)
        square = slopes.T @ slopes
        damped = square + damping * np.diag(np.diag(square)) + 1e-9 * np.eye(len(logs))
        step = np.clip(np.linalg.solve(damped, -slopes.T @ now), -0.5, 0.5)
        then = at(logs + step)
        if then @ then < now @ now:
            logs, now, damping = logs + step, then, damping / 4
        elif damping > 1e6:
            break
        else:
            damping *= 4
    return now @ now, logs


def fitted(model, measured):
    """Least squares over the logarithms of costs. It starts again beside the best so far: which of
    two terms counts is a maximum, whose other side a descent does not see. A cost that no
    prediction depends on stays as it is."""

    def at(logs):
        model.costs = np.exp(logs)
        return np.fromiter(_residuals(model, measured), float)

    start, random = np.log(model.costs), np.random.default_rng(0)
    least, best = _descended(at, start)
    for _ in range(STARTS - 1):
        if least < EXACT:
            break
        again = _descended(at, best + random.normal(0, 0.3, len(start)))
        least, best = min((least, best), again, key=lambda one: one[0])
    for i in range(len(start)):
        without = np.where(np.arange(len(start)) == i, start, best)
        if np.sum(at(without) ** 2) <= least:
            best = without
    model.costs = np.exp(best)
    return model.costs


def excess(model, measured):
    """{problem: by what fraction the picked choice takes longer than the best}, and how many picks
    were not measured: of these problems the fastest prediction of those that were counts."""
    found, missing = {}, 0
    for problem, times in measured.items():
        choice = model.pick(problem)
        if choice not in times:
            missing += 1
            choice = min(times, key=lambda one, of=problem: model.us(of, one))
        found[problem] = times[choice] / min(times.values()) - 1
    return found, missing


def said(model, measured):
    """Mean and worst excess, in a sentence."""
    found, missing = excess(model, measured)
    values = list(found.values())
    text = f"the choice takes {np.mean(values):.1%} more than the best on average"
    text += f", {max(values):.1%} at most"
    return text.replace("%", " %"), missing


# --- The header ---


def number(value):
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.4g}")


def _rewritten_table(text, costs):
    """Lines of costs, their comments below one another."""
    lines = {name: f"#define {name} {number(costs[name])}" for name, *_ in DEFINE.findall(text)}
    width = max(map(len, lines.values()), default=0)

    def line(match):
        return f"{lines[match[1]]:<{width}} {match[4]}" if match[4] else lines[match[1]]

    return DEFINE.sub(line, text)


def rewritten(text, costs, origin):
    """A _costs.h with these costs, and a paragraph that says where they are from."""
    text = "\n\n".join(_rewritten_table(table, costs) for table in text.split("\n\n"))
    said = "\n".join(f" * {line}" for line in wrap(f"From {origin}", 113, break_on_hyphens=False))
    return FROM.sub(lambda match: said + match[0][-1], text)  # a line's end, or a comment's


def origin_of(result, measured, text):
    facts = result["environment"]
    return (
        f"a sweep of {len(result['rows'])} launches of {len(measured)} problems on an "
        f"{facts['gpu']}, {facts['date'][:7]}: {text}."
    )


def fit(path, write):
    result = json.loads(path.read_text())
    family, measured = result["family"], by_problem(result)
    model = Model(family, gpu_of(result["gpu"]))
    print("before: {}; {} picks were not measured".format(*said(model, measured)))
    costs = dict(zip(model.names, fitted(model, measured), strict=True))
    text, missing = said(model, measured)
    print(f"after: {text}; {missing} picks were not measured")
    for problem, more in sorted(excess(model, measured)[0].items(), key=lambda one: -one[1])[:5]:
        print(f"  {more:6.1%} {problem}")
    for name, value in costs.items():
        print(f"{name:<36}{number(model.start[name]):>10}{number(value):>10}")
    if write:
        header = model.header.read_text()
        model.header.write_text(rewritten(header, costs, origin_of(result, measured, text)))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("sweep", help="time every tile of a family, on a GPU")
    one.add_argument("family", choices=PROBLEMS)
    one.add_argument("--json", type=Path, required=True, metavar="FILE")
    other = commands.add_parser("fit", help="find costs, and how well they choose")
    other.add_argument("file", type=Path)
    other.add_argument("--write", action="store_true", help="into the family's _costs.h")
    arguments = parser.parse_args()
    if arguments.command == "fit":
        return fit(arguments.file, arguments.write)
    sweep(arguments.family, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
