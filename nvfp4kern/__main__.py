"""The command `nvfp4kern`, or `python -m nvfp4kern`: checks every operator on this machine.

Its subcommands: `info`, `explain`, `bench`, `checkpoint`, `quantize`, `generate`, `compare`,
`selftest`.
"""

import argparse
import importlib.util
import os
import sys
import time
from typing import get_args

import nvfp4kern
from nvfp4kern import bench, machine, selftest
from nvfp4kern.options import add_compare_arguments, add_generate_arguments
from nvfp4kern.types import Recipe

DESCRIPTION = "Checks every operator on this machine against the float64 oracle."
NAME = "python -m nvfp4kern" if sys.argv[0].endswith("__main__.py") else "nvfp4kern"
CHECK_NEEDS = 'needs NumPy and rich: pip install "nvfp4kern[check]"'
BENCH_NEEDS = 'bench needs PyTorch and rich: pip install "nvfp4kern[bench]"'
CHECKPOINT_NEEDS = (
    'checkpoint needs PyTorch, safetensors and google-re2: pip install torch "nvfp4kern[models]"'
)
QUANTIZE_NEEDS = CHECKPOINT_NEEDS.replace("checkpoint", "quantize", 1)
SELFTEST_NEEDS = 'selftest needs NumPy, PyTorch and rich: pip install numpy "nvfp4kern[bench]"'
MODEL_LIBRARIES = ("torch", "transformers", "accelerate", "safetensors", "re2")
GENERATE_NEEDS = (
    "generate needs PyTorch, transformers, accelerate for a GPU, safetensors and google-re2: "
    'pip install torch transformers accelerate "nvfp4kern[models]"'
)
COMPARE_NEEDS = GENERATE_NEEDS.replace("generate", "compare", 1)
CALIBRATE_NEEDS = (
    "quantize --calibrate needs transformers and accelerate: pip install transformers accelerate"
)
PLOT_NEEDS = '--plot needs matplotlib: pip install "nvfp4kern[plot]"'


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


def heading():
    """The versions, and what the cases run on; the GPUs that they leave alone."""
    import numpy as np

    yield f"nvfp4kern {nvfp4kern.__version__}, Python {sys.version.split()[0]}"
    cpu = machine.cpu_in_use(np.zeros((1, 1), np.uint8))
    yield f"CPU: {machine.in_words(cpu)}"
    gpus = machine.nvidia_smi(("name", "driver_version"))
    for gpu in gpus:
        yield f"GPU: {gpu['name']}, driver {gpu['driver_version']}; not checked here"
    if not gpus:
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


def check(operators, everything):
    """Runs the cases and returns the exit status."""
    from rich.console import Console
    from rich.progress import Progress

    from nvfp4kern.verify.cases import cases

    console = Console(highlight=False)
    for line in heading():
        console.print(line, markup=False, soft_wrap=True)
    rows, failures, count = table(), [], 0
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(operators))
        for operator in operators:
            for case in cases(operator, everything):
                progress.update(bar, description=f"{operator} {case.shape}")
                name, arguments, options = case.explain
                plan = nvfp4kern.explain(name, *arguments, **options)
                result, seconds = best_of(case.run)
                verdict = case.judge(result, c=1 if plan["backend"] == "cpu" else 12)
                count += 1
                if not verdict.ok:
                    failures.append(f"{operator} {case.shape}: {verdict}")
                rows.add_row(
                    operator,
                    case.shape,
                    plan["backend"],
                    f"{seconds * 1e3:.3f} ms",
                    rate(case, seconds),
                    f"{verdict.worst:.4f}",
                    "[green]ok" if verdict.ok else "[red]WRONG",
                )
            progress.advance(bar)
    console.print(rows)
    for failure in failures:
        console.print(failure, style="red", markup=False, soft_wrap=True)
    console.print(f"{count - len(failures)} of {count} cases right against the float64 oracle")
    console.print(f"now: {next_step(failures)}", markup=False, soft_wrap=True)
    return 1 if failures or not count else 0


# --- info, explain ---


CODE = """
Machine code for 8.0 also runs on 8.6 and 8.9, for 10.0 on 10.3, for 12.0 on 12.1.
For other GPUs the driver compiles the PTX when a kernel is first needed.
Only H200s (9.0) have run the kernels."""


