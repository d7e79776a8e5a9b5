"""Rows as pictures, one for each question: am I faster than what I use, how far from the floor, and
how does it grow with tokens?"""

import math
from textwrap import wrap

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from .report import OTHER, by_operator, disturbed, machine, yardstick

OURS, FLOOR = "#0b5cad", "#555555"
OTHERS = ("#d9730d", "#2a9d4e", "#a23fa0", "#9a8300", "#5a4a42", "#c2185b", "#00838f")
MARKERS = ("s", "^", "D", "v", "P", "X", "<")
DPI = 130
WIDTH = 8.6
"""Inches. A page that shows 830 pixels across then shows letters as they are."""
APART = 0.012
"""How far from each other the points of one number of tokens lie, of the width of a picture."""

MOST_COUNTS = 8
"""Of tokens, of which two panels have room beside each other."""

MOST_ROWS = 40
"""Of a picture; a set with more has one for each operator."""

TICKS = (1, 1.25, 1.5, 2, 3, 5, 7)
"""Of a decade on an axis of ratios that spans no more; a longer axis has fewer."""


def _others(row):
    """{baseline: its times} of those available; "cuBLAS fp16, a loop" counts as cuBLAS fp16."""
    return {n.partition(",")[0]: o for n, o in row["others"].items() if "median" in o}


def _style(rows):
    """{baseline: colour and marker}, the same in all panels of a figure."""
    names = dict.fromkeys(name for row in rows for name in _others(row))
    looks = [{"color": c, "marker": m} for c, m in zip(OTHERS, MARKERS, strict=True)]
    return {name: looks[i % len(looks)] for i, name in enumerate(names)}


def _between(time):
    """(low, median, high); a median of several runs has no quartiles."""
    return tuple(time.get(name, time["median"]) for name in ("low", "median", "high"))


def _ratio(over, under):
    """(low, median, high) of a ratio of times. Its bar has the quartiles of both."""
    (low, middle, high), (least, median, most) = _between(over), _between(under)
    return low / most, middle / median, high / least


def _errors(triples):
    """What errorbar() takes: how far the quartiles are from the medians."""
    return [[m - low for low, m, _ in triples], [high - m for _, m, high in triples]]


def _finish(figure, question, about, handles_of):
    """The question and what was measured above, one legend for all panels below."""
    figure.suptitle(f"{question}\n{about}", x=0.01, ha="left", fontsize=11)
    found = {}
    for axes in handles_of:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(
        found.values(),
        found,
        loc="outside lower left",
        ncols=3,
        frameon=False,
        fontsize=9,
    )


# --- Ratios, a line for each row ---


def _label(row, alone):
    """`alone`: of the picture's only operator. ~ marks what the tables mark."""
    name = row["shape"] if alone else f"{row['op']} {row['shape']}"
    lines = wrap("~ " * bool(disturbed(row)) + name, 40, break_on_hyphens=False)
    return "\n".join(lines[:2]) + "…" * (len(lines) > 2)


def _ratio_axis(axes, values):
    low, high = min(0.9, *values) / 1.06, max(1.1, *values) * 1.06
    wanted = TICKS if high / low < 12 else (1, 2, 5) if high / low < 500 else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [tick * 10.0**decade for decade in decades for tick in wanted]
    if high / low < 3:
        ticks += [0.6, 0.8, 0.9, 1.1]
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlim(low, high)
    axes.minorticks_off()
    axes.axvline(1, color=FLOOR, lw=1.4, ls="--")
    axes.grid(axis="x", alpha=0.3)


