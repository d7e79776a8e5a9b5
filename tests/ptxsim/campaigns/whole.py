"""The competition's benchmark shapes, whole, on a simulated B200, through the drop-ins: whether
they are right, and what they move, beside what the plan's tile must move.

What is kept says of which kernels it is. A shape is run again if these have changed.
"""

import json
import math
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rows import TABLE, tiles_of

from .. import build
from . import package, tiles

RESULTS = build.HERE / "results" / "sm100_whole.json"
FAMILY = "sm100/gemm"
SMS = 148
PROBLEMS = ("gemm", "dual_gemm", "group_gemm")
"""Those that the row serves by the drop-ins."""
COUNTS = ("l2_read_bytes", "l2_write_bytes", "touched_bytes", "mmas", "ctas")
CTA_M, MMA_K, ATOM = 128, 64, 512
"""Rows of operand M in a CTA; K of an MMA; bytes of an atom of 128 x 4 scale factors."""
MMAS = 8
"""Of a step of K of 16-bit tokens."""


def atoms(rows):
    return -(-rows // 128)


def sizes_of(tile):
    """CTAs of an MMA, its N, pairs with multicast."""
    traits = tiles_of("sm100/gemm")[tile]
    return traits["ctas_per_mma"], traits["tile_m"], traits["multicast"]


def tiles_in(tile, m, n, tokens_are_mma_m):
    operand_m, operand_n = (m, n) if tokens_are_mma_m else (n, m)
    ctas, mma_n, pairs = sizes_of(tile)
    return -(-operand_m // (CTA_M * ctas * pairs)) * -(-operand_n // mma_n)


def planned(tile, tokens_are_mma_m, matrices, m, n, k):
    """What a tile's launch must ask L2 for and multiply, from its traits: each CTA asks for its
    rows of operand M of each matrix, its half of a pair's operand N, and all scale factors of both.
    With multicast each CTA asks for a share of operand N."""
    ctas, mma_n, pairs = sizes_of(tile)
    blocks = tiles_in(tile, m, n, tokens_are_mma_m) * pairs * -(-k // MMA_K)
    operand_m = matrices * (CTA_M * MMA_K // 2 + ATOM)
    sf_n = atoms(mma_n) * ATOM // (ctas * pairs if pairs > 1 else 1)
    of_cta = operand_m + mma_n // ctas // pairs * MMA_K // 2 + sf_n
    return {"l2_read_bytes": blocks * ctas * of_cta, "mmas": blocks * matrices}


def compulsory(matrices, m, n, k):
    """Every operand and the output, once; blocked scale factors with their padding."""
    rows, blocked = m + matrices * n, atoms(m) + matrices * atoms(n)
    return rows * k // 2 + blocked * -(-k // MMA_K) * ATOM + 2 * m * n


def planned_of_16bit(tile, m, n, k):
    """Likewise of NVFP4 weights and 16-bit tokens; rows that do not exist are not asked for. And
    every operand and the output, once."""
    traits = tiles_of("sm100/kind_f16")[tile]
    m_tiles, n_tiles = -(-n // traits["tile_n"]), -(-m // traits["tile_m"])
    weights, tokens = n * k // 2 + atoms(n) * -(-k // MMA_K) * ATOM, 2 * m * k
    return {
        "l2_read_bytes": n_tiles * weights + m_tiles * tokens,
        "mmas": n_tiles * m_tiles * -(-k // traits["tile_k"]) * MMAS,
        "touched_bytes": weights + tokens + 2 * m * n,
    }


def groups_of(problem, shape):
    """The GEMMs of a shape: (matrices of weights, M, N, K) of each."""
    sizes = shape if problem == "group_gemm" else [shape]
    return [({"dual_gemm": 2}.get(problem, 1), *size[:3]) for size in sizes]


def planned_of(problem, shape, plan):
    """Of all groups. Operand M of each group of a list is the one that makes fewer tiles."""
    expected = dict.fromkeys(("l2_read_bytes", "mmas", "touched_bytes"), 0)
    for matrices, m, n, k in groups_of(problem, shape):
        tokens_are_m = plan["why"].startswith("tokens are")
        if problem == "group_gemm":
            tokens_are_m = tiles_in(plan["tile"], m, n, True) < tiles_in(plan["tile"], m, n, False)
        of_group = planned(plan["tile"], tokens_are_m, matrices, m, n, k)
        of_group["touched_bytes"] = compulsory(matrices, m, n, k)
        expected = {name: expected[name] + of_group[name] for name in expected}
    return expected


def plan_of(problem, case):
    """Of the operator with linear scale factors: the tile is the same."""
    import nvfp4kern

    if problem == "group_gemm":
        pairs = [*zip(*(abc[:2] for abc in case.data[0]), strict=True)]
        pairs += zip(*case.data[1], strict=True)
        lists = [[t.to("cuda").permute(2, 0, 1)[0] for t in side] for side in pairs]
        return nvfp4kern.explain("grouped_gemm", *lists)
    operands = len(case.operands[0])
    codes, linear = case.data[:operands], case.data[operands : 2 * operands]
    batched = [tensor.permute(2, 0, 1) for tensor in (*codes, *linear)]
    return nvfp4kern.explain(problem, *batched)


def check(problem, case):
    """Raises AssertionError. The competition's data has one right answer of a gemm."""
    from nvfp4kern.verify import reference

    for result, operands in zip(case.results, case.operands, strict=True):
        got = result.permute(2, 0, 1).cpu().float().numpy()
        values = [o.values for o in operands]
        if problem == "dual_gemm":
            want = reference.dual_gemm(*values, c=TABLE["sm100"].c)
            verdict = reference.check(got, want, "float16")
        else:
            verdict = reference.check_bits(got, reference.gemm(*values).rounded("float16"))
        assert verdict.ok, str(verdict)


def run_shape(problem, shape, sms=SMS):
    """In a process of its own: what the simulator counted of one call, and the plan."""
    fake_cuda = package.enter("sm100", {"sms": sms})
    from calls import drop_in

    from nvfp4kern.verify import data

    case = data.competition(problem, shape, benign=True, device="cuda")
    plan = plan_of(problem, case)
    fake_cuda.library.ptxsim_clear()
    fake_cuda.library.ptxsim_seed(0)
    drop_in(problem)(case.data)
    report = fake_cuda.report()
    check(problem, case)
    findings = {s: len(package.places(report["findings"], s)) for s in "EWN"}
    return {
        "problem": problem,
        "shape": json.loads(json.dumps(shape)),
        "tile": plan["tile"],
        "findings": findings,
        "counted": {name: report[name] for name in COUNTS},
        "planned": planned_of(problem, shape, plan),
    }


def run_16bit(shape, sms, by_rows=False):
    """Likewise of 16-bit tokens: one gemm, or all rows of one expert, in any order."""
    fake_cuda = package.enter("sm100", {"sms": sms})
    import numpy as np
    from generators import assert_ok, codes, floats, from_numpy, rng_of, scales, values

    import nvfp4kern
    from nvfp4kern.verify import data, reference

    m, n, k = shape
    rng = rng_of(*shape)
    a, b = data.small_integers(rng, m, k, most=3), data.exact_family(rng, n, k)
    args = [floats(a, "bfloat16", "cuda"), codes(b, "cuda"), None]
    args.append(scales(b, "flat", rng, "cuda", 0x7F))
    options, order = {"scale_layout": ("linear", "blocked")}, np.arange(m, dtype=np.int32)
    if by_rows:
        order = rng.permutation(order)
        args[1:4:2] = args[1][None], args[3][None]
        options["offsets"] = from_numpy(np.array([0, m], np.int32), "cuda")
        options["rows"] = from_numpy(order, "cuda")
    function = "grouped_gemm" if by_rows else "gemm"
    plan = nvfp4kern.explain(function, *args, **options)
    fake_cuda.library.ptxsim_clear()
    fake_cuda.library.ptxsim_seed(0)
    got = getattr(nvfp4kern, function)(*args, **options)
    report = fake_cuda.report()
    want = reference.gemm(a[order], b.values, nvfp4=False)
    assert_ok(reference.check_bits(values(got), want.rounded("bfloat16")))
    return {
        "kernel": plan["kernel"],
        "findings": {s: len(package.places(report["findings"], s)) for s in "EWN"},
        "counted": {name: report[name] for name in COUNTS},
        "planned": planned_of_16bit(plan["tile"], m, n, k),
    }


def kept(path):
    """What was found before, of today's kernels."""
    result = {"kernels": tiles.hash_of(FAMILY), "sms": SMS, "rows": []}
    before = json.loads(path.read_text()) if path.is_file() else None
    return before if before and before["kernels"] == result["kernels"] else result


def key(problem, shape):
    return problem, json.dumps(shape)


def work_of(wanted):
    return sum(math.prod(group) for group in groups_of(*wanted))


def run(options):
    from nvfp4kern.verify import shapes

    path = Path(options.json)
    result = kept(path)
    build.environment(cc=TABLE["sm100"].cc)  # compiled once
    done = {key(row["problem"], row["shape"]) for row in result["rows"]}
    wanted = [(p, shape) for p in PROBLEMS for shape in shapes.BENCHMARKS[p]]
    wanted = [(p, shape) for p, shape in wanted if key(p, shape) not in done]
    for problem, shape in sorted(wanted, key=work_of):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            row = pool.submit(run_shape, problem, shape).result()
        result["rows"] = sorted([*result["rows"], row], key=lambda r: key(r["problem"], r["shape"]))
        package.write_results(path, result)
        print(f"{problem} {shape}: right by {row['tile']}, {row['findings']}", flush=True)
    return 2 if any(row["findings"]["E"] + row["findings"]["W"] for row in result["rows"]) else 0


def add_command(commands):
    command = commands.add_parser(
        "whole", help="the competition's shapes on a simulated B200, and the bytes they move"
    )
    command.add_argument("--json", metavar="FILE", default=str(RESULTS), help="added to")
    command.set_defaults(work=run)
