"""What kernels should take on a B200: a model, fitted to published times and tested on later ones.

    plans    which tile each competition shape gets, asked of the simulated B200 (needs nvcc and cc)
    fit      fits, tests and predicts; writes benchmarks/results/blackwell_model.json
    compare  the predictions with the file of a self-test of a real B200

Published times and designs are in benchmarks/published, counters of our own kernels, where there
are any, in tests/ptxsim/results/sm100_whole.json. docs/blackwell-model.md says what the terms are.
"""

import argparse
import json
import math
import statistics
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nvfp4kern import results
from nvfp4kern.verify import shapes

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PUBLISHED = ROOT / "benchmarks" / "published" / "grouped_gemm_b200.json"

SMS = 148
STEP_K = 256
ROW_BYTES = 144
"""Of a row in a step: 128 bytes of codes, 16 of scale factors."""

GIVEN = {  # name: (value, unit, source)
    "sms": (SMS, "", "Chips and Cheese, Nvidia's B200, 2025"),
    "multiply_adds": (16384, "a cycle and SM", "9 PFLOP/s of dense FP4 (Modal's GPU glossary)"),
    "clock": (1856, "MHz", "the same figure, by SMs and multiply-adds"),
    "hbm": (7.672, "TB/s", "7680 pins at twice 3996 MHz, as drivers report (pytorch/ao#4002)"),
    "H100": (3.35, "TB/s", "NVIDIA's data sheet of the H100 SXM"),
    "H200": (4.8, "TB/s", "NVIDIA's data sheet of the H200"),
    "arrival": (5, "cycles", "at another CTA's mbarrier, relaxed; measured on an H200"),
    "fenced, fastest": (572, "cycles", "the same with release.cluster, of 2 to 132 CTAs"),
    "fenced, slowest": (1241, "cycles", "the same"),
}
STARTS = {  # what is fitted: (first guess, unit, what it is)
    "call": (6.0, "us", "launch, events and host, as the harness times them"),
    "pinned": (3.0, "us", "a copy of descriptors from pinned memory before the launch"),
    "pageable": (10.0, "us", "the same, from pageable memory"),
    "latency": (1.0, "us", "until the first stage is there, and a ring's round trip"),
    "l2": (10.0, "TB/s", "from L2 to all SMs"),
    "sm": (0.15, "TB/s", "from L2 to one SM"),
    "patch": (0.2, "us", "a tensor map that a kernel edits and fences"),
    "chunks": (1.0, "us", "epilogue of 128 x 128, in chunks by TMA"),
    "tile": (3.0, "us", "the same, by one TMA store of a tile"),
    "registers": (8.0, "us", "the same, from registers in narrow pieces"),
}


@dataclass
class Work:
    """What a kernel does with a shape. Rates are of the busiest CTA; bytes of all."""

    tiles: int
    steps: int
    ctas: int
    read_rows: float
    """Of a CTA and step, from L2; copies by multicast count where they are asked for."""
    taken_rows: float
    """Likewise, into shared memory."""
    cycles: float
    """Of a step's products."""
    columns: int
    hbm: float
    stages: int
    sums: int
    prefetch: bool
    store: str
    patches: int = 0
    copy: str = "none"
    per_sm: int = 1
    groups: int = 1
    l2: float | None = None
    """Bytes that all steps read, counted, where they were."""
    arrival: float = 0.0
    """Cycles a step in which a pair's follower tells the leader that its stage is there."""


@cache
def hopper():
    """Our own measurements of an H100 or an H200."""
    return json.loads((RESULTS / "gpu.json").read_text())


def hbm_rate():
    """Bytes a microsecond: of the data sheet's what our reading kernel reaches on a Hopper GPU."""
    measured = hopper()["environment"]
    sheet = next(value for name, (value, *_) in GIVEN.items() if name in measured["gpu"])
    reached = measured["ceilings"]["read"] / sheet / 1e6
    return GIVEN["hbm"][0] * 1e6 * reached


def bytes_of(groups):
    """What has to be read and written: NVFP4 operands, 16-bit results."""
    return sum((m + n) * k * 9 / 16 + 2 * m * n for m, n, k in groups)


