"""What `python -m nvfp4kern selftest` does with its arguments."""

import contextlib
import copy
import json
import time

from rich.console import Console

import nvfp4kern

from .. import machine, results, terminal
from . import SECTIONS, report

FORMAT = 1
QUERIES = ("name", "driver_version", "vbios_version", "power.limit", "clocks.max.sm")
SAME = ("sources", "torch", "python", "device", "extent", "rows", "gpu", "variables")
"""Of the environment, what a run shares with one that it goes on with."""
NEW_PART = {"rows": [], "done": 0, "seconds": 0.0}


def read(path):
    """An earlier result. ValueError where the file holds none."""
    try:
        result = json.loads(path.read_text())
        if result["selftest"] != FORMAT or not isinstance(result["sections"], dict):
            raise KeyError("selftest")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: expected what selftest wrote ({error!r})") from error
    return result


def _gpu():
    import torch

    found = torch.cuda.get_device_properties(0)
    return {
        "name": found.name,
        "capability": "{}.{}".format(*torch.cuda.get_device_capability()),
        "sms": found.multi_processor_count,
        "l2": found.L2_cache_size,
        "memory": found.total_memory,
    }


def environment(device, extent):
    """What the file says of this machine: versions, rows of the build, the GPU, variables."""
    import numpy
    import torch

    found = machine.software(device) | {"cuda": torch.version.cuda, "numpy": numpy.__version__}
    found |= {"extent": extent, "rows": nvfp4kern.backends()}
    found |= machine.cpu_in_use(torch.zeros(1, 1, dtype=torch.uint8))
    if device == "cuda":
        found |= {"gpu": _gpu(), "nvidia_smi": machine.nvidia_smi(QUERIES)}
    return found


def _begun(path, names, now):
    """What the file has of a run of the same build and GPU that is not at its end, or a new one."""
    new = {"selftest": FORMAT, "environment": now, "left_out": {}, "sections": {}, "clocks": []}
    try:
        old = read(path)
    except ValueError:
        return new
    same = all(old["environment"].get(what) == now.get(what) for what in SAME)
    ended = all(old["sections"].get(name, {}).get("ended") for name in names)
    return new | old if same and not ended else new


def _gpu_of_nvidia_smi(device):
    """The name by which nvidia-smi knows the GPU in use; it does not heed CUDA_VISIBLE_DEVICES."""
    if device == "cpu":
        return None
    import torch

    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    return f"GPU-{uuid}" if uuid else "0"


def _measure(arguments):
    """The file is written row by row: who is interrupted loses the one in progress."""
    from . import clocks, parent

    begin = time.monotonic()
    arguments.device = machine.device_in_use(arguments.device)
    try:
        arguments.json.open("a").close()
    except OSError as error:
        raise ValueError(f"--json: cannot be written: {error}") from error
    names = [name for name in SECTIONS if name in (arguments.section or SECTIONS)]
    now = environment(arguments.device, arguments.extent)
    result = _begun(arguments.json, names, json.loads(json.dumps(now)))
    minutes = arguments.minutes or parent.MINUTES.get(arguments.extent, float("inf"))
    end = begin + max(60 * minutes - parent.RESERVE, 30 * minutes)
    gpu = _gpu_of_nvidia_smi(arguments.device)
    sampled = clocks.Clocks(result["clocks"], clocks.PERIOD[arguments.extent], gpu)
    console = Console(stderr=True, highlight=False)
    with console.status("") as status, sampled if gpu else contextlib.nullcontext():

        def tell(text):
            status.update(text.replace("[", r"\["))

        def kept():
            results.write(arguments.json, result, depth=3)

        names = [name for name in names if not result["sections"].get(name, {}).get("ended")]
        for name in names:
            sampled.section = name
            part = result["sections"].setdefault(name, copy.deepcopy(NEW_PART))
            result["left_out"] |= (without := parent.left_out(result["sections"], name))
            seconds = parent.share(name, names, max(1.0, end - time.monotonic()))
            parent.work_on(name, arguments, part, tell, kept, without, seconds)
            console.print(report.line(name, part), markup=False, soft_wrap=True)
    return result


def run(arguments):
    result = read(arguments.source) if arguments.source else _measure(arguments)
    report.show(Console(width=terminal.width(), highlight=False), result)
    if not arguments.source:
        print(f"written: {arguments.json}; {report.NAME} --from shows it again. {report.KEEP}")
    return 2 if report.wrong(result) else 0
