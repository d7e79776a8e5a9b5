"""Looks for cliffs: calls that take much longer than a neighbour does for nearly the same work.

    python benchmarks/find_cliffs.py --plan                     # no GPU: plans of all neighbours
    python benchmarks/find_cliffs.py --seconds 300 --seed 1 --json cliffs.json  # times drawn ones

Calls are products of the models that are served; a neighbour has a few more or fewer tokens, rows
or columns, the other layout of scale factors, other tokens, or an operand that is less aligned. Of
two neighbours the slower one may take LIMIT times as long as the other, or that times what it has
more of work, whichever of bytes and operations is more. KNOWN has the reasons why others do.

`--plan` knows no times. It reports calls that fall to another row of the backend table, and those
whose plan gives the busiest SM so much more that a roofline of one SM jumps.

Exits with 1 where there is a cliff that no known reason explains.
"""

import argparse
import math
import os
import random
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

from cliff_calls import OPERATORS, SIZES, arguments, neighbours, step, zoo

ROOT = Path(__file__).parents[1]
ROW, SMS = "sm90", 132
LIMIT = 1.3
NEIGHBOURS, MOST_SETS = 4, 64
SHOWN = 30
KNOWN = {
    "an address or a stride is not aligned": "TMA takes weights whose rows are on 16 bytes only",
    "the tokens are not aligned": "a row's prologue reads 4 bytes of codes, or 16 of fp16, at once",
    "the weights' scale factors are not aligned": "four scale factors are read at once",
    "weights are read byte by byte": "K or an address is not aligned, which no model's weights are",
}
"""What a plan says of a call (its `why`, or what a row declined it for), and why it costs."""
PIECES = "a gemv reads 64 codes of K at once, and K is no multiple of that"
CONVERTED = "NVFP4 tokens are converted by a kernel of their own, 16-bit ones are taken as they lie"
SECTORS = "rows of the result begin within sectors of 32 bytes, of which memory takes whole ones"
ANOTHER_WAVE = "with the tile of the neighbour, or as a gemv, the SMs take another wave"

MEMORY = 4.0e6
RATE = 6.0e6
"""Bytes that an H200 reads, and operations of one of its SMs, in a microsecond: about."""


# --- What two calls are to each other ---


def more_work(slow, fast):
    """How many times the work of the other one, and at least 1."""
    return max(1.0, slow.moved / fast.moved, slow.flops / fast.flops)


def reason(plan):
    """Why a call with this plan may take longer, or None."""
    said = f"{plan.get('why')} {plan.get('declined')}"
    return next((why for text, why in KNOWN.items() if text in said), None)


def is_gemv(plan):
    return "gemv" in plan["kernel"]


