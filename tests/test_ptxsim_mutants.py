"""Kernels of the package with one synchronisation spoiled: the simulated GPU must notice.

A mutant is noticed when a launch fails, anything of severity E or W is found, or a result is wrong.
Mutants are made of the PTX of the kernel that a call uses; the few that nothing notices are listed,
each with the reason why it is no error.
"""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ptxsim import build

missing = [
    name for name, path in [("cc", build.find_cc()), ("nvcc", build.find_nvcc())] if not path
]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"no {' and no '.join(missing)}")

TESTS = Path(__file__).parent
MOST = 10  # mutants a call

# By the spoiled line of the source and the one after it: line numbers move.
EQUIVALENT = {
    "no barrier, sm80_gemv.cu: __syncthreads(); stage_vector<KIND>(p, l, segment, count);": (
        "the vector is staged once, and nobody has read before"
    ),
    "no wait, sm80_route.cu: cp_async_wait_group<0>(); __syncthreads();": (
        "behind the last step only empty groups are left"
    ),
    "no barrier, sm80_route.cu: __syncthreads(); }": "K is split: the sums go to global memory",
}
# What is spoiled: a pattern of one line, and what it becomes.
MUTATIONS = {
    "no barrier": (r"\bbar\.sync\s+0;", ""),
    "no warp barrier": (r"\bbar\.warp\.sync\s+-1;", ""),
    "no wait": (r"cp\.async\.wait_group \d+;", ""),
    "a group more under way": (
        r"(cp\.async\.wait_group) (\d+);",
        lambda m: f"{m[1]} {int(m[2]) + 1};",
    ),
    "no commit": (r"cp\.async\.commit_group;", ""),
}
CALLS = ["gemm", "gemv", "route_sigmoid", "quantize_by_expert"]

WORKER = """
import json, os, sys
import torch
torch.set_num_threads(1)  # a pool of threads does not survive a fork
from ptxsim import fake_cuda
from cuda_calls import Call

call = Call(sys.argv[1], size="deep")


def noticed(seeds):
    for seed in range(seeds):
        fake_cuda.library.ptxsim_seed(seed)
        try:
            call.fill(seed).run()
            call.check(seed)
        except Exception as error:
            return type(error).__name__
        codes = sorted({f["code"] for f in fake_cuda.report()["findings"] if f["severity"] in "EW"})
        if codes:
            return " ".join(codes)
    return ""


def in_a_child(path, seeds):
    "The image is loaded once a process: every mutant has its own."
    read, write = os.pipe()
    if os.fork() == 0:
        os.environ["NVFP4KERN_PTX_DIR"] = path
        os.write(write, noticed(seeds).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.wait()
    return said


print(json.dumps(call.explain()["kernel"]), flush=True)
for line in sys.stdin:
    path, seeds = json.loads(line)
    print(json.dumps(in_a_child(path, seeds)), flush=True)
"""


def places(text, kernel):
    """(mutation, line number, the line, what it becomes) for every place where one applies."""
    begin = text.index(f".entry {kernel}(")
    end = text.find(".visible .entry", begin)
    first = text[:begin].count("\n") + 1
    for at, line in enumerate(text[begin : end if end > 0 else None].split("\n")):
        for name, (pattern, becomes) in MUTATIONS.items():
            if re.search(pattern, line):
                yield name, first + at, line, re.sub(pattern, becomes, line)


def changed(text, number, line):
    lines = text.split("\n")
    lines[number - 1] = line
    return "\n".join(lines)


def source_of(text, number):
    """The kernel file and the line of it (with the next one) that a PTX line comes of."""
    files = dict(re.findall(r'\.file\s+(\d+) "(.*?)"', text))
    before = "\n".join(text.split("\n")[: number - 1])
    location = re.findall(r"\.loc\s+(.*)", before)[-1]
    for file, line in re.findall(r"(?:^|inlined_at )(\d+) (\d+)", location):
        if files[file].endswith(".cu"):
            source = Path(files[file])
            here, after = source.read_text().split("\n")[int(line) - 1 : int(line) + 1]
            return f"{source.name}: {here.strip()} {after.strip()}"
    raise ValueError(f"line {number}, {location}: not of a kernel file")


class Worker:
    """A process that runs one call on one PTX folder after another."""

    def __init__(self, name):
        path = os.pathsep.join([str(TESTS), *(os.path.abspath(p) for p in sys.path if p)])
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, name],
            env=os.environ
            | build.environment(cc="8.0", sms=1, spin_limit=1_000_000)
            | {"PYTHONPATH": path, "NVFP4KERN_BACKEND": "sm80"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.kernel = json.loads(self.process.stdout.readline())

    def run(self, folder, seeds=2):
        self.process.stdin.write(json.dumps([str(folder), seeds]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.mark.parametrize("name", CALLS)
def test_mutants_are_noticed(name, tmp_path):
    originals, survivors = build.kernels(), []
    with Worker(name) as worker:
        assert worker.run(originals) == ""
        for path in originals.glob("*.ptx"):
            (tmp_path / path.name).symlink_to(path)
            if f".entry {worker.kernel}(" in path.read_text():
                image, text = tmp_path / path.name, path.read_text()

        def noticed(number, line):
            image.unlink()
            image.write_text(changed(text, number, line))
            return worker.run(tmp_path)

        made = list(places(text, worker.kernel))
        random.Random(0).shuffle(made)
        for mutation, number, line, becomes in made[:MOST]:
            reached = noticed(number, line + " trap;")
            if reached and not noticed(number, becomes):
                survivors.append(f"{mutation}, {source_of(text, number)}")
    assert made and set(survivors) <= set(EQUIVALENT), survivors
