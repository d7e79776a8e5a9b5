"""Writes measured figures into the documents: `python benchmarks/figures.py`, or `--check`.

They come from benchmarks/results: gpu.json and cpu.json are what `python -m nvfp4kern bench --json`
wrote, overhead.json, decode.json, first_load.json, recipes.json and parallel.json what `--json` of
benchmarks/NAME.py wrote, blackwell_model.json what benchmarks/blackwell_model.py wrote
(figures_model.py and figures_parallel.py have blocks). Counts of the simulated GPU come from
tests/ptxsim/results: sm100_whole.json and sm100_choices.json are what `python -m tests.ptxsim
whole` and `choices` wrote.
A block `<!-- figures: NAME -->` .. `<!-- end -->` of a document is written by the function of that
name in BLOCKS. Pictures are those of figures_pictures.py, and take matplotlib where they are old.
`--check` writes nothing and exits with 1 where something would change.
"""

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from textwrap import fill

import figures_model
import figures_parallel
import figures_pictures

from nvfp4kern.bench.report import TOLERANCE, by_operator, machine, yardstick

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SIMULATED = ROOT / "tests" / "ptxsim" / "results"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", flags=re.S)
ABSENT = "Not measured yet.\n"


def result(name, folder=RESULTS):
    """What was measured, or None."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def timed(found):
    return [row for row in found["rows"] if "time" in row]


# --- Tables ---


WORDS = ("operator", "shape", "layer", "by", "layout", "alternative", "call", "model", "how")
WORDS += ("recipe", "inputs", "choice", "why", "counted", "kernel", "tile", *figures_model.WORDS)
"""Columns that hold no numbers."""


def number(value):
    """Three digits."""
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def median(row, name):
    return row.get(name, {}).get("median")


def best_other(row):
    """(name, microseconds) of the fastest baseline."""
    times = {name: o["median"] for name, o in row["others"].items() if "median" in o}
    name = min(times, key=times.get, default="")
    return name, times.get(name)


def table(header, lines):
    rows = [header, ["---" if name in WORDS else "---:" for name in header], *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in rows)


def measured_on(found, unit=None):
    """One line: the machine, the commit, the data, and the unit."""
    facts = found["environment"]
    unit = unit or ("microseconds" if facts["device"] == "cuda" else "milliseconds")
    names = [machine(facts), f"torch {facts['torch']}"]
    for run in (facts, *facts.get("later", [])):
        names.append(run["date"][:10])
        if "commit" in run:
            names.append(f"commit {run['commit'][:7]}")
    names = list(dict.fromkeys(names))
    names += [f"{facts['data']} data"] if "data" in facts else []
    said = f"{', '.join(names)}; {unit}."
    return fill(said, 120) + "\n\n"


def lines_of(rows, on_gpu):
    for row in rows:
        name, other = best_other(row)
        layout = f"{row['layout']}" if "other" in row else ""
        unit = 1 if on_gpu else 1e-3
        times = [median(row, "time"), median(row, "other")]
        times += [median(row, "cold"), yardstick(row)] if on_gpu else [row.get("torch_rates")]
        cells = [number(None if t is None else t * unit) for t in (*times, other)]
        by = row["backend"] if on_gpu else ""
        yield [row["op"], row["shape"], by, layout, *cells[:-1], name, cells[-1]]


def full_table(rows, on_gpu):
    """Columns that no row fills are left out."""
    header = ["operator", "shape", "by", "layout", "time", "other layout"]
    header += ["cold", "read or floor"] if on_gpu else ["torch's rates"]
    header += ["alternative", "its time"]
    lines = list(lines_of(rows, on_gpu))
    kept = [i for i in range(len(header)) if any(line[i] for line in lines)]
    kept = [i for i in kept if i or len({line[0] for line in lines}) > 1]
    return table([header[i] for i in kept], [[line[i] for i in kept] for line in lines])


def by_tokens(rows):
    """A line for each layer of a mixture: times with either layout, and of the best alternative."""
    layers, counts = {}, sorted({row["sizes"]["tokens"] for row in rows})
    for row in rows:
        tokens = row["sizes"]["tokens"]
        layer = layers.setdefault(row["shape"].replace(f", {tokens} tokens", ""), {})
        times = [number(median(row, name)) for name in ("time", "other") if name in row]
        other = best_other(row)[1]
        layer[tokens] = " / ".join(times) + (f" ({number(other)})" if other else "")
        layer.setdefault("by", {})[row["backend"]] = None
    lines = [
        [name, ", ".join(layer["by"]), *(layer.get(n, "") for n in counts)]
        for name, layer in layers.items()
    ]
    heads = [f"{n} token{'s' * (n > 1)}" for n in counts]
    return table(["layer", "by", *heads], lines)


def of_operator(name):
    def block(gpu, **_):
        rows = by_operator(timed(gpu)).get(name, []) if gpu else []
        mixtures = [row for row in rows if "tokens" in row["sizes"]]
        others = [row for row in rows if row not in mixtures]
        tables = [full_table(others, on_gpu=True)] if others else []
        tables += [by_tokens(mixtures)] if mixtures else []
        return "\n".join(tables) or ABSENT

    return block


def of_cpu(cpu, **_):
    return measured_on(cpu) + full_table(timed(cpu), on_gpu=False) if cpu else ABSENT


def of_overhead(overhead, **_):
    if not overhead:
        return ABSENT
    lines = [[row["call"], number(row["time"])] for row in overhead["rows"]]
    said = f"{overhead['machine']}, {overhead['date']}; microseconds.\n\n"
    return said + table(["call", "time"], lines)


def of_decode(decode, **_):
    """Both models, and how many times as fast as each bfloat16 model each NVFP4 model is."""
    if not decode:
        return ABSENT
    plain = [row for row in decode["rows"] if row["model"] == "bfloat16"]
    header = ["model", "how", "tokens/s", "GB a token", "GB/s"]
    header += [f"over bfloat16, {row['how']}" for row in plain]
    lines = [
        [row["model"], row["how"], number(row["tokens_per_second"]), number(row["gigabytes"]),
         number(row["gigabytes_per_second"]),
         *(f"{row['tokens_per_second'] / other['tokens_per_second']:.2f}" for other in plain)]
        for row in decode["rows"]
    ]  # fmt: skip
    return measured_on(decode, "one sequence") + table(header, lines)


def of_first_load(first_load, **_):
    if not first_load:
        return ABSENT
    said = [f"{number(taken)} s from {code}" for code, taken in first_load["seconds"].items()]
    where = f"{first_load['name']}, driver {first_load['driver_version']}, {first_load['date']}"
    return fill(f"{where}, all portable kernels: {', '.join(said)}.", 120) + "\n"


def of_recipes(recipes, **_):
    """The model in 16 bits, and what each recipe and each way to quantise inputs makes of it."""
    if not recipes:
        return ABSENT
    rows, facts = recipes["rows"], recipes["training"]
    header = ["recipe", "inputs", "perplexity", "loss above, nats", "KL, mean", "KL, 99 %"]
    header += ["error of results", "error of weights"]
    lines = [["none", "16-bit", f"{rows[0]['perplexity_of_reference']:.4f}", *[""] * 5]]
    for row in rows:
        inputs = "16-bit" if row["inputs"] is None else f"NVFP4, {row['inputs']}"
        lines.append(
            [row["recipe"], inputs, f"{row['perplexity']:.4f}",
             f"{row['more']:.4f} ± {row['error']:.4f}",
             *(number(row["kl"][name]) for name in ("mean", "p99")),
             *(f"{row[name]:.4f}" for name in ("results", "weights"))]
        )  # fmt: skip
    what = f"{facts['parameters'] / 1e6:.1f} million parameters"
    what += f", trained on {facts['bytes_seen'] / 1e6:.1f} MB"
    what += f", compared on {rows[0]['positions']} bytes"
    return measured_on(recipes, what) + table(header, lines)


def shape_text(shape):
    """MxNxK, or of a list of groups as many as there are and their common NxK."""
    if isinstance(shape[0], int):
        return "x".join(map(str, shape[:3]))
    return f"{len(shape)} of " + "x".join(map(str, shape[0][1:3]))


def of_whole(sm100_whole, **_):
    """Counts of whole shapes, and how many times the plan's."""
    if not sm100_whole:
        return ABSENT
    header = ["operator", "shape", "tile", "from L2, MB", "of the plan's", "from memory, MB"]
    header += ["of what must be", "MMAs", "of the plan's", "CTAs"]
    lines = []
    for row in sm100_whole["rows"]:
        counted, plan = row["counted"], row["planned"]
        cells = [row["problem"], shape_text(row["shape"]), row["tile"]]
        for name, unit in (("l2_read_bytes", 1e6), ("touched_bytes", 1e6), ("mmas", 1)):
            of_plan = f"{counted[name] / plan[name]:.3f}"
            cells += [str(counted[name]) if unit == 1 else number(counted[name] / unit), of_plan]
        lines.append([*cells, str(counted["ctas"])])
    return table(header, lines)


