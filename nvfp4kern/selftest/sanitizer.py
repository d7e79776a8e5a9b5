"""The section `bits` under compute-sanitizer, where that is installed."""

import os
import shutil
import subprocess
import sys
from functools import partial

TOOLS = {
    "memcheck": ("--destroy-on-device-error", "kernel"),
    "racecheck": (),
    "synccheck": ("--num-cuda-barriers", "65536"),
}
SECONDS = 1200


def _sanitized(program, tool):
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
    command += ["--section", "bits", "--worker", "1"]
    variables = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=variables
        )
    except subprocess.TimeoutExpired:
        return {"ok": None, "why": f"not done in {SECONDS} s"}
    said = [line for line in done.stdout.splitlines() if line.startswith("=========")]
    row = {"ok": done.returncode == 0, "status": done.returncode, "said": said[-60:]}
    return row if row["ok"] else row | {"wrong": (said or done.stderr.splitlines() or [""])[-1]}


def items(device, extent):
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
    program = shutil.which("compute-sanitizer", path=places)
    for tool in TOOLS if device == "cuda" else ():
        if program:
            yield tool, partial(_sanitized, program, tool)
        else:
            yield tool, lambda: {"ok": None, "why": "compute-sanitizer is not installed"}
