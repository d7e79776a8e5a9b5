"""Rows as tables: a run's, and its ratios to an earlier one's."""

from rich.table import Table

TOLERANCE = 0.03
"""What medians of two runs may differ by without a mark."""


def is_wrong(row):
    """Not so where nothing could be computed."""
    return not row.get("right", True)


def _time(entry):
    return f"{entry['median']:.2f}"


def bound(row):
    """What `/ bound` is over: the reading kernel where that was timed, else the floor."""
    read = row.get("read", {})
    return read.get("median") or row.get("floor")


def _baseline(row, name):
    """Its time, and how many times ours that is."""
    entry = row["others"].get(name)
    if entry is None:
        return ""
    if "unavailable" in entry:
        return "unavailable"
    return f"{_time(entry)} ({entry['median'] / row['time']['median']:.2f}x)"


def _read(row):
    entry = row.get("read", {})
    return "unavailable" if "unavailable" in entry else _time(entry) if entry else ""


def _cells(row, baselines, on_gpu):
    if is_wrong(row):
        return row["shape"], "[red]WRONG RESULT, not timed"
    if "time" not in row:
        return row["shape"], "unavailable"
    cells = [row["shape"], "{median:.2f} ({low:.2f}, {high:.2f})".format(**row["time"])]
    if on_gpu:
        cells += [_time(row["cold"]), f"{row['floor']:.2f}", _read(row)]
        cells.append(f"{row['time']['median'] / bound(row):.2f}")
    return *cells, *(_baseline(row, name) for name in baselines)


def _two_lines(name):
    """Broken where that leaves it narrowest."""
    breaks = [i for i, letter in enumerate(name) if letter == " "]
    middle = min(breaks, key=lambda i: abs(2 * i - len(name)), default=None)
    return name if middle is None else f"{name[:middle]}\n{name[middle + 1 :]}"


def _table(op, rows, on_gpu):
    baselines = list(dict.fromkeys(name for row in rows for name in row.get("others", {})))
    table = Table(title=f"{op}, microseconds", title_justify="left")
    table.add_column("shape", min_width=20, overflow="fold")
    columns = ["time (quartiles)"]
    columns += ["cold", "floor", "read", "/ bound"] if on_gpu else []
    for name in columns + [_two_lines(name) + "\n(/ ours)" for name in baselines]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, baselines, on_gpu))
    return table


def _title(found):
    title = f"nvfp4kern {found['nvfp4kern']}, torch {found['torch']}"
    if "gpu" in found:
        c = found["ceilings"]
        title += f", {found['gpu']}: reads {c['read'] / 1e6:.2f} TB/s, copies "
        title += f"{c['copy'] / 1e6:.2f} TB/s, fp16 8192^3 {c['rate'] / 1e6:.0f} TFLOP/s"
    return f"{title}; {found['date']}, {found.get('seconds', 0):.0f} s"


def _missing(rows):
    """Every reason why something is unavailable, once for each operator."""
    for row in rows:
        ours = {row["shape"]: row} | {"read": row.get("read", {})}
        for name, entry in (ours | row.get("others", {})).items():
            if "unavailable" in entry:
                yield f"{row['op']}: {name} is unavailable: {entry['unavailable']}"


def by_operator(rows):
    """{operator: rows}, in order of appearance."""
    groups = {}
    for row in rows:
        groups.setdefault(row["op"], []).append(row)
    return groups


def show(console, result):
    on_gpu = result["environment"]["device"] == "cuda"
    console.print(_title(result["environment"]), soft_wrap=True)
    for op, rows in by_operator(result["rows"]).items():
        console.print(_table(op, rows, on_gpu))
    for text in dict.fromkeys(_missing(result["rows"])):
        console.print(text, soft_wrap=True, markup=False, highlight=False)
    wrong = sum(map(is_wrong, result["rows"]))
    if wrong:
        console.print(f"[red]{wrong} of {len(result['rows'])} rows: WRONG RESULT")


def line(row):
    """A row in short, for a log."""
    time = _time(row["time"]) if "time" in row else row.get("unavailable", "WRONG RESULT")
    return f"{row['op']} {row['shape']}: {time}"


# ---------------------------------------------------------------------------------------------
# Comparison
# ---------------------------------------------------------------------------------------------


def _key(row):
    return row["set"], row["op"], row["shape"]


def _pairs(earlier, later):
    """Rows of both that were timed in both, and the names of the others."""
    before = {_key(row): row for row in earlier["rows"]}
    pairs, alone = [], []
    for row in later["rows"]:
        other = before.pop(_key(row), None)
        if other and "time" in other and "time" in row:
            pairs.append((other, row))
        else:
            alone.append(_key(row))
    return pairs, [": ".join(key) for key in (*alone, *before)]


def ratios(earlier, later):
    """For what both rows have, how many times the earlier median the later one is."""
    found = {}
    for name in ("time", "cold", "read"):
        old, new = (row.get(name, {}).get("median") for row in (earlier, later))
        if old and new:
            found[name] = new / old
    return found


def _marked(ratio):
    if ratio is None:
        return ""
    colour = "red" if ratio > 1 + TOLERANCE else "green" if ratio < 1 - TOLERANCE else None
    return f"[{colour}]* {ratio:.3f}[/]" if colour else f"{ratio:.3f}"


def compare(console, earlier, later):
    """Later over earlier: above 1 is slower. A star where they differ by more than TOLERANCE."""
    pairs, alone = _pairs(earlier, later)
    title = f"later / earlier ({earlier['environment'].get('date')}); * beyond {TOLERANCE:.0%}"
    table = Table(title=title, title_justify="left")
    for name in ("operator", "shape", "earlier", "later", "time", "cold", "read"):
        table.add_column(name, justify="left" if name in ("operator", "shape") else "right")
    changed, far = 0, 0.0
    for old, new in pairs:
        found = ratios(old, new)
        changed += abs(found["time"] - 1) > TOLERANCE
        far = max(far, abs(found["time"] - 1))
        marked = [_marked(found.get(name)) for name in ("time", "cold", "read")]
        table.add_row(new["op"], new["shape"], _time(old["time"]), _time(new["time"]), *marked)
    console.print(table)
    for name in sorted(set(earlier["environment"]) | set(later["environment"])):
        old, new = (result["environment"].get(name) for result in (earlier, later))
        if old != new and name not in ("date", "seconds", "ceilings"):
            console.print(f"{name}: {old} before, {new} now", markup=False, soft_wrap=True)
    for name in alone:
        console.print(f"not compared: {name}", markup=False, soft_wrap=True)
    console.print(
        f"{len(pairs) - changed} of {len(pairs)} times within {TOLERANCE:.0%}, "
        f"the farthest {far:.1%} away"
    )
