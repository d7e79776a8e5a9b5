"""The sections of a self-test, and how a process of its own works on one.

A section is a function of device and extent that yields (name, what makes the row). A row has `ok`:
whether it is right, None where nothing is judged. Rows go to a file descriptor as lines of JSON,
and before each a line that says what begins: so whoever reads them knows where a process died.
"""

import json
import os
import time

from . import bits, harness, operators, probes, sanitizer, speed, torch_nvfp4
from .left_out import LeftOut

SECTIONS = {
    "triage": bits.triage,
    "bits": bits.items,
    "operators": operators.items,
    "probes": probes.items,
    "harness": harness.items,
    "torch": torch_nvfp4.items,
    "digests": bits.digests,
    "endurance": bits.endurance,
    "sanitizer": sanitizer.items,
    "steps": speed.steps,
    "bench": speed.bench,
    "costs": speed.costs,
}

BROKEN = 3
"""The exit status of a process whose GPU answers no more, as after an access to no memory."""


def _first_line(error):
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:300]


def _is_broken():
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def work(section, device, extent, skip, descriptor):
    """Makes all rows but the first `skip`. Returns the exit status."""

    def say(line):
        os.write(descriptor, json.dumps(line).encode() + b"\n")

    for number, (name, make) in enumerate(SECTIONS[section](device, extent)):
        if number < skip:
            continue
        say({"begin": name})
        begin = time.perf_counter()
        try:
            row = make()
        except LeftOut as error:
            row = {"ok": None, "why": str(error)}
        except Exception as error:
            row = {"ok": False, "wrong": _first_line(error)}
        if row is not None:
            row = {"name": name} | row | {"seconds": round(time.perf_counter() - begin, 3)}
        say(row or {})
        if device == "cuda" and row and not row["ok"] and _is_broken():
            return BROKEN
    return 0
