"""Draws calls of every operator and compares what two builds explain of them.

    python tests/compare_plans.py draw --cc 9.0 --json new.jsonl          # the tree it lies in
    python tests/compare_plans.py draw --tree OLD --cc 9.0 --json old.jsonl
    python tests/compare_plans.py compare old.jsonl new.jsonl --rename halves=fp16 --texts

A plan is a pure function of sizes, addresses, settings and the GPU, so operands are addresses alone
and no kernel runs. --cc takes the simulated GPU of that capability, or `cpu`. A draw follows from
its seed, and forces a tile, a row or batch invariance now and then. `compare` exits with 1 where
a draw's plan differs, after --rename (a pattern in what OLD says, and what NEW has in its place).
Texts (`why`, `declined`, messages) may be worded anew, but each old one must become one new one:
--texts lists these pairs.
"""

import argparse
import ctypes
import json
import math
import mmap
import os
import random
import re
import sys
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from capsules import Capsule
from rows import TABLE

ROWS_BY_CC = {row.cc: row.name for row in TABLE.values()}
ROOM, NO_RESERVE = 64 << 30, 0x4000
TYPES = {"u8": (1, 8, 1), "float16": (2, 16, 1), "bfloat16": (4, 16, 1), "float32": (2, 32, 1)}
TYPES["i32"] = (0, 32, 1)
TEXTS = ("why", "declined", "error")


