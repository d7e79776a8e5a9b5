"""The command `nvfp4kern`, or `python -m nvfp4kern`: checks every operator on this machine.

Its subcommands: `info`, `explain`, `bench`, `checkpoint`, `quantize`, `generate`, `compare`,
`selftest`.
"""

import argparse
import importlib.util
import os
import signal
import sys
import textwrap
import time
from functools import partial
from typing import get_args

import nvfp4kern
from nvfp4kern import bench, explaining, machine, selftest, terminal
from nvfp4kern.options import add_compare_arguments, add_generate_arguments
from nvfp4kern.types import Recipe

DESCRIPTION = "Checks every operator on this machine against the float64 oracle."
NAME = "python -m nvfp4kern" if sys.argv[0].endswith("__main__.py") else "nvfp4kern"
CHECK_NEEDS = "needs NumPy and rich: pip install numpy rich"
EXPLAIN_NEEDS = "explain needs NumPy, and PyTorch for bfloat16 and a GPU: pip install numpy torch"
BENCH_NEEDS = "bench needs PyTorch and rich: pip install torch rich"
CHECKPOINT_NEEDS = (
    "checkpoint needs PyTorch, safetensors and google-re2: pip install torch safetensors google-re2"
)
QUANTIZE_NEEDS = CHECKPOINT_NEEDS.replace("checkpoint", "quantize", 1)
SELFTEST_NEEDS = "selftest needs NumPy, PyTorch and rich: pip install numpy torch rich"
MODEL_LIBRARIES = ("torch", "transformers", "accelerate", "safetensors", "re2")
GENERATE_NEEDS = (
    "generate needs PyTorch, transformers, accelerate for a GPU, safetensors and google-re2: "
    "pip install torch transformers accelerate safetensors google-re2"
)
COMPARE_NEEDS = GENERATE_NEEDS.replace("generate", "compare", 1)
CALIBRATE_NEEDS = (
    "quantize --calibrate needs transformers and accelerate: pip install transformers accelerate"
)
PLOT_NEEDS = "--plot needs matplotlib: pip install matplotlib"


# --- check ---


def best_of(run, seconds=0.2, most=20):
    """(result, fastest time) of up to `most` calls, as many as fit `seconds`."""
    times, begin = [], time.perf_counter()
    while not times or (time.perf_counter() - begin < seconds and len(times) < most):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return result, min(times)


def rate(case, seconds):
    amount, unit = (case.work, "GFLOP/s") if case.work else (case.moved, "GB/s")
    found = amount / seconds / 1e9
    return f"{found:.{0 if found >= 100 else 1 if found >= 10 else 2}f} {unit}"


def heading(why_no_gpu):
    """The versions, and what the cases run on; why no GPU is checked, where none is."""
    import numpy as np

    yield f"nvfp4kern {nvfp4kern.__version__}, Python {sys.version.split()[0]}"
    cpu = machine.cpu_in_use(np.zeros((1, 1), np.uint8))
    yield f"CPU: {machine.in_words(cpu)}"
    gpus = machine.nvidia_smi(("name", "driver_version"))
    for gpu in gpus:
        yield f"GPU: {gpu['name']}, driver {gpu['driver_version']}"
    if why_no_gpu is None:
        import torch

        yield f"checked: the CPU, then {torch.cuda.get_device_properties(0).name} on small cases"
    elif gpus:
        yield f"GPU not checked: {why_no_gpu}"
    else:
        yield f"GPU: none by nvidia-smi; {NAME} info says what the driver says"


def table():
    """Without lines between columns: it fits 80 of them."""
    from rich import box
    from rich.table import Table

    rows = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for name, justify in [
        ("operator", "left"), ("shape", "left"), ("backend", "left"), ("time", "right"),
        ("rate", "right"), ("error\n/bound", "right"), ("verdict", "left"),
    ]:  # fmt: skip
        rows.add_column(name, justify=justify, overflow="fold", no_wrap=name != "shape")
    return rows


def next_step(failures):
    if failures:
        return "report the lines above; a wrong result is a bug of this package"
    if importlib.util.find_spec("torch"):
        return f"{NAME} bench to time it, help(nvfp4kern.gemm) to call it"
    return f"pip install torch, then {NAME} bench to time it"


class Checked:
    """Rows of the table, and what failed."""

    def __init__(self):
        self.table, self.failures, self.count = table(), [], 0

    def add(self, operator, shape, backend, error, wrong, *timed):
        """`error` as a fraction of its bound; `wrong` says where, and is None for what is right;
        `timed` are time and rate."""
        self.count += 1
        if wrong:
            self.failures.append(f"{operator} {shape}, {backend}: {wrong}")
        verdict = "[red]WRONG" if wrong else "[green]ok"
        self.table.add_row(operator, shape, backend, *(timed or ("", "")), f"{error:.4f}", verdict)


