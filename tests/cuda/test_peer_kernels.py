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

LONG_AGO = 2**31 + 6  # launches, after which what is as old looks new to a signed difference
WRAPS = 2**32 - 2  # launches, after which the counter passes zero

EXPERTS = [  # ranks, tokens of each at most, k, H, experts, with scale factors, dtype
    (1, 3, 2, 256, 4, True, "bfloat16"),
    (2, 1, 8, 512, 16, False, "bfloat16"),
    (3, 5, 3, 2048, 7, True, "float16"),
    (3, 2, 1, 16, 3, False, "float32"),
    (2, 130, 2, 1040, 9, False, "bfloat16"),
    (9, 1, 33, 16, 11, False, "float16"),  # more ranks than warps, and selections than lanes
    (3, 45, 2, 1040, 9, False, "bfloat16"),  # CTAs go on to other parts of other tokens
    (2, 2, 2, 34048, 3, True, "float16"),  # tokens that a CTA does not load at once
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
    calls += [("sums", (*SUMS[1], shots, WRAPS)) for shots in (1, 2)]
    alone = [(shots, before) for before in (0, LONG_AGO) for shots in (1, 2)]
    after = [("elsewhere", (shots,)) for shots in (1, 2)]
    found = told(calls + [("alone", each) for each in alone] + after)
    for (_, (world, *_)), right in zip(calls, found, strict=False):
        assert right == [True] * 4 * world
    for (_, before), (nan, word, header) in zip(alone, found[len(calls) : -2], strict=True):
        assert nan == [True, True] and word[0] in (1, 3)
        assert header == [before + 2, 0, before + 1, *word]
    for each in found[-2:]:
        assert each == [True, [3], [1, 3], [1, 0, 1, 3]]


@pytest.mark.skipif(not (build.find_cc() and build.find_nvcc()), reason="no cc or no nvcc")
def test_experts():
    need("sm80")
    calls = [("experts", case) for case in EXPERTS]
    for call, (checked, right, word) in zip(calls, told(calls), strict=True):
        assert right == checked > 0 and word == [0], call


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
        (
            "peers",
            torch.zeros(9, dtype=torch.int32)[1:].view(4, 2),
            ValueError,
            "peers: address",
        ),
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


def zeros(*shape, dtype=torch.uint8):
    return torch.zeros(*shape, dtype=dtype)


GROUP = {"peers": zeros(4, 2, dtype=torch.int32), "arena": zeros(32 << 20), "rank": 1}
DISPATCH = GROUP | {
    "tokens": zeros(3, 64),
    "scales": zeros(3, 16),
    "ids": zeros(3, 2, dtype=torch.int32),
    "experts": 4,
    "out_tokens": zeros(8, 64),
    "out_scales": zeros(8, 16),
    "out_ids": zeros(8, 2, dtype=torch.int32),
}
COMBINE = GROUP | {
    "products": zeros(16, 32, dtype=torch.bfloat16),
    "row_of": zeros(16, dtype=torch.int32),
    "ids": zeros(3, 2, dtype=torch.int32),
    "weights": zeros(3, 2, dtype=torch.float32),
    "residual": zeros(3, 32, dtype=torch.float32),
    "experts": 4,
    "out": zeros(3, 32, dtype=torch.float16),
}
BAD = [
    ("_peer_dispatch", "tokens", zeros(3, 60), ValueError, "a multiple of 16"),
    ("_peer_dispatch", "tokens", zeros(4, 64), ValueError, "tokens: shape (4, 64), expected (3, "),
    ("_peer_dispatch", "tokens", zeros(3, 64, dtype=torch.int32), TypeError, "tokens: dtype"),
    ("_peer_dispatch", "scales", zeros(3, 20), ValueError, "scales: shape"),
    ("_peer_dispatch", "scales", None, ValueError, "out_scales: expected where scales are given"),
    ("_peer_dispatch", "out_scales", None, ValueError, "out_scales: expected where scales"),
    ("_peer_dispatch", "ids", zeros(3, dtype=torch.int32), ValueError, "ids: shape (3,)"),
    ("_peer_dispatch", "ids", zeros(5, 2, dtype=torch.int32), ValueError, "room for 8 tokens"),
    ("_peer_dispatch", "ids", zeros(3, 3, dtype=torch.int32), ValueError, "out_ids: shape (8, 2)"),
    ("_peer_dispatch", "experts", 1, ValueError, "experts: 1, expected one for each of 2 ranks"),
    ("_peer_dispatch", "out_ids", zeros(7, 2, dtype=torch.int32), ValueError, "a multiple of 2"),
    ("_peer_dispatch", "out_tokens", zeros(8, 48), ValueError, "expected (8, 64)"),
    ("_peer_dispatch", "out_tokens", zeros(16, 64)[::2], ValueError, "out_tokens: strides"),
    ("_peer_dispatch", "rank", 2, ValueError, "rank: 2, expected 0 to 1"),
    ("_peer_combine", "products", zeros(16, 12, dtype=torch.float32), ValueError, "multiple of 8"),
    (
        "_peer_combine",
        "products",
        zeros(16, 40, dtype=torch.float32),
        ValueError,
        "residual: shape",
    ),
    ("_peer_combine", "row_of", zeros(15, dtype=torch.int32), ValueError, "row_of: shape (15,)"),
    ("_peer_combine", "row_of", zeros(8, dtype=torch.int32), ValueError, "row_of: room for 4"),
    ("_peer_combine", "weights", zeros(3, 2, dtype=torch.int32), TypeError, "weights: dtype"),
    ("_peer_combine", "weights", zeros(3, 3, dtype=torch.float32), ValueError, "weights: shape"),
    ("_peer_combine", "residual", zeros(2, 32, dtype=torch.float32), ValueError, "residual: shape"),
    ("_peer_combine", "out", zeros(3, 40, dtype=torch.float16), ValueError, "out: shape (3, 40)"),
    ("_peer_combine", "out", COMBINE["residual"], ValueError, "out: "),
    ("_peer_combine", "ids", zeros(3, 0, dtype=torch.int32), ValueError, "ids: shape (3, 0)"),
    ("_peer_dispatch", "ids", zeros(3, 129, dtype=torch.int32), ValueError, "k of 1 to 128"),
    ("_peer_combine", "experts", 2**40, ValueError, "experts: "),
]


@pytest.mark.parametrize("function, name, value, error, said", BAD)
def test_bad_arguments_of_experts_are_refused(function, name, value, error, said):
    good = {"_peer_dispatch": DISPATCH, "_peer_combine": COMBINE}[function]
    with pytest.raises(error) as raised:
        getattr(nvfp4kern._C, function)(**(good | {name: value}))
    assert said in str(raised.value)
    with pytest.raises(nvfp4kern.BackendError, match="cpu:0"):  # nothing else is wrong with it
        getattr(nvfp4kern._C, function)(**good)