def tiles_of(call, plan):
    """How many a call has, with the tile of a plan, which may be another's."""
    groups = min(call.experts, call.rows) or call.batch
    of_group = call.rows / groups / plan["tile_m"] + 0.5 if call.experts else call.m
    m_tiles = max(1, of_group) if call.experts else -(-call.m // plan["tile_m"])
    return groups * m_tiles * -(-call.n // plan["tile_n"])


def parts_of(call, plan):
    """Of K, each of which a CTA has."""
    return 1 if call.experts else max(1, plan["grid"] // tiles_of(call, plan))


def more_waves(slow, slow_plan, fast, fast_plan):
    """How many times the waves of CTAs the slower call has: with the tile of the faster one, or, of
    gemvs, which divide the rows among CTAs, with its own. Two CTAs of 8 warps use one SM."""
    if is_gemv(slow_plan) != is_gemv(fast_plan):
        return 1.0
    if is_gemv(slow_plan):
        most, least = (plan["grid"] * plan["threads"] / 512 for plan in (slow_plan, fast_plan))
    else:
        parts = parts_of(fast, fast_plan)
        most, least = (parts * tiles_of(call, fast_plan) for call in (slow, fast))
    return math.ceil(most / SMS) / math.ceil(least / SMS)


def reason_of_both(slow, slow_plan, fast, fast_plan, times):
    """Why a call takes `times` as long as its neighbour, or None."""
    results = 2 * slow.batch * slow.rows * slow.n
    given = {
        PIECES: is_gemv(fast_plan) and slow.k % 64,
        SECTORS: slow.n % 16 and not fast.n % 16 and results > slow.moved / 2,
        CONVERTED: slow.kind == "nvfp4" and "_n256" in fast_plan["kernel"],
        ANOTHER_WAVE: times / more_waves(slow, slow_plan, fast, fast_plan) <= LIMIT,
    }
    return reason(slow_plan) or next((why for why, holds in given.items() if holds), None)


def pair(one, other):
    """A row of two calls, (call, plan, microseconds) each: `excess` is how many times as long the
    slower one takes after what it has more of work."""
    (fast, fast_plan, least), (slow, slow_plan, most) = sorted((one, other), key=lambda x: x[2])
    return {
        "slow": slow.name,
        "fast": fast.name,
        "model": slow.model,
        "us": [most, least],
        "excess": most / least / more_work(slow, fast),
        "kernels": [slow_plan["kernel"], fast_plan["kernel"]],
        "known": reason_of_both(slow, slow_plan, fast, fast_plan, most / least),
    }


def is_cliff(row):
    return row["excess"] > LIMIT and not row["known"]


# --- Plans, without a GPU ---


class Addresses:
    """Tensors on the simulated GPU, of addresses alone: a plan reads no memory."""

    def __init__(self):
        from capsules import Capsule
        from compare_plans import TYPES

        self.capsule, self.types, self.at = Capsule.at, TYPES, 1 << 40

    def tensor(self, role, dtype, shape, strides, odd):
        begin = self.at + odd
        extent = sum(step * (size - 1) for step, size in zip(strides, shape, strict=True)) + 1
        self.at += -(-(odd + SIZES[dtype] * extent) // 256) * 256
        return self.capsule(begin, self.types[dtype], shape, strides, device_type=2)

    def offsets(self, call):
        return self.tensor("offsets", "i32", [call.experts + 1], [1], 0)

    def rows(self, call):
        return self.tensor("rows", "i32", [call.rows], [1], 0)


def plan_of(call, memory):
    """What explain says; `error` where the call is none."""
    import nvfp4kern

    given, options = arguments(call, memory)
    try:
        return nvfp4kern.explain(call.operator, *given, **options)
    except (ValueError, nvfp4kern.BackendError) as error:
        return {"backend": "none", "kernel": "none", "error": str(error)}


def roofline(call, plan):
    """Microseconds that memory, or the SM with most tiles, takes if nothing else costs anything."""
    memory = call.moved / MEMORY
    if is_gemv(plan):
        return memory
    parts = parts_of(call, plan)
    tile = 2.0 * plan["tile_m"] * plan["tile_n"] * (1 + call.is_gated) * call.k / parts
    return max(memory, math.ceil(tiles_of(call, plan) * parts / SMS) * tile / RATE)


MORE_TILES = "the busiest SM has more to multiply"


def found_in_plans(calls):
    """{what was found: [(call, neighbour, excess)]}; a call that falls to another row is its own
    neighbour."""
    found = defaultdict(list)
    for call in calls:
        plan = plan_of(call, Addresses())
        if plan["backend"] != ROW:
            found[plan.get("declined") or plan["error"]].append((call, call, 0.0))
            continue
        for near in neighbours(call):
            other = plan_of(near, Addresses())
            if other["backend"] != ROW:
                found[other.get("declined") or other["error"]].append((call, near, 0.0))
                continue
            row = pair(*((c, p, roofline(c, p)) for c, p in ((call, plan), (near, other))))
            if is_cliff(row):
                found[MORE_TILES].append((call, near, row["excess"]))
    return found


def lines_of(calls):
    """Calls that fall to another row, a line for each product."""
    of = defaultdict(lambda: defaultdict(dict))
    for call in calls:
        at = of[f"{call.model}: {call.operator} {call.n}x{call.k}"]
        at["m"][call.m] = at["kinds"][call.kind] = at["layouts"][call.layout] = None
    for name, at in of.items():
        yield "; ".join(
            (name, *(", ".join(map(str, at[key])) for key in ("kinds", "layouts", "m")))
        )


def show_plans(found):
    """Whether a product falls to another row, or a neighbour does for no known reason."""
    unknown = False
    for text, pairs in found.items():
        own = [call for call, near, _ in pairs if call == near]
        known = None if own else reason({"declined": text})
        falls = text != MORE_TILES
        unknown |= falls and not known
        title = f"known: {known}" if known else "CLIFF" if falls else "to be timed"
        print(f"\n{len(pairs)} x {text}\n    {title}")
        print(*(f"    {line}" for line in lines_of(own)), sep="\n", end="\n" * bool(own))
        steps = Counter(step(call, near) for call, near, _ in pairs if call != near)
        print(f"    neighbours: {', '.join(f'{one} ({n})' for one, n in steps.most_common())}")
        worst = {}
        for call, near, excess in sorted(pairs, key=lambda one: -one[2]):
            if excess:
                size = replace(call, kind="any kind", layout="").name
                worst.setdefault(f"{size}: {step(call, near)}", excess)
        for name, excess in list(worst.items())[:SHOWN]:
            print(f"    {excess:.2f} {name}")
    return unknown


def simulate():
    """Lets this process see a simulated GPU."""
    sys.path.insert(0, str(ROOT / "tests"))
    from compare_plans import simulated
    from ptxsim import build

    os.environ |= simulated(build, "9.0", str(SMS))


# --- Times, on a GPU ---


class Pools:
    """Tensors that are parts of large buffers, one behind the other, so that a call's operands have
    left L2 when their turn comes again. Results have a buffer of their own."""

    BYTES = {"codes": 2**33, "factors": 2**30, "float16": 2**32, "bfloat16": 2**32, "out": 2**33}

    def __init__(self, device, seed, scale=1):
        import torch

        torch.manual_seed(seed)
        self.torch, self.device = torch, device
        self.draw = torch.Generator().manual_seed(seed)
        self.pools, self.at = {}, Counter()
        for name, size in self.BYTES.items():
            pool = torch.empty(size // scale, dtype=torch.uint8, device=device)
            if "float" in name:
                pool.view(getattr(torch, name)).normal_()
            else:
                pool.random_(*((0x18, 0x20) if name == "factors" else (0, 256)))
            self.pools[name] = pool

    def tensor(self, role, dtype, shape, strides, odd):
        name = "out" if role == "out" else dtype
        if dtype == "u8":
            name = "factors" if role.startswith("factors") else "codes"
        pool, extent = self.pools[name], SIZES[dtype]
        extent *= sum(step * (size - 1) for step, size in zip(strides, shape, strict=True)) + 1
        begin = self.at[name]
        if begin + odd + extent > len(pool):
            begin = 0
        self.at[name] = -(-(begin + odd + extent) // 256) * 256
        part = pool[begin + odd : begin + odd + extent]
        if dtype != "u8":
            part = part.view(getattr(self.torch, dtype))
        return part.as_strided(shape, strides)

    def offsets(self, call):
        from nvfp4kern.bench.products import routed

        counts = routed(call.experts, call.top, call.m, self.draw)
        return self.torch.tensor([0, *counts]).cumsum(0).int().to(self.device)

    def rows(self, call):
        return self.torch.randperm(call.rows, generator=self.draw).int().to(self.device)


def timed(calls, memory):
    """[(call, plan, microseconds)], replayed in turns. Calls that are none are left out."""
    import nvfp4kern
    from nvfp4kern.bench import timing

    plans, ready = {}, {}
    for call in calls:
        plan = plan_of(call, memory)
        if "error" in plan:
            continue
        sets = timing.rotation(call.moved, memory.device)
        made = [arguments(call, memory) for _ in range(min(sets, MOST_SETS))]
        function = getattr(nvfp4kern, call.operator)
        plans[call] = plan
        ready[call] = timing.captured([partial(function, *given, **more) for given, more in made])
    times = timing.in_turns(ready)
    return [(call, plan, times[call].median) for call, plan in plans.items()]


def drawn(rng, products):
    """A call and some of its neighbours."""
    call = rng.choice(products)
    near = list(neighbours(call))
    return [call, *rng.sample(near, min(NEIGHBOURS, len(near)))]


def pairs_of(calls, memory):
    first, *others = timed(calls, memory)
    return [pair(first, other) | {"calls": (first[0], other[0])} for other in others]


def search(seconds, seed, memory, operators):
    """Rows of what was drawn, the worst first. What is beyond LIMIT is timed once more."""
    rng, begin = random.Random(seed), perf_counter()
    products = [call for call in zoo() if call.operator in operators]
    found = []
    while perf_counter() - begin < seconds:
        for row in pairs_of(drawn(rng, products), memory):
            if is_cliff(row):
                (again,) = pairs_of(row["calls"], memory)
                row = min(row, again, key=lambda one: one["excess"])
            found.append(row)
    for row in found:
        row["calls"] = [vars(call) for call in row["calls"]]
    return sorted(found, key=lambda row: -row["excess"])


def show_times(found):
    """Whether there is a cliff."""
    cliffs = [row for row in found if is_cliff(row)]
    known = Counter(row["known"] for row in found if row["excess"] > LIMIT and row["known"])
    for row in (cliffs or found)[:SHOWN]:
        most, least = row["us"]
        print(f"{row['excess']:6.2f} {most:9.1f} us  {row['slow']}  {row['kernels'][0]}")
        print(f"       {least:9.1f} us  {row['fast']}  {row['kernels'][1]}")
    for why, count in known.most_common():
        print(f"{count} known: {why}")
    print(f"{len(found)} pairs, {len(cliffs)} cliffs")
    return bool(cliffs)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", action="store_true", help="ask plans alone, without a GPU")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--op", nargs="+", choices=OPERATORS, default=OPERATORS)
    parser.add_argument("--json", type=Path, help="write the rows of all pairs")
    asked = parser.parse_args()
    if asked.plan:
        simulate()
        return show_plans(found_in_plans(call for call in zoo() if call.operator in asked.op))
    from nvfp4kern import results

    found = search(asked.seconds, asked.seed, Pools("cuda", asked.seed), asked.op)
    if asked.json:
        results.write(asked.json, found)
    return show_times(found)


if __name__ == "__main__":
    sys.exit(main())