def info():
    print(f"nvfp4kern {nvfp4kern.__version__}, Python {sys.version.split()[0]}")
    for row in nvfp4kern.backends():
        state = "available" if row["available"] else row["why_not"]
        print(f"  {row['name']:<6} {row['devices']:<46} {state}")
        if row["code"]:
            print(f"  {'':<6} {row['code']}; needs {row['needs']}")
    if any(row["code"] for row in nvfp4kern.backends()):
        print(CODE)
    forced = os.environ.get("NVFP4KERN_BACKEND")
    if forced:
        print(f"  NVFP4KERN_BACKEND={forced} forces one")
    return 0


SHAPES = {
    "gemv": "MxK[xL]",
    "gemm": "MxNxK[xL]",
    "dual_gemm": "MxNxK[xL]",
    "grouped_gemm": "MxNxK[,MxNxK ...]",
    "grouped_dual_gemm": "GxMxNxK",
    "route": "MxNxK",
    "sort_by_expert": "MxKxN",
    "combine": "MxKxH",
    "quantize": "MxK",
    "dequantize": "MxK",
}


def operands(k, *rows):
    """Codes and scales of [rows, K] operands; their contents do not matter."""
    import numpy as np

    if k % 16:
        raise ValueError(f"K = {k}")
    codes = [np.empty((r, k // 2), np.uint8) for r in rows]
    return (*codes, *(np.empty((r, k // 16), np.uint8) for r in rows))


def batched(arrays, batch):
    import numpy as np

    return [np.broadcast_to(array, (batch, *array.shape)) for array in arrays]


def arguments_of(operator, text):
    """The arguments of a call of this shape. Raises ValueError where `text` is no shape."""
    import numpy as np

    groups = [[int(size) for size in part.split("x")] for part in text.split(",")]
    sizes, wanted = groups[0], SHAPES[operator].partition("[")[0].count("x") + 1
    has_batch = "[xL]" in SHAPES[operator]
    lengths = {len(g) for g in groups}
    if not lengths <= {wanted, wanted + has_batch} or min(map(min, groups)) < 0:
        raise ValueError(text)
    if len(groups) > 1 and operator != "grouped_gemm":
        raise ValueError(text)
    batch = sizes[wanted] if len(sizes) > wanted else None
    if operator == "quantize":
        return (np.empty(sizes, np.float16),)
    if operator == "dequantize":
        return ((*operands(sizes[1], sizes[0]), 1.0),)
    if operator == "route":
        m, n, k = sizes
        return np.empty((m, k), np.float16), np.empty((n, k), np.float16), min(4, n)
    if operator == "sort_by_expert":  # K selections of M tokens
        return np.empty(sizes[:2], np.int32), sizes[2]
    if operator == "combine":  # the same
        m, k, h = sizes
        row_of = np.arange(m * k, dtype=np.int32)
        return np.empty((m * k, h), np.float16), row_of, np.empty((m, k), np.float32)
    if operator == "grouped_gemm":
        return tuple(map(list, zip(*(operands(k, m, n) for m, n, k in groups), strict=True)))
    if operator == "grouped_dual_gemm":
        experts, m, n, k = sizes
        a, sfa = operands(k, m)
        b, sfb = batched(operands(k, 2 * n), experts)
        return a, b, sfa, sfb, np.linspace(0, m, experts + 1).astype(np.int32)
    if operator == "gemv":
        arrays = operands(sizes[1], sizes[0], 1)
    else:
        m, n, k = sizes[:3]
        arrays = operands(k, m, *[n] * (2 if operator == "dual_gemm" else 1))
    return tuple(arrays if batch is None else batched(arrays, batch))


def explain(operator, shape):
    try:
        arguments = arguments_of(operator, shape)
    except ValueError:
        expected = f"expected {SHAPES[operator]} with K a multiple of 16 for {operator}"
        print(f"shape: {shape!r}, {expected}", file=sys.stderr)
        return 2
    for key, value in nvfp4kern.explain(operator, *arguments).items():
        print(f"{key:<16} {value}")
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
    one = commands.add_parser("explain", help="what a call would use; runs nothing")
    one.add_argument("op", choices=SHAPES)
    one.add_argument("shape", help="for example 128x7168x16384")
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
            return explain(arguments.op, arguments.shape)
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


if __name__ == "__main__":
    sys.exit(main())
