"""The tcgen05 GEMM with its synchronisation spoiled: the simulator must notice."""

import functools
import random
import re
import shutil
from pathlib import Path

import pytest
from ptxsim import gpu, mutants, sm100_gemm

missing = [name for name in ("cc", "nvcc") if not shutil.which(name)]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"no {' and no '.join(missing)}")

PROBLEMS = {  # small, but two rounds of the accumulators and more, and three of the stages
    "one": (65, 445, 320),
    "one_wide": (65, 893, 320),
    "one_share_b": (129, 445, 320),
    "pair": (129, 445, 320),
    "pair_wide": (129, 893, 320),
    "pair_share_a": (65, 893, 320),
    "pair_share_b": (257, 445, 320),
    "pair_clc": (257, 445, 320),
}
SAMPLE = 60
SEEDS = 3
MORE_SEEDS = 24  # where these say nothing
HELPERS = ("while (!mbarrier_try_wait_parity", "r.phase ^=", "r.slot =")
EQUIVALENT = {}


@functools.cache
def problem(variant):
    return sm100_gemm.Problem(0, *PROBLEMS[variant])


def noticed(variant, text, seeds):
    """What the simulator says of a spoiled image, or what is wrong with the result."""
    module = gpu.Module(text)
    for seed in seeds:
        gpu.clear()
        gpu.seed(seed)
        try:
            problem(variant).launch(module, variant)
            problem(variant).check()
        except (gpu.SimError, AssertionError) as error:
            return str(error)
        codes = [f["code"] for f in gpu.report()["findings"] if f["severity"] in "EW"]
        if codes:
            return " ".join(codes)
    return ""


def source_of(text, mutant):
    """The line of the kernel (and the next) that it is of, outside the helpers of all roles."""
    files = dict(re.findall(r'\.file\s+(\d+) "(.*?)"', text))
    loc = re.compile(r"\.loc\s+(\d+ \d+ \d+)(?:, function_name \S+ inlined_at (\d+ \d+ \d+))?")
    places = loc.findall(text[: mutant.start].replace(", inlined_at", " inlined_at"))[::-1]
    place, outer = places[0]
    while outer:
        file, line, _ = place.split()
        if files[file].endswith("sm100_gemm.cu"):
            here, after = Path(files[file]).read_text().split("\n")[int(line) - 1 : int(line) + 1]
            if not here.strip().startswith(HELPERS):
                break
        place, outer = next(p for p in places if p[0] == outer)
    return f"{here.strip()} {after.strip()}"


def all_mutants():
    found = []
    for variant in PROBLEMS:
        kernel = f"sm100_gemm_{variant}"
        kinds = mutants.ASYNC | mutants.TCGEN05
        found += [(variant, m) for m in mutants.mutants(sm100_gemm.ptx(), kernel, kinds)]
    random.Random(0).shuffle(found)
    return found


def survivors(chosen):
    gpu.configure(cc="10.0", spin_limit=300_000)
    text, left = sm100_gemm.ptx(), {}
    for variant, mutant in chosen:
        if noticed(variant, mutant.applied(text), range(SEEDS)):
            continue
        if not noticed(variant, mutant.reached(text), [0]):
            continue
        if not noticed(variant, mutant.applied(text), range(SEEDS, MORE_SEEDS)):
            left.setdefault(f"{mutant.name}: {source_of(text, mutant)}", []).append(variant)
    return left


def test_a_sample_is_noticed():
    assert set(survivors(all_mutants()[:SAMPLE])) <= set(EQUIVALENT)


@pytest.mark.slow
def test_all_are_noticed():
    assert set(survivors(all_mutants()[SAMPLE:])) <= set(EQUIVALENT)
