"""What a checkpoint holds and what is wrong with it, from headers and global scales alone."""

import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .files import CheckpointError, Files
from .formats import read_plan
from .plan import SHARDS, Layer, Plan, Problem

__all__ = ["Report", "inspect"]

WIDTH = 80
STACKED = "gate_up_proj"
LARGEST = {"weight_scale_2": 1.0, "input_scale": 25.0, "weight_scale": 25.0}
"""Larger multipliers are suspicious: they mean a weight above 2688, activations above 65504."""
FLOAT_MAX = 3.4028234663852886e38
INPUTS = {
    None: "16-bit activations",
    "static": "static activations",
    "dynamic": "dynamic activations",
    "amax": "amax activations",
    "token": "activations by token",
}


@dataclass
class Count:
    """Layers or tensors of a kind, and the bytes of their tensors."""

    number: int = 0
    nbytes: int = 0

    def add(self, nbytes: int) -> None:
        self.number += 1
        self.nbytes += nbytes


@dataclass
class Differing:
    """Shards of one kind, such as every layer's q_proj, k_proj and v_proj."""

    groups: int = 0
    differ: int = 0
    ratio: float = 1.0
    """The largest global scale of a group over its smallest; the largest of all groups."""


@dataclass
class Report:
    """What a checkpoint holds, what looks odd, and what makes loading fail.

    `layers` counts quantised layers by kind, `tensors` the tensors that are "plain" or "ignored".
    `nbytes_read` is what a rank has read of `nbytes` to load its slices; without ranks it is None.
    `differing` has the shards whose multipliers differ, by their names. Nothing is lost there: each
    shard keeps its own multiplier. `str(report)` has at most 80 columns.
    """

    path: str
    format: str
    producer: str
    files: int
    nbytes: int
    nbytes_read: int | None = None
    layers: dict[str, Count] = field(default_factory=dict)
    tensors: dict[str, Count] = field(default_factory=dict)
    excluded: list[str] = field(default_factory=list)
    differing: dict[str, Differing] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def warn(self, name: str, sentence: str) -> None:
        """Adds a warning about a tensor or a module."""
        self.problems.append(Problem(False, name, sentence))

    @property
    def errors(self) -> list[str]:
        """What makes loading fail."""
        return [str(problem) for problem in self.problems if problem.fatal]

    @property
    def warnings(self) -> list[str]:
        return [str(problem) for problem in self.problems if not problem.fatal]

    def __str__(self) -> str:
        return "\n".join(text for _, text in self.lines())

    def lines(self) -> Iterator[tuple[str, str]]:
        """(rich's style, line) of the text; no line has more than 80 characters."""
        yield from _wrapped("bold", self.path)
        size = f"{in_bytes(self.nbytes)} in {_plural(self.files, 'file')}"
        yield from _wrapped("", f"{self.format} by {self.producer}, {size}")
        if self.nbytes_read is not None:
            yield "", f"{in_bytes(self.nbytes_read)} of it read by this rank"
        yield "", ""
        for kind, count in self.layers.items():
            yield "", _row(kind, _plural(count.number, "layer"), count.nbytes)
        for kind, count in self.tensors.items():
            yield "", _row(kind, _plural(count.number, "tensor"), count.nbytes)
        if self.excluded:
            names = ", ".join(grouped(self.excluded))
            yield from _wrapped("", f"excluded: {names}")
        for shards, found in self.differing.items():
            if found.differ:
                numbers = f"{found.differ} of {found.groups}, up to {found.ratio:.4g}x"
                yield from _wrapped("", f"globals of {shards} differ: {numbers}; each is kept")
        for style, word, fatal in (("yellow", "warning", False), ("red", "error", True)):
            for text in _summed(p for p in self.problems if p.fatal == fatal):
                yield from _wrapped(style, f"{word}: {text}")
        yield "", ""
        if self.errors:
            yield "red", f"cannot be loaded, {_plural(len(self.errors), 'error')}"
        elif self.warnings:
            yield "yellow", f"can be loaded, {_plural(len(self.warnings), 'warning')}"
        else:
            yield "green", "nothing is wrong"


def inspect(files: Files | str | Path, plan: Plan | None = None) -> Report:
    """Reports on a checkpoint. Reads its headers and global scales and nothing else.

    Raises CheckpointError where the files or their format cannot be read.
    """
    if not isinstance(files, Files):
        with Files(files) as opened:
            return inspect(opened, plan)
    plan = read_plan(files) if plan is None else plan
    nbytes = sum(info.nbytes for info in files.tensors.values())
    shards = len({info.shard for info in files.tensors.values()})
    report = Report(str(files.path), plan.format, plan.producer, shards, nbytes)
    report.excluded = list(plan.excluded)
    report.problems = list(plan.problems)
    _count(report, plan, files)
    if not plan.layers:
        report.warn(files.path.name, "no layer is quantised")
    multipliers = {name: _multipliers(report, files, layer) for name, layer in plan.layers.items()}
    _compare(report, multipliers)
    return report