def rows_of(columns, ctas):
    """A CTA's part of a tile's columns, as rows: a pair divides codes; atoms of scale factors
    are whole and in both."""
    return (columns * 128 / ctas + math.ceil(columns / 128) * 128 * 16) / ROW_BYTES


def work_of(design, groups):
    """A published kernel: 128 rows of one operand in a CTA, `columns` of the other."""
    columns, ctas = design["columns"], 2 if design["pair"] else 1
    rows = 128 if ctas == 1 else columns  # of a tile, along M; pairs have tokens for their columns
    others = columns if ctas == 1 else 256
    tiles = sum(math.ceil(m / rows) * math.ceil(n / others) for m, n, _ in groups) * ctas
    shared = rows_of(columns, ctas)
    return Work(
        tiles=tiles,
        steps=groups[0][2] // STEP_K,
        ctas=min(tiles, SMS * design["ctas"]),
        read_rows=128 / design["multicast"] + shared,
        taken_rows=128 + shared,
        cycles=128 * columns * STEP_K / GIVEN["multiply_adds"][0],
        columns=columns,
        hbm=bytes_of(groups),
        stages=design["stages"],
        sums=design["sums"],
        prefetch=design["prefetch"],
        store=design["store"],
        patches=design["patches"],
        copy=design["copy"],
        per_sm=design["ctas"],
        groups=len(groups),
    )


def terms(work, c):
    """{term: microseconds} of a call."""
    per = math.ceil(work.tiles / (SMS * work.per_sm))
    read = work.read_rows * ROW_BYTES
    if work.l2 is not None:
        read = work.l2 / (work.tiles * work.steps)
    step = {
        "products": work.cycles * work.per_sm / GIVEN["clock"][0],
        "to all SMs": read * work.ctas / c["l2"] / 1e6,
        "to an SM": work.taken_rows * ROW_BYTES * work.per_sm / c["sm"] / 1e6,
        "round trip": c["latency"] / work.stages,
        "pair's arrival": work.arrival / GIVEN["clock"][0],
    }
    slowest = max(step, key=step.__getitem__)
    loop = per * work.steps * step[slowest]
    epilogue = c[work.store] * work.columns / 128
    floor = work.hbm / hbm_rate()
    hidden = 0.0 if work.sums == 1 else min(epilogue, max(loop, floor) / per)
    fills = c["latency"] * (1 if work.prefetch else per)
    edits = work.patches * c["patch"] * (per if work.groups > 1 else 1)
    found = {
        "call": c["call"] + (c[work.copy] if work.copy != "none" else 0),
        "fill": fills,
        "main loop": max(loop, floor),
        "epilogue": per * epilogue - (per - 1) * hidden,
        "tensor maps": edits,
    }
    return found, "HBM" if floor > loop else slowest


def microseconds(work, c):
    return sum(terms(work, c)[0].values())


# --- Published kernels: fit and test ---

COMPETITION = [[group[:3] for group in groups] for groups in shapes.GROUP_GEMM_BENCHMARKS]


