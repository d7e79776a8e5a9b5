"""Our own kernels in the model of blackwell_model.py: which tiles a B200 gets, what they move."""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace

from blackwell_model import (
    COMPETITION,
    GIVEN,
    RESULTS,
    ROOT,
    ROW_BYTES,
    SMS,
    STEP_K,
    Work,
    bytes_of,
    hbm_rate,
    hopper,
    microseconds,
    rows_of,
    terms,
)

from nvfp4kern import results
from nvfp4kern.verify import shapes

COUNTERS = ROOT / "tests" / "ptxsim" / "results" / "sm100_whole.json"
TILE = re.compile(r"([np])(\d+)(?:k(\d))?(?:m(\d))?")
PLANS = RESULTS / "blackwell_plans.json"


def problems():
    """(operator, the competition's shape, its groups)"""
    for m, k, batch in shapes.GEMV_BENCHMARKS:
        yield "gemv", [m, k, batch], [(m, 1, k)] * batch
    for op, table in (("gemm", shapes.GEMM_BENCHMARKS), ("dual_gemm", shapes.DUAL_GEMM_BENCHMARKS)):
        for shape in table:
            yield op, list(shape), [shape[:3]]
    for groups in COMPETITION:
        yield "grouped_gemm", [list(group) for group in groups], groups


