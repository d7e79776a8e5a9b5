"""The pictures of the documents, which benchmarks/figures.py draws into docs/pictures.

Each answers one question about rows of benchmarks/results/gpu.json. An SVG file has a digest of
what it was drawn of and by, so that a check needs no matplotlib.
"""

import hashlib
import json
import re
from functools import partial
from pathlib import Path

import figures_parallel

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
DRAWN_BY = ROOT / "nvfp4kern" / "bench" / "plots.py"
DIGEST = re.compile(r"rows and code ([0-9a-f]{16})")
FACTS = ("gpu", "device", "date", "commit", "nvfp4kern")

SIX = [
    ("gemv", "7168x16384"),
    ("gemm", "8x8192x8192 W4A16"),
    ("gemm", "128x7168x16384"),
    ("grouped_gemm", "Qwen3-30B-A3B gate_up 1536x2048, 8 tokens"),
    ("route", "4096x256x7168, top 8"),
    ("quantize", "8192x8192 bf16, s2 given"),
]
"""README's rows."""


def six_of(rows):
    """The rows of SIX among those with times."""
    found = {(row["op"], row["shape"]): row for row in rows}
    return [found[key] for key in SIX if key in found]


def of_few_tokens(rows):
    """Products of up to 64 tokens, each matrix by 1, 8 and 64."""
    some = [row for row in rows if row["set"] == "competition" and row["op"] == "gemv"]
    return some + [
        row
        for row in rows
        if row["set"] == "smallm"
        and row["op"] in ("gemm", "dual_gemm")
        and row["sizes"]["m"] in (1, 8, 64)
    ]


def of_experts(rows):
    """Both products of mixtures of experts in W4A16, of 8 and of 256 tokens."""
    some = [row for row in rows if row["set"] == "moe16" and row["at"] in (8, 256)]
    return [row for row in some if row["op"] == "grouped_dual_gemm" or " down " in row["shape"]]


def by_tokens(rows):
    return [row for row in rows if row["set"] == "tokens"]


def gated_by_tokens(rows):
    return [row for row in rows if row["set"] == "moe16" and row["op"] == "grouped_dual_gemm"]


PICTURES = {
    "faster": ("alternatives", six_of, "six calls"),
    "faster-experts": ("alternatives", of_experts, "experts, W4A16"),
    "floor": ("floor", of_few_tokens, "few tokens"),
    "floor-experts": ("floor", of_experts, "experts, W4A16"),
    "tokens": ("tokens", by_tokens, "8192x8192"),
    "tokens-experts": ("tokens", gated_by_tokens, "W4A16"),
}
"""{file: (the question's function in plots.py, which rows, what they are)}"""


def facts_of(gpu):
    """What a title says."""
    found = {name: gpu["environment"][name] for name in FACTS if name in gpu["environment"]}
    found["date"] = found["date"][:10]
    if "commit" in found:
        found["commit"] = found["commit"][:7]
    return found


def digest(code, *content):
    told = json.dumps(content, sort_keys=True) + code.read_text()
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def write(figure, path, mark):
    """As SVG whose bytes follow from the figure, with text as text."""
    import matplotlib

    metadata = {"Date": None, "Creator": None, "Description": f"rows and code {mark}"}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name}):
        figure.savefig(path, metadata=metadata)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n")


def drawn(name, mark, make, only_check, also):
    """The picture's path if it is old. `make` makes a figure."""
    path = FOLDER / f"{name}.svg"
    found = DIGEST.search(path.read_text()) if path.is_file() else None
    is_new = found is not None and found[1] == mark
    if not only_check and (also or not is_new):
        figure = make()
        if figure is None:
            raise ValueError(f"{name}: the results have no such rows")
        if not is_new:
            FOLDER.mkdir(exist_ok=True)
            write(figure, path, mark)
        if also:
            also.mkdir(parents=True, exist_ok=True)
            figure.savefig(also / f"{name}.png")
    return [] if is_new else [path]


def draw(gpu, only_check=False, also=None):
    """Paths of the pictures that are old; drawn anew unless `only_check`, and then as PNG files in
    the folder `also`, too."""
    if not gpu:
        return []
    timed = [row for row in gpu["rows"] if "time" in row]
    facts, old = facts_of(gpu), []
    for name, (question, chosen, what) in PICTURES.items():
        rows = chosen(timed)

        def make(question=question, rows=rows, what=what):
            from nvfp4kern.bench import plots

            return plots.drawn(getattr(plots, question), rows, what, facts)

        mark = digest(DRAWN_BY, question, what, rows, facts)
        old += drawn(name, mark, make, only_check, also)
    return old


def draw_parallel(found, only_check=False, also=None):
    """The same of what parallel.py wrote, where that has several numbers of ranks."""
    if not found or len({row["ranks"] for row in found["rows"]}) < 2:
        return []
    facts, code = facts_of(found), Path(figures_parallel.__file__)
    about = ", ".join(facts[name] for name in ("gpu", "date"))
    mark = digest(code, found["rows"], facts)
    make = partial(figures_parallel.picture, found, about)
    return drawn("parallel", mark, make, only_check, also)
