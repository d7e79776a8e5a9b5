"""A file of a self-test for people: its sections, what is wrong, what it settles, its times."""

import textwrap

from ..machine import in_words
from .assumptions import ASSUMPTIONS, ROW
from .clocks import by_section
from .words import without_paths

NAME = "python -m nvfp4kern selftest"
KEEP = "There is no address to send it to yet: keep it, and open an issue where you got the package"
SHOWN = 8
"""Of wrong rows and of tiles left out, those that are listed; the file has them all."""
WIDEST = 160
"""Characters of a line of the summary."""


def _counts(part):
    rows = part["rows"]
    bad = sum(row["ok"] is False for row in rows)
    good = sum(row["ok"] is True for row in rows)
    return good, bad, len(rows) - good - bad


def line(name, part):
    """A section in a line."""
    good, bad, rest = _counts(part)
    text = f"{name}: {good} right, {bad} wrong, {rest} not judged, {part['seconds']:.0f} s"
    return text + (f"; {part['stopped']}" if "stopped" in part else "")


def wrong(result):
    """(section, row) of what was wrong."""
    sections = result["sections"].items()
    return [(name, row) for name, part in sections for row in part["rows"] if row["ok"] is False]


def heading(environment):
    versions = f"nvfp4kern {environment['nvfp4kern']}, torch {environment['torch']}"
    yield f"{versions}, {environment['date']}"
    gpu = environment.get("gpu")
    if gpu:
        smi = next(iter(environment.get("nvidia_smi", [])), {})
        driver = f", driver {smi['driver_version']}" if smi else ""
        yield f"{gpu['name']}, {gpu['capability']}, {gpu['sms']} SMs{driver}"
    yield in_words(environment)


def settled(result):
    """(assumption, state, why): of a GPU that has the row."""
    return [(a, *a.settled(result)) for a in ASSUMPTIONS]


def is_blackwell(result):
    rows = result["environment"].get("rows", [])
    return any(row["name"] == ROW and row["available"] for row in rows)


def _times(console, result):
    """The benchmark's own tables."""
    from ..bench import report

    rows = result["sections"].get("bench", {}).get("rows", [])
    found = {row["name"]: row for row in rows}
    environment = found.get("environment", {}).get("environment")
    timed = [row["row"] for row in rows if "row" in row]
    if environment and timed:
        report.show(console, {"environment": environment, "rows": timed})


def _first(texts):
    yield from texts[:SHOWN]
    if len(texts) > SHOWN:
        yield f"and {len(texts) - SHOWN} more in the file"


def _steps(result):
    """Of every tile, a step along K; on Blackwell beside what its MMAs need at least."""
    rows = result["sections"].get("steps", {}).get("rows", [])
    for row in (row for row in rows if "ns" in row):
        cycles = f" = {row['cycles']} cycles" if "cycles" in row else ""
        least = f", MMAs {row['mma_cycles']:.0f}" if row.get("mma_cycles") else ""
        yield f"{row['name'].partition(':')[2]} {row['ns']:.0f} ns{cycles}{least}"


def _in_lines(words):
    """Words, as many in a line as fit, each line indented."""
    texts = textwrap.wrap("; ".join(words).replace(" ", "\0").replace(";\0", "; "), WIDEST - 2)
    return [f"  {text}".replace("\0", " ") for text in texts]


def _summary(result):
    """(line, its style)"""
    for text in heading(result["environment"]):
        yield text, ""
    clocks = by_section(result.get("clocks", []))
    for name, part in result["sections"].items():
        low, high, power = clocks.get(name, (0, 0, 0))
        text = line(name, part) + ("" if part.get("ended", True) else "; not at its end")
        text += f"; {low:.0f} to {high:.0f} MHz, {power:.0f} W" if high else ""
        yield text, "red" if _counts(part)[1] else ""
    left_out = [f"left out: {tile}, {why}" for tile, why in result.get("left_out", {}).items()]
    bad = [
        f"{section}, {row['name']}: {row.get('wrong', '')}"
        for section, row in wrong(result)
        if row["name"].removeprefix("tile ") not in result.get("left_out", {})
    ]
    for text in (*_first(left_out), *_first(bad)):
        yield text, "red"
    if steps := list(_steps(result)):
        yield "a step along K, by tile:", ""
        for text in _in_lines(steps)[:6]:
            yield text, ""
    if is_blackwell(result):
        yield "what kernels for Blackwell assume (docs/blackwell-checklist.md has more):", ""
        for assumption, state, why in settled(result):
            style = {"fails": "red", "holds": "green", "open": "yellow"}[state]
            yield f"  {state:<5} {assumption.name:<9} {assumption.says}; {why}", style


def summary(result):
    """[(line, its style)] of a text to paste: under 60 lines, and no paths."""
    found = ((without_paths(text), style) for text, style in _summary(result))
    return [(" ".join(text.splitlines())[:WIDEST], style) for text, style in found]


def show(console, result):
    """The benchmark's tables, and behind them the summary."""
    _times(console, result)
    console.rule("summary, to paste: it names no files and no users", style="")
    for text, style in summary(result):
        console.print(text, markup=False, soft_wrap=True, style=style)