class Draw:
    """Operands of one call."""

    def __init__(self, seed, device_type, begin):
        self.rng = random.Random(seed)
        self.device_type, self.begin, self.at = device_type, begin, 0
        self.is_odd = self.rng.random() < 0.25
        """Whether strides and addresses may be of any kind; else as frameworks make them."""

    def of(self, *options):
        return self.rng.choice(options)

    def chance(self, p):
        return self.rng.random() < p

    def tensor(self, dtype, *shape):
        size = TYPES[dtype][1] // 8
        pad = [0] * len(shape)
        if self.is_odd and self.chance(0.4):
            pad = [self.of(0, 1, 2, 4, 8, 16, 32, 48) // size for _ in shape]
        strides, step = [0] * len(shape), 1
        for i in reversed(range(len(shape))):
            strides[i] = step
            step = (step * shape[i]) + (pad[i] if i else 0)
        self.at = -(-self.at // 256) * 256
        offset = self.at + (self.of(0, 0, 4, 8, 16, 2) * (self.is_odd and self.chance(0.3)))
        offset -= offset % size
        self.at += 64 + size * sum(s * max(n - 1, 0) for s, n in zip(strides, shape, strict=True))
        if self.at > ROOM:
            raise MemoryError
        address, place = self.begin + offset, {"device_type": self.device_type}
        return Capsule.at(address, TYPES[dtype], shape, strides, **place)

    def transposed(self, t):
        """Its last two dimensions."""
        (*shape, n, k), (*strides, of_n, of_k) = list(t.sizes), list(t.steps)
        place, dtype = {"device_type": self.device_type}, (t.code, t.bits, t.lanes)
        return Capsule.at(t.data, dtype, (*shape, k, n), (*strides, of_k, of_n), **place)

    def scales(self, layout, lead, rows, k):
        cols = k // 16
        if layout == "blocked":
            rows, cols = -(-rows // 128) * 128, -(-cols // 4) * 4
            return self.tensor("u8", math.prod(lead) * rows * cols)
        return self.tensor("u8", *lead, rows, cols)

    def m(self):
        few = self.rng.randint(1, 16)
        some = self.of(24, 32, 48, 64, 96, 100, 128, 129, 192, 200, 256, 300)
        many = self.of(384, 512, 777, 1000, 1024, 2048, 4096, 8192, 16384, 65536, 300000)
        return self.of(few, few, some, some, many, self.of(0, 1, self.rng.randint(1, 5000)))

    def n(self):
        usual = self.of(128, 256, 512, 768, 1024, 1536, 2048, 2880, 4096, 5120, 7168, 8192, 14336)
        odd = self.of(0, 1, 8, 16, 40, 48, 64, 96, 100, 192, 384, 129000)
        return self.of(usual, usual, usual, odd)

    def k(self):
        usual = self.of(128, 256, 512, 1024, 1536, 2048, 2880, 4096, 5120, 7168, 8192, 16384)
        odd = self.of(0, 16, 32, 48, 64, 80, 96, 160, 208, 400, 100000, 262144, 270336)
        return self.of(usual, usual, usual, odd)

    def layout(self):
        return self.of("linear", "blocked")

    def kind(self):
        return self.of("nvfp4", "nvfp4", "float16", "bfloat16")

    def tokens(self, kind, layout, lead, m, k):
        if kind == "nvfp4":
            return self.tensor("u8", *lead, m, k // 2), self.scales(layout, lead, m, k)
        return self.tensor(kind, *lead, m, k), None

    def weights(self, layout, lead, n, k):
        return self.tensor("u8", *lead, n, k // 2), self.scales(layout, lead, n, k)

    def common(self):
        return {"out_dtype": self.of("float16", "float16", "bfloat16", "float32")}

    # ------------------------------------------------------------------------ one for each operator

    def gemv(self):
        m, k, layout = self.n(), self.k(), self.layout()
        lead = self.of((), (self.of(1, 2, 8),))
        b, sfb = self.tokens(self.kind(), layout, lead, 1, k)
        a, sfa = self.weights(layout, lead, m, k)
        return "gemv", (a, b, sfa, sfb), self.common() | {"scale_layout": layout}

    def gemm(self):
        m, n, k, layouts = self.m(), self.n(), self.k(), (self.layout(), self.layout())
        lead = self.of((), (), (self.of(1, 2, 5, 16),))
        a, sfa = self.tokens(self.kind(), layouts[0], lead, m, k)
        b, sfb = self.weights(layouts[1], self.of(lead, ()), n, k)
        options = {"bias": self.tensor("float32", n)} if self.chance(0.2) else {}
        return "gemm", (a, b, sfa, sfb), self.common() | options | {"scale_layout": layouts}

    def dual_gemm(self):
        m, n, k, layouts = self.m(), self.n(), self.k(), (self.layout(), self.layout())
        lead = self.of((), (), (self.of(1, 2, 5),))
        a, sfa = self.tokens(self.kind(), layouts[0], lead, m, k)
        (b1, sf1), (b2, sf2) = (self.weights(layouts[1], lead, n, k) for _ in "12")
        return "dual_gemm", (a, b1, b2, sfa, sf1, sf2), self.common() | {"scale_layout": layouts}

    def experts(self, rows_of_weights):
        m, n, k, layouts = self.m(), self.n(), self.k(), (self.layout(), self.layout())
        g = self.of(1, 2, 8, 16, 32, 60, 128, 256, 0)
        kind, options = self.kind(), {"offsets": self.tensor("i32", g + 1), "scale_layout": layouts}
        by_rows = self.chance(0.35)
        if by_rows:
            options["rows"] = self.tensor("i32", m * self.of(1, 2, 8))
            options["rows_per_token"] = self.of(1, 2, 8)
        a, sfa = self.tokens(kind, layouts[0] if by_rows else "linear", (), m, k)
        if sfa and not by_rows and layouts[0] == "blocked":
            sfa = self.tensor("u8", (-(-m // 128) + g) * 128 * (-(-k // 64) * 4))
        b, sfb = self.weights(layouts[1], (g,), rows_of_weights * n, k)
        return a, b, sfa, sfb, options

    def contiguous(self):
        a, b, sfa, sfb, options = self.experts(1)
        options |= {"quantized": True} if self.chance(0.1) else self.common()
        return "grouped_gemm", (a, b, sfa, sfb), options

    def gated(self):
        a, b, sfa, sfb, options = self.experts(2)
        options |= {"quantized": True} if self.chance(0.3) else self.common()
        return "grouped_dual_gemm", (a, b, sfa, sfb), options

    def of_16_bits(self):
        m, n, k, g = self.m(), self.n(), self.k(), self.of(1, 2, 8, 32, 0)
        kind, along_k = self.of("float16", "bfloat16"), self.chance(0.5)
        b = self.tensor(kind, g, n, k) if along_k else self.transposed(self.tensor(kind, g, k, n))
        options = {"offsets": self.tensor("i32", g + 1)}
        if self.chance(0.2):
            options |= {"rows": self.tensor("i32", 2 * m), "rows_per_token": 2}
        return "grouped_gemm", (self.tensor(kind, m, k), b), self.common() | options

    def listed(self):
        kind, layouts = self.kind(), (self.layout(), self.layout())
        n, k = self.n(), self.k()
        a, b, sfa, sfb = [], [], [], []
        for _ in range(self.of(1, 2, 3, 8, 8, 20, 31, 33, 70)):
            m = self.of(self.m() % 2000, self.m() % 300)
            if self.chance(0.1):
                n, k = self.n(), self.k()
            if self.chance(0.02):
                kind = self.kind()
            x, sx = self.tokens(kind, layouts[0], (), m, k)
            w, sw = self.weights(layouts[1], (), n, k)
            a.append(x), b.append(w), sfa.append(sx), sfb.append(sw)
        return "grouped_gemm", (a, b, sfa, sfb), self.common() | {"scale_layout": layouts}

    def route(self):
        n, k = self.of(8, 16, 60, 64, 128, 256, 384, 512), self.of(64, 100, 512, 2048, 2880, 7168)
        kind = self.of("float16", "bfloat16", "bfloat16", "float32")
        args = self.tensor(kind, self.m(), k), self.tensor(kind, n, k), self.of(1, 2, 4, 8)
        return "route", args, {"score": self.of("softmax_topk", "topk_softmax", "sigmoid")}

    def sort_by_expert(self):
        ids = self.tensor("i32", self.m(), self.of(1, 2, 8))
        return "sort_by_expert", (ids, self.of(8, 64, 256)), {}

    def combine(self):
        m, k, h = self.m(), self.of(1, 2, 8), self.of(64, 1000, 2048, 7168)
        kind = self.of("float16", "bfloat16")
        rows = self.tensor("i32", m * k)
        return "combine", (self.tensor(kind, m * k, h), rows, self.tensor("float32", m, k)), {}

    def quantize(self):
        kind = self.of("float16", "bfloat16", "float32")
        return "quantize", (self.tensor(kind, self.m(), self.k()),), {"scale_layout": self.layout()}

    def dequantize(self):
        layout, m, k = self.layout(), self.m(), self.k()
        x, sf = self.weights(layout, (), m, k)
        return "dequantize", ((x, sf, 1.0),), {"scale_layout": layout}

    def to_blocked(self):
        return "to_blocked", (self.tensor("u8", self.m(), self.of(1, 4, 7, 64, 256)),), {}


WEIGHTS = {
    Draw.gemm: 20, Draw.dual_gemm: 15, Draw.contiguous: 18, Draw.gated: 12, Draw.of_16_bits: 8,
    Draw.listed: 15, Draw.gemv: 8, Draw.route: 5, Draw.sort_by_expert: 2, Draw.combine: 2,
    Draw.quantize: 2, Draw.dequantize: 2, Draw.to_blocked: 2,
}  # fmt: skip
"""How often each is drawn."""


def settings_of(draw, row, tiles):
    """Environment variables of one call."""
    found = {}
    if draw.chance(0.15):
        found["NVFP4KERN_BATCH_INVARIANT"] = "1"
    if tiles and draw.chance(0.3):
        family, names = draw.of(*sorted(tiles.items()))
        found["NVFP4KERN_TILE"] = f"{row}/{family}:{draw.of(*names)}"
    elif row and row != "sm80" and draw.chance(0.05):
        found["NVFP4KERN_BACKEND"] = "sm80"
    return found


def plan_of(nvfp4kern, call):
    operator, args, options = call
    try:
        plan = nvfp4kern.explain(operator, *args, **options)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {key: plan[key] for key in sorted(plan)}


def of_families(build, cc):
    """A folder with those kernels of a tree that plans ask the driver about."""
    folders = [build.kernels(cc, family) for family in ("gemv", "route")]
    both = folders[0].with_name(f"{folders[0].name}-{folders[1].name}")
    both.mkdir(exist_ok=True)
    for path in (path for folder in folders for path in folder.glob("*.ptx")):
        (both / path.name).write_bytes(path.read_bytes())
    return both


def simulated(build, cc, sms):
    """The variables of a process that asks for plans on a simulated GPU."""
    library, folder = str(build.simulator()), str(of_families(build, cc))
    found = {"NVFP4KERN_LIBCUDA": library, "NVFP4KERN_PTX_DIR": folder}
    return found | {"PTXSIM_CC": cc, "PTXSIM_SMS": sms}


def of_process(asked, worker):
    """Every asked.jobs-th draw, on a GPU of its own kind."""
    tree = Path(asked.tree).resolve()
    sys.path[:0] = [str(tree), str(tree / "tests")]
    sms, limits = [("132", {}), ("8", {}), ("78", {"NVFP4KERN_SMEM_LIMIT": "101376"})][worker % 3]
    device_type, row = (1, "") if asked.cc == "cpu" else (2, asked.row)
    if row:
        from ptxsim import build

        os.environ |= limits | simulated(build, asked.cc, sms)
    import nvfp4kern

    tiles = defaultdict(list)
    for entry in sorted(nvfp4kern._C._tiles()):
        family, tile = entry.removeprefix(f"{row}/").replace("kind_f16", "halves").split(":")
        if row and entry.startswith(f"{row}/"):
            tiles[family].append(tile)
    room = mmap.mmap(-1, ROOM, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(room))
    found = []
    for number in range(worker, asked.count, asked.jobs):
        draw = Draw(f"{asked.seed} {number}", device_type, begin)
        (make,) = draw.rng.choices([*WEIGHTS], [*WEIGHTS.values()])
        try:
            call = make(draw)
        except MemoryError:
            continue
        settings = settings_of(draw, row, tiles)
        os.environ |= settings
        plan = plan_of(nvfp4kern, call)
        for name in settings:
            del os.environ[name]
        found.append({"draw": number, "operator": make.__name__, "settings": settings} | plan)
    return found


def draw(asked):
    asked.row = ROWS_BY_CC.get(asked.cc, "")
    with ProcessPoolExecutor(asked.parallel, get_context("spawn"), max_tasks_per_child=1) as pool:
        rows = [row for of in pool.map(partial(of_process, asked), range(asked.jobs)) for row in of]
    rows.sort(key=lambda row: row["draw"])
    Path(asked.json).write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} draws, {dict(Counter(row['operator'] for row in rows))}")
    print(Counter(row.get("backend", "error") for row in rows))
    return 0


def compare(asked):
    old, new = (
        {r["draw"]: r for r in map(json.loads, open(path))} for path in (asked.old, asked.new)
    )
    texts, wrong = defaultdict(lambda: defaultdict(list)), 0
    for number in sorted({*old, *new}):
        text = json.dumps(old.get(number))
        for rename in asked.rename:
            text = re.sub(*rename.split("=", 1), text)
        before, after = json.loads(text) or {}, new.get(number) or {}
        for key in TEXTS:
            texts[key, before.pop(key, None)][after.pop(key, None)].append(number)
        differ = {key for key in {*before, *after} if before.get(key) != after.get(key)}
        wrong += bool(differ)
        if differ and wrong <= asked.most:
            print(f"draw {number}: {before}")
            print(*(f"    {k}: {before.get(k)!r} -> {after.get(k)!r}" for k in differ), sep="\n")
    for (key, was), news in texts.items():
        wrong += len(news) > 1
        if len(news) > 1:
            print(f"{key}: {was!r} became")
            print(*(f"    {now!r} {numbers[:5]}" for now, numbers in news.items()), sep="\n")
        elif asked.texts and was not in news:
            print(f"{key}: {was!r} -> {next(iter(news))!r}")
    print(f"{len(new)} draws, {wrong} differ")
    return 1 if wrong or not new else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--tree", default=str(Path(__file__).parents[1]))
    drawing.add_argument("--cc", choices=(*ROWS_BY_CC, "cpu"), default="9.0")
    drawing.add_argument("--count", type=int, default=5000)
    drawing.add_argument("--seed", type=int, default=1)
    drawing.add_argument("--jobs", type=int, default=3)
    drawing.add_argument("--parallel", type=int, default=1)
    drawing.add_argument("--json", required=True)
    drawing.set_defaults(run=draw)
    comparing = commands.add_parser("compare")
    comparing.add_argument("old")
    comparing.add_argument("new")
    comparing.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    comparing.add_argument("--texts", action="store_true")
    comparing.add_argument("--most", type=int, default=5, help="differences to show")
    comparing.set_defaults(run=compare)
    asked = parser.parse_args()
    return asked.run(asked)


if __name__ == "__main__":
    raise SystemExit(main())