def _lines(rows, points, texts, across):
    """A figure with a line for each row. points: {label: ({line: (low, median, high)}, look)};
    those of a line lie below each other, so that none hides another."""
    of_row = [[label for label in points if i in points[label][0]] for i in range(len(rows))]
    labels = [_label(row, alone=bool(_alone(rows))) for row in rows]
    each = max(0.24, 0.12 * max(map(len, of_row)), 0.32 * any("\n" in label for label in labels))
    figure = Figure((WIDTH, each * len(rows) + 2.1), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for label, (of_line, look) in points.items():
        places = [(of_row[line].index(label) + 0.5) / len(of_row[line]) for line in of_line]
        triples = list(of_line.values())
        axes.errorbar(
            [median for _, median, _ in triples],
            [line + 0.9 * (at - 0.5) for line, at in zip(of_line, places, strict=True)],
            xerr=_errors(triples),
            label=label,
            **{"ls": "", "ms": 5, "elinewidth": 1.2, **look},
        )
    for line in range(0, len(rows), 2):
        axes.axhspan(line - 0.5, line + 0.5, color="#f2f4f7", zorder=0)
    of_rows = axes.get_yaxis_transform()
    for line, text in enumerate(texts):
        axes.text(1.01, line, text, transform=of_rows, va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    values = [v for of_line, _ in points.values() for triple in of_line.values() for v in triple]
    _ratio_axis(axes, values)
    axes.set_xlabel(across)
    return figure, [axes]


def alternatives(rows, on_gpu):
    """Baselines' times over ours."""
    rows = [row for row in rows if _others(row)]
    points = {
        name: (
            {
                i: _ratio(_others(r)[name], r["time"])
                for i, r in enumerate(rows)
                if name in _others(r)
            },
            look,
        )
        for name, look in _style(rows).items()
    }
    if not points:
        return None
    best = [min(o["median"] for o in _others(r).values()) / r["time"]["median"] for r in rows]
    texts = [f"{ratio:.2f}" for ratio in best]
    across = "alternative's time / ours, with quartiles: right of 1 ours is faster\n"
    across += "at the edge: the fastest alternative's"
    return "Am I faster than what I use?", *_lines(rows, points, texts, across)


def _yardstick_in_words(on_gpu):
    if on_gpu:
        return "the floor:\na kernel that reads the same bytes, else bandwidth or fp16 rate"
    return "torch's rates:\nits sum of as many bytes, or its fp32 product of as many operations"


def _ours(row):
    """(name, look, times) with each layout of scale factors."""
    for name, layout in (("time", row.get("layout")), ("other", OTHER.get(row.get("layout")))):
        if name in row:
            label = f"nvfp4kern, {layout} scales" if layout else "nvfp4kern"
            hollow = {"mfc": "white"} if layout == "linear" else {}
            yield label, {"color": OURS, "marker": "o" if layout else "D"} | hollow, row[name]


def floor(rows, on_gpu):
    """Our times over the reading kernel's or the floor, with both layouts of scale factors."""
    rows, points = [row for row in rows if yardstick(row)], {}
    for i, row in enumerate(rows):
        under = row["read"] if "median" in row.get("read", {}) else {"median": yardstick(row)}
        for label, look, times in _ours(row):
            points.setdefault(label, ({}, look))[0][i] = _ratio(times, under)
    if not rows:
        return None
    texts = [f"{row['time']['median'] / yardstick(row):.2f}" for row in rows]
    question = "How far from the floor?" if on_gpu else "How far from torch's rates?"
    return question, *_lines(rows, points, texts, f"time over {_yardstick_in_words(on_gpu)}")


# --- Times along tokens ---


def _curves(rows, style, on_gpu):
    """label -> (points, look): ours with each layout, the baselines, what ours cannot be below."""
    curves = {}
    for row in rows:
        for label, look, times in _ours(row):
            points, _ = curves.setdefault(label, ([], {"lw": 2, "ms": 5, **look}))
            points.append((row["at"], _between(times)))
    for name, look in style.items():
        points = [(r["at"], _between(_others(r)[name])) for r in rows if name in _others(r)]
        if points:
            curves[name] = points, {"lw": 1.1, "ms": 4, **look}
    floors = [(r["at"], (yardstick(r),) * 3) for r in rows if yardstick(r)]
    if floors:
        name = "floor: as many bytes, or fp16 rate"
        look = {"color": FLOOR, "ls": "--", "lw": 1.4}
        curves[name if on_gpu else "torch's rates: sum or fp32 matmul"] = floors, look
    return curves


def _panel(axes, title, rows, style, on_gpu, wide):
    """Times of a series. Points lie beside each other, so that none hides another."""
    curves, unit = _curves(rows, style, on_gpu), 1 if on_gpu else 1e-3
    counts = sorted({row["at"] for row in rows})
    apart = APART * math.log2(counts[-1] / counts[0]) / (1 if wide else 0.5)
    for i, (label, (points, look)) in enumerate(curves.items()):
        shift = 2 ** (apart * (i - (len(curves) - 1) / 2)) if "marker" in look else 1
        triples = [tuple(unit * time for time in times) for _, times in points]
        axes.errorbar(
            [at * shift for at, _ in points],
            [median for _, median, _ in triples],
            yerr=_errors(triples) if "marker" in look else None,
            label=label,
            **look,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(counts, [str(at) for at in counts], fontsize=8)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.set_title(title, fontsize=10, loc="left")


def tokens(rows, on_gpu):
    """A panel for each series with several numbers of tokens."""
    found = {}
    for row in rows:
        if row["series"]:
            found.setdefault((row["op"], row["series"]), []).append(row)
    series = [one for one in found.values() if len({row["at"] for row in one}) > 1]
    if not series:
        return None
    counts = {row["at"] for row in rows}
    wide = len(series) == 1 or len(counts) > MOST_COUNTS
    style, columns = _style(sum(series, [])), 1 if wide else 2
    lines = math.ceil(len(series) / columns)
    figure = Figure((WIDTH, 2.9 * lines + 1.2), dpi=DPI, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False)
    for axes, one in zip(panels.ravel(), series, strict=False):
        op, name = one[0]["op"], one[0]["series"]
        title = name if op in name or _alone(rows) else f"{op}, {name}"
        _panel(axes, title, sorted(one, key=lambda row: row["at"]), style, on_gpu, wide)
    for axes in panels.ravel()[len(series) :]:
        axes.set_axis_off()
    unit = "microseconds" if on_gpu else "milliseconds"
    for axes in panels[:, 0]:
        axes.set_ylabel(f"{unit} (down is better)")
    for axes in panels[-1]:
        axes.set_xlabel("tokens; points of one number lie beside each other")
    return "How does it grow with tokens?", figure, panels.ravel()[: len(series)]


# --- A grid of sizes ---


def _grid(rows, on_gpu):
    """time over read or floor, by N (or the gemv's rows) and K."""
    groups = by_operator(rows)
    figure = Figure((6.4 * len(groups), 5.6), dpi=DPI, layout="constrained")
    panels = figure.subplots(1, len(groups), squeeze=False).ravel()
    for axes, (op, some) in zip(panels, groups.items(), strict=True):
        cells = {
            (row["sizes"].get("n", row["sizes"]["m"]), row["sizes"]["k"]): row["time"]["median"]
            / (yardstick(row) or math.nan)
            for row in some
        }
        ns, ks = (sorted({cell[side] for cell in cells}) for side in (0, 1))
        values = [[cells.get((n, k), math.nan) for k in ks] for n in ns]
        axes.imshow(
            values, norm="log", vmin=1, vmax=2, cmap="viridis_r", origin="lower", aspect="auto"
        )
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                colour = "white" if value > 1.4 else "black"
                axes.text(x, y, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=9)
        axes.set_xticks(range(len(ks)), ks)
        axes.set_yticks(range(len(ns)), ns)
        axes.set_xlabel("K")
        axes.set_ylabel("N")
        axes.set_title(f"{op}, one token: time / read or floor", fontsize=10, loc="left")
    return "How far from the floor?", figure, []


# ---------------------------------------------------------------------------------------------


def _about(found):
    """What was measured, where, when, and of which commit or version."""
    commit = f"commit {found['commit']}" if "commit" in found else f"nvfp4kern {found['nvfp4kern']}"
    return f"{machine(found)}, {found['date'][:10]}, {commit}"


def _alone(rows):
    """The operator of all of them, if that is one."""
    found = list(by_operator(rows))
    return found if len(found) == 1 else []


def _parts(rows):
    """{name: rows}: a set, or an operator of one that is too large for a picture."""
    groups = by_operator(rows)
    if len(rows) <= MOST_ROWS or len(groups) == 1:
        return {"": rows}
    return {f"_{op}": some for op, some in groups.items()}


def _pictures(name, rows):
    """(file's name, what draws it, its rows)"""
    if name == "grid":
        yield "grid_floor", _grid, rows
        return
    for part, some in _parts(rows).items():
        yield f"{name}{part}_alternatives", alternatives, some
        yield f"{name}{part}_floor", floor, some
        yield f"{name}{part}_tokens", tokens, some


def drawn(picture, rows, name, environment):
    """The figure that a picture makes of rows, with its title; None where they answer nothing."""
    found = picture(rows, environment["device"] == "cuda")
    if not found:
        return None
    question, figure, panels = found
    what = ", ".join([name, *_alone(rows)])
    _finish(figure, f"{question} ({what})", _about(environment), panels)
    return figure


def draw(result, folder):
    """Writes files for each set of shapes, one for each question; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    sets, paths = {}, []
    for row in result["rows"]:
        if "time" in row:
            sets.setdefault(row["set"], []).append(row)
    for name, rows in sets.items():
        for file, picture, some in _pictures(name, rows):
            if figure := drawn(picture, some, name, result["environment"]):
                paths.append(folder / f"{file}.png")
                figure.savefig(paths[-1])
    return paths
