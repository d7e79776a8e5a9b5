"""What runs a kernel of the package on one PTX after another, in a process with a simulated GPU."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rows import ROWS

from .. import build
from .mutations import ASYNC, LOGIC, SCALED, SCOPES, SYNC, TCGEN05, WGMMA

WORKER = """
import json, os, sys
import torch
torch.set_num_threads(1)  # a pool of threads does not survive a fork
from ptxsim import fake_cuda
from ptxsim.campaigns import mutants, served_kernel

name, arguments = json.loads(sys.argv[1])
kernel_of, calls_of = getattr(served_kernel, name)(*arguments)


def noticed(path, seeds):
    os.environ["NVFP4KERN_PTX_DIR"] = path  # an image is loaded once a process
    for seed in range(seeds):
        for call in calls_of(seed):
            fake_cuda.library.ptxsim_seed(seed)
            try:
                call()
            except Exception as error:
                return mutants.said_of(fake_cuda.report(), error)
            if mutants.said_of(fake_cuda.report()):
                return mutants.said_of(fake_cuda.report())
    return ""


# A plan may load an image, and it is loaded once a process.
print(json.dumps(mutants.in_a_child(kernel_of)), flush=True)
for line in sys.stdin:
    path, seeds = json.loads(line)
    try:
        said = mutants.in_a_child(lambda: noticed(path, seeds))
    except mutants.CrashedError as crash:  # it wrote where an array of an earlier call was
        said = str(crash)
    print(json.dumps(said), flush=True)
"""
CALLS = 8
"""Of a seed, where they are drawn."""


def of_package(name, shape):
    """In the process: what says which kernel a call of cuda_calls.py uses, and its calls by seed,
    which raise where the result is wrong."""
    import cuda_calls

    cuda_calls.SIZES["given"] = shape
    call = cuda_calls.Call(name, size="given")

    def once(seed):
        call.fill(seed).run()
        call.check(seed)

    return lambda: call.explain()["kernel"], lambda seed: [lambda: once(seed)]


def of_draws(family, operators, tile, multiplies, kind):
    """Likewise of calls of drawn_cases.py for one tile."""
    from drawn_cases import Case

    cases = [Case(family, operator, tile, multiplies) for operator in operators]
    os.environ["NVFP4KERN_TILE"] = cases[0].setting

    def taken(seed):
        for i in range(CALLS):
            case = cases[i // 2 % len(cases)]
            yield from filter(None, [case.draw_taken(seed * CALLS + i, "cuda", kind=kind)])

    def calls(seed):
        for call, _ in taken(seed):
            yield lambda call=call: call.check(call.run("cuda"), 12)

    return lambda: next(taken(0))[1]["kernel"], calls


def reduced(text, kernel):
    """An image of one kernel: the others would be read for each mutant."""
    first, begin = text.index(".visible .entry"), text.index(f".visible .entry {kernel}(")
    ends = [text.find(end, begin + 1) for end in (".visible .entry", "\n\t.file")]
    end = min((at for at in ends if at > 0), default=len(text))
    files = re.findall(r"^\s*\.file[^\n]*\n", text, flags=re.M)
    return text[:first] + text[begin:end] + "\n" + "".join(files)


HELPERS = ("route_epilogue(", "route_by_thread(", "route_token<", "route_turns<")
HELPERS += ("route_cluster_tokens(", "if (warp < SM100_ROUTE_EPILOGUE_WARPS)")
"""Lines of a .cu that call functions of headers, whose places mutants there have."""


class ServedKernel:
    """The kernel that calls use, or `first`, which runs before it."""

    helpers = HELPERS
    is_reduced = True
    """Whether images have that kernel alone."""

    def __init__(self, row, calls, arguments, sms, first=None, **variables):
        self.folder = tempfile.TemporaryDirectory()
        cc = ROWS[row].cc
        path = [str(build.HERE.parent), *(os.path.abspath(p) for p in sys.path if p)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, json.dumps([calls, arguments])],
            env=os.environ
            | build.environment(cc=cc, sms=sms, spin_limit=1_000_000, scopes=1, fenced_stores=1)
            | {"PYTHONPATH": os.pathsep.join(path), "NVFP4KERN_BACKEND": row}
            | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        served = json.loads(self.process.stdout.readline())
        self.kernels = [first or served]
        for path in build.kernels(cc).glob("*.ptx"):
            place, text = Path(self.folder.name, path.name), path.read_text()
            if f".entry {served}(" in text and self.is_reduced:
                text = reduced(text, served)
                place.write_text(text)
            if f".entry {self.kernels[0]}(" in text:
                self.image, self.text = place, text
            elif not place.exists():
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


class PackageKernel(ServedKernel):
    """The kernel of a call of cuda_calls.py."""

    is_reduced = False  # a gemv's plan asks how many clusters of its first kernel there can be

    def __init__(self, call, row, sms=1, shape=(19, 70, 2048), tile=""):
        self.mutations = SYNC | ASYNC | SCOPES | (TCGEN05 if row == "sm100" else {})
        super().__init__(row, "of_package", [call, shape], sms, NVFP4KERN_TILE=tile)


class DrawnKernel(ServedKernel):
    """The kernel of drawn cases, with three SMs, so that CTAs walk over tiles."""

    def __init__(self, family, operators, tile, multiplies="halves", kind="", first=None, sms=3):
        row = family.partition("/")[0]
        of_row = {"sm90": WGMMA, "sm100": TCGEN05, "sm120": SCALED}[row]
        self.mutations = SYNC | ASYNC | SCOPES | LOGIC | of_row
        super().__init__(row, "of_draws", [family, operators, tile, multiplies, kind], sms, first)
