"""The functions of every CPU path against the scalar one's (cpu_paths.c): of this processor, and
of an Arm one in an emulator. Either is a program of its own, no Python in it."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = "-std=c11 -D_GNU_SOURCE -O1 -ffp-contract=off -fno-math-errno -fno-trapping-math"
STRICT = "-Wall -Wextra -Wconversion -Werror"
ARM = "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64"


def sources():
    cpu = ROOT / "csrc" / "cpu"
    paths = (cpu / f"cpu_{name}.c" for name in ("scalar", "avx2", "avx512_bw", "avx512_vnni"))
    return [ROOT / "tests" / "cpu" / "cpu_paths.c", *paths, *sorted(cpu.glob("cpu_neon*.c"))]


def program(folder, compiler, *flags):
    made = folder / "cpu_paths"
    command = [compiler, *FLAGS.split(), f"-I{ROOT}/csrc", *STRICT.split(), *flags]
    command += [*sources(), "-o", made, "-lm"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return made


def run(*command):
    """{path: what it says}"""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.split(": ") for line in done.stdout.splitlines())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="paths of x86 processors")
def test_here(tmp_path):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if not compiler:
        pytest.skip("no C compiler")
    said = run(program(tmp_path, compiler))
    assert set(said) == {"avx2", "avx512-bw", "avx512-vnni"}
    assert all(text.endswith("the same") or "not on this" in text for text in said.values())


@pytest.fixture(scope="module")
def on_arm(tmp_path_factory):
    if not shutil.which(ARM) or not shutil.which(EMULATOR):
        pytest.skip(f"wants {ARM} and {EMULATOR}")
    # Optimized as the extension is: nothing else runs these paths here.
    return program(tmp_path_factory.mktemp("arm"), ARM, "-static", "-O3")


def test_on_arm(on_arm):
    said = run(EMULATOR, "-cpu", "max", on_arm)
    assert set(said) == {"neon-mul", "neon-dotprod"}
    assert all(int(text.removesuffix(" the same")) > 1e6 for text in said.values())


def test_without_dot_products(on_arm):
    said = run(EMULATOR, "-cpu", "cortex-a53", on_arm)
    assert said["neon-dotprod"] == "not on this processor"
    assert said["neon-mul"].endswith("the same")


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="wants an x86 processor with FMA")
def test_quotients_of_four_six_without_a_division(tmp_path):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if not compiler:
        pytest.skip("no C compiler")
    source, made = ROOT / "tests" / "cpu" / "quotients.c", tmp_path / "quotients"
    flags = [*FLAGS.split(), "-O3", "-mfma", *STRICT.split()]
    subprocess.run([compiler, *flags, source, "-o", made, "-lm"], check=True)
    assert run(made) == {"compared": str((2**23 - 1) * 22 * 9), "differ": "0"}
