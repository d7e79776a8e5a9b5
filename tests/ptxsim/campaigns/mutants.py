"""Kernels with one thing spoiled: the simulated GPU must notice.

Mutants are made mechanically of PTX, one instruction changed. One is noticed when a launch fails,
anything of severity E or W is found, or a result is wrong, for any of a few seeds. Places that no
launch reaches (a trap there goes unnoticed) do not count. What nothing notices survives: EQUIVALENT
says of each survivor why it is no error.
"""

import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from rows import ROWS

from .. import build, gpu
from .mutations import ASYNC, RINGS, SYNC, TCGEN05, WGMMA

MUTATIONS = SYNC | ASYNC | RINGS | WGMMA | TCGEN05

TOGETHER = "lanes rejoin behind a branch here, which ptxas does not promise"

# By target, then by the mutation and the spoiled line of the source with the one after it: line
# numbers move.
EQUIVALENT = {
    "sm100_gemm": {
        "no warp barrier, sm100_gemm.cu: __syncwarp();"
        " tcgen05_ld_32x32b_x32(lanes + acc.slot * S::N + column, left);": TOGETHER,
        "no warp barrier, sm100_gemm.cu: __syncwarp(); barrier_cluster();": TOGETHER,
        "no warp barrier, sm100_gemm.cu: __syncwarp(); barrier_cluster();"
        " /* each role has a tcgen05 fence of its own behind its first wait */": TOGETHER,
        "the cluster barrier releases nothing, sm100_gemm.cu: barrier_cluster();"
        " if (warp == WARP_TMEM) tcgen05_dealloc<S::CTAS>(tmem, TMEM_COLUMNS);": (
            "arrivals at another CTA's mbarrier are there at once, which hardware does not promise"
        ),
        "waits without acquiring, sm100_gemm.cu: wait(at.empty, r.slot, r.phase);"
        " advance<STAGES>(r);": "the producer's last waits keep its CTA there, nothing more",
        "no proxy fence, sm100_gemm.cu: fence_proxy_async();"
        " /* the next response may overwrite this one */ if (WARP) __syncwarp();": (
            "only what ordinary stores wrote must be fenced here, not what loads have read"
        ),
        "arrives without releasing, sm100_gemm.cu: if (!WARP || threadIdx.x % 32 == 0)"
        " mbarrier_arrive_cluster(mapa(at.clc_empty + 8 * slot, 0));"
        " advance<CLC_SLOTS>(w.responses);": (
            "of those who read a response the last is remembered, and it may not be this one"
        ),
    },
    "sm90_gemm": {
        f"{name}, sm90_gemm.cu: wait(s.full[c.from.slot], c.from.phase);"
        " wait(s.w_full[c.w.slot], c.w.phase);": (
            "the decoder has waited for the same barrier, and w_full says so"
        )
        for name in ("no wait at the mbarrier", "waits without acquiring")
    }
    | {
        "the cluster barrier releases nothing, sm90_gemm.cu: barrier_cluster_arrive();"
        " /* not .aligned, as the last: lanes of the load warp come one by one there */"
        " barrier_cluster_wait();": (
            "it tells of initialised mbarriers alone, and their fence is enough for that"
        )
    },
    "gemv": {
        "no barrier, sm80_gemv.cu: __syncthreads(); stage_vector<KIND>(p, l, segment, count);": (
            "the vector is staged once, and nobody has read before"
        ),
    },
    "route_sigmoid": {
        "no wait, sm80_route.cu: cp_async_wait_group<0>(); __syncthreads();": (
            "behind the last step only empty groups are left"
        ),
        "a group more under way, sm80_route.cu: cp_async_wait_group<0>(); __syncthreads();": (
            "behind the last step only empty groups are left"
        ),
        "no barrier, sm80_route.cu: __syncthreads(); }": (
            "K is split: the sums go to global memory"
        ),
        "no barrier, sm80_route.cu: __syncthreads(); if (threadIdx.x == 0) {": (
            "orders global memory only, where the simulator looks for no races"
        ),
        "no warp barrier, sm80_route_sort.cuh: __syncwarp(); }": (
            "behind a warp's last 32 entries nothing follows"
        ),
    },
    "sm90_gemv": {
        "no warp barrier, sm90_gemv_codes.cu: prepare_sums(s, 1, partials);"
        " fence_proxy_async();": TOGETHER,
    },
    "sm90_tiles": {
        f"no warp barrier, sm90_gemv_tiles.cu: {lines}": TOGETHER
        for lines in (
            "__syncwarp(); griddepcontrol_launch_dependents();",
            "__syncwarp(); if (s.early) begin_token();",
            "__syncwarp(); }",
            "prepare_inbox(s); const source from = source_of(p, w);",
        )
    },
    "sm90_few": {
        "no warp barrier, sm90_gemv.cu: prepare_sums(s, tokens, partials);"
        " if (threadIdx.x < sizeof(sm90_gemv_head::zeros) / 16)"
        " smem[threadIdx.x] = make_uint4(0, 0, 0, 0);": TOGETHER,
        "no warp barrier, sm90_gemv.cu: if (COPIED) prepare_tokens(tokens); prepare(w, ahead);": (
            "a lane makes the mbarrier that it uses; on hardware one lane makes them for all"
        ),
        "waits without acquiring, sm90_gemv.cu: pair_tokens(s, w, tokens); } else {": (
            "a copy is there for all once it is counted, which hardware does not promise"
        ),
    },
}


