"""What `python -m nvfp4kern bench` does with its arguments."""

import json
import signal
import sys
import tempfile
from contextlib import contextmanager
from time import perf_counter

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from .. import results, terminal
from ..machine import device_in_use
from . import report
from .shapes import OPERATORS, SETS, chosen

DEFAULT = {"cuda": ("competition", "tokens", "moe"), "cpu": ("cpu",)}


def _read(path):
    """An earlier result. ValueError where the file holds none."""
    try:
        result = json.loads(path.read_text())
        if not isinstance(result["rows"], list) or not isinstance(result["environment"], dict):
            raise TypeError
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: expected what --json wrote ({error!r})") from error
    return result


def _check_writable(arguments):
    """ValueError now, not after minutes, where --json or --plot cannot be written."""
    if arguments.more and not arguments.json:
        raise ValueError("--more: needs --json, whose rows it adds to")
    try:
        option = "--json"
        if arguments.json:
            arguments.json.open("a").close()
        option = "--plot"
        if arguments.plot:
            arguments.plot.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=arguments.plot).close()
    except OSError as error:
        raise ValueError(f"{option}: cannot be written: {error}") from error


def _key(row):
    """Of a row, or of a shape."""
    found = row if isinstance(row, dict) else vars(row)
    return json.dumps([found[name] for name in ("set", "op", "sizes", "series")])


def _resumed(earlier, now):
    """What --more adds to: earlier rows with a time. `later` has the facts in which a run that
    adds rows differs from the first."""
    before = earlier["environment"]
    for name in ("device", "gpu", "cpu", "data"):
        if before.get(name) != now.get(name):
            raise ValueError(f"--more: rows of {before.get(name)!r}, and now {now.get(name)!r}")
    differs = {name: value for name, value in now.items() if before.get(name) != value}
    later = [*before.get("later", []), differs]
    return {
        "environment": before | {"later": later},
        "rows": [row for row in earlier["rows"] if "time" in row],
    }


@contextmanager
def _terminable():
    """SIGTERM interrupts, as Ctrl-C does."""

    def interrupt(number, _):
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _measure(arguments):
    """(result, exit status of an interruption or 0). Each row is written as it comes."""
    from . import exact, gaussian  # here: what --from shows needs no torch
    from .measure import environment, measured

    device = device_in_use(arguments.device)
    shapes = chosen(arguments.shapes or DEFAULT[device], arguments.operators)
    if not shapes:
        raise ValueError("--shapes, --op: these sets have no shape of these operators")
    earlier = None
    if arguments.more and arguments.json.exists() and arguments.json.stat().st_size:
        earlier = _read(arguments.json)
    begin, data = perf_counter(), {"gaussian": gaussian, "exact": exact}[arguments.data]
    now = environment(device, data)
    if arguments.commit:
        now["commit"] = arguments.commit
    result = _resumed(earlier, now) if earlier else {"environment": now, "rows": []}
    facts = result["environment"]["later"][-1] if earlier else now
    done = set(map(_key, result["rows"]))
    shapes = [shape for shape in shapes if _key(shape) not in done]
    order = {_key(shape): i for i, shape in enumerate(chosen(SETS, OPERATORS))}
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("", total=len(shapes))
            for shape in shapes:
                progress.update(bar, description=f"{shape.set}: {shape.op}")
                row = measured(shape, device, data)
                result["rows"].append(row)
                if earlier:
                    result["rows"].sort(key=lambda row: order.get(_key(row), len(order)))
                facts["seconds"] = round(perf_counter() - begin, 1)
                if arguments.json:
                    results.write(arguments.json, result)
                progress.advance(bar)
                if not console.is_terminal:
                    print(report.line(row), file=sys.stderr, flush=True)
    except KeyboardInterrupt as stop:
        number = stop.args[0] if stop.args else signal.SIGINT
        print(f"interrupted, {len(result['rows'])} rows", file=sys.stderr, flush=True)
        return result, 128 + number
    return result, 0


def run(arguments):
    """The exit status. An interruption while rows are timed leaves those that are finished, which
    are shown and drawn; at any other time it ends the command."""
    with _terminable():
        return _run(arguments)


def _run(arguments):
    _check_writable(arguments)
    earlier = _read(arguments.compare) if arguments.compare else None
    result, stopped = (_read(arguments.source), 0) if arguments.source else _measure(arguments)
    console = Console(width=terminal.width())
    report.show(console, result)
    if earlier:
        report.compare(console, earlier, result)
    if arguments.plot:
        from . import plots

        for path in plots.draw(result, arguments.plot):
            console.print(f"drawn: {path}", soft_wrap=True)
    return stopped or (2 if any(map(report.is_bad, result["rows"])) else 0)
