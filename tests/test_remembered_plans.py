"""Plans that a thread remembers, while NVFP4KERN_BACKEND changes from call to call."""

import json

import pytest
from cuda_calls import run_python
from rows import need

from nvfp4kern import assumed

CALLS = [
    (operator, shape, tokens)
    for operator, shape in [
        ("gemv", "4096x7168"),
        ("gemm", "1x4096x7168"),
        ("gemm", "8x4096x7168"),
        ("gemm", "512x4096x7168"),
        ("dual_gemm", "8x2048x7168"),
        ("grouped_gemm", "32x256x2048x7168"),
    ]
    for tokens in ("nvfp4", "bfloat16")
]
PROGRAM = """
import json, os
from nvfp4kern.explaining import plan
rows, calls = json.loads(os.environ["ASKED"])
found = []
for row in rows:
    os.environ["NVFP4KERN_BACKEND"] = row
    found.append([plan(*call, device="assumed") for call in calls])
print(json.dumps(found))
"""


def plans_of(gpu, rows):
    """Of every call by each of the rows in turn, in a process whose only GPU is assumed."""
    facts = {"NVFP4KERN_ASSUMED_GPU": assumed.setting(gpu), "ASKED": json.dumps([rows, CALLS])}
    return json.loads(run_python(PROGRAM, **facts))


@pytest.mark.parametrize("gpu, row", [("h100", "sm90"), ("b200", "sm100"), ("rtx5090", "sm120")])
def test_rows_of_one_gpu_do_not_share_plans(gpu, row):
    need("sm80", row)
    (own,), (older,) = plans_of(gpu, [row]), plans_of(gpu, ["sm80"])
    assert {plan["backend"] for plan in own + older} == {row, "sm80"}
    assert plans_of(gpu, [row, "sm80", row]) == [own, older, own]
    assert plans_of(gpu, ["sm80", row, "sm80"]) == [older, own, older]
