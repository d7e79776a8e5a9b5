"""`python -m nvfp4kern selftest`: all that one machine can say of this package, in one file.

Sections, in this order: `triage`, a call of every tile; one that hangs or is wrong is left out of
what follows. `bits`, every operator and every tile on exact data, against the CPU's bytes, again
and again. `operators`, every operator against the float64 oracle. `probes`, what documents of
tensor cores leave open. `harness`, the competition's entry points on its shapes. `torch`, gemm
against torch's own NVFP4 product. `digests`, results that round against those of the simulated
GPU. `endurance`, seconds of launches of every tile, with and without overlap. `sanitizer`,
compute-sanitizer where it is installed. `steps`, `bench` and `costs`, times.

Each section runs in a process of its own, and goes on in another one behind a call that hangs or
crashes. Each row is in the file as it comes: a run that was killed goes on from its file. The exit
status is 2 where something was wrong. docs/blackwell-checklist.md says what of the file settles
what.
"""

from pathlib import Path

SECTIONS = (
    "triage", "bits", "operators", "probes", "harness", "torch", "digests", "endurance",
    "sanitizer", "steps", "bench", "costs",
)  # fmt: skip
FILE = Path("nvfp4kern-selftest.json")


def add_arguments(parser, hidden):
    """`hidden` is what argparse takes for the help of options that only processes use."""
    parser.description = __doc__.partition("\n\n")[2]
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda if there is one")
    parser.add_argument(
        "--section", nargs="+", choices=SECTIONS, metavar="NAME", help="some of the sections"
    )
    extent = parser.add_mutually_exclusive_group()
    for name, what in (("quick", "a sample, in nine minutes"), ("all", "all shapes, for an hour")):
        extent.add_argument(
            f"--{name}", dest="extent", action="store_const", const=name, default="usual", help=what
        )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        default=FILE,
        help="what is written; a run of this build and GPU that is not at its end there goes on; "
        f"default: {FILE}",
    )
    parser.add_argument(
        "--from", type=Path, metavar="FILE", dest="source", help="explain such a file; runs nothing"
    )
    parser.add_argument(
        "--patience",
        type=int,
        metavar="SECONDS",
        default=30,
        help="for a call that does not end; rows that measure have more; default: 30",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="for all sections, each of which has its share; default: 9 with --quick, else no end",
    )
    parser.add_argument("--without", nargs="+", default=[], help=hidden)
    parser.add_argument("--worker", type=int, help=hidden)
    parser.add_argument("--skip", type=int, default=0, help=hidden)


def run(arguments):
    """The exit status: 0, or 2 where something was wrong. ModuleNotFoundError where torch, NumPy or
    rich is missing, ValueError where a file cannot be read or written."""
    if arguments.worker is not None:
        from .left_out import leave_out

        leave_out(arguments.without)  # before anything takes operators by their names
        from .sections import work

        given = (arguments.device, arguments.extent, arguments.skip, arguments.worker)
        return max(work(section, *given) for section in arguments.section)
    from . import command

    return command.run(arguments)