# --- Counting ---


def _count(report: Report, plan: Plan, files: Files) -> None:
    for layer in plan.layers.values():
        kind = "FP8, to be dequantised"
        if layer.kind == "nvfp4":
            kind = f"NVFP4, {INPUTS[layer.input_quant]}"
        size = sum(files.tensors[source.name].nbytes for source in layer.sources.values())
        report.layers.setdefault(kind, Count()).add(size)
    for kind, names in (("not quantised", plan.plain), ("ignored", plan.ignored)):
        for name in names:
            report.tensors.setdefault(kind, Count()).add(files.tensors[name].nbytes)


def _multipliers(report: Report, files: Files, layer: Layer) -> list[float]:
    """A layer's weight_scale_2, or [] where it cannot be read. Looks at input_scale, too."""
    found: list[float] = []
    parts = ("weight_scale_2", "input_scale") if layer.kind == "nvfp4" else ("weight_scale",)
    for part in parts:
        source = layer.sources.get(part)
        info = files.tensors[source.name] if source else None
        if source is None or info is None or info.dtype != "float32" or source.name in files.made:
            continue
        *rows, _ = files.tensors[layer.sources["weight"].name].shape or (0,)
        if math.prod(info.shape) > math.prod(rows):
            continue  # not a global scale at all, as a problem of the plan says
        numbers = files.numbers(source.name)
        least = 1 / FLOAT_MAX if source.divisor else 5e-324
        bad = [x for x in numbers if not least <= x <= FLOAT_MAX]
        if bad:
            sentence = f"{bad[0]:g}, expected a finite number above 0"
            report.problems.append(Problem(True, source.name, sentence))
            continue
        if source.divisor:
            numbers = [1 / x for x in numbers]
        if max(numbers, default=0.0) > LARGEST[part]:
            kind = "divisor" if source.divisor else "multiplier"
            other = "multiplier" if source.divisor else "divisor"
            told = 1 / max(numbers) if source.divisor else max(numbers)
            report.warn(source.name, f"{told:g} is odd for a {kind}; is it a {other}?")
        if part == "weight_scale_2" and (len(rows) < 2 or info.shape == (rows[0], 2)):
            found = numbers  # of a stack only those of halves are compared
    return found


def _compare(report: Report, multipliers: dict[str, list[float]]) -> None:
    """Global scales of shards, and of the halves of stacked experts."""
    for name, numbers in multipliers.items():
        parent, _, own = name.rpartition(".")
        group = next((group for group in SHARDS if own == group[0]), ())
        siblings = [f"{parent}.{shard}" if parent else shard for shard in group]
        if len([s for s in siblings if s in multipliers]) > 1:
            values = [x for s in siblings for x in multipliers.get(s, [])]
            _differ(report, ", ".join(group), values)
        elif own == STACKED and len(numbers) > 1:
            for pair in zip(numbers[::2], numbers[1::2], strict=False):
                _differ(report, f"{STACKED}'s halves", pair)


def _differ(report: Report, shards: str, values: Iterable[float]) -> None:
    found = report.differing.setdefault(shards, Differing())
    found.groups += 1
    values = list(values)
    if values and max(values) != min(values):
        found.differ += 1
        found.ratio = max(found.ratio, max(values) / min(values))


# --- Text ---


def _wrapped(style: str, text: str) -> Iterator[tuple[str, str]]:
    for line in textwrap.wrap(text, WIDTH, subsequent_indent="    "):
        yield style, line


def _plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _row(kind: str, number: str, nbytes: int) -> str:
    return f"{kind:<34} {number:>16} {in_bytes(nbytes):>12}"


def in_bytes(number: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number} B"


def numberless(name: str) -> str:
    """Makes one of names that differ only in the numbers of layers and experts."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def grouped(names: Iterable[str]) -> Iterator[str]:
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[numberless(name)].append(name)
    for pattern, members in groups.items():
        yield members[0] if len(members) == 1 else f"{pattern} ({len(members)})"


def _summed(problems: Iterable[Problem]) -> Iterator[str]:
    """A line for problems that differ only in numbers in their names."""
    groups: dict[tuple[str, str], list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[numberless(problem.name), problem.sentence].append(problem)
    for members in groups.values():
        more = f" (and {len(members) - 1} more like it)" if len(members) > 1 else ""
        yield f"{members[0]}{more}"


# --- The command ---


def command(path: str) -> int:
    """Prints the report. 0: nothing is wrong, 1: loading would fail, 2: not readable."""
    try:
        report = inspect(path)
    except CheckpointError as error:
        lines, code = list(_wrapped("red", f"error: {error}")), 2
    else:
        lines, code = list(report.lines()), 1 if report.errors else 0
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        print(*(text for _, text in lines), sep="\n")
    else:
        console = Console(highlight=False)
        for style, text in lines:
            console.print(text, style=style or None, markup=False, emoji=False, soft_wrap=True)
    return code
