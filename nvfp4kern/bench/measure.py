"""From a shape to its row: checked first, timed then. And what the rows were measured on."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime

import torch

import nvfp4kern

from . import ceilings, others, products, timing
from .operands import poison


def _reason(error):
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:160]


def _tensors(outs):
    return outs if isinstance(outs, (list, tuple)) else [outs]


def _copies(case):
    return [[t.clone() for t in _tensors(outs)] for outs in case.outs]


def _poison(case):
    """What is timed must write the results again."""
    for outs in case.outs:
        for tensor in _tensors(outs):
            poison(tensor)


def _same(case, copies):
    return all(
        torch.equal(now, then)
        for outs, kept in zip(case.outs, copies, strict=True)
        for now, then in zip(_tensors(outs), kept, strict=True)
    )


def _baselines(case, ready):
    """{name: what `ready` makes of its calls}, and {name: why there is none}: whatever it raises,
    or that its result is not ours."""
    found, missing = {}, {}
    for name, build in case.others.items():
        try:
            calls = build()
            if not case.agrees(calls[0]()):
                raise RuntimeError("it computes something else")
            found[name] = ready(calls)
        except Exception as error:
            missing[name] = {"unavailable": _reason(error)}
    return found, missing


def _on_host(case, row):
    found, missing = _baselines(case, lambda calls: calls)
    _poison(case)
    times = timing.host_in_turns({"": case.calls} | found)
    row["time"] = vars(times[""])
    row["others"] = {name: vars(times[name]) for name in found} | missing
    row["floor"] = ceilings.measured("cpu").floor(case.moved, case.work)


def _readers(case, row):
    """{name: Replay} of the reading kernel: none where arithmetic takes longer than reading, or
    where the row says why it is unavailable."""
    if not case.reads or not ceilings.measured("cuda").bound_by_memory(case.moved, case.work):
        return {}
    try:
        calls = ceilings.readers(case.reads)
        return {name: timing.captured(some) for name, some in calls.items()}
    except (OSError, RuntimeError, ValueError) as error:
        row["read"] = {"unavailable": _reason(error)}
        return {}


def _fastest(times, names):
    return vars(min((times[name] for name in names), key=lambda time: time.median))


def _replayed(case, row, readers):
    ours = timing.captured(case.calls)
    found, missing = _baselines(case, timing.captured)
    _poison(case)
    times = timing.in_turns({"": ours} | found | readers)
    row["time"] = vars(times[""])
    row["others"] = {name: vars(times[name]) for name in found} | missing
    row["floor"] = ceilings.measured("cuda").floor(case.moved, case.work)
    if readers:
        row["read"] = _fastest(times, readers)


def _cold(case, row, readers):
    """Of the drop-in for the competition's own shapes; and of the reading kernel, which pays for
    writing back what overwrote the L2 as well. False where the drop-in's result is wrong."""
    call = case.calls[0]
    if row["set"] == "competition" and case.drop_in:
        call, right = case.drop_in()
        call()
        if not right():
            return False
    reading = {name: replay.calls[0] for name, replay in readers.items()}
    times = timing.cold_in_turns({"": call} | reading)
    row["cold"] = vars(times[""])
    if readers:
        row["read_cold"] = _fastest(times, readers)
    return True


def _on_gpu(case, row):
    """False where a result is wrong."""
    readers = _readers(case, row)
    _replayed(case, row, readers)
    return _cold(case, row, readers)


def _plan(call):
    plan = nvfp4kern.explain(call.func.__name__, *call.args, **call.keywords)
    return {"backend": plan["backend"], "kernel": plan["kernel"]}


def measured(shape, device):
    """The row of one shape, ready for JSON; without times where a result was wrong, or memory was
    too small."""
    row = {"set": shape.set, "op": shape.op, "sizes": shape.sizes}
    row |= {"series": shape.series, "at": shape.at}
    try:
        return _checked_and_timed(shape, device, row)
    except torch.OutOfMemoryError as error:
        text = "x".join(str(size) for size in shape.sizes.values())
        return row | {"shape": text, "unavailable": _reason(error)}


def _checked_and_timed(shape, device, row):
    make = getattr(products, shape.make, None) or getattr(others, shape.make)
    torch.manual_seed(0)
    case = make(device, **shape.sizes)
    row = row | {
        "shape": case.shape,
        "sets": len(case.calls),
        "moved": case.moved,
        "work": case.work,
    }
    row |= _plan(case.calls[0])
    for call in case.calls:
        call()
    row["right"] = all(map(case.right, range(len(case.calls))))
    if not row["right"]:
        return row
    copies = _copies(case)
    untimed = dict(row)
    if device == "cpu":
        _on_host(case, row)
    else:
        row["right"] = _on_gpu(case, row)
    row["right"] = row["right"] and _same(case, copies)
    return row if row["right"] else untimed | {"right": False}


# ---------------------------------------------------------------------------------------------
# Environment
# ---------------------------------------------------------------------------------------------

QUERIES = ("driver_version", "power.limit", "clocks.max.sm", "clocks.max.memory")


def _driver_says(gpu):
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERIES)}", "--format=csv,noheader"]
    try:
        done = subprocess.run([*command, "-i", f"GPU-{gpu.uuid}"], capture_output=True, text=True)
        values = done.stdout.strip().split(", ")
    except (OSError, AttributeError):
        values = []
    return dict(zip(QUERIES, values, strict=True)) if len(values) == len(QUERIES) else {}


def _processor():
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def environment(device):
    """Versions, the machine and its ceilings. On a CPU torch gets as many threads as we have."""
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "nvfp4kern": nvfp4kern.__version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "host": platform.platform(),
        "device": device,
        "variables": {n: v for n, v in sorted(os.environ.items()) if n.startswith("NVFP4KERN_")},
    }
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        found |= {"gpu": gpu.name, "sms": gpu.multi_processor_count, "l2": gpu.L2_cache_size}
        found |= {"cuda": torch.version.cuda} | _driver_says(gpu)
    else:
        plan = nvfp4kern.explain("to_blocked", torch.zeros(1, 1, dtype=torch.uint8))
        found |= {"cpu": _processor(), "threads": plan["threads"], "instructions": plan["why"]}
        found |= {"load": round(os.getloadavg()[0], 1)}
        torch.set_num_threads(plan["threads"])
    found["ceilings"] = vars(ceilings.measured(device))
    return found
