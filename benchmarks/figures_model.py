"""The blocks of docs/blackwell-model.md, of what blackwell_model.py wrote."""

from textwrap import fill

WORDS = ("constant", "unit", "source", "what it is", "step", "limited by", "kernel", "version")
WORDS += ("test", "verdict", "interval", "with fences")
"""Columns that hold no numbers."""


def constants(found, table, number, said):
    rows = [[name, number(value), unit, what] for name, (value, unit, what) in found.items()]
    return table(["constant", "value", "unit", said], rows)


def given(found, *looks):
    return constants(found["given"], *looks, "source")


def fitted(found, *looks):
    fit = found["fit"]
    versions = f"{fit['versions'][0]} to {fit['versions'][-1]}"
    said = (
        f"Fitted to {versions} of the worklog, on four shapes each: {fit['error']:.1%} of error, "
    )
    said += "as a root of the mean square."
    return fill(said, 120) + "\n\n" + constants(found["fitted"], *looks, "what it is")


def passed(ok):
    return "passes" if ok else "FAILS"


def tests(found, table, number):
    found = found["tests"]
    (right, steps), *of_authors = found["signs"]
    rank, error = found["rank_correlation"], found["median_error"]
    rows = [
        ["right sign of every published step above 5 %", f"{right} of {steps}",
         passed(right == steps)],
        *(
            [f"of these, steps of {who}", "{} of {}".format(*signs), ""]
            for who, signs in zip(("the worklog", "the article"), of_authors, strict=True)
        ),
        ["rank correlation of at least 0.8", number(rank), passed(rank >= 0.8)],
        ["median error, stated", f"{error:.1%}", ""],
    ]  # fmt: skip
    low, high = found["within"]
    said = (
        f"Eight in ten published times lie between {low:.2f} and {high:.2f} of the model's: that "
    )
    said += "is the interval of predictions."
    return table(["test", "result", "verdict"], rows) + "\n" + fill(said, 120) + "\n"


def versions(found, table, number):
    """A version to a line, published and predicted for each shape."""
    lines = {}
    for row in found["tests"]["rows"]:
        cell = f"{number(row['published'])} / {number(row['model'])}"
        lines.setdefault(row["version"], {})[row["shape"]] = cell
    shapes = ("A", "B", "C", "D", "geomean")
    rows = [[name, *(cells.get(s, "") for s in shapes)] for name, cells in lines.items()]
    return table(["version", *shapes], rows)


def label(row):
    if row["op"] == "grouped_gemm":
        return "m=" + ",".join(str(m) for m, *_ in row["shape"])
    return "x".join(str(size) for size in row["shape"])


def fenced(before, us, number):
    """The range, or nothing where no fence was."""
    return "" if before == [us, us] else " - ".join(map(number, before))


def ours(found, table, number):
    rows = []
    for row in found["ours"]:
        parts = row["terms"]
        times = [number(row["us"]), f"{number(row['low'])} - {number(row['high'])}"]
        times.append(fenced(row["before"], row["us"], number))
        cells = [parts["call"], parts.get("main loop", parts.get("HBM")), parts.get("epilogue")]
        cells = [number(row["published"]), *times, *map(number, cells), row["bound"]]
        rows.append([row["op"], label(row), row["tile"], *cells])
    header = ["operator", "shape", "tile", "published", "us", "interval", "with fences", "call",
              "main loop", "epilogue", "limited by"]  # fmt: skip
    faster = [f"{r['op']} {label(r)}" for r in found["ours"] if r["us"] < r["published"]]
    said = f"Predicted to be faster than the published: {len(faster)} of {len(rows)} shapes"
    said += f" ({', '.join(faster)})." if faster else "."
    return table(header, rows) + "\n" + fill(said, 120) + "\n"


def means(found, table, number):
    rows = []
    for name, row in found["geomeans"].items():
        before = fenced(row["before"], row["ours"], number)
        rows.append([name, number(row["best"]), number(row["ours"]), before])
    return table(["operator", "best published", "ours, predicted", "with fences"], rows)


BLOCKS = {
    "blackwell-given": given,
    "blackwell-fitted": fitted,
    "blackwell-tests": tests,
    "blackwell-versions": versions,
    "blackwell-ours": ours,
    "blackwell-means": means,
}
