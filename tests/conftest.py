"""Every test that computes runs on every backend that this build and this machine have.

NVFP4KERN_BACKEND=<row> keeps the tests of that row (and those that belong to none). It is taken out
of the environment: what such a test does with CPU tensors is the CPU's business. NVFP4KERN_TESTED
hands it on to the processes of pytest-xdist.
"""

import os
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from ptxsim.fresh import fresh  # noqa: F401
from rows import TABLE

FORCED = os.environ.pop("NVFP4KERN_BACKEND", os.environ.get("NVFP4KERN_TESTED", ""))
os.environ["NVFP4KERN_TESTED"] = FORCED

import nvfp4kern  # noqa: E402


@dataclass(frozen=True)
class Backend:
    """A row of nvfp4kern.backends(). `c` scales the error bound of its matrix products.

    The CPU's row is there once for each of its paths, what NVFP4KERN_CPU can say.
    """

    name: str
    device: str
    c: int
    path: str | None = None

    def __str__(self):
        return f"{self.name}-{self.path}" if self.path else self.name

    def force(self, monkeypatch):
        monkeypatch.setenv("NVFP4KERN_BACKEND", self.name)
        if self.path:
            monkeypatch.setenv("NVFP4KERN_CPU", self.path)


PATHS = ("scalar", "avx2", "avx512-bw", "avx512-vnni", "neon-mul", "neon-dotprod")


def cpu_paths():
    """Those that this processor has; NVFP4KERN_CPU asks for one."""
    asked = os.environ.get("NVFP4KERN_CPU")
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for path in PATHS:
            patch.setenv("NVFP4KERN_CPU", path)
            with suppress(nvfp4kern.BackendError):
                nvfp4kern.explain("to_blocked", np.zeros((1, 1), np.uint8))
                found.append(path)
    return [asked] if asked else found


def backends():
    """What the tests can run on: a GPU's row needs a torch that knows GPUs."""
    names = [row["name"] for row in nvfp4kern.backends() if row["available"]]
    found = [Backend("cpu", "cpu", 1, path) for path in cpu_paths()]
    if torch.cuda.is_available():
        found += [Backend(name, "cuda", TABLE[name].c) for name in names if name != "cpu"]
    found = [row for row in found if FORCED in ("", row.name)]
    if not found:
        raise pytest.UsageError(f"NVFP4KERN_BACKEND={FORCED}: no such backend here")
    return found


ROWS = backends()


def why_no_gpu():
    """The reason that a skipped test shows."""
    if FORCED == "cpu":
        return "NVFP4KERN_BACKEND=cpu"
    others = [row for row in nvfp4kern.backends() if row["name"] != "cpu"]
    why = next((row["why_not"] for row in others if not row["available"]), None)
    return why or ("torch sees no GPU" if others else "a build without kernels")


GPUS = [row for row in ROWS if row.device == "cuda"]
NO_GPU = [] if GPUS else [pytest.param(None, marks=pytest.mark.skip(reason=why_no_gpu()), id="gpu")]


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="also run the tests marked slow")
    parser.addoption(
        "--budget",
        type=int,
        default=0,
        metavar="MINUTES",
        help="that the campaigns of the simulated GPU take beside the usual ones: more schedules "
        "and mutants, from a seed that is drawn and shown",
    )
    parser.addoption("--draw", type=int, metavar="SEED", help="that seed, to repeat a run")


def pytest_configure(config):
    if config.option.draw is None:
        config.option.draw = random.randrange(10**6) if config.option.budget else 0
    config.addinivalue_line("markers", "slow: several seconds or more; only with --all")
    config.addinivalue_line(
        "markers",
        "any_path: costly; of the CPU only its fastest path runs it, others with --all where it is "
        "not slow",
    )
    config.addinivalue_line(
        "markers",
        "one_path: of what surrounds kernels, not of what they compute; the fastest path alone",
    )
    config.addinivalue_line("markers", "large: gigabytes of memory; skipped where it is short")


def pytest_report_header(config):
    return f"campaigns: --budget {config.option.budget} --draw {config.option.draw}"


