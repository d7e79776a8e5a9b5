"""Rows as tables: a run's, and its ratios to an earlier one's."""

from dataclasses import dataclass
from textwrap import fill

from rich import box
from rich.table import Table

from ..machine import in_words

WIDE = 160
"""Columns that the widest table takes with a row to a line."""

BUSY = 0.5
"""Load average as a run begins on a CPU from which others may take part."""

TOLERANCE = 0.03
"""What medians of two runs may differ by without a mark."""


BESIDE = 3
"""Baselines that a table has. A further table has the rest."""

DISTURBED = 0.1
"""Half of what lies between quartiles, over the median, from which a row is marked."""

TIMES = ("time", "other", "cold", "read")
"""What rows of two runs are compared by, where both have it."""


def is_wrong(row):
    """Not so where nothing could be computed."""
    return not row.get("right", True)


def is_bad(row):
    return is_wrong(row) or "failed" in row


def spread(entry):
    """Half of what lies between the quartiles, over the median; 0 for a median alone."""
    return (entry["high"] - entry["low"]) / 2 / entry["median"] if "low" in entry else 0.0


def disturbed(row):
    """{name: spread} of what something disturbed: baselines, the reading kernel, and ours."""
    entries = {"ours": row.get("time", {}), "read": row.get("read", {})} | row.get("others", {})
    found = {name: spread(entry) for name, entry in entries.items() if "median" in entry}
    return {name: wide for name, wide in found.items() if wide > DISTURBED}


def _time(microseconds, on_gpu):
    return f"{microseconds:.2f}" if on_gpu else f"{microseconds / 1000:.3f}"


def _unit(on_gpu):
    return "microseconds" if on_gpu else "milliseconds"


def yardstick(row):
    """What a time is compared with: the reading kernel where that was timed, else the floor. On a
    CPU torch's rates, which are no floor."""
    return row.get("read", {}).get("median") or row.get("floor") or row.get("torch_rates")


@dataclass
class _Look:
    """How a cell's parts are written."""

    on_gpu: bool
    narrow: bool
    """Further lines have what belongs to a time: half of what lies between quartiles, in per cent,
    the time with the other layout, or a ratio."""

    @property
    def between(self):
        return "\n" if self.narrow else " "

    def time(self, microseconds):
        return "" if microseconds is None else _time(microseconds, self.on_gpu)

    def ours(self, row, layout):
        """One cell, or two where scales have a `layout` beside that of `time`."""
        median, low, high = (row["time"].get(name) for name in ("median", "low", "high"))
        cell = [self.time(median)]
        other = [self.time(row.get("other", {}).get("median"))] if layout else []
        if low is not None:  # a median of several runs has none
            wide = f"±{spread(row['time']):.0%}"
            cell.append(wide if self.narrow else f"({self.time(low)}, {self.time(high)})")
        return ["\n".join(cell + other)] if self.narrow else [" ".join(cell), *other]

    def baseline(self, row, name):
        """Its time, and how many times ours that is."""
        entry = row["others"].get(name)
        if entry is None:
            return ""
        if "unavailable" in entry:
            return "unavailable"
        ratio = entry["median"] / row["time"]["median"]
        mark = "~" if name in disturbed(row) else ""
        return f"{self.time(entry['median'])}{self.between}({mark}{ratio:.2f}x)"

    def read(self, row):
        """The reading kernel's time, and what it takes cold: that is younger than some files."""
        entry = row.get("read", {})
        if "unavailable" in entry:
            return "unavailable"
        found = ("~" if "read" in disturbed(row) else "") + self.time(entry.get("median"))
        if "read_cold" not in row:
            return found
        cold = self.time(row["read_cold"]["median"])
        return f"{found}\n{cold}" if self.narrow else f"{found} ({cold})"

    def limits(self, row):
        """What the machine's ceilings make of the row."""
        ratio = f"{row['time']['median'] / yardstick(row):.2f}" if yardstick(row) else ""
        if not self.on_gpu:
            return self.time(row.get("torch_rates")), ratio
        cold = self.time(row.get("cold", {}).get("median"))
        floor = self.time(row.get("floor"))
        return cold, floor, self.read(row), ratio


def _cells(row, layout, baselines, look):
    if is_wrong(row):
        return row["shape"], "[red]WRONG RESULT, not timed"
    if "time" not in row:
        return row["shape"], "[red]FAILED" if "failed" in row else "unavailable"
    others = (look.baseline(row, name) for name in baselines)
    return row["shape"], *look.ours(row, layout), *look.limits(row), *others


OTHER = {"blocked": "linear", "linear": "blocked"}


def other_layout(rows):
    """Whose times beside `time` the rows have, if any."""
    return next((OTHER[row["layout"]] for row in rows if "other" in row), None)


def _two_lines(name):
    """Broken where that leaves it narrowest."""
    breaks = [i for i, letter in enumerate(name) if letter == " "]
    middle = min(breaks, key=lambda i: abs(2 * i - len(name)), default=None)
    return name if middle is None else f"{name[:middle]}\n{name[middle + 1 :]}"


def _empty_table(title, narrow):
    looks = {"box": box.SIMPLE_HEAD, "pad_edge": False, "padding": 0} if narrow else {}
    return Table(title=title, title_justify="left", **looks)


