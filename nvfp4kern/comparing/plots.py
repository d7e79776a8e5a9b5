"""A comparison as a picture: errors of layers along the model, divergences of tokens."""

import re
from collections import defaultdict
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from .measures import Comparison

DPI = 130


def check(path: Path) -> None:
    """ValueError where the file's ending is no format."""
    known = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise ValueError(f"--plot: {str(path)!r}, expected a file that ends in .png, .svg or .pdf")


def draw(found: Comparison, path: Path) -> None:
    """Writes the file, whose ending says the format."""
    figure = Figure((13, 5), dpi=DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    kinds = defaultdict(list)
    for at, (name, errors) in enumerate(found.layers.items()):
        number = re.search(r"\d+", name)
        kind = ".".join(name.split(".")[-2:])
        kinds[kind].append((int(number[0]) if number else at, errors.output))
    for kind, points in kinds.items():
        left.plot(*zip(*points, strict=True), marker="o", ms=4, lw=1.2, label=kind)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_xlabel("layer")
    left.set_ylabel("relative error of a layer's results, for the reference's inputs")
    left.set_ylim(bottom=0)
    if kinds:
        left.legend(frameon=False, fontsize=8)
    values = found.divergences.clamp(min=1e-9).sort().values
    shares = [(i + 1) / len(values) for i in range(len(values))]
    right.plot(values.tolist(), shares, lw=1.8)
    for value, name in ((found.kl, "mean"), (found.kl_at(0.99), "99 %")):
        right.axvline(max(value, 1e-9), lw=1, ls="--", color="#777777")
        right.text(max(value, 1e-9), 0.02, f" {name} {value:.3g}", fontsize=8)
    right.set_xscale("log")
    right.xaxis.set_major_locator(
        LogLocator(subs=(1,) if values[-1] > 100 * values[0] else (1, 2, 5))
    )
    right.xaxis.set_major_formatter("{x:g}")
    right.minorticks_off()
    right.set_xlabel("KL of a token's logits, nats")
    right.set_ylabel("share of tokens at or below")
    for axes in (left, right):
        axes.grid(alpha=0.25)
    exact, other = found.perplexity_of_reference, found.perplexity
    title = f"perplexity {exact:.4f} of the reference, {other:.4f}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    figure.savefig(path)
