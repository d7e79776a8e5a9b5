"""Random small problems on a GPU, every tile of its products forced in turn.

    python tests/random_problems.py --count 100000 --seed 1
    python tests/random_problems.py --routers --count 5000

On exact data the GPU must write the CPU's bytes, guards included; of some the oracle is asked, too
(tests/drawn_cases.py). --routers draws calls of route instead, whose weights are approximations:
the oracle says whether each token's are right, and its experts. Every second process uses three
SMs, so that CTAs walk, and every second round over all tiles few rows at a time. A problem follows
from the seed, the number of processes and its own number, which a failure shows. A GPU switches
between processes: more of them than drawing keeps it busy are slower.
--backend sm80 draws what sm90 has tiles for, and forces none. --backend cpu compares the CPU with
itself: a test of this script.
"""

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
ORACLE_EVERY = 37  # no divisor of the number of cases: each has its turn
WORK = 1 << 20


def attempt(case, number, seed, asked, counts):
    from rows import ROWS

    c, device = (1, "cpu") if asked.backend == "cpu" else (ROWS[asked.backend].c, "cuda")
    drawn = {"seed": seed * 10**9 + number, "work": WORK, "always_exact": True}
    if asked.forced:
        os.environ["NVFP4KERN_TILE"] = case.setting
        taken = case.draw_taken(device=device, **drawn)
        if not taken:
            counts["declined"] += 1
            return
        call, _ = taken
    else:
        call = case.draw(**drawn)
    assert asked.routers or call.exact, call.said
    outs = call.run(device)
    call.check(outs, c, oracle=number % ORACLE_EVERY == 0)
    counts[case.operator] += 1
    if asked.routers:
        counts["tokens"] += call.said["m"]


def of_worker(asked, worker, end):
    """Every asked.jobs-th problem, until the time is over: (counts, what went wrong)."""
    os.environ["NVFP4KERN_BACKEND"] = asked.backend
    if worker % 2:
        os.environ["NVFP4KERN_SM_LIMIT"] = "3"
    import torch
    from drawn_cases import cases, families_of

    torch.set_num_threads(1)
    of_row = cases(families_of(asked.backend if asked.forced else "sm90"))
    of_all = [case for case in of_row if case.is_route == asked.routers]
    counts, wrong = Counter(), []
    for number in range(worker, asked.count, asked.jobs):
        if time.time() > end:
            break
        of_round, at = divmod(number // asked.jobs, len(of_all))  # all tiles by each process
        case = of_all[at]
        os.environ["NVFP4KERN_ROW_LIMIT"] = "19" if of_round % 2 else str(2**31 - 1)
        try:
            attempt(case, number, asked.seed, asked, counts)
        except Exception as error:
            wrong.append(f"problem {number}, {case.name}: {type(error).__name__}: {error}")
            if len(wrong) == 10:
                break
    return counts, wrong


def main(argv=None):
    from drawn_cases import FAMILIES

    forced = sorted({family.partition("/")[0] for family in FAMILIES})
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=(*forced, "sm80", "cpu"), default="sm90")
    parser.add_argument("--routers", action="store_true", help="calls of route, and no others")
    parser.add_argument("--count", type=int, default=100_000, help="problems")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    asked = parser.parse_args(argv)
    asked.forced = asked.backend in forced
    counts, wrong, start = Counter(), [], time.time()
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
        end = start + asked.seconds
        jobs = [pool.submit(of_worker, asked, worker, end) for worker in range(asked.jobs)]
        for job in jobs:
            of_job, wrong_of_job = job.result()
            counts += of_job
            wrong += wrong_of_job
    for line in wrong:
        print(line)
    done = sum(counts.values()) - counts["declined"] - counts["tokens"]
    print(f"seed {asked.seed}: {done} problems right, {len(wrong)} wrong, {dict(counts)}")
    return 1 if wrong or not done else 0


if __name__ == "__main__":
    raise SystemExit(main())
