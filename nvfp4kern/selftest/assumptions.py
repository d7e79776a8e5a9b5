"""What the kernels for Blackwell assume of a GPU that none has run on, and what a file says of it.

docs/blackwell-checklist.md has for each what follows where it does not hold.
"""

import fnmatch
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from .known import simulated

ROW = "sm100"


@dataclass
class Assumption:
    """`settled(result)` is ("holds", "fails" or "open", why)."""

    name: str
    says: str
    settled: Callable[[dict], tuple[str, str]]


TILES = "triage, bits, endurance"
"""Sections with rows of tiles."""


def found(result, sections, pattern="*"):
    """The rows of sections whose names fit."""
    parts = (result["sections"].get(section, {}) for section in sections.split(", "))
    rows = (row for part in parts for row in part.get("rows", []))
    return [row for row in rows if fnmatch.fnmatchcase(row["name"], pattern)]


def right(section, pattern="*", **wanted):
    """Holds where all such rows are right. `wanted`: what the rows have, or do not count."""

    def settled(result):
        rows = found(result, section, pattern)
        rows = [r for r in rows if all(r.get(name) == value for name, value in wanted.items())]
        judged = [row for row in rows if row["ok"] is not None]
        bad = [row["name"] for row in judged if not row["ok"]]
        if bad:
            return "fails", f"{section}: {', '.join(bad[:4])}{' ..' * (len(bad) > 4)}"
        if judged:
            return "holds", f"{section}: {len(judged)} right"
        return "open", next((row["why"] for row in rows if "why" in row), f"{section}: no such row")

    return settled


def both(*parts):
    """Of several: the worst of them."""

    def settled(result):
        verdicts = [part(result) for part in parts]
        for state in ("fails", "open", "holds"):
            why = [text for verdict, text in verdicts if verdict == state]
            if why:
                return state, "; ".join(why)
        raise AssertionError

    return settled


def rounding(result):
    """Whether sums have the simulator's bits, and drop as small numbers as there."""
    rows = [row for row in found(result, "digests", f"{ROW}/*") if "same" in row]
    same = sum(row["same"] for row in rows)
    want, other = simulated()["10.0"]["kept"], []
    for row in found(result, "probes", "bits_*"):
        if row.get("kept") != want[row["name"]]:
            other.append(f"{row['name']}: {row.get('kept')}, simulated {want[row['name']]}")
    if not rows:
        return "open", "digests: nothing was compared"
    state = "fails" if other or same < len(rows) else "holds"
    return state, "; ".join([f"digests: {same} of {len(rows)} have the same bits", *other])


def ends(result):
    died = [
        f"{section} {row['name']}"
        for section, part in result["sections"].items()
        for row in part["rows"]
        if row.get("died")
    ]
    if died:
        return "fails", f"did not end: {', '.join(died[:4])}"
    return "holds", "every process came to its end"


def costs(result):
    """Whether the plan chose the fastest tile, or nearly so."""
    ratios = {}
    for row in found(result, "costs"):
        chosen = row.get("chosen", "").replace(" ", "/gemm:")
        if chosen in row.get("us", {}):
            ratios[row["name"]] = row["us"][chosen] / min(row["us"].values())
    if not ratios:
        return "open", "costs: no times"
    worst = max(ratios, key=ratios.__getitem__)
    median = statistics.median(ratios.values())
    state = "holds" if median <= 1.03 and ratios[worst] <= 1.15 else "fails"
    return state, f"costs: {median:.2f} of the fastest tile, at worst {ratios[worst]:.2f} ({worst})"


ASSUMPTIONS = (
    Assumption("loads", "the driver takes the machine code", right(TILES, f"tile {ROW}/*")),
    Assumption("ends", "no kernel hangs, and none breaks its context", ends),
    Assumption(
        "bound",
        "results are within the contract's bound",
        both(right("operators", backend=ROW), right("harness")),
    ),
    Assumption("exact", "sums that are exact in any order are exact", right("bits", backend=ROW)),
    Assumption(
        "pairs", "both CTAs of a pair find their scale factors", right(TILES, f"tile {ROW}/*:p*")
    ),
    Assumption(
        "parts",
        "partial sums of a split K arrive before they are added",
        right(TILES, f"tile {ROW}/*k[0-9]"),
    ),
    Assumption(
        "shared",
        "what a CTA multicasts arrives, and clusters take each other's tiles",
        right(TILES, f"tile {ROW}/*m[0-9]"),
    ),
    Assumption("rounding", "tensor cores round sums as the simulator does", rounding),
    Assumption("nan", "a scale factor of NaN makes NaN", right("probes", "nan_scale_factors")),
    Assumption(
        "sign",
        "bit 7 of a scale factor counts for nothing",
        right("probes", "sign_of_scale_factors"),
    ),
    Assumption("zero", "a sum of products that are all -0 is +0", right("probes", "minus_zero")),
    Assumption(
        "overlap",
        "kernels that begin early wait for what they read",
        right("probes", "overlapping_kernels"),
    ),
    Assumption(
        "races",
        "no fence and no barrier is missing",
        both(right("sanitizer", "racecheck"), right("sanitizer", "synccheck")),
    ),
    Assumption("memory", "no access is outside its tensor", right("sanitizer", "memcheck")),
    Assumption("torch", "torch's own GEMM says the same", right("torch")),
    Assumption(
        "portable", "sm80's machine code for 10.0 is right, too", right("bits", backend="sm80")
    ),
    Assumption("costs", "the plan chooses the fastest tile", costs),
)
