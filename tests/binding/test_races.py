"""Other threads write what a call reads: no crash, and nothing but the outputs changes."""

import subprocess
import sys
from pathlib import Path

import pytest
from races import SUBJECTS

SECONDS = 2  # each; tests/sanitize.sh --races gives it more


@pytest.mark.parametrize("subject", [subject.__name__ for subject in SUBJECTS])
def test_writers_during_calls(subject):
    program = Path(__file__).parents[1] / "races.py"
    command = [sys.executable, program, str(SECONDS), subject]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == f"{subject}: as it must be\n"
