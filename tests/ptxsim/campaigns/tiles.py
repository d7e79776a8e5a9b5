"""Every tile of Hopper's products by wgmma and of its routers, and of Blackwell's products, forced
in turn, on the simulated GPU. A seed draws a call for each kernel (tests/drawn_cases.py), its
schedule, how many SMs, and whether rows are multiplied in slices.

A call goes wrong when it fails, when its bytes are not the CPU's, or the oracle's interval does not
hold. The results of all seeds so far are kept in a file, to which later runs add theirs: of each
family, and only while its kernels execute the same.
"""

import hashlib
import json
import os
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rows import TABLE

from .. import build
from . import package

SMS = {"sm90": (132, 78, 3, 132, 114), "sm100": (3, 148, 1), "sm120": (3, 170)}
"""By the seed: an H200 and smaller ones, a B200, an RTX 5090, and so few that CTAs walk over many
tiles."""
RESULTS = {row: build.HERE / "results" / f"{row}_tiles.json" for row in SMS}
ROWS_AT_ONCE = {"sm90": ("", "19")}
"""By the seed: calls are multiplied whole, or in slices."""
FEW_SMS = 3
"""Of one launch for a list: a list of few tiles has a launch for each group."""
COUNTS = ("calls", "declined", "wrong", "E", "W", "N")


def row_of(family):
    return family.partition("/")[0]


def hash_of(family):
    """Of what its kernels execute: neither names nor comments count, nor the host's code."""
    row, _, name = family.partition("/")
    folder = build.kernels(TABLE[row].cc, name)
    texts = [(folder / f"{s.stem}.ptx").read_text() for s in (build.CSRC / family).glob("*.cu")]
    bodies = sorted(body for text in texts for body in bodies_of(text))
    return hashlib.sha256("\n".join(bodies).encode()).hexdigest()[:16]


KIND = r"\.(?:entry|shared|local|global|const)\b"
DECLARED = re.compile(rf"^\s*(?:\.\w+ )?{KIND}[^;({{=\[]*?([\w$]+)[\[(;]", re.M)


def bodies_of(ptx):
    """Of each kernel, its instructions, with numbers for names: the kernel's, its variables'."""
    ptx = re.sub(r"^\s*(//|\.loc|\.file)[^\n]*\n", "", ptx, flags=re.M)
    declared = "|".join(map(re.escape, {*DECLARED.findall(ptx)}))
    for kernel in re.split(r"^\.visible (?=\.entry)", ptx, flags=re.M)[1:]:
        names, body = {}, kernel[: kernel.index("\n}\n")].replace("\t", " ")
        number = lambda m, names=names: f"n{names.setdefault(m[0], len(names))}"  # noqa: E731
        yield re.sub(rf"\$L__BB\d+|(?<![\w$])(?:{declared})(?=_param_|(?![\w$]))", number, body)


def sms_of(case, seed):
    of_row = SMS[case.row]
    return FEW_SMS if case.operator == "one launch" else of_row[seed % len(of_row)]


def sample_of(family, seed, count):
    """So many of its cases, or all."""
    import numpy as np
    from drawn_cases import cases

    found = cases([family])
    order = np.random.default_rng(seed).permutation(len(found))
    return [found[i] for i in (sorted(order[:count]) if count else range(len(found)))]


def make_call(case, seed, counts):
    """What goes wrong is raised."""
    taken = case.draw_taken(seed, "cuda")
    if not taken:
        counts["declined"] += 1
        return
    call, plan = taken
    assert plan["kernel"] == case.kernel, plan["kernel"]
    counts["calls"] += 1
    call.check(call.run("cuda"), TABLE[case.row].c)


def try_case(fake_cuda, case, seed, counts, found):
    """Adds one call to the counts of its case."""
    from drawn_cases import OF_EXPERTS

    os.environ["NVFP4KERN_TILE"] = case.setting
    limits = ROWS_AT_ONCE.get(case.row, ("",)) if case.operator in OF_EXPERTS else ("",)
    os.environ["NVFP4KERN_ROW_LIMIT"] = limits[seed % len(limits)]
    fake_cuda.library.ptxsim_clear()
    fake_cuda.library.ptxsim_seed(seed)
    wrong = ""
    try:
        make_call(case, seed, counts)
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
        counts["wrong"] += 1
    findings = fake_cuda.report()["findings"]
    for severity in "EWN":
        counts[severity] += len(package.places(findings, severity))
    bad = [f for f in findings if f["severity"] in "EW"]
    if bad or wrong:
        found.append({"case": case.name, "seed": seed, "wrong": wrong, "findings": bad})


