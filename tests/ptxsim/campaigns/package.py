"""The package's operators on the simulated GPU, each for many seeds: data and schedule are drawn
from the seed, the outputs are compared with the CPU's.

This is the process that has the simulator for its driver, so nothing may have loaded the package.
"""

import collections
import os
import time

from rows import TABLE

from .. import build

SHAPES = {"small": (5, 33, 48), "deep": (19, 70, 2048), "few": (4, 300, 1024)}  # M, N, K
LINE = "{:22} {:6} {:33} {:>5} {:>3} {:>3} {:>3} {:>6} {:>9} {:>7}"
HEAD = "operator shape kernel seeds E W N wrong Minstr M/s".split()


def enter(row, settings):
    """Makes this process one that has the row's device."""
    settings = {"cc": TABLE[row].cc, "sms": TABLE[row].sms} | settings
    os.environ.update(build.environment(**settings) | {"NVFP4KERN_BACKEND": row})
    import torch

    torch.set_num_threads(1)
    from .. import fake_cuda

    return fake_cuda


def places(findings, severity):
    return [f for f in findings if f["severity"] == severity]


def write_results(path, value, depth=2):
    from nvfp4kern.results import write

    write(path, value, depth)


def run_call(fake_cuda, call, seeds):
    """(the report of all seeds, seed -> what went wrong, seconds that launches took)."""
    fake_cuda.library.ptxsim_clear()
    wrong, seconds = {}, 0.0
    for seed in seeds:
        fake_cuda.library.ptxsim_seed(seed)
        call.fill(seed)
        start = time.process_time()
        try:
            try:
                call.run()
            finally:
                seconds += time.process_time() - start
            call.check(seed)
        except (AssertionError, RuntimeError) as error:
            wrong[seed] = f"{type(error).__name__}: {error}"
    return fake_cuda.report(), wrong, seconds


def run(options):
    fake_cuda = enter(options.row, {"threads": options.threads})
    import cuda_calls

    cuda_calls.SIZES.update(SHAPES)
    names = options.operators or list(cuda_calls.OPERATORS)
    unknown = set(names) - set(cuda_calls.OPERATORS)
    if unknown:
        raise SystemExit(f"no such operator: {', '.join(sorted(unknown))}")
    seeds = range(options.seed, options.seed + options.seeds)
    worst, found, total = 0, {}, collections.Counter()
    print(LINE.format(*HEAD))
    for name in names:
        for shape in options.shapes or TABLE[options.row].shapes:
            call = cuda_calls.Call(name, size=shape)
            kernel = call.explain()["kernel"]
            if not kernel.startswith(options.row):
                continue  # another row's kernels do this
            report, wrong, seconds = run_call(fake_cuda, call, seeds)
            counts = [len(places(report["findings"], severity)) for severity in "EWN"]
            million = report["lane_instructions"] / 1e6
            figures = [len(seeds), *counts, len(wrong), f"{million:.1f}"]
            print(
                LINE.format(name, shape, kernel, *figures, f"{million / seconds:.0f}"), flush=True
            )
            worst = max(worst, 2 if wrong or counts[0] else 1 if counts[1] else 0)
            found[f"{name} {shape}"] = {"findings": report["findings"], "wrong": wrong}
            total.update(million=million, seconds=seconds, calls=len(seeds))
    print(f"{total['calls']} calls, {total['million']:.0f} M instructions of lanes")
    for where, what in found.items():
        for seed, error in what["wrong"].items():
            print(f"{where}, seed {seed}: {error.splitlines()[0]}")
        for f in places(what["findings"], "E") + places(what["findings"], "W"):
            said = f"{f['severity']} {f['code']} at {f['source']}: {f['text']}"
            print(f"{where}, seed {f['seed']}: {said}")
    if options.json:
        write_results(options.json, found)
    return worst


def add_command(commands):
    command = commands.add_parser(
        "package", help="the package's operators, many seeds each; status as of run"
    )
    command.add_argument("--row", choices=list(TABLE), default="sm80")
    command.add_argument("--seed", type=int, default=0, help="the first")
    command.add_argument("--seeds", type=int, default=10, help="how many")
    command.add_argument("--operators", nargs="+", metavar="NAME", help="of tests/cuda_calls.py")
    command.add_argument("--shapes", nargs="+", choices=list(SHAPES))
    command.add_argument("--threads", type=int, default=1, help="more than 1: not replayable")
    command.add_argument("--json", metavar="FILE", help="every finding")
    command.set_defaults(work=run)
