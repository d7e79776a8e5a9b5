"""Kernels with one thing spoiled: the simulated GPU must notice.

Mutants are made mechanically of PTX, one instruction changed. One is noticed when a launch fails,
anything of severity E or W is found, or a result is wrong, for any of a few seeds. Places that no
launch reaches (a trap there goes unnoticed) do not count. What nothing notices survives: EQUIVALENT
says of each survivor why it is no error.
"""

import os
import random
import re
import signal
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import anchors

from .. import build
from .equivalent import (
    EQUIVALENT,
    OF_HALVES,
    OF_ROUTE,
    OF_SM100_ROUTE,
    OF_SM120,
    OF_TCGEN05,
    OF_WGMMA,
)
from .mutations import ASYNC, SCALED, SCOPES, SYNC, TCGEN05, WGMMA
from .served_kernel import DrawnKernel, PackageKernel

KEPT = {
    "sm90": ("wgmma", "sm90_kind_f16", "sm90_route"),
    "sm100": ("tcgen05", "sm100_route"),
    "sm120": ("sm120_gemm", "sm120_kind_f16"),
}
"""By row, the groups of which is kept what `mutants` has found."""
RESULTS = {row: build.HERE / "results" / f"{row}_mutants.json" for row in KEPT}
MUTATIONS = SYNC | ASYNC | WGMMA | TCGEN05 | SCALED | SCOPES


@dataclass(frozen=True)
class Mutant:
    """What becomes of a few characters of PTX."""

    name: str
    kernel: str
    line: int
    start: int
    end: int
    becomes: str

    def applied(self, text):
        return text[: self.start] + self.becomes + text[self.end :]

    def reached(self, text):
        """With a trap in front: what no test executes cannot be noticed."""
        return text[: self.start] + "trap; " + text[self.start :]


def mutants(text, kernel, mutations=None):
    """Every place of a kernel where one of `mutations` (all that there are) applies."""
    begin = text.index(f".entry {kernel}(")
    end = text.find(".visible .entry", begin)
    end = end if end > 0 else len(text)
    for name, (pattern, becomes) in (mutations or MUTATIONS).items():
        for match in re.compile(pattern).finditer(text, begin, end):
            spoiled = becomes(match) if callable(becomes) else match.expand(becomes)
            if spoiled == match[0]:
                continue
            line = text.count("\n", 0, match.start()) + 1
            yield Mutant(name, kernel, line, match.start(), match.end(), spoiled)


MACRO = re.compile(r"[A-Z0-9_]+\(.*\)")  # makes kernels, whose lines are in a header


LOCATION = re.compile(
    r"\.loc\s+(\d+ (?!0 )\d+ \d+)(?:.*?inlined_at (\d+ \d+ \d+))?"
)  # some code is of no line


@cache
def locations(text):
    """[(offset, place, caller)]"""
    return [(m.start(), *m.groups("")) for m in LOCATION.finditer(text)]


def place_of(text, mutant, helpers=()):
    """The statement that a mutant is of, however much is inlined there: the innermost of a .cu, but
    for lines that begin like `helpers` and for macros; else the innermost of a header above the PTX
    layer."""
    files = dict(re.findall(r'\.file\s+(\d+) "(.*?)"', text))
    count = bisect_left(locations(text), (mutant.start,))
    places = [(place, caller) for _, place, caller in locations(text)[:count][::-1]]
    (place, caller), in_header = places[0], ""
    while place:
        file, line, column = map(int, place.split())
        source = Path(files[str(file)])
        if source.suffix == ".cu":
            here = source_of(source).split("\n")[line - 1].strip()
            if not here.startswith(tuple(helpers)) and not MACRO.fullmatch(here):
                return statement_at(source, line, column)
        elif source.suffix == ".cuh" and source.parent.name != "ptx":
            in_header = in_header or statement_at(source, line, column)
        place, caller = next((p for p in places if p[0] == caller), (caller, ""))
    return in_header


@cache
def source_of(path):
    """PTX is kept for all checkouts that have the same sources: the path may be another's."""
    return next(build.CSRC.rglob(path.name)).read_text()