@dataclass(frozen=True)
class Mutant:
    """What becomes of a few characters of PTX."""

    name: str
    kernel: str
    line: int
    start: int
    end: int
    becomes: str

    def applied(self, text):
        return text[: self.start] + self.becomes + text[self.end :]

    def reached(self, text):
        """With a trap in front: what no test executes cannot be noticed."""
        return text[: self.start] + "trap; " + text[self.start :]


def mutants(text, kernel, mutations=None):
    """Every place of a kernel where one of `mutations` (all that there are) applies."""
    begin = text.index(f".entry {kernel}(")
    end = text.find(".visible .entry", begin)
    end = end if end > 0 else len(text)
    for name, (pattern, becomes) in (mutations or MUTATIONS).items():
        for match in re.compile(pattern).finditer(text, begin, end):
            spoiled = becomes(match) if callable(becomes) else match.expand(becomes)
            if spoiled == match[0]:
                continue
            line = text.count("\n", 0, match.start()) + 1
            yield Mutant(name, kernel, line, match.start(), match.end(), spoiled)


MACRO = re.compile(r"[A-Z0-9_]+\(.*\)")  # makes kernels, whose lines are in a header


def source_of(text, mutant, helpers=()):
    """The line (with the next one) that a mutant is of, however much is inlined there: the
    innermost of a .cu, but for lines that begin like `helpers` and for macros; else the innermost
    of a header above the PTX layer."""
    files = dict(re.findall(r'\.file\s+(\d+) "(.*?)"', text))
    location = re.compile(r"\.loc\s+(\d+ \d+ \d+)(?:.*?inlined_at (\d+ \d+ \d+))?")
    places = location.findall(text[: mutant.start])[::-1]
    (place, caller), in_header = places[0], ""
    while place:
        file, line = map(int, place.split()[:2])
        source = Path(files[str(file)])
        here, after = (text.strip() for text in lines_of(source)[line - 1 : line + 1])
        said = f"{source.name}: {here} {after}"
        if source.suffix == ".cu":
            if not here.startswith(tuple(helpers)) and not MACRO.fullmatch(here):
                return said
        elif source.suffix == ".cuh" and source.parent.name != "ptx":
            in_header = in_header or said
        place, caller = next((p for p in places if p[0] == caller), (caller, ""))
    return in_header


def lines_of(source):
    """PTX is kept for all checkouts that have the same sources: the path may be another's."""
    if not source.is_file():
        source = next(path for path in build.HERE.parents[1].rglob(source.name))
    return source.read_text().split("\n")


# ---------------------------------------------------------------------------------------------
# Who runs them
# ---------------------------------------------------------------------------------------------


