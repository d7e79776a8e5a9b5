"""The campaign of the tiles of Hopper: what is kept of it, and a drawn sample."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from drawn_calls import OPERATORS, TOKENS, drawn
from drawn_cases import cases
from ptxsim import build
from ptxsim.campaigns import tiles
from rows import need

TESTS = Path(__file__).parents[2]
missing = [
    name for name, path in [("cc", build.find_cc()), ("nvcc", build.find_nvcc())] if not path
]


def test_what_is_kept_found_nothing():
    """Kernels that came later are missing until the campaign has run again."""
    need("sm90")
    kept = json.loads(tiles.RESULTS.read_text())
    assert set(kept) == {"sources", "sms", "seeds", "cases", "found"}
    assert kept["found"] == [] and kept["sms"] == list(tiles.SMS)
    assert kept["seeds"] == sorted(set(kept["seeds"])) and kept["seeds"]
    known = {case.name: case for case in cases()}
    assert kept["cases"] and set(kept["cases"]) <= set(known)
    for name, counts in kept["cases"].items():
        assert set(counts) == {*tiles.COUNTS, "kernel"}
        case = known[name]
        assert counts["calls"] + counts["declined"] == len(kept["seeds"]), name
        assert counts["calls"] and (case.may_decline or not counts["declined"]), name
        assert counts["kernel"].endswith(f"_{case.tile}_{case.halves}"), name
        assert counts["wrong"] == counts["E"] == counts["W"] == 0, name


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_drawn_calls_are_the_oracles(operator, tokens, monkeypatch):
    """On the CPU: what is drawn is right, and a seed draws it again."""
    monkeypatch.setenv("NVFP4KERN_BACKEND", "cpu")
    for seed in range(12):
        call = drawn(operator, tokens, (8, 64, 256)[seed % 3], seed, work=1 << 18)
        outs = call.run("cpu")
        call.check(outs, 1)
        again = drawn(operator, tokens, (8, 64, 256)[seed % 3], seed, work=1 << 18)
        assert again.said == call.said
        outs[0].buffer.view(dtype=outs[0].buffer.dtype)[0] = 1  # a guard
        with pytest.raises(AssertionError, match="guards"):
            call.check(outs, 1)


def test_a_wrong_element_is_noticed(monkeypatch):
    monkeypatch.setenv("NVFP4KERN_BACKEND", "cpu")
    for always_exact in (True, False):
        call = drawn("gemm", "NVFP4", 64, 3, work=1 << 18, always_exact=always_exact)
        (out,) = call.run("cpu")
        element = tuple(np.array(out.tensor.shape) - 1)
        out.tensor[element] = 3e4
        with pytest.raises(AssertionError, match="output 0"):
            call.check([out], 1)


def run_command(*command):
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path if p)
    return subprocess.run(
        [sys.executable, *command],
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.skipif(bool(missing), reason=f"no {' and no '.join(missing)}")
def test_a_drawn_sample_of_tiles(campaign, tmp_path):
    need("sm90")
    file = tmp_path / "found.json"
    sample = ["--seed", str(campaign.seed), "--seeds", str(campaign.times(2)), "--sample", "20"]
    done = run_command("-m", "tests.ptxsim", "tiles", *sample, "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert found["found"] == [] and len(found["seeds"]) == campaign.times(2)
    assert sum(counts["calls"] for counts in found["cases"].values()) > 20


def test_the_script_of_random_problems_compares():
    """The CPU with itself, as on a machine without a GPU."""
    need("sm90")
    script = ["tests/random_problems.py", "--backend", "cpu", "--count", "120", "--jobs", "1"]
    done = run_command(*script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 1: 120 problems right, 0 wrong" in done.stdout
