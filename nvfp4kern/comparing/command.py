"""`nvfp4kern compare REFERENCE FOLDER --text FILE`: its table, its file, its picture."""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers

from .. import results
from ..checkpoint.report import numberless
from ..machine import device_in_use, software
from ..options import exit_status, text_of
from .folders import compare_folders
from .measures import Comparison, LayerErrors

WORST = 5


def run(arguments: argparse.Namespace) -> int:
    """0: compared. 2: something is wrong. 130: interrupted."""
    return exit_status(compare, arguments)


def compare(arguments: argparse.Namespace) -> None:
    if arguments.plot:
        from . import plots  # what is missing is known now, not after minutes

        plots.check(arguments.plot)
    for option in ("json", "plot"):
        check_writable(f"--{option}", getattr(arguments, option))
    text = text_of("--text", arguments.text)
    device = device_in_use(arguments.device)
    found = compare_folders(
        arguments.reference,
        arguments.folder,
        text,
        tokens=arguments.tokens,
        context=arguments.context,
        device=device,
        dtype=arguments.dtype,
    )
    for line in lines(found):
        print(line)
    if arguments.json:
        results.write(
            arguments.json, {"environment": environment(arguments, device)} | found.to_dict()
        )
    if arguments.plot:
        plots.draw(found, arguments.plot)


def environment(arguments: argparse.Namespace, device: str) -> dict[str, Any]:
    given = {name: str(getattr(arguments, name)) for name in ("reference", "folder", "text")}
    given |= {name: getattr(arguments, name) for name in ("tokens", "context", "dtype")}
    return software(device) | {"transformers": transformers.__version__} | given


def check_writable(option: str, path: Path | None) -> None:
    """ValueError where what takes minutes could not be written in the end."""
    try:
        if path:
            path.open("a").close()
    except OSError as error:
        raise ValueError(f"{option}: cannot be written: {error}") from error


def lines(found: Comparison) -> Iterator[str]:
    exact, other = found.perplexity_of_reference, found.perplexity
    yield f"{len(found.losses)} tokens predicted in {found.sequences} sequences"
    yield f"perplexity      {exact:.4f} of the reference, {other:.4f}, {other / exact - 1:+.2%}"
    quantiles = f"median {found.kl_at(0.5):.3g}, 99 % below {found.kl_at(0.99):.3g}"
    yield f"KL of logits    mean {found.kl:.3g} nats, {quantiles}, most {found.kl_at(1.0):.3g}"
    yield f"likeliest token the same at {found.same:.2%}"
    if found.layers:
        yield from layer_lines(found.layers)
    else:
        yield "no NVFP4 layers"


def layer_lines(layers: dict[str, LayerErrors]) -> Iterator[str]:
    """A line for layers whose names differ in numbers alone."""
    groups = defaultdict(list)
    for name, errors in layers.items():
        groups[numberless(name)].append(errors)
    wide = max(24, *map(len, groups))
    yield f"{'':<{wide}} {'':>6}  {'of results':>15}  {'of weights':>15}"
    columns = f"{'mean':>7} {'worst':>7}"
    yield f"{'relative error of layers':<{wide}} {'layers':>6}  {columns}  {columns}"
    for pattern, some in groups.items():
        line = f"{pattern:<{wide}} {len(some):>6}"
        for values in ([e.output for e in some], [e.weight for e in some]):
            line += f"  {sum(values) / len(values):>7.4f} {max(values):>7.4f}"
        yield line
    worst = sorted(layers, key=lambda name: layers[name].output, reverse=True)[:WORST]
    yield f"worst results: {', '.join(f'{name} {layers[name].output:.4f}' for name in worst)}"