def check_cpu(checked, operator, everything, progress):
    from nvfp4kern.verify.cases import cases

    for case in cases(operator, everything):
        progress(case.shape)
        name, arguments, options = case.explain
        plan = nvfp4kern.explain(name, *arguments, **options)
        result, seconds = best_of(case.run)
        verdict = case.judge(result, c=1 if plan["backend"] == "cpu" else 12)
        timed = f"{seconds * 1e3:.3f} ms", rate(case, seconds)
        wrong = None if verdict.ok else str(verdict)
        checked.add(operator, case.shape, plan["backend"], verdict.worst, wrong, *timed)


def check_gpu(checked, operator, progress):
    """The operator's first case, which is small, as the self-test has it. False after a call that
    failed: a GPU may refuse all others then."""
    from nvfp4kern.selftest import operators

    for name, run in operators.items("cuda", "quick", [operator]):
        shape = name.removeprefix(operator).strip()
        progress(f"{shape} on the GPU")
        try:
            found = run()
        except RuntimeError as error:  # BackendError, and what torch raises
            checked.add(operator, shape, "GPU", float("nan"), f"failed: {error}")
            return False
        checked.add(operator, shape, found["backend"], found["worst"], found.get("wrong"))
    return True


def check(operators, everything):
    """Runs the cases and returns the exit status."""
    from rich.console import Console
    from rich.progress import Progress

    console, why_no_gpu = Console(width=terminal.width(), highlight=False), machine.why_no_gpu()
    for line in heading(why_no_gpu):
        console.print(line, markup=False, soft_wrap=True)
    checked, gpu = Checked(), why_no_gpu is None
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(operators) * (1 + gpu))

        def show(operator, text):
            progress.update(bar, description=f"{operator} {text}")

        for operator in operators:
            check_cpu(checked, operator, everything, partial(show, operator))
            progress.advance(bar)
        on_cpu = checked.count
        for operator in operators if gpu else ():
            if not check_gpu(checked, operator, partial(show, operator)):
                break
            progress.advance(bar)
    console.print(checked.table)
    for failure in checked.failures:
        console.print(failure, style="red", markup=False, soft_wrap=True)
    right, count = checked.count - len(checked.failures), checked.count
    where = f", {on_cpu} on the CPU, {count - on_cpu} on the GPU" if gpu else ""
    console.print(f"{right} of {count} cases right against the float64 oracle{where}")
    console.print(f"now: {next_step(checked.failures)}", markup=False, soft_wrap=True)
    return 1 if checked.failures or not count else 0


# --- info ---


CODE = """
Machine code for 8.0 also runs on 8.6 and 8.9, for 10.0 on 10.3, for 12.0 on
12.1.
For other GPUs the driver compiles the PTX when a kernel is first needed.
Only H100s and H200s (9.0) have run the kernels."""


INDENT = " " * 9
"""Of what info says of a row of backends."""


def info():
    print(f"nvfp4kern {nvfp4kern.__version__}, Python {sys.version.split()[0]}")
    for row in nvfp4kern.backends():
        state = "available" if row["available"] else f"not available: {row['why_not']}"
        needs = f"{row['code']}; needs {row['needs']}" if row["code"] else None
        print(f"  {row['name']:<6} {row['devices']}")
        for text in filter(None, (state, needs)):
            print(textwrap.fill(text, 80, initial_indent=INDENT, subsequent_indent=INDENT))
    if any(row["code"] for row in nvfp4kern.backends()):
        print(CODE)
    forced = os.environ.get("NVFP4KERN_BACKEND")
    if forced:
        print(f"  NVFP4KERN_BACKEND={forced} forces one")
    return 0


# ---------------------------------------------------------------------------------------------


def add_quantize_arguments(parser):
    parser.add_argument("source", metavar="SRC", help="a Hugging Face folder of safetensors")
    parser.add_argument("target", metavar="DST", help="a new folder: absent until it is complete")
    parser.add_argument(
        "--recipe",
        choices=get_args(Recipe),
        default="amax",
        help="how scale factors are chosen: four_six and mse have smaller errors of weights, and "
        "mse is slow; gptq has smaller errors of results, and takes the inputs of --calibrate",
    )
    parser.add_argument(
        "--exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="modules that stay as they are, such as '*.layers.0.*', beside the head and routers; "
        "may be given several times",
    )
    parser.add_argument(
        "--inputs",
        choices=("none", "dynamic", "token", "static"),
        default="none",
        help="inputs stay at 16 bits (W4A16), or are quantised (W4A4) with block scales alone, "
        "with a scale of each token, which other engines ignore, or with those of --calibrate",
    )
    parser.add_argument(
        "--calibrate",
        metavar="TEXTFILE",
        help="text for --inputs static and --recipe gptq; needs transformers",
    )
    parser.add_argument(
        "--format",
        choices=("modelopt", "compressed-tensors"),
        default="modelopt",
        help="whose layout is written; vLLM and SGLang read both",
    )
    parser.add_argument(
        "--verify", action="store_true", help="reads all of it again, and prints layers' errors"
    )