def of_process(family, seed, sms, sample):
    """The counts of every case of this seed on so many SMs, and what was found."""
    fake_cuda = package.enter(row_of(family), {"sms": sms})
    counts, found = {}, []
    for case in sample_of(family, seed, sample):
        if sms_of(case, seed) == sms:
            counts[case.name] = dict.fromkeys(COUNTS, 0)
            try_case(fake_cuda, case, seed, counts[case.name], found)
    return counts, found


def added(result, counts, found):
    for name, new in counts.items():
        of = result["cases"].setdefault(name, dict.fromkeys(COUNTS, 0))
        for count in COUNTS:
            of[count] += new[count]
    result["found"] += found


def kept(path, family):
    """What was found before, of the kernels that it has today."""
    sms = SMS[row_of(family)]
    result = {"kernels": hash_of(family), "sms": sms, "seeds": [], "cases": {}, "found": []}
    before = json.loads(path.read_text()).get(family) if path and path.is_file() else None
    return before if before and before["kernels"] == result["kernels"] else result


def keep(path, family, result):
    results = json.loads(path.read_text()) if path.is_file() else {}
    package.write_results(path, dict(sorted({**results, family: result}.items())), depth=3)


def run_family(pool, family, path, options):
    """Whether anything went wrong, now or before."""
    result = kept(path, family)
    seeds = range(options.seed, options.seed + options.seeds)
    seeds = [seed for seed in seeds if seed not in result["seeds"]]
    jobs = [
        (seed, pool.submit(of_process, family, seed, sms, options.sample))
        for seed in seeds
        for sms in sorted({sms_of(case, seed) for case in sample_of(family, seed, options.sample)})
    ]
    for i, (seed, job) in enumerate(jobs):
        counts, found = job.result()
        added(result, counts, found)
        calls = sum(c["calls"] for c in counts.values())
        print(f"{family}, seed {seed}: {calls} calls, {len(found)} went wrong", flush=True)
        for what in found:
            print(f"  {what['case']}: {what['wrong'] or what['findings'][0]['text']}")
        if [seed] == [of for of, _ in jobs[i : i + 2] if of == seed]:  # its last
            result["seeds"] = sorted({*result["seeds"], seed})
            if path:
                keep(path, family, result)
    print(f"{family}: {len(result['seeds'])} seeds, {len(result['found'])} calls went wrong")
    return bool(result["found"])


def run(options):
    from drawn_cases import FAMILIES

    path = Path(options.json) if options.json else None
    asked = options.families or FAMILIES
    families = [name for name in FAMILIES if name in asked or row_of(name) in asked]
    unknown = set(asked) - {*families, *map(row_of, families)}
    if unknown:
        raise SystemExit(f"no such family: {', '.join(sorted(unknown))}")
    for row in {row_of(family) for family in families}:
        build.environment(cc=TABLE[row].cc)  # compiled once
    pool = ProcessPoolExecutor(options.jobs, get_context("spawn"), max_tasks_per_child=1)
    with pool:
        wrong = [run_family(pool, of, path, options) for of in families]
    return 2 if any(wrong) else 0


def add_command(commands):
    command = commands.add_parser(
        "tiles", help="every tile of the families of drawn calls, many seeds; 2: a call went wrong"
    )
    command.add_argument("--seed", type=int, default=0, help="the first")
    command.add_argument("--seeds", type=int, default=50, help="how many")
    command.add_argument("--families", nargs="+", metavar="NAME", help="sm90, or sm90/gemm")
    command.add_argument("--sample", type=int, default=0, help="so many kernels a family and seed")
    command.add_argument("--jobs", type=int, default=1, help="processes at once")
    command.add_argument("--json", metavar="FILE", help="seeds, counts and findings; added to")
    command.set_defaults(work=run)
