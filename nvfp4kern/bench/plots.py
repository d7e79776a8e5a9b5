"""Rows as pictures: sweeps along a size, ratios to floors and to baselines, a grid of sizes."""

import math

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from .report import by_operator, machine, yardstick

OURS, FLOOR = "#0b5cad", "#777777"
OTHERS = ("#d9730d", "#2a9d4e", "#a23fa0", "#b8a000", "#5a4a42")
MARKERS = ("s", "^", "D", "v", "P")
DPI = 130


def _others(row):
    """{baseline: microseconds} of those available; "cuBLAS fp16, a loop" counts as cuBLAS fp16."""
    others = row["others"].items()
    return {name.partition(",")[0]: o["median"] for name, o in others if "median" in o}


def _style(rows):
    """{baseline: colour and marker}, the same in all panels of a figure."""
    names = dict.fromkeys(name for row in rows for name in _others(row))
    looks = [{"color": c, "marker": m} for c, m in zip(OTHERS, MARKERS, strict=True)]
    return {name: looks[i % len(looks)] for i, name in enumerate(names)}


def _floor(on_gpu):
    """What the line beside the times says."""
    return "bandwidth or fp16 rate" if on_gpu else "torch's rates: sum or fp32 matmul"


def _curves(rows, style, on_gpu):
    """label -> (points, look): ours, the baselines, reading and the floor."""
    curves = {"nvfp4kern": ([(r["at"], r["time"]["median"]) for r in rows], {"lw": 2.4})}
    curves["nvfp4kern"][1].update(color=OURS, marker="o", ms=5, zorder=3)
    for name, look in style.items():
        points = [(r["at"], _others(r)[name]) for r in rows if name in _others(r)]
        if points:
            curves[name] = points, {"lw": 1.3, "ms": 4, **look}
    reads = [(r["at"], r["read"]["median"]) for r in rows if "median" in r.get("read", {})]
    if reads:
        look = {"color": FLOOR, "ls": ":", "marker": ".", "lw": 1.6}
        curves["same bytes read, no arithmetic"] = reads, look
    name = "floor" if on_gpu else "torch_rates"
    floors = [(r["at"], r[name]) for r in rows if name in r]
    if floors:
        look = {"color": FLOOR, "ls": "--", "lw": 1.4}
        curves[f"floor: {_floor(on_gpu)}" if on_gpu else _floor(on_gpu)] = floors, look
    return curves


def _panel(axes, rows, style, rate, on_gpu):
    """Times of a series, or what they come to in operations a second."""
    work = {row["at"]: row["work"] / (1e6 if on_gpu else 1e3) for row in rows}
    unit = 1 if on_gpu else 1e-3
    for label, (points, look) in _curves(rows, style, on_gpu).items():
        x = [at for at, _ in points]
        y = [work[at] / time if rate else time * unit for at, time in points]
        axes.plot(x, y, label=label, **look)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted(work), [str(at) for at in sorted(work)], fontsize=8)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.set_title(rows[0]["series"], fontsize=10, loc="left")
    rates, times = ("TFLOP/s", "microseconds") if on_gpu else ("GFLOP/s", "milliseconds")
    axes.set_ylabel(f"{rates} (up is better)" if rate else f"{times} (down is better)")
    axes.set_xlabel("tokens")