def in_a_child(work, seconds=120):
    """What work() says, in a process of its own: a mutant may do anything."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        try:
            said = "said " + work()
        except BaseException as error:
            said = f"failed {type(error).__name__}: {error}"
        os.write(write, said.encode()[:60_000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    kind, _, what = said.partition(" ")
    if kind != "said":
        raise RuntimeError(what or "the simulator crashed, or took too long")
    return what


def said_of(report, error=None):
    """What makes a mutant noticed, "" if nothing does."""
    codes = sorted({f["code"] for f in report["findings"] if f["severity"] in "EW"})
    return " ".join(codes) or (type(error).__name__ if error else "")


class OwnKernels:
    """The kernels of ptxsim/kernels/NAME.cu, launched by the cases of ptxsim/NAME.py."""

    mutations = MUTATIONS

    def __init__(self, name):
        module = importlib.import_module(f"..{name}", __package__)
        self.cases, arch = module.CASES, module.ARCH
        self.helpers = getattr(module, "HELPERS", ())
        self.text = build.own_kernel(name, arch).read_text()
        self.kernels = sorted({case.kernel for case in self.cases.values()})
        gpu.configure(cc=ROWS[arch].cc, sms=8)

    def text_of(self, kernel):
        return self.text

    def noticed(self, kernel, text, seeds, spoil=""):
        return in_a_child(lambda: self.try_it(kernel, text, seeds, spoil))

    def try_it(self, kernel, text, seeds, spoil):
        module = gpu.Module(text)
        module.kernel(kernel)  # what is no PTX is no mutant
        mine = [case for case in self.cases.values() if case.kernel == kernel and case.exact]
        for seed in range(seeds):
            for case in mine:
                gpu.clear()
                gpu.seed(seed)
                try:
                    case.check(case.run(module, **({"spoil": spoil} if spoil else {})))
                except (gpu.SimError, AssertionError) as error:
                    return said_of(gpu.report(), error)
                if said_of(gpu.report()):
                    return said_of(gpu.report())
        return ""

    def spoilt(self, seeds):
        """(what the host does wrong, kernel, what notices it)"""
        for kernel in self.kernels:
            case = next(case for case in self.cases.values() if case.kernel == kernel)
            for spoil in getattr(case, "SPOILS", ()):
                yield spoil, kernel, self.noticed(kernel, self.text, seeds, spoil)

    def close(self):
        pass


WORKER = """
import json, os, sys
import torch
torch.set_num_threads(1)  # a pool of threads does not survive a fork
from ptxsim import fake_cuda
from ptxsim.campaigns import mutants
import cuda_calls

cuda_calls.SIZES["given"] = json.loads(sys.argv[2])
call = cuda_calls.Call(sys.argv[1], size="given")


def noticed(path, seeds):
    os.environ["NVFP4KERN_PTX_DIR"] = path  # an image is loaded once a process
    for seed in range(seeds):
        fake_cuda.library.ptxsim_seed(seed)
        try:
            call.fill(seed).run()
            call.check(seed)
        except Exception as error:
            return mutants.said_of(fake_cuda.report(), error)
        if mutants.said_of(fake_cuda.report()):
            return mutants.said_of(fake_cuda.report())
    return ""


# A plan may load an image, and it is loaded once a process.
print(json.dumps(mutants.in_a_child(lambda: call.explain()["kernel"])), flush=True)
for line in sys.stdin:
    path, seeds = json.loads(line)
    print(json.dumps(mutants.in_a_child(lambda: noticed(path, seeds))), flush=True)
