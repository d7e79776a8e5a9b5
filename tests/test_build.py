"""What a build takes in: the architectures that were asked for, the files that changed."""

import os
import sys
import time
from pathlib import Path

import pytest
import torch
from exporters import capsule_of

import nvfp4kern

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "build_tools"))
import kernels  # noqa: E402

ALL = list(kernels.ARCHS)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in ("NVFP4KERN_CUDA", "NVFP4KERN_ARCHS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "asked, got",
    [
        (None, ALL),
        ("", ALL),
        ("sm80", ["sm80"]),
        ("sm90", ["sm80", "sm90"]),
        (" sm90 , sm80,", ["sm80", "sm90"]),
        (",".join(ALL), ALL),
    ],
)
def test_archs_and_always_sm80(asked, got, monkeypatch):
    if asked is not None:
        monkeypatch.setenv("NVFP4KERN_ARCHS", asked)
    assert kernels.wanted() == got
    monkeypatch.setenv("NVFP4KERN_CUDA", "0")
    assert kernels.wanted() == []
    assert kernels.left_out() == "left out of this build by NVFP4KERN_CUDA=0"


@pytest.mark.parametrize("asked", ["sm70", "sm80,sm", "90"])
def test_unknown_archs_are_refused(asked, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_ARCHS", asked)
    with pytest.raises(SystemExit) as error:
        kernels.wanted()
    unknown = asked.split(",")[-1]
    assert str(error.value) == f"NVFP4KERN_ARCHS: '{unknown}' is none of {', '.join(ALL)}"


def test_a_build_says_what_its_kernels_were_compiled_for():
    assert kernels.code_of("sm80") == "machine code for 8.0, 9.0, 10.0, 12.0; PTX for 8.0"
    assert kernels.code_of("sm90") == "machine code for 9.0"
    for row in nvfp4kern.backends():
        left_out = (row["why_not"] or "").startswith("left out")
        code = None if row["name"] == "cpu" or left_out else kernels.code_of(row["name"])
        assert row["code"] == code


def test_backends_say_what_was_left_out(monkeypatch):
    """Of whatever build this is."""
    rows = {row["name"]: row for row in nvfp4kern.backends()}
    assert set(rows) == {"cpu", *ALL} and rows["cpu"]["available"]
    codes, sf = (capsule_of(torch.zeros(1, n, dtype=torch.uint8), device_type=2) for n in (8, 1))
    for name in ALL:
        why = rows[name]["why_not"] or ""
        if why.startswith("left out"):
            assert why.startswith("left out of this build by NVFP4KERN_") and rows[name]["devices"]
            monkeypatch.setenv("NVFP4KERN_BACKEND", name)
            with pytest.raises(nvfp4kern.BackendError, match=f"'{name}' is {why}$"):
                nvfp4kern.explain("gemm", codes, codes, sf, sf)


@pytest.mark.parametrize("text", ["1", "0", "true", "No", "ON", "off", "yes", "FALSE", ""])
def test_variables_say_yes_or_no(text, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_CUDA", text)
    assert kernels.is_set("NVFP4KERN_CUDA") == (text.lower() in ("1", "true", "yes", "on"))
    assert bool(kernels.wanted()) == (text.lower() not in ("0", "false", "no", "off"))


@pytest.mark.parametrize("text", ["2", "y", "maybe", " 1"])
def test_other_words_are_refused(text, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_CUDA", text)
    with pytest.raises(SystemExit) as error:
        kernels.wanted()
    expected = "1, true, yes, on, 0, false, no or off"
    assert str(error.value) == f"NVFP4KERN_CUDA: '{text}', expected {expected}"


def test_includes_are_followed_from_the_files_folder_and_from_csrc(tmp_path):
    texts = {
        "sm1/f.cu": '#include "own.cuh"\n#include <cuda.h>\n  #  include "cuda/all.cuh"\n',
        "sm1/own.cuh": '#include "cuda/all.cuh"\n',
        "cuda/all.cuh": '#include "own.cuh"\n#include "nk.h"\n',  # not the other folder's
        "nk.h": "",
        "cuda/other.cuh": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = kernels._with_headers(tmp_path, tmp_path / "sm1/f.cu")
    assert {str(path.relative_to(tmp_path)) for path in found} == set(texts) - {"cuda/other.cuh"}


COMPILER = """#!{python}
import sys
if "--version" in sys.argv:
    print("a compiler")
else:
    open(sys.argv[sys.argv.index("-o") + 1], "w").write("fatbin")
    print("Compiling entry function 'k_b' for 'sm_80'")
    print("Compiling entry function 'k_a' for 'sm_80'")
    print("Used 10 registers")
    open({log!r}, "a").write(sys.argv[-1] + "\\n")
"""


def test_only_kernels_whose_files_changed_are_compiled_again(tmp_path, monkeypatch):
    """A stand-in for nvcc writes down what it was called for."""
    csrc, log, nvcc = tmp_path / "csrc", tmp_path / "log", tmp_path / "nvcc"
    nvcc.write_text(COMPILER.format(python=sys.executable, log=str(log)))
    nvcc.chmod(0o755)
    (csrc / "sm80").mkdir(parents=True)
    (csrc / "sm80/one.cu").write_text('#include "one.cuh"\n')
    (csrc / "sm80/two.cu").write_text("")
    (csrc / "sm80/one.cuh").write_text("")
    monkeypatch.setenv("NVFP4KERN_ARCHS", "sm80")

    def compiled():
        log.write_text("")
        kernels.build(nvcc, csrc, tmp_path / "built")
        return sorted(Path(line).name for line in log.read_text().split())

    assert compiled() == ["one.cu", "two.cu"]
    assert compiled() == []
    later = time.time() + 10
    os.utime(csrc / "sm80/one.cuh", (later, later))
    assert compiled() == ["one.cu"]
    source, header = ((tmp_path / "built" / f"cuda_kernels.{end}").read_text() for end in "ch")
    assert "extern cuda_kernel k_a;" in header and "&k_a, &k_b, " in source
    assert 'cuda_kernel k_b = {.name = "k_b", .image = &image_one};' in source
