"""The pool's own program (cpu_pool.c), as it is and under ThreadSanitizer."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = "-std=c11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -Wconversion -Werror -pthread".split()
SOURCES = ("tests/cpu/cpu_pool.c", "csrc/cpu/cpu_pool.c", "csrc/nk_status.c")
SAID = ["6 0 0", "3 3 0", "2 2 2", "0 3 3", "0 0 0", "6 0 0", "0 0 0", "6 0 0"]


@pytest.mark.parametrize("flags", [[], ["-fsanitize=thread"]], ids=["plain", "tsan"])
def test_callers_share_the_threads(flags, tmp_path):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if not compiler:
        pytest.skip("no C compiler")
    program = tmp_path / "cpu_pool"
    sources = [ROOT / source for source in SOURCES]
    command = [compiler, *FLAGS, *flags, f"-I{ROOT}/csrc", *sources, "-o", program]
    built = subprocess.run(command, capture_output=True, text=True)
    if flags and "cannot find" in built.stderr:
        pytest.skip("this compiler has no ThreadSanitizer")
    assert built.returncode == 0, built.stderr
    alone = os.environ | {"LD_PRELOAD": ""}  # two sanitizers do not go together
    done = subprocess.run([program], env=alone, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == SAID
