"""Makes a row of a shape: checks, times, checks again. Describes what rows were measured on."""

import os
import traceback

import torch

import nvfp4kern

from .. import machine
from . import ceilings, exact, gaussian, layers, others, products, timing
from .case import InOrder
from .operands import poison


def _reason(error):
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:160]


def _tensors(case):
    """Those of all results."""
    for outs in case.outs.values():
        for out in outs:
            yield from out if isinstance(out, (list, tuple)) else [out]


def _poison(case):
    """So that what is timed must write the results again."""
    for tensor in _tensors(case):
        poison(tensor)


def _is_right(case):
    """Whether all results are right, after a call for each."""
    for calls in case.calls.values():
        for call in calls:
            call()
    return all(case.right(out, i) for outs in case.outs.values() for i, out in enumerate(outs))


def _baselines(case, ready):
    """{name: what `ready` makes of its calls}, and {name: why there is none}: what it raises, or
    that its result is not ours."""
    found, missing = {}, {}
    for name, build in case.others.items():
        try:
            calls = build()
            if not case.agrees(calls[0](), case.outs[case.layout][0]):
                raise RuntimeError("it computes something else")
            found[name] = ready(calls)
        except Exception as error:
            missing[name] = {"unavailable": _reason(error)}
    return found, missing


def _noted(case, row, times, found, missing):
    """Fills the row. Its `time` is that of the first layout."""
    first, *other = case.calls
    row["time"] = vars(times[first])
    if other:
        row |= {"layout": first, "other": vars(times[other[0]])}
    row["others"] = {name: vars(times[name]) for name in found} | missing


def _on_host(case, row):
    found, missing = _baselines(case, lambda calls: calls)
    _poison(case)
    times = timing.host_in_turns(case.calls | found)
    _noted(case, row, times, found, missing)
    row["torch_rates"] = ceilings.measured("cpu").time(case.moved, case.work)
    return True


def _readers(case, row):
    """{name: Replay} of the reading kernel: none where arithmetic takes longer than reading, or
    where the row says why it is unavailable."""
    if not case.reads or not ceilings.measured("cuda").is_memory_slower(case.moved, case.work):
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
    ours = {layout: timing.captured(calls) for layout, calls in case.calls.items()}
    found, missing = _baselines(case, timing.captured)
    _poison(case)
    times = timing.in_turns(ours | found | readers)
    _noted(case, row, times, found, missing)
    row["floor"] = ceilings.measured("cuda").time(case.moved, case.work)
    if readers:
        row["read"] = _fastest(times, readers)


def _cold(case, row, readers):
    """Cold times: ours, of the drop-in for the competition's own shapes, and the reading kernel's,
    which waits for what overwrote L2, too. False where the drop-in's result is wrong."""
    call = case.calls[case.layout][0]
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
    """Of several calls, what each one uses."""
    plans = [
        nvfp4kern.explain(one.func.__name__, *one.args, **one.keywords)
        for one in (call.calls if isinstance(call, InOrder) else [call])
    ]
    return {
        key: ", ".join(dict.fromkeys(plan[key] for plan in plans)) for key in ("backend", "kernel")
    }


def _described(case):
    calls = case.calls[case.layout]
    found = {"shape": case.shape, "sets": len(calls), "moved": case.moved, "work": case.work}
    return found | _plan(calls[0])


def measured(shape, device, data=gaussian):
    """The row of one shape, ready for JSON, timed on `data`; without times if a result is wrong,
    a call fails, or memory is too small."""
    row = {"set": shape.set, "op": shape.op, "sizes": shape.sizes}
    row |= {"series": shape.series, "at": shape.at}
    try:
        return row | _checked_and_timed(shape, device, data)
    except Exception as error:
        row["shape"] = "x".join(str(size) for size in shape.sizes.values())
        if isinstance(error, torch.OutOfMemoryError):
            return row | {"unavailable": _reason(error)}
        traceback.print_exc()
        return row | {"failed": f"{type(error).__name__}: {_reason(error)}"}


def made(shape, device, data, seed):
    """The case of a shape."""
    found = (getattr(module, shape.make, None) for module in (products, layers, others))
    torch.manual_seed(seed)
    return next(filter(None, found))(data, device, **shape.sizes)


def _checked_and_timed(shape, device, data):
    """Every bit of exact data's results is right before and after other data is timed; that data's
    results are within its bound, and the timed calls write them again."""

    def exactly():
        return data is exact or _is_right(made(shape, device, exact, seed=1))

    before = exactly()
    case = made(shape, device, data, seed=0)
    right = _is_right(case) and before
    found = _described(case)  # after calls: plans of a layer's products read what route writes
    wrong = found | {"right": False}
    if not right:
        return wrong
    copies = [tensor.clone() for tensor in _tensors(case)]
    times = {"set": shape.set}
    timed = _on_gpu(case, times) if device == "cuda" else _on_host(case, times)
    same = all(map(torch.equal, _tensors(case), copies))
    del case, copies
    return found | times | {"right": True} if timed and same and exactly() else wrong


# --- Environment ---

QUERIES = ("driver_version", "power.limit", "clocks.max.sm", "clocks.max.memory")


def environment(device, data=gaussian):
    """Versions, the machine and its ceilings. On a CPU torch gets as many threads as we have."""
    found = machine.software(device) | {"data": data.NAME}
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        found |= {"gpu": gpu.name, "sms": gpu.multi_processor_count, "l2": gpu.L2_cache_size}
        found |= {"cuda": torch.version.cuda}
        found |= next(iter(machine.nvidia_smi(QUERIES, "-i", f"GPU-{gpu.uuid}")), {})
    else:
        found |= machine.cpu_in_use(torch.zeros(1, 1, dtype=torch.uint8))
        found |= {"load": round(os.getloadavg()[0], 1)}
        torch.set_num_threads(found["threads"])
    found["ceilings"] = vars(ceilings.measured(device))
    return found
