"""Every operator, row and tile on exact data: the CPU's bytes, the same in every repetition, and in
seconds of launches.

And on data that rounds: the bytes of the simulated GPU, which simulated.json keeps.
"""

import base64
import time
import zlib
from functools import cache, partial
from itertools import islice

import numpy as np
import torch

import nvfp4kern

from . import trees
from .calls import OPERATORS, SIZES, rounding
from .known import tiles_of
from .left_out import TILES, settings, tile_of
from .on_device import Made, gpu_rows, short, wait

REPEATS = {"quick": 2, "usual": 10, "all": 100}
LASTS = {"quick": 2, "usual": 2, "all": 10}
"""Seconds of launches of a tile; some failures of pairs of CTAs need as many."""
BURST = 200
UNSERVED = {"ok": None, "why": "serves none of these calls"}


def _compared(call, device, repeats):
    plan, row = call.plan(), {}
    call.run()
    wait(device)
    wrong, first = call.wrong(), trees.digest(call.outs)
    for _ in range(repeats - 1):
        call.run()
        if not wrong and trees.digest(call.outs) != first:
            wrong = "another result of the same call"
    if wrong:
        row["wrong"] = wrong
    return short(plan) | {"ok": not wrong} | row


def _made(name, size, device, draw=np.random.default_rng, in_full=False):
    return Made(name, draw(len(name)), SIZES[size], device, in_full)


def _call(name, size, device, repeats, row):
    """Nothing where the row is not the one that serves the call."""
    with settings(BACKEND=row):
        call = _made(name, size, device)
        if row and call.plan()["backend"] != row:
            return None
        return _compared(call, device, repeats)


def tiles():
    """(tile by its whole name, its row, its own name), of the rows that the GPU runs, but what was
    left out."""
    available = gpu_rows()
    for whole in nvfp4kern._C._tiles():
        row = whole.partition("/")[0]
        if row in available and whole not in TILES:
            yield whole, row, whole.partition(":")[2]


def served(whole, made):
    """The calls, by name, that this tile serves where it is forced; to be run while it is."""
    for name in OPERATORS:
        call = made(name)
        try:
            plan = call.plan()
        except nvfp4kern.BackendError:
            continue  # the tile cannot serve it
        if tile_of(plan) == whole:
            yield name, call


def _tile(whole, row, made, device, repeats, most=None):
    with settings(BACKEND=row, TILE=whole):
        found = {}
        for name, call in islice(served(whole, made), most):
            found[name] = _compared(call, device, repeats)
    if not found:
        return UNSERVED
    wrong = {name: row["wrong"] for name, row in found.items() if not row["ok"]}
    return {"ok": not wrong, "calls": list(found)} | ({"wrong": str(wrong)} if wrong else {})


def items(device, extent):
    repeats = REPEATS[extent]
    first, *others = gpu_rows() if device == "cuda" else [""]
    for size in SIZES if extent != "quick" else ("deep",):
        for row in ("", *others) if extent != "quick" else ("",):
            for name in OPERATORS:
                label = f"{name} {size}" + f" by {row}" * bool(row)
                yield label, partial(_call, name, size, device, repeats, row)
    if device == "cuda" and extent != "quick":
        yield from _of_tiles(partial(_tile, device=device, repeats=repeats), device, gpu_rows())


def _of_tiles(make, device, rows):
    """Rows of tiles, called as `left_out` knows them."""
    made = cache(partial(_made, size="deep", device=device))
    for whole, row, _ in tiles():
        if row in rows:
            yield f"tile {whole}", partial(make, whole, row, made)


def triage(device, extent):
    """One call of each tile of the GPU's first row, those of one CTA before pairs and clusters."""
    if device == "cuda":
        make = partial(_tile, device=device, repeats=2, most=1)
        yield from _of_tiles(make, device, gpu_rows()[:1])


def lasted(call, device, seconds):
    """(launches, what was wrong) of as many seconds; results are looked at after each burst."""
    end, launches, wrong = time.monotonic() + seconds, 0, ""
    call.run()
    wait(device)
    wrong, first = call.wrong(), [out.view(torch.uint8).clone() for out in call.outs]
    while not wrong and time.monotonic() < end:
        call.run()
        for _ in range(BURST - 1):
            call.write(call.outs, *call.given)
        launches += BURST
        wait(device)
        pairs = zip(call.outs, first, strict=True)
        if not all(torch.equal(out.view(torch.uint8), want) for out, want in pairs):
            wrong = f"another result within {launches} launches"
    return launches, wrong


def _lasting(whole, row, made, device, seconds):
    found = {"ok": True, "launches": {}}
    with settings(BACKEND=row, TILE=whole):
        name, call = next(served(whole, made), ("", None))
        if call is None:
            return UNSERVED
        for pdl in ("1", "0"):
            with settings(PDL=pdl):
                found["launches"][f"PDL={pdl}"], wrong = lasted(call, device, seconds)
            if wrong and found["ok"]:
                found |= {"ok": False, "wrong": f"PDL={pdl}: {wrong}"}
    return found | {"call": name}


def endurance(device, extent):
    if device == "cuda":
        make = partial(_lasting, device=device, seconds=LASTS[extent])
        yield from _of_tiles(make, device, gpu_rows()[:1])


# --- The simulator's bits ---

SAID = ("backend", "kernel", "tile", "why", "declined")
"""Of a plan, what the tile's whole name says, and words."""


def _named(name):
    """Results without an approximate function."""
    return not name.startswith(("route", "dual_gemm", "contiguous_dual")) or "of_halves" in name


def digested(whole, row, made):
    """(name, plan, call) of the first calls that a tile serves, run on data that rounds."""
    with settings(BACKEND=row, TILE=whole):
        for name, call in served(whole, made):
            if _named(name):
                call.run()
                plan = {k: v for k, v in call.plan().items() if k not in SAID}
                return {"call": name, "plan": plan, "inputs": call.inputs}, call
    return None


def rounding_call(device):
    made = partial(_made, size="deep", device=device, draw=rounding, in_full=True)
    return cache(made)


def _same(whole, row, made, want, device):
    found = digested(whole, row, made)
    if found is None:
        return None
    now, call = found
    wait(device)
    if want is None:
        return {"ok": None, "why": "the simulator's bits are not known"}
    for what in ("call", "plan", "inputs"):
        if now[what] != want[what]:
            return {"ok": None, "why": f"another {what}: not compared"}
    if trees.digest(call.outs) == want["outputs"]:
        return {"ok": True, "same": True}
    bits = zlib.compress(b"".join(trees.raw(out).tobytes() for out in call.outs))
    return {"ok": None, "same": False, "bits": base64.b64encode(bits).decode()} | now


def digests(device, extent):
    """Other bits than the simulator's are no mistake, as long as the bound holds: a row with them
    has them all."""
    if device == "cpu":
        return
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    known, made = tiles_of(capability), rounding_call(device)
    first = gpu_rows()[0]
    for whole, row, _ in tiles():
        if extent != "quick" or row == first:
            yield whole, partial(_same, whole, row, made, known.get(whole), device)