def of_choices(sm100_choices, **_):
    if not sm100_choices:
        return ABSENT
    sys.path.insert(0, str(ROOT / "tests"))
    from ptxsim.campaigns.choices import CHOICES

    header = ["choice", "why", "shape", "counted", "without it", "with it", "saved"]
    lines = [
        [choice.what, choice.why, shape_text(choice.shape), choice.counter, number(row["without"]),
         number(row["with"]), f"{1 - row['with'] / row['without']:.0%}"]
        for choice, row in zip(CHOICES, sm100_choices["rows"], strict=True)
    ]  # fmt: skip
    return table(header, lines)


def gpu_block(gpu, **_):
    return measured_on(gpu) if gpu else ABSENT


def six_of(gpu):
    """README's rows that were measured."""
    return figures_pictures.six_of(timed(gpu)) if gpu else []


def readme(gpu, **_):
    rows = six_of(gpu)
    if not rows:
        return ABSENT
    header = ["operator", "shape", "ours", "best alternative", "floor"]
    lines = [
        [r["op"], r["shape"], number(median(r, "time")), "{1} ({0})".format(*told(r)), floor(r)]
        for r in rows
    ]
    return measured_on(gpu) + table(header, lines)


def faster_than_ours(rows, machine):
    """One item: by how much, and in how many of an operator's rows, alternatives are faster than
    ours by more than two runs may differ."""
    found, counts = {}, Counter(row["op"] for row in rows if best_other(row)[0])
    for row in rows:
        name, other = best_other(row)
        if other and (ratio := median(row, "time") / other) > 1 + TOLERANCE:
            name = name.partition(",")[0].removesuffix(" indexed")
            found.setdefault((row["op"], name), []).append(ratio)
    parts = [
        f"{name} up to {max(ratios):.2f} times in `{op}` ({len(ratios)} of {counts[op]})"
        for (op, name), ratios in sorted(found.items())
    ]
    count = sum(map(len, found.values()))
    of_all = f"{count} of {sum(counts.values())} rows"
    said = f"- {machine}: [others](docs/benchmarks.md) are faster in {of_all}"
    return fill(f"{said}{': ' * bool(parts)}{', '.join(parts)}.", 120, subsequent_indent="  ")


