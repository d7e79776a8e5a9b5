"""Builds what the tests of the simulator load: libptxsim.so with cc, PTX of the kernels with nvcc.

Both are kept in a folder that their sources' paths and bytes name, under PTXSIM_BUILD or the
system's temporary one, so that processes share them. Who wants a file that another process makes
waits for it.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rows import ROWS, TABLE

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
FLAGS = "-std=c11 -O3 -march=native -ffp-contract=off -fno-math-errno -fPIC -fvisibility=hidden"
FLAGS = [*FLAGS.split(), "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]
NVCC_FLAGS = ["-ptx", "-O3", "-std=c++17", "-fmad=false", "-lineinfo"]


def _folder(sources, *facts):
    """A place of its own for every state of the sources, and every tree: PTX names its sources."""
    digest = hashlib.sha256(repr(facts).encode())
    for path in sources:
        digest.update(str(path).encode() + path.read_bytes())
    root = Path(
        os.environ.get("PTXSIM_BUILD", Path(tempfile.gettempdir(), f"ptxsim-{os.getuid()}"))
    )
    return root / digest.hexdigest()[:20]


def _run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def _replace(target, make):
    """`make` fills a temporary file that becomes `target` at once."""
    handle, temporary = tempfile.mkstemp(dir=target.parent)
    os.close(handle)
    make(Path(temporary))
    os.replace(temporary, target)


def _publish(target, make):
    """_replace, unless `target` is there. Only one process makes it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_name(f"{target.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_file():
            _replace(target, make)
    return target


def find_cc():
    return shutil.which(os.environ.get("CC", "cc"))


def find_nvcc():
    return shutil.which(os.environ.get("NVCC", "nvcc")) or shutil.which("/usr/local/cuda/bin/nvcc")


def own_sources(suffix):
    """The simulator's own files, in its folders and beside them."""
    return sorted(HERE.rglob(f"*{suffix}"))


def simulator():
    """The path of libptxsim.so; PTXSIM_LIBRARY names another."""
    if "PTXSIM_LIBRARY" in os.environ:
        return Path(os.environ["PTXSIM_LIBRARY"])
    sources = own_sources(".c")
    folder = _folder(sources + own_sources(".h"), FLAGS)
    library = folder / "libptxsim.so"
    if library.is_file():
        return library

    def object_of(source):
        return _publish(
            folder / f"{source.stem}.o",
            lambda path: _run([find_cc(), *FLAGS, f"-I{HERE}", "-c", source, "-o", path]),
        )

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(object_of, sources))
    link = ["-shared", "-Wl,-z,defs", *objects, "-lm", "-pthread"]
    return _publish(library, lambda path: _run([find_cc(), *link, "-o", path]))


def kernels(cc, family=""):
    """The folder with <image>.ptx for every .cu file of the rows that a GPU of this capability
    may run, compiled as it gets them; of one family alone where that is all a test launches."""
    able = [row for row in ROWS.values() if row.runs_on(cc)]
    images = {
        path: row.target_on(cc)
        for row in able
        for path in sorted((CSRC / row.name / family).rglob("*.cu"))
    }
    headers = _headers()
    folder = _folder([*images, *headers], NVCC_FLAGS, sorted(images.values()))

    def link(source):  # GPUs of several capabilities get some files alike
        target = images[source]
        ptx = _compile(_folder([source, *headers], NVCC_FLAGS, target), source, target)
        _publish(folder / ptx.name, lambda path: shutil.copy(ptx, path))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(link, images))
    return folder


def assembled(ptx, row):
    """The cubin that ptxas makes of a PTX file."""
    target = ptx.with_suffix(".cubin")
    arch = ROWS[row].target.replace("compute", "sm")
    _run([find_nvcc(), f"-arch={arch}", "-cubin", ptx, "-o", target])
    return target


def _headers():
    return [path for pattern in ("*.h", "*.cuh") for path in sorted(CSRC.rglob(pattern))]


def compile_kernel(source, target, ptx, csrc=CSRC):
    """Of these sources or, with csrc, of others."""
    _run([find_nvcc(), f"-arch={target}", *NVCC_FLAGS, f"-I{csrc}", source, "-o", ptx])


def _compile(folder, source, target):
    return _publish(
        folder / f"{source.stem}.ptx", lambda path: compile_kernel(source, target, path)
    )


def environment(family="", **settings):
    """For a process with the simulated GPU: settings are PTXSIM_ variables in lower case. The
    capability is the one they say, else that of the row that NVFP4KERN_BACKEND names; the kernels
    are all of its rows, or a family's."""
    row = TABLE.get(os.environ.get("NVFP4KERN_BACKEND", "sm90"), ROWS["sm90"])
    settings = {"cc": os.environ.get("PTXSIM_CC", row.cc)} | settings
    folder = kernels(settings["cc"], family)
    found = {"NVFP4KERN_LIBCUDA": str(simulator()), "NVFP4KERN_PTX_DIR": str(folder)}
    return found | {f"PTXSIM_{name.upper()}": str(value) for name, value in settings.items()}
