"""Works on a section in processes of their own: a kernel that hangs, or that breaks its context,
costs its own row."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time

from .sections import BROKEN

MOST_DEATHS = 8
"""Of processes for a section; what would follow is left out."""

PATIENCE = {"sanitizer": 4000}


class _Lines:
    """What arrives at a pipe, line by line, or None where nothing does for too long."""

    def __init__(self, descriptor, patience):
        self.descriptor, self.patience, self.rest = descriptor, patience, b""

    def __iter__(self):
        while True:
            while b"\n" in self.rest:
                line, _, self.rest = self.rest.partition(b"\n")
                yield json.loads(line)
            if not select.select([self.descriptor], [], [], self.patience)[0]:
                yield None
                return
            more = os.read(self.descriptor, 2**16)
            if not more:
                return
            self.rest += more


def _died(process, said, begun, stalled, patience):
    """The row of what a process did not finish."""
    process.kill()
    try:
        status = process.wait(60)
    except subprocess.TimeoutExpired:
        status = "unknown: the driver does not let it go"
    said.seek(0)
    tail = said.read()[-2000:].decode(errors="replace").strip()
    why = f"no answer for {patience} s" if stalled else f"exit status {status}"
    return {"name": begun or "(start)", "ok": False, "wrong": why, "died": True, "said": tail}


def command_of(section, options, skip, descriptor):
    """What writes the rows of a section, but the first `skip`, to a descriptor."""
    command = [sys.executable, "-m", "nvfp4kern", "selftest", "--section", section]
    command += ["--device", options.device, "--skip", str(skip), "--worker", str(descriptor)]
    return command + ([f"--{options.extent}"] if options.extent != "usual" else [])


def _one_process(section, options, skip, patience, tell):
    """(rows, items done, whether it came to the end)"""
    reading, writing = os.pipe()
    rows, done, begun, stalled = [], 0, "", False
    with tempfile.TemporaryFile() as said:
        command = command_of(section, options, skip, writing)
        process = subprocess.Popen(command, pass_fds=(writing,), stdout=said, stderr=said)
        os.close(writing)
        for line in _Lines(reading, patience):
            if line is None:
                stalled = True
            elif "begin" in line:
                begun = line["begin"]
                tell(f"{section}: {begun}")
            else:
                begun, done = "", done + 1
                rows += [line] if line else []
        os.close(reading)
        if not stalled and process.wait() in (0, BROKEN):
            return rows, done, process.returncode == 0
        rows.append(_died(process, said, begun, stalled, patience))
    return rows, done + 1, False


def result_of(section, options, tell):
    """{"rows", "seconds"} of a section."""
    begin, rows, skip = time.perf_counter(), [], 0
    patience = options.patience or PATIENCE.get(section, 600)
    for _ in range(MOST_DEATHS):
        found, done, ended = _one_process(section, options, skip, patience, tell)
        rows, skip = rows + found, skip + done
        if ended:
            break
    else:
        rows.append({"name": "(the rest)", "ok": False, "wrong": f"{MOST_DEATHS} processes died"})
    return {"rows": rows, "seconds": round(time.perf_counter() - begin, 1)}
