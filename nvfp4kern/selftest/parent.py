"""Works on a section in processes of their own: a kernel that hangs, or that breaks its context,
costs its own row."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time

from . import SECTIONS
from .sections import BROKEN
from .words import without_paths

MOST_DEATHS = {"triage": 64}
FEWER_DEATHS = 8
"""Of processes for another section; what would follow is left out."""

PATIENCE = {
    "harness": 120, "endurance": 60, "sanitizer": 4000, "steps": 120, "costs": 300, "bench": 600,
}  # fmt: skip
"""Seconds, at least, of rows that compile, measure or ask an oracle in float64."""
START = 120
"""Seconds until a process begins with its first row: torch is imported, the GPU's context made."""

MINUTES = {"quick": 9}
RESERVE = 25
"""Seconds of them for what ends late: processes that the driver does not let go, the summary."""
SHARES = {
    "triage": 90, "bits": 40, "operators": 30, "probes": 20, "harness": 40, "torch": 10,
    "digests": 40, "endurance": 160, "sanitizer": 180, "steps": 30, "bench": 60, "costs": 30,
}  # fmt: skip
"""Of the time that is left, by section; what one does not use is there for those behind it."""


def left_out(sections, name):
    """{tile: why} of what was wrong before this section; it and those behind it do without."""
    return {
        row["name"].removeprefix("tile "): f"{before}: {row.get('wrong', 'wrong')}"
        for before in SECTIONS[: SECTIONS.index(name)]
        for row in sections.get(before, {}).get("rows", [])
        if row["name"].startswith("tile ") and row["ok"] is False
    }


def share(name, names, seconds):
    """Of the seconds that are left for `names`, those of the first of them that is not done."""
    rest = names[names.index(name) :]
    return seconds * SHARES[name] / sum(SHARES[later] for later in rest)


class _Lines:
    """What arrives at a pipe, line by line, or None where nothing does until the time is over."""

    def __init__(self, descriptor):
        self.descriptor, self.rest, self.until = descriptor, b"", 0.0

    def __iter__(self):
        while True:
            while b"\n" in self.rest:
                line, _, self.rest = self.rest.partition(b"\n")
                yield json.loads(line)
            wait = max(0.0, self.until - time.monotonic())
            if not select.select([self.descriptor], [], [], wait)[0]:
                yield None
                return
            more = os.read(self.descriptor, 2**16)
            if not more:
                return
            self.rest += more


def _end(process):
    """Of the process and of all that it started. Its exit status, or words."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        return process.wait(10)
    except subprocess.TimeoutExpired:
        return "unknown: the driver does not let it go"


def command_of(section, options, skip, without, descriptor):
    """What writes the rows of a section, but the first `skip`, to a descriptor."""
    command = [sys.executable, "-m", "nvfp4kern", "selftest", "--section", section]
    command += ["--device", options.device, "--skip", str(skip), "--worker", str(descriptor)]
    command += ["--without", *sorted(without)] if without else []
    return command + ([f"--{options.extent}"] if options.extent != "usual" else [])


class _Section:
    """What is made of one: `part` is its part of the file, which `kept` writes after each row."""

    def __init__(self, name, options, part, without, deadline, tell, kept):
        self.name, self.options, self.part, self.without = name, options, part, without
        self.deadline, self.tell, self.kept = deadline, tell, kept
        self.begin = time.monotonic() - part["seconds"]
        self.patience = max(options.patience, PATIENCE.get(name, 0))

    def keep(self, row, items=1):
        self.part["rows"] += [row] if row else []
        self.part["done"] += items
        self.part["seconds"] = round(time.monotonic() - self.begin, 1)
        self.kept()

    def one_process(self):
        """ "ended", "died" or "late"."""
        reading, writing = os.pipe()
        with tempfile.TemporaryFile() as said:
            command = command_of(self.name, self.options, self.part["done"], self.without, writing)
            process = subprocess.Popen(
                command, pass_fds=(writing,), stdout=said, stderr=said, start_new_session=True
            )
            os.close(writing)
            try:
                begun, stalled = self._rows(_Lines(reading))
                if not stalled and self._ends(process):
                    return "died" if process.returncode else "ended"
            finally:
                os.close(reading)
                status = _end(process)
            if stalled and time.monotonic() >= self.deadline:
                return "late"
            why = f"no answer for {stalled} s" if stalled else f"exit status {status}"
            said.seek(0)
            tail = without_paths(said.read()[-2000:].decode(errors="replace").strip())
        row = {"name": begun or "(start)", "ok": False, "wrong": why, "died": True, "said": tail}
        self.keep(row)
        return "died"

    def _ends(self, process):
        """Whether a process that closed its pipe ends as it should."""
        try:
            return process.wait(self.patience) in (0, BROKEN)
        except subprocess.TimeoutExpired:
            return False

    def _rows(self, lines):
        """(the row that was begun and did not end, the seconds that were waited for it or 0)"""
        begun, patience = "", max(START, self.patience)
        lines.until = min(time.monotonic() + patience, self.deadline)
        for line in lines:
            if line is None:
                return begun, patience
            if "begin" in line:
                begun, patience = line["begin"], self.patience
                self.tell(f"{self.name}: {begun}")
            else:
                begun = ""
                self.keep(line)
                if time.monotonic() >= self.deadline:
                    return begun, patience
            lines.until = min(time.monotonic() + patience, self.deadline)
        return begun, 0


def work_on(name, options, part, tell, kept, without=(), seconds=float("inf")):
    """Brings a section's {"rows", "done", "seconds"} to its end, or as far as it comes in so many
    seconds: then "stopped" says so, where "ended" is true otherwise."""
    part.pop("stopped", None)
    section = _Section(name, options, part, without, time.monotonic() + seconds, tell, kept)
    most = MOST_DEATHS.get(name, FEWER_DEATHS)
    for _ in range(most):
        how = section.one_process()
        if how == "late":
            part["stopped"] = f"its share of {seconds:.0f} s was used"
            break
        if how == "ended":
            break
    else:
        section.keep({"name": "(the rest)", "ok": False, "wrong": f"{most} processes died"}, 0)
    part["ended"] = "stopped" not in part
    section.keep(None, 0)
