"""Samples of the campaigns that are run by hand, and that they see what is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SAMPLES = {
    "hostile_exporters": "--cases 40 --count 3",
    "failing_memory": "--cases 20 --count 10",
    "interrupted": "--count 12 --only load|save|quantize$",
    "failing_files": "--count 8 --only (open|read|stat|map|close):.load|write:.save",
}


def attempt(program, *options):
    return subprocess.run(
        [sys.executable, HERE / program, "--seed", "0", *options],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.skipif("NVFP4KERN_SANITIZED" in os.environ, reason="libasan is preloaded there")
def test_a_sample(name):
    done = attempt(f"{name}.py", *SAMPLES[name].split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" points, 0 wrong\n")


WRONG = """
import os, campaign

def case():
    yield "right", lambda: []
    yield "wrong", lambda: ["an answer"]
    yield "deadly", os.abort
    yield "after it", lambda: ["another answer"]

def broken():
    raise KeyError
    yield

raise SystemExit(campaign.main("", {"bad": case, "broken": broken, "good": list}, count=0))
"""


def test_what_is_wrong_is_seen(tmp_path):
    program = tmp_path / "wrong.py"
    program.write_text(f"import sys; sys.path.insert(0, {str(HERE)!r}){WRONG}")
    done = attempt(program)
    assert done.returncode == 1
    assert "wrong: an answer\n" in done.stdout and "after it: another answer\n" in done.stdout
    assert "deadly: the process died, exit status -6\n" in done.stdout
    assert done.stdout.endswith("seed 0: 4 points, 4 wrong\n")
    assert "KeyError" in done.stderr
