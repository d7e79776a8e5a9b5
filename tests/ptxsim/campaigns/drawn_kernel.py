"""What runs a kernel of a tile on one PTX after another: calls of tests/drawn_cases.py."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rows import ROWS

from .. import build
from .mutations import ASYNC, LOGIC, SYNC, TCGEN05, WGMMA

WORKER = """
import json, os, sys
import torch
torch.set_num_threads(1)  # a pool of threads does not survive a fork
from ptxsim import fake_cuda
from ptxsim.campaigns import mutants
from drawn_cases import Case

CALLS = 8
family, operators, tile, multiplies, kind = json.loads(sys.argv[1])
cases = [Case(family, operator, tile, multiplies) for operator in operators]
os.environ["NVFP4KERN_TILE"] = cases[0].setting


def calls_of(seed):
    for i in range(CALLS):
        case = cases[i // 2 % len(cases)]
        taken = case.draw_taken(seed * CALLS + i, "cuda", kind=kind)
        if taken:
            yield taken


def noticed(path, seeds):
    os.environ["NVFP4KERN_PTX_DIR"] = path  # an image is loaded once a process
    for seed in range(seeds):
        for call, _ in calls_of(seed):
            fake_cuda.library.ptxsim_seed(seed)
            try:
                call.check(call.run("cuda"), 12)
            except Exception as error:
                return mutants.said_of(fake_cuda.report(), error)
            if mutants.said_of(fake_cuda.report()):
                return mutants.said_of(fake_cuda.report())
    return ""


# A plan may load an image, and it is loaded once a process.
explained = lambda: next(calls_of(0))[1]["kernel"]
print(json.dumps(mutants.in_a_child(explained)), flush=True)
for line in sys.stdin:
    path, seeds = json.loads(line)
    print(json.dumps(mutants.in_a_child(lambda: noticed(path, seeds))), flush=True)
"""


def reduced(text, kernel):
    """An image of one kernel: the others would be read for each mutant."""
    first, begin = text.index(".visible .entry"), text.index(f".visible .entry {kernel}(")
    ends = [text.find(end, begin + 1) for end in (".visible .entry", "\n\t.file")]
    end = min((at for at in ends if at > 0), default=len(text))
    files = re.findall(r"^\s*\.file[^\n]*\n", text, flags=re.M)
    return text[:first] + text[begin:end] + "\n" + "".join(files)


class DrawnKernel:
    """The kernel of cases of one tile, or the one named that runs before it, with three SMs, so
    that CTAs walk over tiles."""

    helpers = ("store<C>(", "each_tile<C>(", "list_experts<")
    helpers += (
        "route_token(",
        "route_tokens(",
        "route_lane(",
        "if (warp < SM100_ROUTE_LANE_WARPS)",
    )
    """Of headers, or of functions that call them."""

    def __init__(self, family, operators, tile, multiplies="halves", kind="", first=None, sms=3):
        self.folder = tempfile.TemporaryDirectory()
        row = family.partition("/")[0]
        self.mutations = SYNC | ASYNC | LOGIC | (TCGEN05 if row == "sm100" else WGMMA)
        cc = ROWS[row].cc
        self.originals = build.kernels(cc)
        path = os.pathsep.join(
            [str(build.HERE.parent), *(os.path.abspath(p) for p in sys.path if p)]
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, json.dumps([family, operators, tile, multiplies, kind])],
            env=os.environ
            | build.environment(cc=cc, sms=sms, spin_limit=1_000_000)
            | {"PYTHONPATH": path, "NVFP4KERN_BACKEND": row},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        product = json.loads(self.process.stdout.readline())
        self.kernels = [first or product]
        for path in self.originals.glob("*.ptx"):
            place, text = Path(self.folder.name, path.name), path.read_text()
            if f".entry {self.kernels[0]}(" in text:
                self.image = place
                self.text = text if first else reduced(text, product)
            elif f".entry {product}(" in text:
                place.write_text(reduced(text, product))
            else:
                place.symlink_to(path)

    def text_of(self, kernel):
        return self.text

    def noticed(self, kernel, text, seeds):
        self.image.write_text(text)
        self.process.stdin.write(json.dumps([self.folder.name, seeds]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.folder.cleanup()