def main():
    parser = argparse.ArgumentParser(prog=NAME, description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"nvfp4kern {nvfp4kern.__version__}")
    parser.add_argument("--all", action="store_true", help="all competition shapes, not a spread")
    parser.add_argument("--op", metavar="OP", help="one operator only")
    commands = parser.add_subparsers(
        dest="command",
        metavar="info | explain | bench | checkpoint | quantize | generate | compare | selftest",
    )
    commands.add_parser("info", help="backends of this build and machine")
    explaining.add_arguments(
        commands.add_parser("explain", help="what a call would use; runs nothing")
    )
    bench.add_arguments(commands.add_parser("bench", help="times every operator, and what else"))
    one = commands.add_parser(
        "checkpoint", help="what NVFP4 files hold, and what is wrong with them"
    )
    one.add_argument("path", metavar="DIR", help="a directory, or one .safetensors file")
    one = commands.add_parser(
        "quantize", help="makes a folder with NVFP4 weights of one without, shard by shard"
    )
    add_quantize_arguments(one)
    add_generate_arguments(
        commands.add_parser("generate", help="runs a folder's model, and says how fast it is")
    )
    add_compare_arguments(
        commands.add_parser("compare", help="how far a quantised folder is from another, on a text")
    )
    one = commands.add_parser("selftest", help="all that this machine can say, in one file")
    selftest.add_arguments(one, hidden=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        if arguments.command == "info":
            return info()
        if arguments.command == "explain":
            return explaining.run(arguments)
        if arguments.command == "bench":
            return bench.run(arguments)
        if arguments.command == "checkpoint":
            from nvfp4kern.checkpoint.report import command

            return command(arguments.path)
        if arguments.command == "quantize":
            from nvfp4kern.quantizing import command

            return command.run(arguments)
        if arguments.command == "generate":
            from nvfp4kern.transformers import generating

            return generating.run(arguments)
        if arguments.command == "compare":
            from nvfp4kern.comparing import command

            return command.run(arguments)
        if arguments.command == "selftest":
            return selftest.run(arguments)
        from nvfp4kern.verify.cases import OPERATORS

        if arguments.op and arguments.op not in OPERATORS:
            parser.error(f"--op: {arguments.op!r}, expected one of {', '.join(OPERATORS)}")
        return check([arguments.op] if arguments.op else OPERATORS, arguments.all)
    except ModuleNotFoundError as missing:
        needs = {"numpy": CHECK_NEEDS, "rich": CHECK_NEEDS}
        if arguments.command == "explain":
            needs = dict.fromkeys(("numpy", "torch"), EXPLAIN_NEEDS)
        if arguments.command == "bench":
            needs = {"torch": BENCH_NEEDS, "rich": BENCH_NEEDS, "matplotlib": f"bench {PLOT_NEEDS}"}
        if arguments.command == "selftest":
            needs = dict.fromkeys(("numpy", "torch", "rich"), SELFTEST_NEEDS)
        if arguments.command == "checkpoint":
            needs = dict.fromkeys(("torch", "safetensors", "re2"), CHECKPOINT_NEEDS)
        if arguments.command == "quantize":
            needs = dict.fromkeys(("torch", "safetensors", "re2"), QUANTIZE_NEEDS)
            needs |= dict.fromkeys(("transformers", "accelerate"), CALIBRATE_NEEDS)
        if arguments.command == "generate":
            needs = dict.fromkeys(MODEL_LIBRARIES, GENERATE_NEEDS)
        if arguments.command == "compare":
            needs = dict.fromkeys(MODEL_LIBRARIES, COMPARE_NEEDS)
            needs["matplotlib"] = f"compare {PLOT_NEEDS}"
        name = (missing.name or "").partition(".")[0]
        if name not in needs:
            raise
        print(f"{NAME} {needs[name]}", file=sys.stderr)
        return 2
    except (ValueError, nvfp4kern.BackendError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("interrupted", file=sys.stderr)
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
