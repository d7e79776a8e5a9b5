"""Calls with hostile arguments: `python tests/fuzz.py --seed S --calls N [--first F --seconds T]`.

A call begins as a good one (tests/calls.py), and one to three of its arguments are spoiled
(tests/hostile.py). It may return, and then has written inside its outputs alone. Or it raises what
the documents say, and then has written nothing. A call follows from its seed and number, which a
failure shows.

Tensors that lie about their memory go to explain(), which reads those of READ_BY_CHECKS alone.
"""

import argparse
import math
import mmap
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from functools import partial

import calls
import numpy as np
from hostile import SPOILS, Call
from views import View, copied, made, viewed, views_in

import nvfp4kern as nk

DOCUMENTED = (TypeError, ValueError, BufferError, nk.BackendError)
MESSAGE = re.compile(
    r"([a-z]\w*(\.\w+)?(\[\d+\])?|NVFP4KERN_\w+): .|\w+\(\) (missing|takes|got) |no backend "
)
READ_BY_CHECKS = ("offsets", "rows", "row_of")
SECONDS_A_CALL = 60
MOST_DEATHS = 10
WRONG = 2  # exit status; sanitizers and Python itself exit with 1


class Good:
    """A good call, whose memory the spoiled ones share."""

    def __init__(self, base):
        self.function = calls.FUNCTIONS[base]
        self.args = {name: viewed(value) for name, value in base("cpu").items()}
        self.memories = [v.memory for v in Call(self.args).views()]
        self.first = [memory.tobytes() for memory in self.memories]

    def restore(self):
        for memory, first in zip(self.memories, self.first, strict=True):
            if memory.tobytes() != first:
                memory[:] = np.frombuffer(first, np.uint8)

    def spoiled(self, rng):
        call = Call({name: copied(value) for name, value in self.args.items()})
        for _ in range(rng.randint(1, 3)):
            if views := call.views():
                rng.choice(SPOILS)(rng, call, rng.choice(views))
        return call


def attempt(good, rng):
    """Makes one call; returns what came of it, and what is wrong with that."""
    call = good.spoiled(rng)
    for name in READ_BY_CHECKS:
        view = call.args.get(name)
        if isinstance(view, View) and not view.may_be_read():
            del call.args[name]
    dry = rng.random() < 0.05 or not all(view.may_be_read() for view in call.views())
    positional, keywords = calls.arranged(
        good.function, {name: made(v) for name, v in call.args.items()}
    )
    positional += made(call.extra)
    function = partial(nk.explain, good.function) if dry else getattr(nk, good.function)
    before = [memory.tobytes() for memory in good.memories]
    os.environ.update(call.environment)
    try:
        function(*positional, **keywords)
    except DOCUMENTED as error:
        came, error = type(error).__name__, error
        wrong = [] if MESSAGE.match(str(error)) else [f"{came} says {error}"]
    except Exception as error:
        came, wrong = "unexpected", [f"raised {error!r}"]
    else:
        came, wrong = "explained" if dry else "returned", []
    for name in call.environment:
        del os.environ[name]
    outputs = [*views_in(call.args.get("out"))] if came == "returned" else []
    for memory, then in zip(good.memories, before, strict=True):
        if memory.tobytes() == then:
            continue
        changed = memory != np.frombuffer(then, np.uint8)
        for view in outputs:
            if view.memory is memory:
                changed[view.bytes()] = False
        if changed.any():
            wrong.append(f"{came}, and wrote {changed.sum()} bytes outside its outputs")
    if wrong:
        wrong.append(f"nvfp4kern.{good.function}, {'explained' if dry else 'called'}: {call}")
    good.restore()
    return came, wrong


def run(seed, numbers, seconds, current):
    """The calls of these numbers, in a process that may die: `current` says during which."""
    goods = [Good(base) for base in calls.FUNCTIONS]
    came, end, failures = Counter(), time.monotonic() + seconds, 0
    for number in numbers:
        if time.monotonic() > end:
            break
        current[:8] = number.to_bytes(8, "little")
        signal.alarm(SECONDS_A_CALL)
        rng = random.Random(f"{seed} {number}")
        word, wrong = attempt(rng.choice(goods), rng)
        came[word] += 1
        if wrong:
            failures += 1
            print(f"seed {seed}, call {number}:", *wrong, sep="\n    ", flush=True)
    signal.alarm(0)
    print(f"seed {seed}: {sum(came.values())} calls, {failures} wrong:", dict(came), flush=True)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first call")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which it ends")
    asked = parser.parse_args()
    first, last, died = asked.first, asked.first + asked.calls, 0
    current = mmap.mmap(-1, 8)  # shared with the child
    end = time.monotonic() + asked.seconds
    while first < last:
        child = os.fork()
        if child == 0:
            failures = run(asked.seed, range(first, last), end - time.monotonic(), current)
            os._exit(WRONG if failures else 0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status in (0, WRONG):
            return int(died > 0 or status)
        number = int.from_bytes(current[:8], "little")
        print(
            f"seed {asked.seed}, call {number}: the process died, exit status {status}", flush=True
        )
        died, first = died + 1, number + 1
        if died == MOST_DEATHS:
            break
    return 1


if __name__ == "__main__":
    sys.exit(main())