def geomean(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def predicted(version, c):
    return [microseconds(work_of(version["design"], groups), c) for groups in COMPETITION]


def loss(versions, c):
    """Mean square of log errors."""
    errors = [
        math.log(ours / us)
        for version in versions
        for ours, us in zip(predicted(version, c), version["us"], strict=True)
    ]
    return statistics.fmean(error * error for error in errors)


def fitted(versions):
    """Constants by coordinate search: each in turn is scaled, by less and less."""
    c = {name: start for name, (start, *_) in STARTS.items()}
    best, scale = loss(versions, c), 2.0
    while scale > 1.002:
        before = best
        for name in c:
            for factor in (scale, 1 / scale):
                tried = c | {name: c[name] * factor}
                if (found := loss(versions, tried)) < best:
                    c, best = tried, found
        if best > before * 0.999:
            scale = math.sqrt(scale)
    return c


def ranks(values):
    """Equal values share the mean of their ranks."""
    order = sorted(values)
    return [order.index(v) + (order.count(v) - 1) / 2 for v in values]


def rank_correlation(xs, ys):
    return statistics.correlation(ranks(xs), ranks(ys))


def steps_of(published, c):
    """Of each published step of more than 5 %: its author's letter, and whether the model has its
    sign."""
    by_name = {version["name"]: version for version in published["versions"]}
    for before, after in published["steps"]:
        one, other = by_name[before], by_name[after]
        ours = [predicted(version, c) for version in (one, other)]
        if "us" in other:
            pairs = zip(one["us"], other["us"], *ours, strict=True)
        else:
            pairs = [(geomean(one["us"]), other["geomean"], *map(geomean, ours))]
        for us, then, we, now in pairs:
            if abs(then / us - 1) > 0.05:
                yield before[0], (then > us) == (now > we)


def tested(published, c):
    """What the issue of the model asks for, and the errors by which intervals are drawn."""
    tests = [version for version in published["versions"] if version["role"] == "test"]
    rows = []
    for version in tests:
        found = predicted(version, c)
        if "us" in version:
            rows += [
                {"version": version["name"], "shape": s, "published": us, "model": ours}
                for s, us, ours in zip("ABCD", version["us"], found, strict=True)
            ]
        else:
            rows.append({"version": version["name"], "shape": "geomean",
                         "published": version["geomean"], "model": geomean(found)})  # fmt: skip
    steps = list(steps_of(published, c))
    signs = [[right for who, right in steps if who in of] for of in ("Vv", "V", "v")]
    errors = [row["model"] / row["published"] for row in rows]
    return {
        "rows": rows,
        "signs": [[sum(some), len(some)] for some in signs],
        "rank_correlation": rank_correlation(
            [row["published"] for row in rows], [row["model"] for row in rows]
        ),
        "median_error": statistics.median(abs(error - 1) for error in errors),
        "within": interval(errors),
    }


def interval(errors):
    """The factors around a prediction that eight in ten published times lie in."""
    low, *_, high = statistics.quantiles([1 / error for error in errors], n=10)
    return [low, high]


# ---------------------------------------------------------------------------------------------


def fit():
    """The result, which is written, too."""
    from blackwell_kernels import predictions

    published = json.loads(PUBLISHED.read_text())
    versions = [version for version in published["versions"] if version["role"] == "fit"]
    c = fitted(versions)
    found = tested(published, c)
    rows = list(predictions(c, found["within"]))
    means = {}
    for op, best in published["best"].items():
        of_op = [row for row in rows if row["op"] == op]
        for row, us in zip(of_op, best["us"], strict=True):
            row["published"] = us
        before = zip(*(row["before"] for row in of_op), strict=True)
        means[op] = {
            "best": best["geomean"],
            "ours": geomean([row["us"] for row in of_op]),
            "before": [geomean(times) for times in before],
        }
    result = {
        "given": {name: list(facts) for name, facts in GIVEN.items()},
        "fitted": {n: [c[n], *facts[1:]] for n, facts in STARTS.items()},
        "fit": {"versions": [v["name"] for v in versions], "error": math.sqrt(loss(versions, c))},
        "tests": found,
        "ours": rows,
        "geomeans": means,
    }
    path = RESULTS / "blackwell_model.json"
    results.write(path, rounded(result))
    return result


def rounded(tree):
    """Four digits: a run on another machine writes the same file."""
    if isinstance(tree, float):
        return float(f"{tree:.4g}")
    if isinstance(tree, dict):
        return {key: rounded(value) for key, value in tree.items()}
    return [rounded(item) for item in tree] if isinstance(tree, list) else tree


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("plans", "fit", "compare"))
    parser.add_argument("file", nargs="?", type=Path)
    options = parser.parse_args()
    import blackwell_kernels as kernels

    if options.what == "plans":
        kernels.write_plans()
    elif options.what == "compare":
        for op, shape, ours, measured in kernels.compare(options.file):
            print(f"{op} {shape}: predicted {ours:.1f} us, measured {measured:.1f} us")
    else:
        tests = fit()["tests"]
        for name in ("signs", "rank_correlation", "median_error", "within"):
            print(name, tests[name])


if __name__ == "__main__":
    sys.modules["blackwell_model"] = sys.modules["__main__"]  # one module, by either name
    main()