def _finish(figure, title, handles_of):
    """One legend for all panels, below them."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    found = {}
    for axes in handles_of:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    columns = min(6, len(found))
    figure.legend(
        found.values(), found, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )


def _sweep(rows, title, on_gpu):
    """A row of panels for each of a few series, a panel for each of many."""
    series = {}
    for row in rows:
        series.setdefault(row["series"], []).append(row)
    style, few = _style(rows), len(series) <= 3
    columns = 2 if few else min(4, len(series))
    lines = len(series) if few else math.ceil(len(series) / columns)
    size = (6.2, 3.8) if few else (4.0, 3.3)
    figure = Figure((size[0] * columns, size[1] * lines + 0.8), dpi=DPI, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    wanted = [
        (one, rate) for one in series.values() for rate in ((False, True) if few else (False,))
    ]
    for axes, (one, rate) in zip(panels, wanted, strict=False):
        _panel(axes, sorted(one, key=lambda row: row["at"]), style, rate, on_gpu)
    for axes in panels[len(wanted) :]:
        axes.set_visible(False)
    _finish(figure, title, panels[: len(wanted)])
    return figure


def _label(row, most=46):
    shape = row["shape"] if len(row["shape"]) <= most else row["shape"][: most - 1] + "…"
    return f"{row['op']} {shape}"


def _ratios(rows, title, on_gpu):
    """Left, our time over read or floor; right, how many times our time the baselines take."""
    style, height = _style(rows), 0.27 * len(rows) + 1.7
    figure = Figure((13, height), dpi=DPI, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    lines = range(len(rows))
    ours = [row["time"]["median"] / yardstick(row) if yardstick(row) else 0 for row in rows]
    left.barh(lines, ours, color=OURS, height=0.65)
    for line, ratio in zip(lines, ours, strict=True):
        text = left.text(
            ratio, line, f" {ratio:.2f}" if ratio else " no floor", va="center", fontsize=8
        )
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0})
    left.axvline(1, color=FLOOR, lw=1.4, ls="--")
    left.set_xlim(0, max(1.2, *ours) * 1.1)
    over = f"floor (same bytes read, else {_floor(on_gpu)})" if on_gpu else f"({_floor(on_gpu)})"
    left.set_xlabel(f"time / {over}: left is better")
    left.set_yticks(lines, [_label(row) for row in rows], fontsize=8)
    left.set_ylim(len(rows) - 0.4, -0.6)
    for name, look in style.items():
        points = [
            (_others(row)[name] / row["time"]["median"], line)
            for line, row in enumerate(rows)
            if name in _others(row)
        ]
        right.scatter(*zip(*points, strict=True), label=name, s=26, **look)
    right.axvline(1, color=FLOOR, lw=1.4, ls="--")
    right.set_xscale("log", base=2)
    right.xaxis.set_major_formatter("{x:g}")
    right.set_xlabel("baseline's time / ours: right of 1 ours is faster")
    for axes in (left, right):
        axes.grid(axis="x", alpha=0.25)
    _finish(figure, title, [right])
    return figure


def _grid(rows, title, on_gpu):
    """time over read or floor, by N (or the gemv's rows) and K."""
    groups = by_operator(rows)
    figure = Figure((6.4 * len(groups), 5.6), dpi=DPI, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    panels = figure.subplots(1, len(groups), squeeze=False).ravel()
    for axes, (op, some) in zip(panels, groups.items(), strict=True):
        cells = {
            (row["sizes"].get("n", row["sizes"]["m"]), row["sizes"]["k"]): row["time"]["median"]
            / (yardstick(row) or math.nan)
            for row in some
        }
        ns, ks = (sorted({cell[side] for cell in cells}) for side in (0, 1))
        values = [[cells.get((n, k), math.nan) for k in ks] for n in ns]
        axes.imshow(values, vmin=1, vmax=2, cmap="viridis_r", origin="lower", aspect="auto")
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                colour = "white" if value > 1.5 else "black"
                axes.text(x, y, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=9)
        axes.set_xticks(range(len(ks)), ks)
        axes.set_yticks(range(len(ns)), ns)
        axes.set_xlabel("K")
        axes.set_ylabel("N")
        axes.set_title(f"{op}, one token: time / read or floor", fontsize=10, loc="left")
    return figure


def draw(result, folder):
    """Writes a file for each set of shapes; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    found = result["environment"]
    on_gpu, title = found["device"] == "cuda", f"nvfp4kern {found['nvfp4kern']}, {machine(found)}"
    kinds, paths = {}, []
    for row in result["rows"]:
        if "time" in row:
            kind = _grid if row["set"] == "grid" else _sweep if row["series"] else _ratios
            kinds.setdefault((row["set"], kind), []).append(row)
    for (name, kind), rows in kinds.items():
        path = folder / f"{name}{kind.__name__}.png"
        kind(rows, f"{name}: {title}", on_gpu).savefig(path)
        paths.append(path)
    return paths
