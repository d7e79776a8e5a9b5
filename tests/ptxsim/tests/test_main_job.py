"""`python -m nvfp4kern` on the simulated GPU: it checks the GPU's rows, too."""

import os
import re
import subprocess
import sys

import pytest
from ptxsim import build
from ptxsim.marks import COMPILES
from rows import need

from nvfp4kern.verify.cases import OPERATORS

pytestmark = [COMPILES, pytest.mark.slow]

PROGRAM = """
import sys
from ptxsim import fake_cuda
fake_cuda.CudaOnHost().__enter__()
from nvfp4kern.__main__ import main
status = main()
found = fake_cuda.report()
assert found["launches"] >= 11 and not [f for f in found["findings"] if f["severity"] in "EW"]
sys.exit(status)
"""


def run_program(program, *arguments):
    path = os.pathsep.join([str(build.HERE.parent), *(os.path.abspath(p) for p in sys.path if p)])
    own = {"PYTHONPATH": path, "NVFP4KERN_BACKEND": "", "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | build.environment(cc="9.0", sms=16) | own,
        capture_output=True,
        text=True,
    )


def test_every_operator_is_checked_on_the_gpu():
    need("sm90", "sm80")
    done = run_program(PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checked: the CPU, then simulated GPU on small cases" in done.stdout
    rows = re.findall(r"^(\w+) .* (sm\d+) .* ok *$", done.stdout, flags=re.M)
    assert [operator for operator, _ in rows] == list(OPERATORS)
    assert dict(rows)["gemm"] == "sm90" and dict(rows)["combine"] == "sm80"
    assert re.search(r"oracle, \d+ on the CPU, 11 on the GPU\n", done.stdout)
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_explain_asks_for_the_gpu():
    """No launch follows."""
    need("sm90", "sm80")
    program = PROGRAM.replace(">= 11", "== 0")
    for arguments, kernel in [
        (["gemm", "128x256x512", "--tokens", "bfloat16", "--layout", "blocked"], "sm90_gemm"),
        (["grouped_dual_gemm", "4x8x256x512"], "sm90_"),
        (["gemm", "128x256x512", "--device", "cpu"], "cpu_gemm"),
    ]:
        done = run_program(program, "explain", *arguments)
        assert done.returncode == 0, done.stderr
        assert re.search(rf"^kernel +{kernel}", done.stdout, flags=re.M)