def _table(op, rows, baselines, on_gpu, narrow):
    layout = other_layout(rows)
    scales = f", time with {OTHER[layout]} scales" if layout else ""
    table = _empty_table(f"{op}, {_unit(on_gpu)}{scales}", narrow)
    table.add_column("shape", min_width=12 if narrow else 20, overflow="fold")
    columns = ["torch's\nrates", "/ torch's\nrates"]
    if on_gpu:
        columns = ["cold", "floor", "read,\ncold" if narrow else "read (cold)", "/ read\nor floor"]
    time = "time (quartiles)"
    if narrow:
        time = "\n".join(["time", "(± spread)", *[layout] * bool(layout)])
    elif layout:
        columns = [layout, *columns]
    look = _Look(on_gpu, narrow)
    titles = [
        fill(name, 11, break_long_words=False) if narrow else _two_lines(name) for name in baselines
    ]
    titles = [f"{title}\n(/ ours)" for title in titles]
    for name in [time, *columns, *titles]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, layout, baselines, look))
    return table


def _tables(op, rows, *look):
    """The first has all rows, further ones those with baselines of theirs."""
    names = list(dict.fromkeys(name for row in rows for name in row.get("others", {})))
    yield _table(op, rows, names[:BESIDE], *look)
    for i in range(BESIDE, len(names), BESIDE):
        some = names[i : i + BESIDE]
        yield _table(op, [r for r in rows if set(some) & set(r.get("others", {}))], some, *look)


def _title(found):
    title = f"nvfp4kern {found['nvfp4kern']}, torch {found['torch']}"
    title += f", {found['data']} data" if "data" in found else ""
    if "ceilings" in found:
        on_gpu = "gpu" in found
        unit, scale, product = ("T", 1e6, "fp16 8192^3") if on_gpu else ("G", 1e3, "fp32 2048^3")
        read, copy, rate = (found["ceilings"][name] / scale for name in ("read", "copy", "rate"))
        digits = 2 if on_gpu else 1
        title += f", {machine(found)}: reads {read:.{digits}f} {unit}B/s, "
        title += f"copies {copy:.{digits}f} {unit}B/s, {product} {rate:.0f} {unit}FLOP/s"
    if found.get("load", 0) > BUSY:
        title += f" (load {found['load']} as it began: small shapes mean little)"
    return f"{title}; {found['date']}, {found.get('seconds', 0):.0f} s"


def machine(found):
    """What an environment was measured on."""
    return found["gpu"] if "gpu" in found else in_words(found)


def _missing(rows):
    """Every reason why something is unavailable, once for each operator."""
    for row in rows:
        if "failed" in row:
            yield f"{row['op']}: {row['shape']} failed: {row['failed']}"
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
    """In tables that fit 80 columns where the console has fewer than WIDE."""
    on_gpu = result["environment"]["device"] == "cuda"
    console.print(_title(result["environment"]), soft_wrap=True)
    for op, rows in by_operator(result["rows"]).items():
        for table in _tables(op, rows, on_gpu, console.width < WIDE):
            console.print(table)
    for text in dict.fromkeys(_missing(result["rows"])):
        console.print(text, soft_wrap=True, markup=False, highlight=False)
    rows = filter(disturbed, result["rows"])
    marked = [f"{row['op']} {row['shape']}: {_in_words(row)}" for row in rows]
    if marked:
        console.print(
            f"~ disturbed, {len(marked)} of {len(result['rows'])} rows: quartiles are farther from "
            f"the median than {DISTURBED:.0%}",
            soft_wrap=True,
        )
    for text in marked:
        console.print(f"  {text}", soft_wrap=True, markup=False, highlight=False)
    wrong = sum(map(is_wrong, result["rows"]))
    if wrong:
        console.print(f"[red]{wrong} of {len(result['rows'])} rows: WRONG RESULT")


def _in_words(row):
    return ", ".join(f"{name} ±{wide:.0%}" for name, wide in disturbed(row).items())


def line(row):
    """A row in short, for a log."""
    time = row.get("unavailable") or row.get("failed") or "WRONG RESULT"
    if "time" in row:
        time = f"{row['time']['median']:.2f} us"
        time += f"; ~ disturbed: {_in_words(row)}" if disturbed(row) else ""
    return f"{row['op']} {row['shape']}: {time}"


# --- Comparison ---


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
    for name in TIMES:
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
    on_gpu, date = later["environment"]["device"] == "cuda", earlier["environment"].get("date")
    title = f"later / earlier ({date}), {_unit(on_gpu)}; * beyond {TOLERANCE:.0%}"
    table = _empty_table(title, console.width < WIDE)
    for name in ("operator", "shape", "earlier", "later", *TIMES):
        table.add_column(name, justify="left" if name in ("operator", "shape") else "right")
    changed, far = 0, 0.0
    for old, new in pairs:
        found = ratios(old, new)
        changed += abs(found["time"] - 1) > TOLERANCE
        far = max(far, abs(found["time"] - 1))
        marked = [_marked(found.get(name)) for name in TIMES]
        table.add_row(
            new["op"],
            new["shape"],
            *(_time(row["time"]["median"], on_gpu) for row in (old, new)),
            *marked,
        )
    console.print(table)
    for name in sorted(set(earlier["environment"]) | set(later["environment"])):
        old, new = (result["environment"].get(name) for result in (earlier, later))
        if old != new and name not in ("date", "seconds", "ceilings", "later"):
            console.print(f"{name}: {old} before, {new} now", markup=False, soft_wrap=True)
    for name in alone:
        console.print(f"not compared: {name}", markup=False, soft_wrap=True)
    console.print(
        f"{len(pairs) - changed} of {len(pairs)} times within {TOLERANCE:.0%}, "
        f"the farthest {far:.1%} away"
    )
