"""The sections `triage` and `bits` under compute-sanitizer, where that is installed."""

import os
import shutil
import subprocess
import sys
from functools import partial

from .left_out import TILES

TOOLS = {
    "synccheck": ("--num-cuda-barriers", "65536"),
    "racecheck": (),
    "memcheck": ("--destroy-on-device-error", "kernel"),
}
SECONDS = {"quick": 60, "usual": 1200, "all": 1200}


def _said(output):
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    return [line for line in text.splitlines() if line.startswith("=========")][-60:]


def _sanitized(program, tool, extent):
    """Of what a tool did not come to, it says nothing: `ok` is None unless it found something."""
    command = [
        program,
        "--tool",
        tool,
        "--error-exitcode",
        "9",
        "--print-limit",
        "20",
        *TOOLS[tool],
    ]
    command += [sys.executable, "-m", "nvfp4kern", "selftest", "--device", "cuda", "--quick"]
    command += ["--section", "triage", *(["bits"] if extent != "quick" else []), "--worker", "1"]
    command += ["--without", *sorted(TILES)] if TILES else []
    variables = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS[extent], env=variables
        )
    except subprocess.TimeoutExpired as late:
        said, why = _said(late.stdout), f"not done in {SECONDS[extent]} s"
        found = next((line for line in said if "error" in line.lower()), None)
        row = {"ok": None, "why": why, "said": said}
        return row | {"ok": False, "wrong": f"{found}; {why}"} if found else row
    said = _said(done.stdout)
    row = {"ok": done.returncode == 0, "status": done.returncode, "said": said}
    return row if row["ok"] else row | {"wrong": (said or done.stderr.splitlines() or [""])[-1]}


def items(device, extent):
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
    program = shutil.which("compute-sanitizer", path=places)
    for tool in TOOLS if device == "cuda" else ():
        if program:
            yield tool, partial(_sanitized, program, tool, extent)
        else:
            yield tool, lambda: {"ok": None, "why": "compute-sanitizer is not installed"}
