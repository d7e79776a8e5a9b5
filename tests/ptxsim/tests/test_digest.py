"""What kernels compute, to a file, and two files compared."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ptxsim import build
from ptxsim.campaigns import compare, digest, units
from ptxsim.marks import COMPILES
from rows import need

pytestmark = COMPILES
ROOT = Path(__file__).parents[3]


def run(*arguments, status=0, **environment):
    command = [sys.executable, "-m", "tests.ptxsim", *map(str, arguments)]
    environment = os.environ | environment
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout


OPERATORS = pytest.param("operators sm90 gemv small", marks=pytest.mark.slow)


@pytest.mark.parametrize("only", ["scalar", "mma.sync", OPERATORS])
def test_a_digest_is_the_same_again(only, tmp_path):
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    for path in (one, other):
        run("digest", "--out", path, "--only", only)
    arrays, formats = digest.read(one)
    assert arrays and set(arrays) == set(formats)
    assert all(name.startswith(only) for name in arrays)
    elements = sum(array.size for array in arrays.values())
    same = f"{len(arrays)} results, {elements} elements: {len(arrays)} the same, 0 explained, 0 not"
    assert run("compare", one, other) == same + "\n"


def test_hardware_is_reached_through_its_driver(tmp_path):
    """The simulator's library in the driver's place: nothing but what a driver has is used."""
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    run("digest", "--out", one, "--only", "mma.sync")
    driver = {"NVFP4KERN_LIBCUDA": str(build.simulator()), "PTXSIM_CC": "9.0"}
    run("digest", "--out", other, "--only", "mma.sync", "--hardware", **driver)
    assert ": 2 the same, 0 explained, 0 not" in run("compare", one, other)


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
    assert lines[2:] == ["2 results, 8 elements: 1 the same, 0 explained, 1 not, 1 missing"]


def bits(*numbers, form="float32"):
    return np.array(numbers, form).view(f"uint{8 * np.dtype(form).itemsize}")


BOUNDS = [  # name, a result, ulps within the bound, beyond it
    ("scalar ex2.approx f32", 1.5, 2, 3),
    ("scalar rcp.approx f32", 1.5, -1, -2),
    ("scalar div.approx f32", 1.5, -2, -3),
    ("scalar lg2.approx f32", 2.0**-10, 2048, 2049),  # absolute below 1
    ("scalar lg2.approx f32", 100, 3, 4),
    ("scalar sqrt.approx f32", 1.99, 2, 3),
    ("scalar rsqrt.approx f32", 1.01, 1, 2),
    ("scalar tanh.approx f32", 0.5, 4096, 4100),
    ("operators sm80 route deep rounding 0.float32", 0.3, 4, 5),
    ("operators sm80 dual_gemm wide exact 0.float16", 2, 1, 2),
]


@pytest.mark.parametrize(("name", "number", "near", "far"), BOUNDS)
def test_what_is_explained_is_no_failure_within_its_bound(name, number, near, far, tmp_path):
    form = name.split()[-1]
    one = bits(number, form=form.split(".")[-1] if "." in form else "float32")
    files = {ulps: tmp_path / f"{ulps}.npz" for ulps in (0, near, far)}
    for ulps, path in files.items():
        moved = (np.repeat(one, 5).astype(np.int64) + ulps).astype(one.dtype)
        arrays = {name: moved, "scalar add f32": bits(1, 2)}
        digest.write(path, arrays, {name: form, "scalar add f32": "f32"})
    why = compare.bound_of(name).why
    found = compare.compare(files[0], files[near])
    assert len(found.explained) == 1 and not found.missing + found.unexplained
    assert found.explained[0].startswith(f"{name}: 5 of 5 differ")
    assert found.explained[0].endswith(f"({why})")
    assert found.summary() == "2 results, 7 elements: 1 the same, 1 explained, 0 not"
    found = compare.compare(files[0], files[far])
    assert len(found.unexplained) == 1 and not found.missing + found.explained
    assert found.unexplained[0].startswith(name)
    assert f"; 5 by more than is explained ({why})" in found.unexplained[0]
    assert found.summary() == "2 results, 7 elements: 1 the same, 0 explained, 1 not"


def test_the_command_lists_what_is_explained(tmp_path):
    one, other, form = (
        tmp_path / "one.npz",
        tmp_path / "other.npz",
        {"scalar ex2.approx f32": "f32"},
    )
    for path, ulps in ((one, 0), (other, 2)):
        digest.write(path, {"scalar ex2.approx f32": bits(1.5) + np.uint32(ulps)}, form)
    line, summary = run("compare", one, other).splitlines()
    assert line.startswith("explained: scalar ex2.approx f32: 1 of 1 differ")
    assert summary == "1 results, 1 elements: 0 the same, 1 explained, 0 not"


def test_infinities_and_nan_are_never_explained():
    bound = compare.bound_of("scalar ex2.approx f32")
    largest, infinity, nan = bits(np.finfo(np.float32).max), bits(np.inf), bits(np.nan)
    assert not bound.holds(largest, infinity, "f32").any()
    assert not bound.holds(nan, nan + np.uint32(1), "f32").any()
    assert bound.holds(nan, nan, "f32").all() and bound.holds(infinity, infinity, "f32").all()


KERNELS = """
import json
from ptxsim import fake_cuda
import cuda_calls
found = {name: cuda_calls.Call(name).fill(1).explain()["kernel"] for name in cuda_calls.OPERATORS}
print(json.dumps(found))
"""


@pytest.mark.slow
def test_operators_are_explained_whose_kernels_approximate():
    """All of them but those whose activation or score needs no approximate one, and no other."""
    need()
    command = [sys.executable, "-c", KERNELS]
    environment = os.environ | build.environment(cc="9.0")
    done = subprocess.run(
        command, cwd=ROOT / "tests", env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    entries = {}
    for path in build.kernels("9.0").glob("*.ptx"):
        for text in path.read_text().split(".visible .entry ")[1:]:
            entries[text[: text.index("(")]] = text
    kernels = json.loads(done.stdout)
    approximate = {name for name, kernel in kernels.items() if ".approx" in entries[kernel]}
    explained = {pattern.split()[2] for pattern in compare.EXPLAINED if "operators" in pattern}
    exact = {
        "dual_gemm_of_halves",
        "contiguous_dual_of_bfloats_by_rows",
        "contiguous_dual_quantized",
        "contiguous_dual_quantized_by_token",
        "contiguous_relu2",
        "contiguous_relu2_quantized",
        "dual_gemm_by_token",
        "dual_gemm_with_biases",
        "route_by_logits",
    }
    assert approximate - explained == exact and explained <= approximate
    scalars = {name for name in units.SCALARS if "approx" in name}
    assert scalars == {p.split()[1] for p in compare.EXPLAINED if p.startswith("scalar")}


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
    cubin = build.assembled(tmp_path / "units.ptx", "sm90")
    assert cubin.stat().st_size > 0 and len(texts) == len(units.UNITS)
