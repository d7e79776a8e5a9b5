"""The competition's entry points on its shapes: its own data, whose results are known to the bit,
and codes and scale factors of the full range, within the bound."""

import importlib
from functools import partial

import numpy as np

from ..verify import data, reference, shapes
from . import on_device

ULPS = {"dual_gemm": 1}
"""That silu may leave on the competition's own data."""


def _expected(problem, operands, c):
    values = [o.values for o in operands]
    if problem == "dual_gemm":
        return reference.dual_gemm(*values, c=c)
    if problem == "gemv":
        return reference.gemv(*values)
    return reference.gemm(*values, c=c)


def _checked(problem, shape, benign, device):
    case = data.competition(problem, shape, benign=benign, device=device)
    run = importlib.import_module(f"nvfp4kern.competition.nvfp4_{problem}").custom_kernel
    run(case.data)
    worst = None
    for result, operands in zip(case.results, case.operands, strict=True):
        got = result.permute(2, 0, 1).cpu().float().numpy()
        want = _expected(problem, operands, on_device.C[device])
        verdict = reference.check(got, want, "float16")
        if benign and verdict.ok:
            exact = want.rounded("float16")
            verdict.ok = bool((reference.ulps(got, exact, "float16") <= ULPS.get(problem, 0)).all())
        if worst is None or (not verdict.ok, verdict.worst) > (not worst.ok, worst.worst):
            worst = verdict
    return on_device.judged(worst)


def _chosen(problem, extent):
    tests = sorted(shapes.TESTS[problem], key=partial(shapes.multiply_adds, problem))
    if extent == "quick":
        return tests[:1]
    return tests + (shapes.BENCHMARKS[problem] if extent == "all" else [])


def items(device, extent):
    for problem in shapes.TESTS:
        for shape in _chosen(problem, extent):
            for benign in (True, False):
                sizes = "x".join(map(str, np.ravel(shape)))
                label = f"{problem} {sizes}, {'its data' if benign else 'full range'}"
                yield label, partial(_checked, problem, shape, benign, device)
