"""Times every operator, next to what the machine allows and what else there is.

    python benchmarks/bench.py --op gemm --shapes competition --json gemm.json

Results of every set of operands are checked against float64 before anything is timed; a wrong one
gets no time, and exit status 2. On a GPU `time` is a graph replay over rotated operands, `cold`
what a competition's harness measures (timing.py), `floor` the bytes that must move over this GPU's
read bandwidth or the operations over its fp16 rate, both measured in the same run. With --device
cpu times are of the wall.
"""

import argparse
import json
import sys

import problems
import timing
import torch
from rich.console import Console
from rich.table import Table

import nvfp4kern
from nvfp4kern.verify import shapes

FEW_TOKENS = (1, 4, 8, 16, 32, 64)
WEIGHTS = [(7168, 16384), (4096, 7168), (7168, 2048)]
LARGE = [(8192, 8192), (64, 8192)]
SHAPES = {  # operator -> kind -> arguments of its function in problems.py
    "gemv": {"competition": shapes.GEMV_BENCHMARKS, "quick": shapes.GEMV_TESTS[:3]},
    "gemm": {
        "competition": shapes.GEMM_BENCHMARKS,
        "smallm": [(m, *weights) for weights in WEIGHTS for m in FEW_TOKENS],
        "quick": shapes.GEMM_TESTS[:1],
    },
    "dual_gemm": {
        "competition": shapes.DUAL_GEMM_BENCHMARKS,
        "smallm": [(m, 4096, 7168) for m in FEW_TOKENS],
        "quick": shapes.DUAL_GEMM_TESTS[1:2],
    },
    "grouped_gemm": {
        "competition": shapes.GROUP_GEMM_BENCHMARKS,
        "smallm": [[(m, 4096, 7168, 1)] * 8 for m in FEW_TOKENS],
        "quick": shapes.GROUP_GEMM_TESTS[:2],
    },
    "route": {
        "competition": shapes.ROUTE_BENCHMARKS + shapes.ROUTE_LARGE,
        "smallm": [(m, 256, 7168) for m in FEW_TOKENS],
        "quick": shapes.ROUTE_BENCHMARKS[:2],
    },
    "quantize": {
        "competition": [(*size, amax) for size in LARGE for amax in (False, True)],
        "smallm": [(m, 8192) for m in FEW_TOKENS],
        "quick": [(512, 1024, amax) for amax in (False, True)],
    },
    "dequantize": {"competition": LARGE, "quick": [(512, 1024)]},
}


def measured(case, device):
    """The row of one case, ready for JSON; without times where a result was wrong."""
    row = {"op": case.op, "shape": case.shape, "sets": len(case.calls)}
    for call in case.calls:
        call()
    row["right"] = all(map(case.right, range(len(case.calls))))
    if not row["right"]:
        return row
    measure = timing.host if device == "cpu" else timing.replay
    row["time"] = vars(measure(case.calls))
    row["others"] = {name: vars(measure(calls)) for name, calls in case.others.items()}
    if device == "cuda":
        row["cold"] = vars(timing.cold(case.calls[0]))
        row["floor"] = timing.ceilings().floor(case.moved, case.work)
    return row


def cells(row):
    """What the table shows of a row."""
    if not row["right"]:
        return row["op"], row["shape"], "WRONG RESULT"
    time, floor = row["time"]["median"], row.get("floor")
    best = min(row["others"], key=lambda name: row["others"][name]["median"])
    other = row["others"][best]["median"]
    return (
        row["op"],
        row["shape"],
        "{median:.2f} ({low:.2f}, {high:.2f})".format(**row["time"]),
        f"{row['cold']['median']:.2f}" if floor else "",
        f"{floor:.2f}" if floor else "",
        f"{time / floor:.2f}" if floor else "",
        best,
        f"{other:.2f}",
        f"{time / other:.2f}",
    )


def table(rows, device):
    title = f"nvfp4kern {nvfp4kern.__version__}, torch {torch.__version__}"
    if device == "cuda":
        c = timing.ceilings()
        title += f", {torch.cuda.get_device_name()}: reads {c.read / 1e6:.2f} TB/s, copies "
        title += f"{c.copy / 1e6:.2f} TB/s, fp16 8192^3 {c.rate / 1e6:.0f} TFLOP/s"
    shown = Table(title=title + "; microseconds", title_justify="left")
    columns = "op, shape, time (quartiles), cold, floor, / floor, best other, its time, ours / it"
    for name in columns.split(", "):
        left = name in ("op", "shape", "best other")
        shown.add_column(name, justify="left" if left else "right", no_wrap=not left)
    for row in rows:
        shown.add_row(*cells(row))
    return shown


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--op", choices=SHAPES, help="one operator, else all")
    parser.add_argument("--shapes", choices=("competition", "smallm", "quick"))
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--json", metavar="FILE", help="also write the numbers there")
    given = parser.parse_args()
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    kind = given.shapes or ("competition" if device == "cuda" else "quick")
    console, rows = Console(width=None if sys.stdout.isatty() else 160), []
    torch.manual_seed(0)
    for op in [given.op] if given.op else SHAPES:
        for shape in SHAPES[op].get(kind, []):
            case = getattr(problems, op)(device, *shape)
            rows.append(measured(case, device))
            del case  # before the next one's operands
            print(*cells(rows[-1])[:3], file=sys.stderr, flush=True)
    console.print(table(rows, device))
    if given.json:
        with open(given.json, "w") as file:
            json.dump(rows, file, indent=1)
    return 0 if rows and all(row["right"] for row in rows) else 2


if __name__ == "__main__":
    sys.exit(main())
