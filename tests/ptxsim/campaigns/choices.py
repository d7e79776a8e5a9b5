"""What choices of Blackwell's products save, counted by the simulated GPU: the same call with a
choice and without it. A choice is another tile, or a change of the sources.

Bytes and instructions are those of any schedule. Waits are averages over seeds, which draw it.
"""

import os
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from rows import TABLE

from .. import build
from . import package, tiles

RESULTS = build.HERE / "results" / "sm100_choices.json"
FAMILY = "sm100/gemm"
MMA_WARP, EPILOGUE = slice(9, 10), slice(0, 4)
"""Warps of SM100_GEMM_.. of sm100_gemm_config.h."""


@dataclass(frozen=True)
class Choice:
    what: str
    why: str
    shape: tuple[int, int, int]
    """M, N, K of a gemm of exact data."""
    counter: str
    """A key of COUNTERS."""
    tile: str
    without: str = ""
    """The tile that there would be; or, where the choice is in the sources:"""
    source: str = ""
    """A file of the family,"""
    changed: tuple[str, str] = ("", "")
    """what it says, and what it would say."""
    order: str = "row"
    sms: int = 148
    seeds: int = 1


COUNTERS = {
    "MB from L2": lambda r: r["l2_read_bytes"] / 1e6,
    "KB from L2 of a CTA": lambda r: r["l2_read_bytes"] / r["ctas"] / 1e3,
    "MB to L2, by sectors": lambda r: r["l2_write_bytes"] / 1e6,
    "waits of the MMA warp": lambda r: sum(r["mbarrier_waits"][MMA_WARP]),
    "waits of MMA warp and epilogue": lambda r: sum(
        r["mbarrier_waits"][MMA_WARP] + r["mbarrier_waits"][EPILOGUE]
    ),
}
CHOICES = (
    Choice(
        "CTA pairs, MMA N 128",
        "a CTA loads half of operand N",
        (128, 7168, 2048), "MB from L2", "p128", without="n128",
    ),
    Choice(
        "CTA pairs, MMA N 64",
        "likewise; operand N is a small part",
        (64, 7168, 2048), "MB from L2", "p64", without="n64",
    ),
    Choice(
        "MMA N 192 for 128",
        "operand M is loaded for more of N",
        (768, 4608, 1024), "MB from L2", "p192", without="p128",
    ),
    Choice(
        "MMA N 256 for 192",
        "likewise, with one accumulator",
        (768, 4608, 1024), "MB from L2", "p256", without="p192",
    ),
    Choice(
        "multicast to 2 pairs",
        "a cluster loads operand N once",
        (768, 4608, 1024), "MB from L2", "p256m2", without="p256",
    ),
    Choice(
        "split K by 2",
        "28 of 74 pairs have a tile, 56 a share of K",
        (128, 7168, 2048), "KB from L2 of a CTA", "p128k2", without="p128",
    ),
    Choice(
        "split K by 4",
        "few tokens are few tiles",
        (8, 4096, 7168), "KB from L2 of a CTA", "n64k4", without="n64",
    ),
    Choice(
        "two accumulators",
        "MMAs of the next tile beside stores of this one",
        (128, 4096, 256), "waits of MMA warp and epilogue", "n128",
        source="sm100_gemm_config.h",
        changed=("X(n128, 1, 128, 1, 2, 1, 1)", "X(n128, 1, 128, 1, 1, 1, 1)"),
        sms=1, seeds=20,
    ),
    Choice(
        "stores of 32 bytes",
        "a sector leaves at once, not in four requests",
        (128, 4096, 256), "MB to L2, by sectors", "p128", order="column",
        source="sm100_gemm_epilogue.cuh",
        changed=(
            "o.by_sector = o.column_stride == size && is_aligned(o.at, 32);", "o.by_sector = false;"
        ),
    ),
)  # fmt: skip


def spoilt(choice, folder):
    """The PTX of all kernels, gemm's from sources without the choice."""
    originals = build.kernels(TABLE["sm100"].cc)
    for path in originals.glob("*.ptx"):
        (Path(folder) / path.name).symlink_to(path)
    sources = Path(folder) / "csrc"
    shutil.copytree(build.CSRC, sources)
    file = sources / FAMILY / choice.source
    said, becomes = choice.changed
    text = file.read_text()
    assert text.count(said) == 1, f"{choice.source} has {text.count(said)} of: {said}"
    file.write_text(text.replace(said, becomes))
    source, target = sources / FAMILY / "sm100_gemm.cu", Path(folder) / "sm100_gemm.ptx"
    target.unlink()
    build.compile_kernel(source, TABLE["sm100"].target, target, sources)


def measure(choice, tile, ptx=None):
    """In a process of its own: the average of the choice's counter over its seeds."""
    fake_cuda = package.enter("sm100", {"sms": choice.sms})
    os.environ["NVFP4KERN_TILE"] = f"{FAMILY}:{tile}"
    if ptx:
        os.environ["NVFP4KERN_PTX_DIR"] = ptx
    from generators import Guarded, assert_ok, codes, rng_of, scales, values

    import nvfp4kern
    from nvfp4kern.verify import data, reference

    m, n, k = choice.shape
    rng = rng_of(*choice.shape)
    a, b = data.exact_family(rng, m, k), data.exact_family(rng, n, k)
    want = reference.gemm(a.values, b.values).rounded("float16")
    args = [codes(a, "cuda"), codes(b, "cuda")]
    args += [scales(o, "flat", rng, "cuda", 0x7F) for o in (a, b)]
    found = []
    for seed in range(choice.seeds):
        fake_cuda.library.ptxsim_clear()
        fake_cuda.library.ptxsim_seed(seed)
        out = Guarded((m, n), "float16", "cuda", choice.order).tensor
        nvfp4kern.gemm(*args, scale_layout="blocked", out=out)
        assert_ok(reference.check_bits(values(out), want))
        report = fake_cuda.report()
        assert not [f for f in report["findings"] if f["severity"] in "EW"]
        found.append(COUNTERS[choice.counter](report))
    return sum(found) / len(found)


def in_a_process(*args):
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, *args).result()


def compare(choice):
    """What is counted with it and without it."""
    of_it = in_a_process(choice, choice.tile)
    if choice.without:
        return of_it, in_a_process(choice, choice.without)
    with tempfile.TemporaryDirectory() as folder:
        spoilt(choice, folder)
        return of_it, in_a_process(choice, choice.tile, folder)


def run(options):
    build.environment(cc=TABLE["sm100"].cc)  # compiled once
    rows = []
    for choice in CHOICES:
        of_it, without = compare(choice)
        shape = "x".join(map(str, choice.shape))
        rows.append({"tile": choice.tile, "shape": choice.shape, "with": of_it, "without": without})
        print(f"{choice.what}, {shape}: {of_it:.4g} {choice.counter}, without {without:.4g}")
    result = {"kernels": tiles.hash_of(FAMILY), "rows": rows}
    package.write_results(options.json, result)
    return 0


def add_command(commands):
    command = commands.add_parser(
        "choices", help="what pairs, accumulators, stores and parts of Blackwell's products save"
    )
    command.add_argument("--json", metavar="FILE", default=str(RESULTS))
    command.set_defaults(work=run)
