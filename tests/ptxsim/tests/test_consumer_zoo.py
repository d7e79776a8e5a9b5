"""Which row serves the products of served models on consumer Blackwell: an RTX 5090, a DGX Spark,
an RTX PRO 6000."""

import json
import os
import subprocess
import sys

import pytest
from ptxsim import build
from ptxsim.marks import COMPILES
from rows import need

pytestmark = COMPILES
ROOT = build.HERE.parents[1]
PROGRAM = """
import json, os, sys
from collections import Counter
import find_cliffs
from cliff_calls import zoo
found = Counter()
for call in zoo():
    plan = find_cliffs.plan_of(call, find_cliffs.Addresses())
    found[plan["backend"], call.kind != "nvfp4", plan.get("declined") or plan.get("error")] += 1
print(json.dumps([[*key, count] for key, count in found.items()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("cc, sms", [("12.0", 170), ("12.1", 48), ("12.0", 188)], ids=str)
def test_every_product_is_the_rows(cc, sms):
    need("sm120")
    folders = [ROOT, ROOT / "tests", ROOT / "benchmarks", *(p for p in sys.path if p)]
    settings = build.environment("gemv", cc=cc, sms=sms)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ
        | settings
        | {"PYTHONPATH": os.pathsep.join(os.path.abspath(folder) for folder in folders)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = {(row, halves, why): n for row, halves, why, n in json.loads(done.stdout)}
    assert set(found) == {("sm120", False, None), ("sm120", True, None)}
    assert sum(found.values()) > 3600
