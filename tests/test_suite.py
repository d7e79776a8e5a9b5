"""A run of the tests says what it has left out."""

import subprocess
import sys
from pathlib import Path


def test_what_is_left_out_is_listed_at_the_end():
    name = "ptxsim/tests/test_mutants.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    *_, title, left_out, counts = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout
    assert "left out as slow, --all runs them" in title
    count, file = left_out.split(" of ")
    assert int(count) > 5 and file.endswith(name) and f"{count.strip()} skipped" in counts
