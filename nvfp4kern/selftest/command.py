"""What `python -m nvfp4kern selftest` does with its arguments."""

import json
import os
import sys

from rich.console import Console

import nvfp4kern

from .. import machine, results
from . import SECTIONS, report

FORMAT = 1
QUERIES = ("name", "driver_version", "vbios_version", "power.limit", "clocks.max.sm")


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


def _measure(arguments):
    """The file is written section by section: an interruption costs the one it falls into."""
    from .parent import result_of

    arguments.device = machine.device_in_use(arguments.device)
    try:
        arguments.json.open("a").close()
    except OSError as error:
        raise ValueError(f"--json: cannot be written: {error}") from error
    result = {"selftest": FORMAT, "environment": environment(arguments.device, arguments.extent)}
    result["sections"] = {}
    console = Console(stderr=True, highlight=False)
    with console.status("") as status:
        for name in arguments.section or SECTIONS:

            def tell(text):
                status.update(text.replace("[", r"\["))

            result["sections"][name] = found = result_of(name, arguments, tell)
            results.write(arguments.json, result, depth=3)
            console.print(report.line(name, found), markup=False, soft_wrap=True)
    return result


def run(arguments):
    result = read(arguments.source) if arguments.source else _measure(arguments)
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    report.show(Console(width=190 if piped else None, highlight=False), result)
    if not arguments.source:
        print(f"written: {arguments.json}; send it back, {report.NAME} --from shows it again")
    return 2 if report.wrong(result) else 0
