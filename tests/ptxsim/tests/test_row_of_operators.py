"""Which row the plans of a simulated B200 take: its own, but for what is listed."""

import json
import os
import subprocess
import sys

import pytest
from ptxsim import build
from ptxsim.marks import COMPILES
from rows import need

pytestmark = [COMPILES, pytest.mark.slow]

PROGRAM = """
import json, sys
from ptxsim import fake_cuda
import nvfp4kern
import sanitize_cases

SHAPES = [(0, 64, 64), (1, 128, 0), (1, 17, 48), (3, 1, 13), (5, 256, 7168), (64, 1024, 1024)]
SHAPES += [(300, 17, 144), (20, 100, 528)]
found = {}
for build in sanitize_cases.BUILDERS:
    name = sanitize_cases.label(build)
    for shape in SHAPES:
        try:
            function, args, options = build(sanitize_cases.blank, *shape)
            plan = nvfp4kern.explain(function.__name__, *args, **options)
        except (ValueError, TypeError):
            continue  # NVFP4 of such a K
        found.setdefault(name, [function.__name__, {}])[1][str(shape)] = plan["backend"]
print(json.dumps(found))
"""
PRODUCTS = ("gemv", "gemm", "dual_gemm", "grouped_gemm", "grouped_dual_gemm")
OPERATORS = ("route", "sort_by_expert", "combine", "quantize", "dequantize")
OPERATORS += ("to_blocked", "from_blocked")
PORTABLE = {
    *(f"stacked {kind}" for kind in ("halves", "bfloats")),
    *(
        f"{form} {kind}"
        for form in ("encoding", "encoding_one")
        for kind in ("codes", "halves", "bfloats")
    ),
    *(f"along_n {kind}" for kind in ("halves", "bfloats")),
    *(
        f"{form} {kind}"
        for form in ("group_list", "by_rows")
        for kind in ("halves", "bfloats", "plain halves", "plain bfloats")
    ),
    "one_launch bfloats",
    "scaled_by_token encoding codes",
}
"""Products that portable kernels serve at every shape."""


def test_every_operator_has_kernels_of_blackwells_row():
    """All but products at every shape; of these all that are not listed, where rows are aligned."""
    need("sm100", "sm80")
    path = os.pathsep.join([str(build.HERE.parent), *(os.path.abspath(p) for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ
        | build.environment(cc="10.0", sms=148)
        | {"PYTHONPATH": path, "NVFP4KERN_BACKEND": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    others = {name: rows for name, (function, rows) in found.items() if function in OPERATORS}
    products = {name: rows for name, (function, rows) in found.items() if function in PRODUCTS}
    assert {*others, *products} == set(found) and {f for f, _ in found.values()} == {
        *OPERATORS,
        *PRODUCTS,
    }
    assert {name: rows for name, rows in others.items() if set(rows.values()) != {"sm100"}} == {}
    aligned = ("(5, 256, 7168)", "(64, 1024, 1024)")
    portable = {name for name, rows in products.items() for s in aligned if rows[s] != "sm100"}
    assert portable <= PORTABLE
