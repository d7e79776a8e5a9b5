"""Hostile arguments: a sample of what tests/fuzz.py calls, and that it sees what is wrong."""

import random
import subprocess
import sys
from pathlib import Path

import calls
import pytest
from fuzz import Good, attempt

import nvfp4kern

CALLS = 3000  # tests/sanitize.sh --fuzz makes more


def test_hostile_arguments():
    program = Path(__file__).parents[1] / "fuzz.py"
    command = [sys.executable, program, "--seed", "0", "--calls", str(CALLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"seed 0: {CALLS} calls, 0 wrong: ")
    for came in ("returned", "explained", "ValueError", "TypeError", "BufferError", "BackendError"):
        assert f"'{came}': " in done.stdout


def raises_another(*args, **options):
    raise RuntimeError("out: gone")


def names_nothing(*args, **options):
    raise ValueError("Wrong")


def writes_an_input(*args, **options):
    good.memories[0][:] = 7


def writes_and_refuses(*args, **options):
    good.memories[-1][:] = 7
    raise ValueError("a: wrong")


good = Good(calls.gemm)


@pytest.mark.parametrize(
    "operator", (raises_another, names_nothing, writes_an_input, writes_and_refuses)
)
def test_wrong_operators_are_seen(operator, monkeypatch):
    monkeypatch.setattr(nvfp4kern, "gemm", operator)
    monkeypatch.setattr(nvfp4kern, "explain", operator)
    for number in range(20):
        assert attempt(good, random.Random(number))[1], number


def test_a_death_is_told_with_its_number():
    """And the calls after it are made."""
    code = (
        "import fuzz, os, sys\n"
        "attempt = fuzz.attempt\n"
        "def dies(good, rng):\n"
        "    return os.abort() if rng.random() < 0.1 else attempt(good, rng)\n"
        "fuzz.attempt = dies\n"
        "sys.argv[1:] = ['--calls', '40', '--seed', '3']\n"
        "sys.exit(fuzz.main())"
    )
    numbers = [n for n in range(40) if draw(f"3 {n}") < 0.1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    assert done.returncode == 1
    told = [line for line in done.stdout.splitlines() if "died" in line]
    assert numbers and told == [
        f"seed 3, call {n}: the process died, exit status -6" for n in numbers
    ]


def draw(seed):
    """The second number that a call's generator draws: the first one picks the operator."""
    rng = random.Random(seed)
    rng.choice(range(len(calls.FUNCTIONS)))
    return rng.random()
