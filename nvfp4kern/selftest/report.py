"""A file of a self-test for people: its sections, what is wrong, what it settles, its times."""

from rich import box
from rich.table import Table

from ..machine import in_words
from .assumptions import ASSUMPTIONS, ROW

NAME = "python -m nvfp4kern selftest"
SHOWN = 20
"""Wrong rows that are listed; the file has them all."""


def _counts(part):
    rows = part["rows"]
    bad = sum(row["ok"] is False for row in rows)
    good = sum(row["ok"] is True for row in rows)
    return good, bad, len(rows) - good - bad


def line(name, part):
    """A section in a line."""
    good, bad, rest = _counts(part)
    return f"{name}: {good} right, {bad} wrong, {rest} not judged, {part['seconds']:.0f} s"


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


def _table(result):
    rows = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1))
    for name in ("section", "right", "wrong", "not judged", "seconds"):
        rows.add_column(name, justify="left" if name == "section" else "right")
    for name, part in result["sections"].items():
        good, bad, rest = map(str, _counts(part))
        rows.add_row(
            name, good, bad if bad == "0" else f"[red]{bad}", rest, f"{part['seconds']:.0f}"
        )
    return rows


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


def show(console, result):
    def say(text, **style):
        console.print(text, markup=False, soft_wrap=True, **style)

    for text in heading(result["environment"]):
        say(text)
    console.print(_table(result))
    bad = wrong(result)
    for section, row in bad[:SHOWN]:
        say(f"{section}, {row['name']}: {row.get('wrong', 'wrong')}", style="red")
    if len(bad) > SHOWN:
        say(f"and {len(bad) - SHOWN} more in the file", style="red")
    if is_blackwell(result):
        say("what kernels for Blackwell assume (docs/blackwell-checklist.md says what follows):")
        for assumption, state, why in settled(result):
            style = {"fails": "red", "holds": "green", "open": "yellow"}[state]
            say(f"  {state:<5} {assumption.name:<9} {assumption.says}; {why}", style=style)
    _times(console, result)
