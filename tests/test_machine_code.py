"""Machine code compared as a change of the kernels' sources is: by name, by everything in it."""

import subprocess
import sys
from pathlib import Path

import machine_code
import pytest
from ptxsim import build

pytestmark = pytest.mark.skipif(not build.find_nvcc(), reason="no nvcc")

KERNEL = """
/* {comment} */
extern "C" __global__ void __launch_bounds__({threads}) {name}(float *x, int n)
{{
    __shared__ float held[{held}];
    held[threadIdx.x] = x[threadIdx.x] {operator} n;
    __syncthreads();
    x[threadIdx.x] = held[31 - threadIdx.x];
}}
extern "C" __global__ void untouched(float *x) {{ x[threadIdx.x] = 1; }}
"""
PLAIN = {"comment": "", "threads": 32, "name": "reverse", "held": 32, "operator": "+"}


@pytest.fixture(scope="module")
def fatbins(tmp_path_factory):
    """Folders, each with one fatbin of both kernels for two machines, by what is changed."""
    folders = {}

    def folder_of(**changed):
        key = tuple(sorted(changed.items()))
        if key not in folders:
            folders[key] = folder = tmp_path_factory.mktemp("fatbin")
            source = folder / "reverse.cu"
            source.write_text(KERNEL.format(**PLAIN | changed))
            targets = ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90"]
            command = [build.find_nvcc(), *targets, "-fatbin", "-o", folder / "r.fatbin", source]
            subprocess.run(command, check=True)
        return folders[key]

    return folder_of


def compared(*arguments):
    command = [sys.executable, machine_code.__file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_comments_change_nothing(fatbins):
    same = compared(fatbins(), fatbins(comment="why"))
    assert same == (0, ["4 identical, 0 allowed, 0 refused"])


@pytest.mark.parametrize(
    "changed, parts",
    [({"operator": "*"}, "code"), ({"threads": 64}, "attributes"), ({"held": 64}, "shared")],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_a_change_is_named(fatbins, changed, parts):
    status, lines = compared(fatbins(), fatbins(**changed), "--arch", "sm_90")
    assert (status, lines[-1]) == (1, "1 identical, 0 allowed, 1 refused")
    assert lines[0].startswith("DIFFERS: reverse (sm_90): ") and parts in lines[0].split(": ")[-1]
    assert all("registers" in line and "of code" in line for line in lines[1:3])


def test_what_may_differ_is_listed(fatbins):
    status, lines = compared(fatbins(), fatbins(operator="*"), "--allow", "rev.*")
    assert (status, lines[-1]) == (0, "2 identical, 2 allowed, 0 refused")
    assert [line.split(":")[0] for line in lines[::3]] == ["allowed", "allowed", lines[-1]]


def test_names_may_change_where_that_is_said(fatbins):
    builds = fatbins(), fatbins(name="turned_round")
    status, lines = compared(*builds)
    assert (status, lines[-1]) == (1, "2 identical, 0 allowed, 4 refused")
    assert "    new: none" in lines and "    old: none" in lines
    assert compared(*builds, "--rename", "^reverse$=turned_round")[0] == 0


def test_a_folder_without_fatbins_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="neither a tree nor a folder of fatbins"):
        machine_code.fatbins_of(Path(tmp_path))
