"""`python -m nvfp4kern selftest`: all that one machine can say of this package, in one file.

Sections: `operators`, every operator against the float64 oracle. `bits`, every operator and every
tile on exact data, against the CPU's bytes, again and again. `harness`, the competition's entry
points on its shapes. `torch`, gemm against torch's own NVFP4 product. `probes`, what documents of
tensor cores leave open. `digests`, results that round against those of the simulated GPU. `bench`
and `costs`, times. `sanitizer`, compute-sanitizer where it is installed.

Each section runs in a process of its own, and goes on in another one behind a call that hangs or
crashes. The exit status is 2 where something was wrong. docs/blackwell-checklist.md says what of
the file settles what.
"""

from pathlib import Path

SECTIONS = (
    "operators", "bits", "harness", "torch", "probes", "digests", "bench", "costs", "sanitizer",
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
    for name, what in (("quick", "a sample, in minutes"), ("all", "all shapes, for an hour")):
        extent.add_argument(
            f"--{name}", dest="extent", action="store_const", const=name, default="usual", help=what
        )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", default=FILE, help=f"what is written; default: {FILE}"
    )
    parser.add_argument(
        "--from", type=Path, metavar="FILE", dest="source", help="explain such a file; runs nothing"
    )
    parser.add_argument(
        "--patience", type=int, metavar="SECONDS", help="that a row may take; default: 600"
    )
    parser.add_argument("--worker", type=int, help=hidden)
    parser.add_argument("--skip", type=int, default=0, help=hidden)


def run(arguments):
    """The exit status: 0, or 2 where something was wrong. ModuleNotFoundError where torch, NumPy or
    rich is missing, ValueError where a file cannot be read or written."""
    if arguments.worker is not None:
        from .sections import work

        (section,) = arguments.section
        given = (arguments.device, arguments.extent, arguments.skip, arguments.worker)
        return work(section, *given)
    from . import command

    return command.run(arguments)
