"""What `python -m nvfp4kern bench` does with its arguments."""

import json
import os
import sys
import tempfile
from time import perf_counter

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from . import report
from .shapes import chosen

DEFAULT = {"cuda": ("competition", "tokens", "moe"), "cpu": ("cpu",)}


def _write(path, result):
    if path:
        path.write_text(json.dumps(result, indent=1) + "\n")


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


def _device(wanted):
    import torch

    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise ValueError("--device: 'cuda', but torch sees no GPU")
    return wanted or ("cuda" if there else "cpu")


def _measure(arguments):
    """Rows are written one by one: an interruption costs the row it falls into."""
    from . import exact, gaussian  # here: what --from shows needs no torch
    from .measure import environment, measured

    device = _device(arguments.device)
    shapes = chosen(arguments.shapes or DEFAULT[device], arguments.operators)
    if not shapes:
        raise ValueError("--shapes, --op: these sets have no shape of these operators")
    begin, data = perf_counter(), {"gaussian": gaussian, "exact": exact}[arguments.data]
    result = {"environment": environment(device, data), "rows": []}
    if arguments.commit:
        result["environment"]["commit"] = arguments.commit
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(shapes))
        for shape in shapes:
            progress.update(bar, description=f"{shape.set}: {shape.op}")
            row = measured(shape, device, data)
            result["rows"].append(row)
            result["environment"]["seconds"] = round(perf_counter() - begin, 1)
            _write(arguments.json, result)
            progress.advance(bar)
            if not console.is_terminal:
                print(report.line(row), file=sys.stderr, flush=True)
    return result


def run(arguments):
    _check_writable(arguments)
    earlier = _read(arguments.compare) if arguments.compare else None
    result = _read(arguments.source) if arguments.source else _measure(arguments)
    # A pipe has no width: wide enough there that no row breaks, unless COLUMNS says otherwise.
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = Console(width=190 if piped else None)
    report.show(console, result)
    if earlier:
        report.compare(console, earlier, result)
    if arguments.plot:
        from . import plots

        for path in plots.draw(result, arguments.plot):
            console.print(f"drawn: {path}", soft_wrap=True)
    return 2 if any(map(report.is_wrong, result["rows"])) else 0
