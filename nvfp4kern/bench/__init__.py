"""`python -m nvfp4kern bench`: every operator, its baselines, and the machine's ceilings.

The operands that are timed are what quantize(.., "amax") makes of Gaussian numbers, with scale
factors in the blocked and in the linear layout. Before and after that the same shape runs on exact
data, whose results are known to the bit. The results of all sets of operands are checked, on both
kinds of data. A row with a wrong result, or whose calls fail, gets no time, and the exit status is
2.

On a GPU `time` is that of a call that a graph replays, on operands that have left L2. `cold` is one
call as the competition's harness times it (of its entry point, where the shape is one of its own).
`floor` is the bytes that must move over this GPU's read bandwidth, or the operations over its fp16
rate. `read` is a kernel that reads the same bytes and does nothing else: replayed and, beside that,
cold. What overwrote L2 is still being written back then, which costs whoever reads next. All are
measured in the same run.
On a CPU times are of the wall, and torch has as many threads as nvfp4kern. There is no `cold`, no
`read` and no floor, since operands may stay in the cache. `torch's rates` is what torch's sum needs
to read as many bytes, or its fp32 product for as many operations: ours may be faster.
"""

from pathlib import Path

from .shapes import OPERATORS, SETS


def add_arguments(parser):
    parser.description = __doc__.partition("\n\n")[2]
    parser.add_argument(
        "--shapes",
        nargs="+",
        choices=SETS,
        metavar="SET",
        help=f"{', '.join(SETS)}; default: competition tokens moe, on a CPU cpu",
    )
    parser.add_argument(
        "--op",
        nargs="+",
        choices=OPERATORS,
        default=OPERATORS,
        dest="operators",
        metavar="OP",
        help=f"some of {', '.join(OPERATORS)}",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda if there is one")
    parser.add_argument(
        "--data",
        choices=("gaussian", "exact"),
        default="gaussian",
        help="what is timed; default: gaussian. exact draws less power",
    )
    parser.add_argument("--commit", metavar="NAME", help="noted in --json as what was measured")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write rows, as they come, and environment"
    )
    parser.add_argument(
        "--more", action="store_true", help="time only what --json lacks, and add it there"
    )
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw them as PNG files")
    parser.add_argument(
        "--compare", type=Path, metavar="FILE", help="with an earlier --json: ratios of medians"
    )
    parser.add_argument(
        "--from",
        type=Path,
        metavar="FILE",
        dest="source",
        help="show, plot and compare the rows of a --json; runs nothing and needs no torch",
    )


def run(arguments):
    """The exit status: 0, 2 if a row has no time that should, 130 or 143 if interrupted.
    ModuleNotFoundError where torch, rich or
    matplotlib is wanted and missing, ValueError where --json or --plot cannot be written."""
    if arguments.plot:
        from . import plots  # noqa: F401  (its absence is known now, not after minutes)
    from . import command

    return command.run(arguments)
