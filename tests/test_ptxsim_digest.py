"""What kernels compute, to a file, and two files compared."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ptxsim import build, digest, units

missing = [
    name for name, path in [("cc", build.find_cc()), ("nvcc", build.find_nvcc())] if not path
]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"no {' and no '.join(missing)}")
ROOT = Path(__file__).parents[1]


def run(*arguments, status=0, **environment):
    command = [sys.executable, "-m", "tests.ptxsim", *map(str, arguments)]
    environment = os.environ | environment
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout


@pytest.mark.parametrize("only", ["scalar", "sm90_gemm ss_128/short", "operators sm90 gemv small"])
def test_a_digest_is_the_same_again(only, tmp_path):
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    for path in (one, other):
        run("digest", "--out", path, "--only", only)
    arrays, formats = digest.read(one)
    assert arrays and set(arrays) == set(formats)
    assert all(name.startswith(only) for name in arrays)
    assert run("compare", one, other) == "the same\n"


def test_hardware_is_reached_through_its_driver(tmp_path):
    """The simulator's library in the driver's place: nothing but what a driver has is used."""
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    run("digest", "--out", one, "--only", "sm90_gemm rs_64_split_2")
    driver = {"NVFP4KERN_LIBCUDA": str(build.simulator()), "PTXSIM_CC": "9.0"}
    run("digest", "--out", other, "--only", "sm90_gemm rs_64_split_2", "--hardware", **driver)
    assert run("compare", one, other) == "the same\n"


def test_differences_are_listed(tmp_path):
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    floats = np.array([[1.0, -0.0, np.nan, 2.0]], np.float32).view(np.uint32)
    changed = np.array([[1.0, 0.0, -np.nan, 2.0]], np.float32).view(np.uint32)
    changed[0, 3] += 3
    formats = {"a f32": "f32", "b b32": "b32", "c u8": "u8"}
    same = {"b b32": floats, "c u8": floats.view(np.uint8)}
    digest.write(one, {"a f32": floats} | same, formats)
    digest.write(other, {"a f32": changed, "b b32": floats}, {"a f32": "f32", "b b32": "b32"})
    lines = run("compare", one, other, status=1).splitlines()
    assert lines[0].startswith("c u8: only in")
    assert lines[1].startswith("a f32: 3 of 4 differ, by 3 ulps at most; first [0, 1]")
    assert len(lines) == 2


def test_units_are_ptx_for_ptxas(tmp_path, monkeypatch):
    """What only the simulator took would be no use on a GPU."""
    texts = []

    class Stop(Exception):
        pass

    def collect(text):
        texts.append(text)
        raise Stop

    monkeypatch.setattr(units.gpu, "Module", collect)
    for launch in units.UNITS.values():
        with pytest.raises(Stop):
            launch()
    names = [text.replace(".entry f(", f".entry f{i}(") for i, text in enumerate(texts)]
    head = names[0][: names[0].index(".visible")]
    together = head + "".join(text[len(head) :] for text in names)
    (tmp_path / "units.ptx").write_text(together)
    cubin, _ = build.assembled(tmp_path / "units.ptx", "sm90")
    assert cubin.stat().st_size > 0 and len(texts) == len(units.UNITS)