SLOW = "slow: --all runs it"
FASTEST = "the CPU's fastest path runs it"


def pytest_collection_modifyitems(config, items):
    run_all = config.getoption("--all")
    fastest = [row.path for row in ROWS if row.path][-1:]
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        path = getattr(params.get("backend"), "path", None)
        slow = "slow" in item.keywords
        another = path and path not in fastest
        costly = another and "any_path" in item.keywords
        if another and "one_path" in item.keywords or run_all and slow and costly:
            item.add_marker(pytest.mark.skip(reason=FASTEST))
        elif not run_all and (slow or costly):
            item.add_marker(pytest.mark.skip(reason=SLOW))
    if run_all:
        begin_with_slow(items, getattr(config, "workerinput", {}).get("workercount", 1))


def begin_with_slow(items, workers):
    """pytest-xdist gives each process an equal part, one behind the other. Each part begins with
    slow tests: at the end none keeps one process busy while the others have nothing to do."""
    slow = [item for item in items if "slow" in item.keywords]
    fast = [item for item in items if "slow" not in item.keywords]
    items.clear()
    for worker in range(workers):
        begin, end = (len(fast) * n // workers for n in (worker, worker + 1))
        items += slow[worker::workers] + fast[begin:end]


def pytest_terminal_summary(terminalreporter):
    """What a run without --all has left out, by file."""
    skipped = terminalreporter.stats.get("skipped", [])
    files = Counter(r.nodeid.partition("::")[0] for r in skipped if r.longrepr[2].endswith(SLOW))
    if files:
        terminalreporter.section("left out as slow, --all runs them")
        for name, count in sorted(files.items()):
            terminalreporter.line(f"{count:5} of {name}")


@pytest.fixture(params=ROWS, ids=str)
def backend(request, monkeypatch):
    request.param.force(monkeypatch)
    return request.param


@pytest.fixture
def device(backend):
    return backend.device


@dataclass(frozen=True)
class Campaign:
    """How much the tests of the simulated GPU try, and from which seed on."""

    budget: int
    seed: int

    MINUTES = 3
    """What all campaigns take on two cores without a budget."""

    def times(self, usual):
        """How many of what a campaign tries `usual` times without a budget."""
        return usual + usual * self.budget // self.MINUTES


@pytest.fixture(scope="session")
def campaign(request):
    return Campaign(request.config.option.budget, request.config.option.draw)


@pytest.fixture(params=GPUS or NO_GPU, ids=str)
def gpu(request, monkeypatch):
    """A backend again, for tests of what only GPUs have: skipped where there is none."""
    request.param.force(monkeypatch)
    return request.param


# ---------------------------------------------------------------------------------------------
# Tests of layers and checkpoints, tests/models. Another conftest.py there would take the name of
# this one, which tests import from.
# ---------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def one_thread(request):
    """Matrices of 64 columns gain nothing from more."""
    if request.path.parent.name != "models":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """checkpoint(architecture, form, **options) -> a tiny directory, made once. Only read it."""
    import tiny

    made = {}

    def get(architecture, form, **options):
        key = repr((architecture, form, sorted(options.items())))
        if key not in made:
            made[key] = tiny.make(
                tmp_path_factory.mktemp(f"{architecture}-{form}"), architecture, form, **options
            )
        return made[key]

    return get


@pytest.fixture(scope="session")
def team(tmp_path_factory):
    """team(world) -> so many processes in a group of gloo, the same for all tests."""
    from ranks import Team

    made = {}

    def get(world):
        if world not in made or made[world].broken:
            made[world] = Team(world, tmp_path_factory.mktemp(f"ranks-{world}"))
        return made[world]

    yield get
    for each in made.values():
        if not each.broken:
            each.close()


@pytest.fixture
def as_rank(monkeypatch):
    """as_rank(rank, world): what this process is from now on. There is no group: nothing is
    sent."""
    import torch.distributed as dist

    def become(rank, world):
        monkeypatch.setattr(dist, "get_rank", lambda group=None: rank)
        monkeypatch.setattr(dist, "get_world_size", lambda group=None: world)

    return become
