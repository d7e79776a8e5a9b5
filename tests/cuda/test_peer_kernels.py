"""The kernels between GPUs, in the simulator: numbers, what they write to whom, and what becomes of
a wait in vain."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ptxsim import build
from rows import need

import nvfp4kern

TESTS = Path(__file__).parents[1]
SUMS = [
    (2, 64, "bfloat16", "bfloat16"),
    (3, 200, "float16", "float16"),
    (3, 2104, "float32", "bfloat16"),
    (5, 8, "float32", "float32"),
]

EXPERTS = [  # ranks, tokens of each at most, k, H, experts, with scale factors, dtype
    (1, 3, 2, 256, 4, True, "bfloat16"),
    (2, 1, 8, 512, 16, False, "bfloat16"),
    (3, 5, 3, 2048, 7, True, "float16"),
    (3, 2, 1, 16, 3, False, "float32"),
    (2, 130, 2, 1040, 9, False, "bfloat16"),
]


def told(calls):
    """What peers_simulated.py says of them."""
    path = os.pathsep.join([str(TESTS), *(os.path.abspath(p) for p in sys.path if p)])
    command = [sys.executable, Path(__file__).with_name("peers_simulated.py"), json.dumps(calls)]
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []
    return json.loads(done.stdout.splitlines()[-2])


@pytest.mark.skipif(not (build.find_cc() and build.find_nvcc()), reason="no cc or no nvcc")
def test_sums_and_waits():
    need("sm80")
    calls = [("sums", (*case, shots)) for case in SUMS for shots in (1, 2)]
    calls += [("alone", (1,)), ("alone", (2,))]
    *sums, one, two = told(calls)
    for (world, *_), found in zip([c for c in SUMS for _ in range(2)], sums, strict=True):
        assert found == [True] * 4 * world
    for nan, word, header in (one, two):
        assert nan == [True, True] and word[0] in (1, 3) and header == [2, 0, 1, *word]


@pytest.mark.skipif(not (build.find_cc() and build.find_nvcc()), reason="no cc or no nvcc")
def test_experts():
    need("sm80")
    for case, (checked, right, word) in zip(
        EXPERTS, told([("experts", case) for case in EXPERTS]), strict=True
    ):
        assert right == checked > 0 and word == [0], case


def bad_calls():
    good = {
        "peers": torch.zeros(4, 2, dtype=torch.int32),
        "arena": torch.zeros(32 << 20, dtype=torch.uint8),
        "rank": 0,
        "partial": torch.zeros(64),
        "out": torch.zeros(64),
        "shots": 0,
    }
    for name, value, error, said in [
        (
            "peers",
            torch.zeros(2, 2, dtype=torch.int32),
            ValueError,
            "peers: shape (2, 2), expected",
        ),
        ("peers", torch.zeros(67, 2, dtype=torch.int32), ValueError, "expected [ranks + 2, 2]"),
        ("peers", torch.zeros(4, 2), TypeError, "peers: dtype float32"),
        ("rank", 2, ValueError, "rank: 2, expected 0 to 1"),
        ("rank", -1, ValueError, "rank: -1, expected 0 to 1"),
        ("arena", torch.zeros(64, dtype=torch.uint8), ValueError, "arena: 64 bytes, expected"),
        ("partial", torch.zeros(60), ValueError, "partial: 60 elements, expected a multiple of 8"),
        ("partial", torch.zeros(128)[::2], ValueError, "partial: strides (2,), expected"),
        ("partial", torch.zeros(68)[2:66], ValueError, "partial: address"),
        ("partial", torch.zeros(64, dtype=torch.int32), TypeError, "partial: dtype int32"),
        ("out", torch.zeros(72), ValueError, "out: 72 elements, expected the 64 of partial"),
        ("out", good["partial"], ValueError, "out: "),
        ("shots", 3, ValueError, "shots: 3, expected 0, 1 or 2"),
        ("shots", "1", TypeError, "shots: "),
        ("partial", None, TypeError, "partial: "),
    ]:
        yield good | {name: value}, error, said
    yield good, nvfp4kern.BackendError, "cpu:0"


@pytest.mark.parametrize("arguments, error, said", list(bad_calls()))
def test_bad_arguments_are_refused(arguments, error, said):
    with pytest.raises(error) as raised:
        nvfp4kern._C._peer_reduce(**arguments)
    assert said in str(raised.value)
