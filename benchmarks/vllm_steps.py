"""What the GPU does in a step of an engine, of a profile by torch.profiler."""

import re

import torch

STEP = "a step of the engine"


def by_step(events):
    """Of a profile, what is on the GPU, by the step in whose time it began."""
    cuda = torch.autograd.DeviceType.CUDA
    at = sorted(
        (e.name, e.time_range.start, e.time_range.elapsed_us())
        for e in events
        if e.device_type == cuda and e.name != STEP and not e.is_user_annotation
    )
    steps = [e.time_range for e in events if e.device_type != cuda and e.name == STEP]
    found = [[one for one in at if step.start <= one[1] < step.end] for step in steps]
    return [sorted(step, key=lambda one: one[1]) for step in found]


def summary(steps, layers):
    """Of the step of middle length: sums by kernel, the time in which nothing ran, and the kernels
    of one layer. None where nothing was on a GPU."""
    steps = sorted(filter(None, steps), key=lambda step: step[-1][1] - step[0][1])
    if not steps:
        return None
    step = steps[len(steps) // 2]
    busy, end, timeline = 0.0, step[0][1], []
    for name, start, us in step:
        at = (start - step[0][1], us, start - end)
        timeline.append([*(round(each, 2) for each in at), short(name)])
        busy += max(0.0, start + us - max(start, end))
        end = max(end, start + us)
    sums = {}
    for name, _, us in step:
        count, total = sums.get(short(name), (0, 0.0))
        sums[short(name)] = count + 1, total + us
    by_name = [[name, n, round(us, 1)] for name, (n, us) in sums.items()]
    span = end - step[0][1]
    return {
        "kernels": len(step), "span_us": round(span, 1), "idle_us": round(span - busy, 1),
        "by_name": sorted(by_name, key=lambda one: -one[2]), "layer": one_layer(timeline, layers),
    }  # fmt: skip


def one_layer(timeline, layers):
    """From the attention of one in the middle to that of the next; all where that is unknown."""
    names = [one[-1] for one in timeline]
    once = [name for name in dict.fromkeys(names) if names.count(name) == layers]
    mark = next((name for name in once if "attention" in name), once[0] if once else None)
    at = [i for i, name in enumerate(names) if name == mark]
    return timeline[at[layers // 2 - 1] : at[layers // 2]] if layers > 1 and at else timeline


def short(name):
    return re.sub(r"^void |\(anonymous namespace\)::", "", name)[:120]


def show(title, found):
    print(f"{title}: {found['kernels']} kernels, {found['span_us']} us, "
          f"{found['idle_us']} us of them idle")  # fmt: skip
    for kernel, count, us in found["by_name"][:12]:
        print(f"  {us:9.1f} us {count:4}  {kernel}")
    print("  one layer: start, duration, gap before, us")
    for start, us, gap, kernel in found["layer"]:
        print(f"  {start:9.1f} {us:7.1f} {gap:6.1f}  {kernel}", flush=True)
