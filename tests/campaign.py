"""Runs hostile cases, each in a process that may die: `--seed S --cases C --count N --only TEXT`.

A case is a function that yields points: (name, function that returns what is wrong). Of each case
`count` points are drawn by the seed, 0 for all. A failure shows how to repeat its case.
"""

import argparse
import ctypes
import faulthandler
import gc
import mmap
import os
import random
import re
import signal
import sys
from itertools import islice

SECONDS_A_POINT = 120
MOST_DEATHS = 5
BROKEN = 101  # exit status: the case itself raised


def run(case, seed, count, first, current):
    """The drawn points from number `first` on. `current` says during which, by its number and its
    name, and how many failures there were."""
    points = list(case())
    gc.freeze()  # what libraries have made: later collections need not look at it
    if count and count < len(points):
        chosen = random.Random(seed).sample(range(len(points)), count)
        points = [points[i] for i in sorted(chosen)]
    for number, (name, attempt) in islice(enumerate(points), first, None):
        current.number, current.name = number, name.encode()[:900]
        signal.alarm(SECONDS_A_POINT)
        for wrong in attempt():
            current.failures += 1
            print(f"{name}: {wrong}", flush=True)
    signal.alarm(0)
    current.number = len(points)


class Current(ctypes.Structure):
    _fields_ = [
        ("number", ctypes.c_int64),
        ("failures", ctypes.c_int64),
        ("name", ctypes.c_char * 1000),
    ]


def survive(case, seed, count):
    """(points, failures): a death is a failure, and the points after it are run."""
    current = Current.from_buffer(mmap.mmap(-1, ctypes.sizeof(Current)))  # shared with the child
    first = 0
    for _ in range(MOST_DEATHS):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            faulthandler.enable()
            try:
                run(case, seed, count, first, current)
                os._exit(0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(BROKEN)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            break
        current.failures += 1
        if status == BROKEN:
            break
        name = current.name.decode(errors="replace")
        print(f"{name}: the process died, exit status {status}", flush=True)
        first = current.number + 1
    return current.number, current.failures


def main(document, cases, *, count):
    """cases: {name: case}. Returns an exit status."""
    parser = argparse.ArgumentParser(description=document.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=count, help="points of a case; 0 for all")
    parser.add_argument("--only", default="", help="a regular expression of names of cases")
    parser.add_argument("--cases", type=int, help="how many of these are drawn, otherwise all")
    asked = parser.parse_args()
    names = [name for name in cases if re.search(asked.only, name)]
    if asked.cases is not None:
        names = random.Random(asked.seed).sample(names, min(asked.cases, len(names)))
    everything = wrong = 0
    for name in names:
        points, failures = survive(cases[name], asked.seed, asked.count)
        everything, wrong = everything + points, wrong + failures
        if failures:
            again = f"--seed {asked.seed} --count {asked.count} --only '{re.escape(name)}'"
            print(f"    {failures} wrong of {name}, again by {again}", flush=True)
    print(f"seed {asked.seed}: {everything} points, {wrong} wrong", flush=True)
    return int(wrong > 0 or everything == 0)
