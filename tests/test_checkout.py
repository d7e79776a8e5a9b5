"""A clone takes the installed copy's extension, and refuses one that was built of other sources."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pytest

import nvfp4kern
from nvfp4kern import _C, _checkout
from nvfp4kern import __main__ as main

ROOT = Path(__file__).parents[1]
FILES = Path(nvfp4kern.__file__).parent
EXTENSION = Path(_C.__file__)
SHOW = (
    "import nvfp4kern as n, nvfp4kern.competition as c; print(*(m.__file__ for m in (n, n._C, c)))"
)


def package(folder, extension):
    """A copy of the package in `folder`, with the extension or without."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(FILES, folder / "nvfp4kern", ignore=ignored)
    if extension:
        (folder / "nvfp4kern" / EXTENSION.name).symlink_to(EXTENSION)
    return folder


@pytest.fixture
def installed(tmp_path):
    return package(tmp_path / "installed", extension=True)


@pytest.fixture
def clone(tmp_path):
    folder = package(tmp_path / "clone", extension=False)
    for place in ("csrc", "build_tools"):
        shutil.copytree(ROOT / place, folder / place)
    return folder


def start(*path, cwd, program=SHOW):
    """Runs `program` in a Python whose sys.path is `cwd`, `path` and the standard library."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-S", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)


def places(done):
    """The folders of the package, its extension and its subpackage."""
    assert done.returncode == 0, done.stderr
    return [Path(name).parent for name in done.stdout.split()]


def import_error(done):
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith("ImportError: nvfp4kern: ")
    return message


def change(clone, name="csrc/nvfp4kern.h"):
    with open(clone / name, "a") as file:
        file.write("\n")


def test_an_install_uses_its_own_extension(installed, tmp_path):
    here = installed / "nvfp4kern"
    assert places(start(installed, cwd=tmp_path)) == [here, here, here / "competition"]


@pytest.mark.parametrize("order", ("clone first", "in the clone"))
def test_a_clone_takes_the_installed_extension(clone, installed, tmp_path, order):
    done = start(installed, cwd=clone)
    if order == "clone first":
        done = start(tmp_path / "no.zip", clone, tmp_path / "none", installed, cwd=tmp_path)
    here, there = clone / "nvfp4kern", installed / "nvfp4kern"
    assert places(done) == [here, there, here / "competition"]


def test_the_first_copy_with_an_extension_counts(clone, installed, tmp_path):
    empty, later = tmp_path / "empty", package(tmp_path / "later", extension=True)
    (empty / "nvfp4kern").mkdir(parents=True)
    assert places(start(empty, installed, later, cwd=clone))[1] == installed / "nvfp4kern"


@pytest.mark.parametrize("name", ("csrc/nvfp4kern.h", "build_tools/operators.py"))
def test_other_sources_are_refused(clone, installed, name):
    change(clone, name)
    message = import_error(start(installed, cwd=clone))
    assert f"{installed}/nvfp4kern/{EXTENSION.name} was built of other sources" in message
    assert message.endswith(f"reinstall it: pip install {clone}")


def test_files_that_are_no_sources_do_not_count(clone, installed):
    (clone / "csrc" / "nvfp4kern.h~").write_text("an editor's")
    assert places(start(installed, cwd=clone))[1] == installed / "nvfp4kern"


def test_an_extension_without_a_stamp_is_refused(clone, monkeypatch):
    monkeypatch.setattr(_checkout, "ROOT", str(clone))
    old = ModuleType("_C")
    old.__file__ = "old/_C.so"
    with pytest.raises(ImportError, match="old/_C.so was built of other sources"):
        _checkout.check(old)
    old._sources = _C._sources
    _checkout.check(old)


def test_without_an_installed_copy_the_error_says_what_to_do(clone, tmp_path):
    message = import_error(start(tmp_path, cwd=clone))
    assert f"{clone}/nvfp4kern has no compiled extension _C" in message
    assert message.endswith(f"install it: pip install {clone}")


def test_a_broken_install_says_what_to_do(tmp_path):
    package(tmp_path, extension=False)
    message = import_error(start(cwd=tmp_path))
    assert message.endswith(
        "install it: pip install --force-reinstall WHEEL, or CLONE, whatever it came from"
    )


def test_an_editable_install_is_its_own_and_must_be_of_its_sources(clone):
    (clone / "nvfp4kern" / EXTENSION.name).symlink_to(EXTENSION)
    assert places(start(cwd=clone))[1] == clone / "nvfp4kern"
    change(clone)
    message = import_error(start(cwd=clone))
    assert message.endswith(f"reinstall it: pip install -e {clone}")


def test_a_foreign_csrc_beside_an_install_is_ignored(installed, tmp_path):
    (installed / "csrc").mkdir()
    (installed / "csrc" / "other.c").write_text("int x;\n")
    assert places(start(installed, cwd=tmp_path))[1] == installed / "nvfp4kern"


def test_the_console_script_is_the_module_s_main(capsys, monkeypatch):
    (script,) = entry_points(group="console_scripts", name="nvfp4kern")
    assert script.load() is main.main
    monkeypatch.setattr(sys, "argv", ["nvfp4kern", "info"])
    assert script.load()() == 0
    assert nvfp4kern.__version__ in capsys.readouterr().out
