"""The simulated GPU from the command line.

    run kernel.ptx launch.json        a kernel of a PTX file, seed by seed
    package --row sm80 --seeds 200    every operator of the package, seed by seed
    tiles --seeds 50                  every tile of some families forced, seed by seed
    whole                             the competition's shapes on a simulated B200: bytes they move
    choices                           what pairs, accumulators and the like save there
    mutants wgmma_t16 --sample 60     kernels with one thing spoiled: what goes unnoticed?
    digest --out FILE [--hardware]    what all kernels compute, here or on a real GPU
    shipped                           writes the bits that the package's selftest compares with
    compare FILE FILE                 where two digests differ

launch.json describes what is launched, everything but `kernel` optional:
    {"kernel": "name", "grid": [4, 1, 1], "block": [128, 1, 1], "cluster": [1, 1, 1],
     "shared_bytes": 0, "arguments": [
        {"array": "uint32", "shape": [1024], "fill": "arange"},   zeros, arange, random, or a number
        {"file": "a.npy"},                                        an array as it is
        {"value": 7, "type": "uint32"}, {"bytes": "00ff"}]}
Every seed starts from the same arrays. The report (JSON on standard output) has the findings and
the counts of all seeds; --save writes the arrays after the last seed to array<i>.npy.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # what the tests find, found as they find it

from ptxsim import gpu  # noqa: E402
from ptxsim.campaigns import (  # noqa: E402
    choices,
    compare,
    digest,
    mutants,
    mutations,
    package,
    shipped,
    tiles,
    whole,
)


def array_of(argument, folder):
    if "file" in argument:
        return np.load(folder / argument["file"])
    shape, fill, dtype = argument["shape"], argument.get("fill", "zeros"), argument["array"]
    if fill == "arange":
        return np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    if fill == "random":
        random = np.random.default_rng(0)
        if np.issubdtype(np.dtype(dtype), np.floating):
            return random.standard_normal(shape).astype(dtype)
        return random.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    return np.full(shape, 0 if fill == "zeros" else fill, dtype)


def argument_of(argument, folder):
    """A kernel parameter; arrays become memory of the GPU."""
    if "value" in argument:
        return np.dtype(argument["type"]).type(argument["value"])
    if "bytes" in argument:
        return bytes.fromhex(argument["bytes"])
    return gpu.Memory(array_of(argument, folder))


def run(options):
    description = json.loads(Path(options.launch).read_text())
    folder = Path(options.launch).parent
    known = {"kernel", "grid", "block", "cluster", "shared_bytes", "arguments"}
    if set(description) - known or "kernel" not in description:
        raise SystemExit(
            f"{options.launch}: expected kernel and some of {', '.join(sorted(known))}"
        )
    gpu.configure(
        cc=options.cc,
        sms=options.sms,
        threads=options.threads,
        races=int(options.races),
        scopes=int(options.scopes),
    )
    module = gpu.Module(Path(options.ptx).read_text())
    launch = {k: v for k, v in description.items() if k not in ("kernel", "arguments")}
    failed, arguments = {}, []
    for seed in range(options.seed, options.seed + options.seeds):
        gpu.seed(seed)
        arguments = [argument_of(a, folder) for a in description.get("arguments", [])]
        try:
            module.launch(description["kernel"], *arguments, **launch)
        except gpu.SimError as error:
            failed[seed] = str(error)
    if options.save:
        for i, argument in enumerate(arguments):
            if isinstance(argument, gpu.Memory):
                np.save(Path(options.save, f"array{i}.npy"), argument.array)
    json.dump(gpu.report() | {"failed_seeds": failed}, sys.stdout, indent=1)
    print()
    bad = {f["severity"] for f in gpu.report()["findings"]} & {"E", "W"}
    return 2 if failed or "E" in bad else 1 if bad else 0


def run_mutants(options):
    targets = mutants.GROUPS.get(options.target, [options.target])
    each = -(-options.sample // len(targets))
    return max([mutants_of(target, each, options) for target in targets])


def mutants_of(target, sample, options):
    only = mutations.WEAKER if options.weaker else None
    result = mutants.campaign(target, sample, options.seed, options.seeds, tell, only)
    known = mutants.EQUIVALENT.get(target, {})
    for survivor in sorted(set(result["survivors"])):
        print(f"survives: {survivor}\n    {known.get(survivor, 'NOT EXPLAINED')}")
    print(f"{target}: {result['caught']} caught, {len(result['survivors'])} survive", end=", ")
    print(f"{result['unreached']} more in places that no launch reaches", flush=True)
    if options.json:
        path = Path(options.json)
        kept = json.loads(path.read_text()) if path.is_file() else {}
        counts = {key: result[key] for key in ("caught", "survivors", "unreached")}
        kept[target] = {"seed": options.seed, "schedules": options.seeds} | counts
        package.write_results(path, kept, depth=1)
    unknown = set(result["survivors"]) - set(known)
    return 1 if unknown else 0


def run_digest(options):
    arrays, formats = {}, {}
    try:
        digest.collect(arrays, formats, options.hardware, options.cc, options.only, tell)
    finally:  # what there is, whatever a GPU makes of the rest
        digest.write(options.out, arrays, formats)
    return 0


def run_compare(options):
    found = compare.compare(options.one, options.other)
    for line in found.explained:
        print(f"explained: {line}")
    print("\n".join([*found.missing, *found.unexplained, found.summary()]))
    return 1 if found.missing or found.unexplained else 0


def tell(text):
    print(text, file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.ptxsim",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)

    command = commands.add_parser("run", help="0: clean, 1: warnings, 2: errors")
    command.set_defaults(work=run)
    command.add_argument("ptx")
    command.add_argument("launch")
    command.add_argument("--seed", type=int, default=0, help="the first")
    command.add_argument("--seeds", type=int, default=1, help="how many")
    command.add_argument("--cc", default="9.0", help="compute capability")
    command.add_argument("--sms", type=int, default=132)
    command.add_argument("--threads", type=int, default=1, help="more than 1: not replayable")
    command.add_argument("--no-races", dest="races", action="store_false")
    command.add_argument("--scopes", action="store_true", help="releases reach as far as they say")
    command.add_argument("--save", metavar="FOLDER")

    command = commands.add_parser("mutants", help="1: one survives that nobody has explained")
    command.set_defaults(work=run_mutants)
    command.add_argument("target", choices=[*mutants.TARGETS, *mutants.GROUPS])
    command.add_argument("--sample", type=int, default=60, help="of all targets of a group")
    command.add_argument("--seed", type=int, default=0, help="of the sample")
    command.add_argument("--seeds", type=int, default=8, help="schedules until one is given up")
    command.add_argument("--weaker", action="store_true", help="releases and acquires alone")
    command.add_argument("--json", metavar="FILE", help="counts and survivors, by target; added to")

    command = commands.add_parser("digest", help="every result, to compare with another GPU's")
    command.set_defaults(work=run_digest)
    command.add_argument("--out", required=True, metavar="FILE.npz")
    command.add_argument("--hardware", action="store_true", help="the first real GPU")
    command.add_argument("--cc", default="9.0", help="compute capability")
    command.add_argument("--only", default="", help="names that begin so")

    command = commands.add_parser("compare", help="1: two digests differ, and nothing explains it")
    command.set_defaults(work=run_compare)
    command.add_argument("one")
    command.add_argument("other")

    package.add_command(commands)
    tiles.add_command(commands)
    shipped.add_command(commands)
    whole.add_command(commands)
    choices.add_command(commands)
    options = parser.parse_args()
    raise SystemExit(options.work(options))


if __name__ == "__main__":
    main()