def ask_plans():
    """What explain says of each on the simulated B200: in a process that has it for its driver."""
    import torch
    from ptxsim import fake_cuda  # noqa: F401

    import nvfp4kern

    def operand(rows, k, *batch):
        padded = -(-rows // 128) * 128
        sizes = ((*batch, rows, k // 2), (*batch, padded, k // 16))
        return [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]

    for op, shape, groups in problems():
        m, n, k = groups[0]
        if op == "gemv":
            made = [operand(m, k, len(groups)), operand(1, k, len(groups))]
        elif op == "grouped_gemm":
            pairs = [(operand(m, k), operand(n, k)) for m, n, k in groups]
            made = [list(zip(*side, strict=True)) for side in zip(*pairs, strict=True)]
            made = [[list(part) for part in side] for side in made]
        else:
            made = [operand(m, k), *(operand(n, k) for _ in range(1 + (op == "dual_gemm")))]
        arguments = [part[0] for part in made] + [part[1] for part in made]
        plan = nvfp4kern.explain(op, *arguments, scale_layout="blocked")
        yield {"op": op, "shape": shape, "plan": {k: plan[k] for k in ("tile", "tile_m", "stages")}}


def write_plans():
    sys.path.insert(0, str(ROOT / "tests"))
    from ptxsim import build

    program = "import json, blackwell_kernels as b; print(json.dumps(list(b.ask_plans())))"
    path = os.pathsep.join([*map(str, (ROOT, ROOT / "tests", ROOT / "benchmarks")), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | build.environment(cc="10.0", sms=SMS) | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    results.write(PLANS, {"sms": SMS, "rows": json.loads(done.stdout)})


def counted(op, shape):
    """Bytes that the simulator counted from L2, or None."""
    rows = json.loads(COUNTERS.read_text())["rows"] if COUNTERS.is_file() else []
    name = {"grouped_gemm": "group_gemm"}.get(op, op)
    quads = json.dumps([[*group, 1] for group in shape]) if name != op else ""
    for row in rows:
        if row["problem"] == name and json.dumps(row["shape"]) in (json.dumps(shape), quads):
            return row["counted"]["l2_read_bytes"]
    return None


def our_work(op, shape, groups, plan):
    """Of a kernel of sm100/gemm."""
    match = TILE.fullmatch(plan["tile"])
    matrices, ctas = 1 + (op == "dual_gemm"), 2 if match[1] == "p" else 1
    mma_n, split_k, pairs = (int(number or 1) for number in match.groups()[1:])
    weights_are_m = plan["tile_m"] == mma_n
    tiles = 0
    for m, n, _ in groups:
        operand_m, operand_n = (n, m) if weights_are_m else (m, n)
        tiles += math.ceil(operand_m / (128 * ctas * pairs)) * math.ceil(operand_n / mma_n) * pairs
    rows = 128 * matrices + rows_of(mma_n, ctas)
    read = rows - rows_of(mma_n, ctas) + shared_rows_of(mma_n, ctas, pairs)
    return Work(
        tiles=tiles * ctas * split_k,
        steps=math.ceil(groups[0][2] / STEP_K / split_k),
        ctas=min(tiles * ctas * split_k, SMS),
        read_rows=read,
        taken_rows=rows,
        cycles=matrices * 128 * mma_n * STEP_K / GIVEN["multiply_adds"][0],
        columns=mma_n * matrices,
        hbm=bytes_of(groups) + sum(n * k * 9 / 16 for _, n, k in groups) * (matrices - 1),
        stages=plan["stages"],
        sums=1 if matrices == 2 or mma_n == 256 else 2,
        prefetch=True,
        store="chunks",
        groups=len(groups),
        l2=counted(op, shape),
        arrival=GIVEN["arrival"][0] if ctas == 2 else 0.0,
    )


def shared_rows_of(mma_n, ctas, pairs):
    """rows_of(), of which each CTA reads a share with multicast."""
    if pairs == 1:
        return rows_of(mma_n, ctas)
    atoms = math.ceil(mma_n / 128) * 128 * 16 / (ctas * pairs)
    return (mma_n * 128 / ctas / pairs + atoms) / ROW_BYTES


def streaming(shape):
    """Of a gemv: what our cold call takes beyond the floor on a Hopper, and a B200's floor."""
    text = "x".join(str(size) for size in shape if size != 1)
    row = next(
        r for r in hopper()["rows"] if r["op"] == "gemv" and r["shape"] == text and "cold" in r
    )
    return {"call": row["cold"]["median"] - row["floor"], "HBM": row["moved"] / hbm_rate()}


def predictions(c, within):
    known = {json.dumps(r["shape"]): r["plan"] for r in json.loads(PLANS.read_text())["rows"]}
    for op, shape, groups in problems():
        plan = known[json.dumps(shape)]
        row = {"op": op, "shape": shape, "tile": plan["tile"]}
        if op == "gemv":
            row |= {"terms": streaming(shape), "bound": "HBM"}
        else:
            work = our_work(op, shape, groups, plan)
            row["terms"], row["bound"] = terms(work, c)
        row["us"] = sum(row["terms"].values())
        row["before"] = [row["us"]] * 2
        if op != "gemv" and work.arrival:
            fenced = (GIVEN[name][0] for name in ("fenced, fastest", "fenced, slowest"))
            row["before"] = [microseconds(replace(work, arrival=cycles), c) for cycles in fenced]
        row["low"], row["high"] = (row["us"] * factor for factor in within)
        yield row


def compare(path):
    """(operator, shape, predicted, measured cold) of what a self-test's benchmark has."""
    rows = json.loads(path.read_text())["sections"]["bench"]["rows"]
    timed = {(r["row"]["op"], json.dumps(sizes_of(r["row"]))): r["row"] for r in rows if "row" in r}
    for row in json.loads((RESULTS / "blackwell_model.json").read_text())["ours"]:
        found = timed.get((row["op"], json.dumps(row["shape"])), {})
        if "cold" in found:
            yield row["op"], row["shape"], row["us"], found["cold"]["median"]


def sizes_of(row):
    """A benchmark's sizes as the competition's shape."""
    sizes = row.get("sizes", {})
    if row["op"] == "grouped_gemm":
        return [list(group) for group in sizes.get("groups", [])]
    names = ("m", "k", "batch") if row["op"] == "gemv" else ("m", "n", "k")
    return [sizes.get(name) for name in names] + ([1] if row["op"] != "gemv" else [])