"""


class PackageKernel:
    """The kernel that a call of cuda_calls.py uses; a process runs it on one PTX after another."""

    mutations = SYNC | ASYNC

    def __init__(self, call, backend, sms=1, shape=(19, 70, 2048), helpers=()):
        self.helpers = helpers
        self.folder = tempfile.TemporaryDirectory()
        cc = ROWS[backend].cc
        self.originals = build.kernels(cc)
        tests = str(build.HERE.parent)
        path = os.pathsep.join([tests, *(os.path.abspath(p) for p in sys.path if p)])
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, call, json.dumps(shape)],
            env=os.environ
            | build.environment(cc=cc, sms=sms, spin_limit=1_000_000)
            | {"PYTHONPATH": path, "NVFP4KERN_BACKEND": backend},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.kernels = [json.loads(self.process.stdout.readline())]
        for path in self.originals.glob("*.ptx"):
            Path(self.folder.name, path.name).symlink_to(path)
            if f".entry {self.kernels[0]}(" in path.read_text():
                self.image = path.name

    def text_of(self, kernel):
        return (self.originals / self.image).read_text()

    def noticed(self, kernel, text, seeds):
        image = Path(self.folder.name, self.image)
        image.unlink()
        image.write_text(text)
        self.process.stdin.write(json.dumps([self.folder.name, seeds]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def spoilt(self, seeds):
        return ()

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.folder.cleanup()


SORTING = ("if (range < ranges) sort_range(", "if (sorts && p.counts) sort_rows(")  # of a header
# The GEMMs: two CTAs have three tiles, each a whole one and a part, in the same shared memory.
TARGETS = {
    "sm90_gemm": lambda: OwnKernels("sm90_gemm"),
    "sm100_gemm": lambda: OwnKernels("sm100_gemm"),
    "gemm": lambda: PackageKernel("gemm", "sm80", shape=(19, 300, 4096)),
    "gemv": lambda: PackageKernel("gemv", "sm80"),
    "route_sigmoid": lambda: PackageKernel("route_sigmoid", "sm80", helpers=SORTING),
    "dual_gemm": lambda: PackageKernel("dual_gemm", "sm80", shape=(19, 150, 4096)),
    "sm90_gemv": lambda: PackageKernel("gemv", "sm90", sms=16, shape=(1, 8, 65536)),
    "sm90_tiles": lambda: PackageKernel("gemv", "sm90", sms=8, shape=(1, 128, 16384)),
    "sm90_few": lambda: PackageKernel("gemm_of_bfloats", "sm90", sms=3, shape=(5, 90, 4160)),
}


# ---------------------------------------------------------------------------------------------
# A campaign
# ---------------------------------------------------------------------------------------------


def drawn(made, seed):
    """All of them, in the order of a seed that takes from every kind in turn."""
    kinds, order = defaultdict(list), random.Random(seed)
    for mutant in made:
        kinds[mutant.name].append(mutant)
    for kind in kinds.values():
        order.shuffle(kind)
    names = sorted(kinds)
    order.shuffle(names)
    while names:
        for name in names:
            yield kinds[name].pop()
        names = [name for name in names if kinds[name]]


def campaign(name, sample, seed=0, seeds=8, tell=lambda text: None):
    """`sample` mutants that launches reach: how many are caught, who survives; how many are not
    reached; and what a host can do wrong, with what notices it."""
    target, caught, survivors, unreached = TARGETS[name](), 0, [], 0
    try:
        texts = {kernel: target.text_of(kernel) for kernel in target.kernels}
        for kernel, text in texts.items():
            said = target.noticed(kernel, text, 1)
            assert said == "", f"{kernel} as it is: {said}"
        made = [
            m for kernel, text in texts.items() for m in mutants(text, kernel, target.mutations)
        ]
        for mutant in drawn(made, seed):
            if caught + len(survivors) == sample:
                break
            text = texts[mutant.kernel]
            if "trap" not in target.noticed(mutant.kernel, mutant.reached(text), 1):
                unreached += 1  # or found something else: a trap also changes where lanes rejoin
                continue
            said = target.noticed(mutant.kernel, mutant.applied(text), seeds)
            where = f"{mutant.name}, {source_of(text, mutant, target.helpers)}"
            tell(f"{said or 'SURVIVES'}: {mutant.kernel}, PTX line {mutant.line}, {where}")
            caught += bool(said)
            if not said:
                survivors.append(where)
        host = list(target.spoilt(seeds))
    finally:
        target.close()
    return {"caught": caught, "survivors": survivors, "unreached": unreached, "host": host}
