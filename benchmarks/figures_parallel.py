"""The blocks and the picture of docs/distributed.md, of what parallel.py wrote."""

LAYERS = ("feed-forward of", "experts of", "mixture of")
CONTENDERS = {"peer": "peers", "collective": "NCCL", "one GPU": "one GPU, all of it"}
MORE = {"one GPU, its share": "one GPU, its share", "peer, in line": "peers, shared experts first"}
"""Of some layers alone."""


def sums(found, table, number):
    rows = [row for row in found["rows"] if row["what"] == "all_reduce"]
    lines = [
        [row["size"], str(row["ranks"]), number(row["us"]["peer"]), number(row["us"]["collective"])]
        for row in rows
    ]
    return table(["sums of", "ranks", "peers", "NCCL"], lines)


def layers_of(found):
    """{layer: its rows}"""
    layers = {}
    for row in found["rows"]:
        if row["what"].startswith(LAYERS):
            layers.setdefault(row["what"], []).append(row)
    return layers


def layers(found, table, number):
    """Of experts whose result has one GPU's bits: with a mark."""
    lines, columns = [], dict(CONTENDERS)
    for each, head in MORE.items():
        if any(each in row["us"] for row in found["rows"]):
            columns[each] = head
    for name, rows in layers_of(found).items():
        for row in rows:
            times = [number(row["us"].get(each)) for each in columns]
            times[0] += " =" * ("peer" in row.get("bits of one GPU", []))
            lines.append([name, str(row["ranks"]), str(row["tokens"]), *times])
    return table(["layer", "ranks", "tokens", *columns.values()], lines)


BLOCKS = {"parallel-sums": sums, "parallel-layers": layers}

COLOURS = {1: "#0b5cad", 64: "#2a9d4e", 1024: "#d9730d"}
"""Numbers of tokens that the picture shows."""
LOOKS = {
    "peer": {"ls": "-", "marker": "o", "lw": 2},
    "collective": {"ls": "--", "marker": "s", "lw": 1.1, "mfc": "white"},
    "one GPU": {"ls": ":", "marker": "x", "lw": 1.1},
}


def picture(found, about):
    """A panel for each layer: microseconds along ranks. None for fewer than two numbers of them."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    panels = layers_of(found)
    if len({row["ranks"] for row in found["rows"]}) < 2:
        return None
    lines = -(-len(panels) // 2)
    figure = Figure((8.6, 2.9 * lines + 1.2), dpi=130, layout="constrained")
    places = figure.subplots(lines, 2, squeeze=False).ravel()
    for axes, (name, rows) in zip(places, panels.items(), strict=False):
        for tokens, colour in COLOURS.items():
            some = [row for row in rows if row["tokens"] == tokens]
            for contender, look in LOOKS.items():
                points = [(r["ranks"], r["us"][contender]) for r in some if contender in r["us"]]
                label = f"{CONTENDERS[contender]}, {tokens} token{'s' * (tokens > 1)}"
                axes.plot(*zip(*points, strict=True), label=label, color=colour, ms=5, **look)
        ranks = sorted({row["ranks"] for row in rows})
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(ranks, [str(each) for each in ranks])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.set_title(name, fontsize=10, loc="left")
        axes.set_xlabel("GPUs")
        axes.set_ylabel("microseconds (down is better)")
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(f"What do more GPUs bring? (W4A16)\n{about}", x=0.01, ha="left", fontsize=11)
    handles = places[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    return figure
