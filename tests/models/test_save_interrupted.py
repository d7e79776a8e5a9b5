"""save_checkpoint that does not come to its end: the directory is complete, or as it was."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from held import interrupted
from safetensors import SafetensorError
from torch import nn

from nvfp4kern.checkpoint import CheckpointError, Files, load_checkpoint, save, save_checkpoint
from nvfp4kern.nn import NVFP4Linear

pytest.importorskip("safetensors", reason="safetensors is not installed")

CONFIG = {"model_type": "own"}
COMPLETE = {"config.json", "hf_quant_config.json", "model.safetensors.index.json"}
COMPLETE |= {f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)}
SHARD = 300


def own():
    torch.manual_seed(0)
    layers = (NVFP4Linear.from_linear(nn.Linear(32, 16).bfloat16()) for _ in range(2))
    return nn.Sequential(*layers)


def write(path):
    save_checkpoint(own(), path, config=CONFIG, max_shard_bytes=SHARD)


def names(path):
    return {file.relative_to(path).as_posix() for file in path.rglob("*")}


@pytest.fixture(params=["new", "there"])
def target(request, tmp_path):
    path = tmp_path / request.param
    if request.param == "there":
        path.mkdir(mode=0o750)
    return path


@pytest.mark.parametrize("umask", [0o077, 0o027, 0o022])
def test_permissions_are_the_umasks(tmp_path, umask):
    before = os.umask(umask)
    try:
        write(tmp_path / "new")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o777 & ~umask
    modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "new").iterdir()}
    assert modes == {0o666 & ~umask}


def test_a_directory_that_is_there_keeps_its_own(target):
    write(target)
    assert names(target) == COMPLETE
    assert target.name == "new" or target.stat().st_mode & 0o777 == 0o750


def test_an_interrupt_anywhere_leaves_all_or_nothing(target, tmp_path, monkeypatch):
    """At each fifth line of save.py."""
    before = names(tmp_path)
    for line in range(1, 10_000, 5):
        try:
            interrupted(lambda: write(target), line, within=save.__file__)
            break
        except KeyboardInterrupt:
            if names(tmp_path) != before:
                break
    assert line > 100 and names(target) == COMPLETE


FAILING = {
    "no space for tensors": (SafetensorError("I/O error: No space (os error 28)"), "0"),
    "tensors": (SafetensorError("failed to write whole buffer"), "0"),
    "no space for json": (OSError(28, "No space"), "model.safetensors.index.json"),
}


@pytest.mark.parametrize("what", FAILING)
def test_a_file_that_cannot_be_written_is_named(what, target, tmp_path, monkeypatch):
    error, file = FAILING[what]
    before = names(tmp_path)

    def failing(*_, **__):
        raise error

    owner, name = (save, "save_file") if file == "0" else (Path, "write_text")
    monkeypatch.setattr(owner, name, failing)
    expected = "No space left on device" if "space" in what else "failed to write whole buffer"
    with pytest.raises(OSError, match=f"{expected}: '.*/{file}'$") as raised:
        write(target)
    assert raised.value.errno == (errno.ENOSPC if "space" in what else errno.EIO)
    assert names(tmp_path) == before


def test_files_of_others_that_came_meanwhile_stay(target, monkeypatch):
    def write_json(path, value):
        target.mkdir(exist_ok=True)
        (target / "config.json").write_text("mine")
        write_shown(path, value)

    write_shown = save.write_json
    monkeypatch.setattr(save, "write_json", write_json)
    with pytest.raises(OSError):
        write(target)
    assert names(target) == {"config.json"} and (target / "config.json").read_text() == "mine"
    assert [path.name for path in target.parent.iterdir()] == [target.name]


KILLED = """
import os, sys
from pathlib import Path
left, replace = int(sys.argv[2]), Path.replace
def killed(file, to):
    global left
    left -= 1
    return os._exit(9) if left < 0 else replace(file, to)
Path.replace = killed
if left == 6:
    Path.rmdir = lambda _: os._exit(9)
from test_save_interrupted import write
write(Path(sys.argv[1]))
"""


def killed(path, moved):
    """Runs a process that is killed once it has moved so many files."""
    command = [sys.executable, "-c", KILLED, str(path), str(moved)]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


@pytest.mark.parametrize("moved", [0, 1, 5])
def test_a_process_that_is_killed_leaves_what_nobody_takes_for_a_checkpoint(tmp_path, moved):
    """While it moves files into a directory that was there."""
    target = tmp_path / "there"
    target.mkdir()
    assert killed(target, moved).returncode == 9
    there = [file.name for file in target.iterdir() if file.is_file()]
    assert len(there) == moved and "config.json" not in there
    with pytest.raises(
        CheckpointError, match=r"^there: has a folder \.incomplete-\*, which a save_"
    ):
        Files(target)
    with pytest.raises(CheckpointError, match=r"^there: has a folder \.incomplete-"):
        load_checkpoint(nn.Sequential(nn.Linear(32, 16)), target, device="cpu")


def test_a_process_that_is_killed_at_its_end_has_written_all(tmp_path):
    target = tmp_path / "there"
    target.mkdir()
    assert killed(target, 6).returncode == 9
    (left,) = target.glob(".incomplete-*")
    assert names(target) == {*COMPLETE, left.name} and not list(left.iterdir())
    load_checkpoint(own(), target, device="cpu")


def test_a_process_that_is_killed_leaves_a_folder_beside_a_new_one(tmp_path):
    assert killed(tmp_path / "new", 0).returncode == 9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".new.incomplete-") and names(left) == COMPLETE
