"""Times of the benchmark, and of every tile of the competition's products, to fit costs to."""

from functools import partial

import torch

import nvfp4kern

from .on_device import gpu_rows, settings

SETS = {
    "quick": ("quick",),
    "usual": ("competition",),
    "all": ("competition", "tokens", "moe", "smallm"),
}
ON_CPU = {"quick": ("quick",), "usual": ("quick",), "all": ("cpu",)}
TILED = ("gemm", "dual_gemm", "grouped_gemm")


def _shapes(device, extent):
    from ..bench.shapes import OPERATORS, chosen

    return chosen((ON_CPU if device == "cpu" else SETS)[extent], OPERATORS)


def _measured(shape, device):
    from ..bench.measure import measured

    row = measured(shape, device)
    return {"ok": row.get("right"), "row": row}


def _environment(device):
    from ..bench.measure import environment

    return {"ok": None, "environment": environment(device)}


def _label(shape):
    return f"{shape.set} {shape.op} " + "x".join(str(size) for size in shape.sizes.values())


def bench(device, extent):
    yield "environment", partial(_environment, device)
    for shape in _shapes(device, extent):
        yield _label(shape), partial(_measured, shape, device)


def _each_tile(shape, tiles):
    """Microseconds of a call, replayed, by tile; and the tile that the plan chooses."""
    from ..bench import gaussian, products, timing

    torch.manual_seed(0)
    case = getattr(products, shape.make)(gaussian, "cuda", **shape.sizes)
    calls = case.calls[case.layout]
    first, replays = calls[0], {}

    def plan():
        return nvfp4kern.explain(first.func.__name__, *first.args, **first.keywords)

    chosen = plan()
    for whole, row, tile in tiles:
        with settings(BACKEND=row, TILE=whole):
            try:
                found = plan()
            except nvfp4kern.BackendError:
                continue  # the tile cannot serve it
            if (found["backend"], found.get("tile")) == (row, tile):
                replays[whole] = timing.captured(calls)
    times = timing.in_turns(replays) if replays else {}
    found = {name: round(time.median, 3) for name, time in times.items()}
    return {"ok": None, "chosen": f"{chosen['backend']} {chosen.get('tile')}", "us": found}


def costs(device, extent):
    """Of the first row of this GPU; on no CPU."""
    from .bits import tiles

    if device == "cpu":
        return
    first = gpu_rows()[0]
    found = [tile for tile in tiles() if tile[1] == first and "/gemm:" in tile[0]]
    for shape in _shapes(device, extent):
        if shape.op in TILED:
            yield _label(shape), partial(_each_tile, shape, found)