def readme_slower(gpu, cpu, **_):
    """Where something else is faster."""
    found = [result for result in (gpu, cpu) if result]
    items = [faster_than_ours(timed(one), machine(one["environment"])) for one in found]
    return "\n".join(items) + "\n" if items else ABSENT


def told(row):
    name, time = best_other(row)
    return name, number(time)


def floor(row):
    return number(row.get("floor") or yardstick(row))


# --- Blocks ---

OPERATORS = (
    "gemv", "gemm", "dual_gemm", "grouped_gemm", "grouped_dual_gemm", "route", "sort_by_expert",
    "combine", "experts", "layer", "quantize", "dequantize",
)  # fmt: skip
BLOCKS = {name: of_operator(name) for name in OPERATORS} | {
    "readme": readme,
    "readme-slower": readme_slower,
    "gpu": gpu_block,
    "cpu": of_cpu,
    "overhead": of_overhead,
    "decode": of_decode,
    "first-load": of_first_load,
    "recipes": of_recipes,
    "sm100-whole": of_whole,
    "sm100-choices": of_choices,
}
BLOCKS |= {
    name: lambda blackwell_model, make=make, **_: make(blackwell_model, table, number)
    for name, make in figures_model.BLOCKS.items()
}
BLOCKS |= {
    name: lambda parallel, make=make, **_: measured_on(parallel) + make(parallel, table, number)
    for name, make in figures_parallel.BLOCKS.items()
}


def written(text, results):
    """A document with its blocks filled."""
    return BLOCK.sub(lambda m: m[1] + BLOCKS[m[2]](**results) + m[3], text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1: something is old")
    parser.add_argument("--png", type=Path, metavar="DIR", help="draw all pictures there, too")
    arguments = parser.parse_args()
    only_check = arguments.check
    names = ("gpu", "cpu", "overhead", "decode", "first_load", "recipes", "parallel")
    names += ("blackwell_model",)
    results = {name: result(name) for name in names}
    results |= {name: result(name, SIMULATED) for name in ("sm100_whole", "sm100_choices")}
    new = {path: written(path.read_text(), results) for path in DOCUMENTS}
    old = [path for path, text in new.items() if not path.exists() or path.read_text() != text]
    for path in old:
        print(f"{'old' if only_check else 'written'}: {path.relative_to(ROOT)}")
        if not only_check:
            path.write_text(new[path])
    pictures = figures_pictures.draw(results["gpu"], only_check, arguments.png)
    pictures += figures_pictures.draw_parallel(results["parallel"], only_check, arguments.png)
    for path in pictures:
        print(f"{'old' if only_check else 'drawn'}: {path.relative_to(ROOT)}")
    return 1 if only_check and (old or pictures) else 0


if __name__ == "__main__":
    sys.exit(main())