@cache
def ptx_layer():
    sources = [path.read_text() for path in (build.CSRC / "cuda" / "ptx").glob("*.cuh")]
    return {name for source in sources for _, name in anchors.functions(source)}


INSTRUCTIONS = ("mbarrier_", "tcgen05_", "wgmma_", "cp_async_", "fence_", "barrier_")


def is_lasting(word):
    """A function of the PTX layer or an intrinsic, whose names are PTX's and CUDA's."""
    return (
        word in ptx_layer()
        or word.startswith(INSTRUCTIONS)  # of macros
        or (word.startswith("__") and not word.endswith("__"))
    )


def statement_at(source, line, column):
    text = source_of(source)
    begin = sum(len(before) + 1 for before in text.split("\n")[: line - 1])
    return anchors.at(anchors.named(text, is_lasting), begin + column - 1)


# --- Who runs them ---


CRASHES = signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT


class CrashedError(RuntimeError):
    """One of CRASHES has ended a child. The message is its name."""


def in_a_child(work, seconds=120):
    """What work() says, in a process of its own: a mutant may do anything. So many seconds of a
    core, since others may keep it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.alarm(20 * seconds)
        try:
            said = "said " + work()
        except BaseException as error:
            said = f"failed {type(error).__name__}: {error}"
        os.write(write, said.encode()[:60_000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in CRASHES:
        raise CrashedError(signal.Signals(os.WTERMSIG(status)).name)
    kind, _, what = said.partition(" ")
    if kind != "said":
        raise RuntimeError(what or "the simulator took too long")
    return what


def said_of(report, error=None):
    """What makes a mutant noticed, "" if nothing does."""
    codes = sorted({f["code"] for f in report["findings"] if f["severity"] in "EW"})
    return " ".join(codes) or (type(error).__name__ if error else "")


# The GEMMs: two CTAs have three tiles, each a whole one and a part, in the same shared memory.
TARGETS = {
    "gemm": lambda: PackageKernel("gemm", "sm80", shape=(19, 300, 4096)),
    "gemv": lambda: PackageKernel("gemv", "sm80"),
    "route_sigmoid": lambda: PackageKernel("route_sigmoid", "sm80"),
    "dual_gemm": lambda: PackageKernel("dual_gemm", "sm80", shape=(19, 150, 4096)),
    "sm90_gemv": lambda: PackageKernel("gemv", "sm90", sms=16, shape=(1, 8, 65536)),
    "sm90_tiles": lambda: PackageKernel("gemv", "sm90", sms=8, shape=(1, 128, 16384)),
    "sm90_few": lambda: PackageKernel("gemm_of_bfloats", "sm90", sms=3, shape=(5, 90, 4160)),
    "sm90_dual": lambda: DrawnKernel("sm90/gemv", ["one dual linear"], "tall8", "bfloats", sms=16),
    "sm90_dual_few": lambda: DrawnKernel("sm90/gemv", ["few dual blocked"], "tall8", sms=16),
    "sm90_experts": lambda: DrawnKernel("sm90/gemv", ["contiguous"], "tall8", "codes"),
    "sm90_experts_gated": lambda: DrawnKernel("sm90/gemv", ["gated"], "tall8", "bfloats"),
    "sm90_list": lambda: DrawnKernel("sm90/gemv", ["list linear"], "tall8"),
    "sm90_list_blocked": lambda: DrawnKernel("sm90/gemv", ["list blocked"], "tall8", "codes"),
    "sm100_kind_f16": lambda: PackageKernel(
        "gemm_of_bfloats", "sm100", sms=2, shape=(70, 700, 1408), tile="sm100/kind_f16:p128"
    ),
    "sm100_kind_f16_rows": lambda: DrawnKernel("sm100/kind_f16", ["rows"], "n16", "16 bits"),
    "sm100_kind_f16_gated": lambda: DrawnKernel("sm100/kind_f16", ["gated"], "n16", "16 bits"),
    "sm100_gemv": lambda: PackageKernel("gemv", "sm100", sms=4, shape=(1, 8, 16384)),
    "sm100_few": lambda: PackageKernel(
        "gemm_of_bfloats", "sm100", sms=3, shape=(5, 90, 4160), tile="sm100/gemv:w8"
    ),
    "wgmma_t16": lambda: DrawnKernel("sm90/gemm", ["gemm", "list"], "t16"),
    "wgmma_t32": lambda: DrawnKernel("sm90/gemm", ["gemm"], "t32"),
    "wgmma_v16": lambda: DrawnKernel("sm90/gemm", ["gemm"], "v16"),
    "wgmma_w256": lambda: DrawnKernel("sm90/gemm", ["gemm"], "w256", "bfloats"),
    "wgmma_n256": lambda: DrawnKernel("sm90/gemm", ["gemm"], "n256"),
    "wgmma_dual": lambda: DrawnKernel("sm90/gemm", ["dual_gemm"], "t16"),
    "wgmma_dual_v16": lambda: DrawnKernel("sm90/gemm", ["dual_gemm"], "v16"),
    "wgmma_experts": lambda: DrawnKernel("sm90/gemm", ["contiguous", "rows"], "w8"),
    "wgmma_gated": lambda: DrawnKernel("sm90/gemm", ["gated"], "v8", "bfloats"),
    "wgmma_activated": lambda: DrawnKernel("sm90/gemm", ["activated"], "w8"),
    "wgmma_list": lambda: DrawnKernel("sm90/gemm", ["one launch"], "w32"),
    "wgmma_codes": lambda: DrawnKernel(
        "sm90/gemm", ["gemm", "rows"], "w8", kind="NVFP4", first="sm90_prepare_a_codes"
    ),
    "wgmma_tokens": lambda: DrawnKernel(
        "sm90/gemm", ["contiguous"], "w8", kind="NVFP4", first="sm90_prepare_a_experts"
    ),
    "sm90_kind_f16_k_major": lambda: DrawnKernel("sm90/kind_f16", ["halves_along_k"], "h32x64"),
    "sm90_kind_f16_n_major": lambda: DrawnKernel(
        "sm90/kind_f16", ["halves_along_n"], "h64x64", "bfloats"
    ),
    "sm90_route_t8x64": lambda: DrawnKernel("sm90/route", ["route"], "t8x64"),
    "sm90_route_t64x64": lambda: DrawnKernel("sm90/route", ["route"], "t64x64"),
    "sm90_route_scored": lambda: DrawnKernel("sm90/route", ["route scored"], "t16x64", "bfloats"),
    "sm90_route_m128x256": lambda: DrawnKernel("sm90/route", ["route"], "m128x256"),
    "sm100_route_c16": lambda: DrawnKernel("sm100/route", ["route"], "c16"),
    "sm100_route_c64": lambda: DrawnKernel("sm100/route", ["route"], "c64", "bfloats"),
    "sm100_route_floats": lambda: PackageKernel("route_of_floats", "sm100"),
    "sm100_route_l128": lambda: DrawnKernel("sm100/route", ["route"], "l128"),
    "sm120_gemv": lambda: PackageKernel("gemv", "sm120", sms=4, shape=(1, 8, 16384)),
    "sm120_few": lambda: PackageKernel(
        "gemm_of_bfloats", "sm120", sms=3, shape=(5, 90, 4160), tile="sm120/gemv:w16"
    ),
    "sm120_gemm_t16": lambda: DrawnKernel("sm120/gemm", ["gemm"], "t16", "codes"),
    "sm120_gemm_t128": lambda: DrawnKernel("sm120/gemm", ["gemm"], "t128", "codes"),
    "sm120_gemm_dual": lambda: DrawnKernel("sm120/gemm", ["dual_gemm"], "t64", "codes"),
    "sm120_gemm_experts": lambda: DrawnKernel(
        "sm120/gemm", ["contiguous", "rows", "list"], "t16", "codes"
    ),
    "sm120_gemm_gated": lambda: DrawnKernel("sm120/gemm", ["gated"], "t64", "codes"),
    "sm120_kind_f16_t16": lambda: DrawnKernel("sm120/kind_f16", ["gemm"], "t16", "16 bits"),
    "sm120_kind_f16_t128": lambda: DrawnKernel("sm120/kind_f16", ["gemm"], "t128", "16 bits"),
    "sm120_kind_f16_dual": lambda: DrawnKernel("sm120/kind_f16", ["dual_gemm"], "t64", "16 bits"),
    "sm120_kind_f16_experts": lambda: DrawnKernel(
        "sm120/kind_f16", ["contiguous", "rows", "list"], "t16", "16 bits"
    ),
    "sm120_kind_f16_gated": lambda: DrawnKernel("sm120/kind_f16", ["gated"], "t64", "16 bits"),
    "tcgen05_n64": lambda: DrawnKernel("sm100/gemm", ["gemm"], "n64", "codes"),
    "tcgen05_p192": lambda: DrawnKernel("sm100/gemm", ["gemm"], "p192", "codes"),
    "tcgen05_p256": lambda: DrawnKernel("sm100/gemm", ["gemm"], "p256", "codes"),
    "tcgen05_n64k4": lambda: DrawnKernel("sm100/gemm", ["gemm"], "n64k4", "codes"),
    "tcgen05_p128k2": lambda: DrawnKernel("sm100/gemm", ["gemm"], "p128k2", "codes"),
    "tcgen05_p192m2": lambda: DrawnKernel("sm100/gemm", ["gemm"], "p192m2", "codes"),
    "tcgen05_dual": lambda: DrawnKernel("sm100/gemm", ["dual_gemm"], "p64", "codes"),
    "tcgen05_experts": lambda: DrawnKernel("sm100/gemm", ["contiguous"], "p128", "codes"),
}
OF_GROUPS = {"wgmma": OF_WGMMA, "sm90_kind_f16": OF_HALVES, "sm90_route": OF_ROUTE}
OF_GROUPS |= {"tcgen05": OF_TCGEN05, "sm100_route": OF_SM100_ROUTE}
OF_GROUPS |= dict.fromkeys(("sm120_gemm", "sm120_kind_f16"), OF_SM120)
GROUPS = {name: [t for t in TARGETS if t.startswith(f"{name}_")] for name in OF_GROUPS}
for name, of_group in OF_GROUPS.items():
    EQUIVALENT |= dict.fromkeys(GROUPS[name], of_group)


# --- A campaign ---


def drawn(made, seed):
    """All of them, in the order of a seed that takes from every kind in turn."""
    kinds, order = defaultdict(list), random.Random(seed)
    for mutant in made:
        kinds[mutant.name].append(mutant)
    for kind in kinds.values():
        order.shuffle(kind)
    names = sorted(kinds)
    order.shuffle(names)
    while names:
        for name in names:
            yield kinds[name].pop()
        names = [name for name in names if kinds[name]]


def campaign(name, sample, seed=0, seeds=8, tell=lambda text: None, mutations=None):
    """`sample` mutants (all that there are if fewer) that launches reach: how many are caught, who
    survives; how many are not reached."""
    target, caught, survivors, unreached = TARGETS[name](), 0, [], 0
    try:
        texts = {kernel: target.text_of(kernel) for kernel in target.kernels}
        for kernel, text in texts.items():
            said = target.noticed(kernel, text, 1)
            assert said == "", f"{kernel} as it is: {said}"
        made = [
            m
            for kernel, text in texts.items()
            for m in mutants(text, kernel, mutations or target.mutations)
        ]
        for mutant in drawn(made, seed):
            if caught + len(survivors) == sample:
                break
            text = texts[mutant.kernel]
            if "trap" not in target.noticed(mutant.kernel, mutant.reached(text), 1):
                unreached += 1  # or found something else: a trap also changes where lanes rejoin
                continue
            said = target.noticed(mutant.kernel, mutant.applied(text), seeds)
            where = f"{mutant.name}, {place_of(text, mutant, target.helpers)}"
            tell(f"{said or 'SURVIVES'}: {mutant.kernel}, PTX line {mutant.line}, {where}")
            caught += bool(said)
            if not said:
                survivors.append(where)
    finally:
        target.close()
    return {"caught": caught, "survivors": survivors, "unreached": unreached}
