"""`nvfp4kern quantize SRC DST`: its options, its bar, and what it prints in the end."""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..checkpoint.report import grouped, in_bytes, numberless
from ..options import text_of
from .folder import Progress, Summary, quantize_folder

WORST = 5
SECONDS = 10.0
"""Between lines where there is no terminal."""


def run(arguments: argparse.Namespace) -> int:
    """0: DST is there. 2: something is wrong. 130: interrupted, and the same command continues."""
    quant = None if arguments.inputs == "none" else arguments.inputs
    begin = time.monotonic()
    try:
        needed = quant == "static" or arguments.recipe == "gptq"
        if needed != (arguments.calibrate is not None):
            what = "expected with --inputs static or --recipe gptq, and only then"
            raise ValueError(f"--calibrate TEXTFILE: {what}")
        given = arguments.calibrate
        text = None if given is None else text_of("--calibrate", Path(given))
        with shown() as progress:
            made = quantize_folder(
                arguments.source,
                arguments.target,
                recipe=arguments.recipe,
                exclude=arguments.exclude,
                input_quant=quant,
                calibrate=text,
                format=arguments.format,
                verify=arguments.verify,
                progress=progress,
            )
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command continues where it was", file=sys.stderr)
        return 130
    for line in lines(made):
        print(line)
    print(f"{arguments.target}: complete after {time.monotonic() - begin:.1f} s")
    return 0


@contextmanager
def shown() -> Iterator[Progress]:
    """A bar with rate and time left on a terminal, else a line now and then."""
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
    except ModuleNotFoundError:
        yield Lines()
        return
    if not sys.stderr.isatty():
        yield Lines()
        return
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress("quantizing", *columns, console=Console(stderr=True), transient=True) as bar:
        task = None

        def advance(done: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = bar.add_task("", total=total, completed=done)
            bar.update(task, completed=done)

        yield advance


class Lines:
    """The bar in words."""

    def __init__(self) -> None:
        self.begin = self.last = time.monotonic()
        self.first: int | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = done
        if now - self.last < SECONDS:
            return
        self.last = now
        rate = (done - self.first) / (now - self.begin)
        left = f"{(total - done) / rate:.0f} s left" if rate else "no end in sight"
        said = f"{in_bytes(done)} of {in_bytes(total)}, {in_bytes(int(rate))}/s, {left}"
        print(said, file=sys.stderr, flush=True)


def lines(made: Summary) -> Iterator[str]:
    share = made.nbytes_quantized / made.nbytes
    yield f"{made.layers} layers quantised, {share:.0%} of {in_bytes(made.nbytes)}; chosen by"
    yield f"  {made.chosen_by}"
    reasons = defaultdict(list)
    for name, why in made.kept.items():
        reasons[why].append(name)
    for why, names in reasons.items():
        yield f"not quantised, {why}: {', '.join(grouped(names))}"
    if made.uncalibrated:
        names = ", ".join(grouped(made.uncalibrated))
        yield f"by amax, as no token of --calibrate reached it: {names}"
    yield f"written: {in_bytes(made.nbytes_written)}"
    if made.errors is not None:
        yield from errors_of(made.errors)


def errors_of(errors: dict[str, float]) -> Iterator[str]:
    """A line for layers whose names differ in numbers alone."""
    groups = defaultdict(list)
    for name, error in errors.items():
        groups[numberless(name)].append((error, name))
    yield f"{'relative error of weights':<56} {'layers':>6} {'mean':>7} {'worst':>7}"
    for pattern, found in groups.items():
        mean = sum(error for error, _ in found) / len(found)
        yield f"{pattern:<56} {len(found):>6} {mean:>7.4f} {max(found)[0]:>7.4f}"
    worst = sorted(((error, name) for name, error in errors.items()), reverse=True)[:WORST]
    yield f"worst: {', '.join(f'{name} {error:.4f}' for error, name in worst)}"
