"""What a machine is called: its processor, the instructions and threads in use, its GPUs; and
what a file of results says of the software."""

import importlib.util
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

from ._C import __version__, _sources, backends, explain


def processor() -> str:
    """The model of the CPU."""
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def cpu_in_use(array: Any) -> dict[str, Any]:
    """Model, instruction set and threads of a large call. `array` is of any library, on the CPU."""
    plan = explain("to_blocked", array)
    instructions = str(plan["why"]).rpartition("; ")[2]
    return {"cpu": processor(), "instructions": instructions, "threads": plan["threads"]}


def in_words(found: dict[str, Any]) -> str:
    """What cpu_in_use() found, in a line; a result of the benchmark may lack some of it."""
    threads = found.get("threads", 1)
    names = [found.get("cpu", "CPU"), found.get("instructions")]
    return ", ".join([*filter(None, names), f"{threads} thread{'s' * (threads > 1)}"])


def device_in_use(wanted: str | None) -> str:
    """`wanted`, or "cuda" where torch sees a GPU. ValueError where it sees none, and is to."""
    import torch

    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise ValueError("--device: 'cuda', but torch sees no GPU")
    return wanted or ("cuda" if there else "cpu")


def why_no_gpu() -> str | None:
    """Why calls with tensors of a GPU cannot be made here; None where they can."""
    rows = [row for row in backends() if row["name"] != "cpu"]
    if os.environ.get("NVFP4KERN_BACKEND") == "cpu":
        return "NVFP4KERN_BACKEND=cpu refuses it"
    if not any(row["available"] for row in rows):
        return str(rows[-1]["why_not"])
    if not importlib.util.find_spec("torch"):
        return "it needs PyTorch: pip install torch"
    import torch

    return None if torch.cuda.is_available() else "torch sees no GPU"


def software(device: str) -> dict[str, Any]:
    """What a file of results says of what made it: when, versions, variables, and the device."""
    import torch

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "nvfp4kern": __version__,
        "sources": _sources,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "host": platform.system() + " " + platform.machine(),
        "device": device,
        "variables": {n: v for n, v in sorted(os.environ.items()) if n.startswith("NVFP4KERN_")},
    }


def nvidia_smi(queries: tuple[str, ...], *options: str) -> list[dict[str, str]]:
    """What nvidia-smi answers of every GPU, by query; [] where it cannot be asked."""
    command = ["nvidia-smi", f"--query-gpu={','.join(queries)}", "--format=csv,noheader", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return []
    rows = [line.split(", ") for line in done.stdout.splitlines()]
    return [dict(zip(queries, row, strict=True)) for row in rows if len(row) == len(queries)]
