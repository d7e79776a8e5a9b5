"""Times of the benchmark, of every tile of the competition's products, to fit costs to, and of a
tile's step along K."""

from functools import partial

import torch

import nvfp4kern

from .. import machine
from .left_out import settings, tile_of
from .on_device import gpu_rows, short

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
    for whole, row, _ in tiles:
        with settings(BACKEND=row, TILE=whole):
            try:
                found = plan()
            except nvfp4kern.BackendError:
                continue  # the tile cannot serve it
            if tile_of(found) == whole:
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


# --- Steps ---

STEPS = 16, 80
"""Along K, of a short and of a long product of the same tile: their difference has no launch, no
prologue and no epilogue."""
CLUSTERS = 2
"""As few, so that operands stay in L2 and no one else wants it."""
MULTIPLY_ADDS = {"sm100": 16384}
"""A cycle and SM by MMAs of NVFP4, as the model of a B200 has it."""


def _operand(rows, k):
    """Random codes, scale factors of 1."""
    codes = torch.randint(256, (rows, k // 2), dtype=torch.uint8, device="cuda")
    scales = torch.full((rows, k // 16), 0x38, dtype=torch.uint8, device="cuda")
    return codes, scales.view(torch.float8_e4m3fn)


def _megahertz():
    """The SMs' highest clock by nvidia-smi, or None."""
    found = machine.nvidia_smi(("clocks.max.sm",))
    return float(found[0]["clocks.max.sm"].split()[0]) if found else None


def per_step(us):
    """Nanoseconds of a step, of the microseconds of a short and a long product by their steps."""
    (few, first), (many, last) = us.items()
    return (last - first) * 1e3 / (many - few)


def mma_cycles(row, traits):
    """Of a step's MMAs on an SM, by the model; None where it has no such row."""
    rate = MULTIPLY_ADDS.get(row)
    return 128 * traits["tile_m"] * traits["tile_k"] / rate if rate else None


def _step(whole, row, traits):
    from ..bench import timing

    torch.manual_seed(0)
    m, n = traits["tile_m"], CLUSTERS * traits["tile_n"]
    replays = {}  # by steps of a CTA
    with settings(BACKEND=row, TILE=whole):
        for steps in STEPS:
            k = steps * traits["tile_k"] * traits["split_k"]
            (a, sfa), (b, sfb) = _operand(m, k), _operand(n, k)
            plan = nvfp4kern.explain("gemm", a, b, sfa, sfb)
            if tile_of(plan) != whole:
                return {"ok": None, "why": "serves no such call"}
            out = torch.empty(m, n, dtype=torch.float16, device="cuda")
            call = partial(nvfp4kern.gemm, a, b, sfa, sfb, out=out)
            replays[k // (traits["tile_k"] * plan.get("split", 1))] = timing.captured([call])
    us = {steps: time.median for steps, time in timing.in_turns(replays).items()}
    ns, cycles, clock = per_step(us), mma_cycles(row, traits), _megahertz()
    found = {"ok": None, "us": us, "ns": round(ns, 1), "sizes": [m, n, k], "mma_cycles": cycles}
    if clock:
        found |= {"clock": clock, "cycles": round(ns * clock / 1e3)}
    return short(plan) | found


def steps(device, extent):
    """Of gemm's tiles of the GPU's first row, NVFP4 by NVFP4."""
    from .bits import tiles

    all_traits = nvfp4kern._C._tiles()
    for whole, row, _ in tiles() if device == "cuda" else ():
        traits = all_traits[whole]
        if row == gpu_rows()[0] and "/gemm:" in whole and "gemm" in traits["operators"]:
            if "tile_k" in traits:
                yield whole, partial(_step, whole, row, traits)
