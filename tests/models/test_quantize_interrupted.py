"""quantize_folder that does not come to its end, and what it takes of memory."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import killed
import pytest
import torch
from folders import by_names, folder, sharded
from held import files as contents
from peak_memory import FOUND

from nvfp4kern.checkpoint import CheckpointError, inspect
from nvfp4kern.nn.recipes import quantize_weight
from nvfp4kern.quantizing import quantize_folder, weights
from nvfp4kern.quantizing.shards import Shard


@pytest.fixture
def small(tmp_path, monkeypatch):
    by_names(monkeypatch)
    return sharded(tmp_path / "source")


def test_a_disk_gives_room_for_what_is_not_written(tmp_path):
    shard = Shard(tmp_path / "shard", [("w", "uint8", (2**20,))])
    assert shard.needed() == shard.size > 2**20
    shard.open()
    assert shard.complete() and shard.needed() > 2**20 - 2**13
    shard.write("w", bytes(2**19))
    shard.sync()
    assert 2**19 - 2**13 < shard.needed() <= 2**19
    shard.write("w", bytes(2**20))
    shard.sync()
    shard.close()
    assert shard.needed() == 0


KILLED = """
import os, random, shutil, signal, sys
from pathlib import Path
sys.modules["nvfp4kern.transformers.architecture"] = None
import held
from nvfp4kern.quantizing import folder, quantize_folder
folder.SYNC_BYTES = 20_000  # bytes, of a few steps
source, target, points = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

def child(at):
    "Quantises, and kills itself before this call for a file. Its number, or None where it ended."
    def counted(call):
        def wrapper(*arguments, **options):
            nonlocal at
            at -= 1
            if at < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)
        return wrapper
    process = os.fork()
    if not process:
        first = at
        for owner, names in ((os, "pwrite write fsync ftruncate"), (shutil, "rmtree copyfile"),
                             (Path, "replace write_text mkdir")):
            for name in names.split():
                setattr(owner, name, counted(getattr(owner, name)))
        quantize_folder(source, target)
        (target.parent / "count").touch()
        os.truncate(target.parent / "count", first - at)
        os._exit(0)
    return os.waitpid(process, 0)[1]

assert child(10**6) == 0
complete, total = held.files(target), os.path.getsize(target.parent / "count")
draw = random.Random(int(sys.argv[4]))
for case in range(points):
    shutil.rmtree(target)
    kills = 0
    while True:
        at = case * total // points if not kills else draw.randrange(total)
        status = child(at)
        if not status:
            break
        assert status == signal.SIGKILL, status
        if target.exists():
            assert held.files(target) == complete
            shutil.rmtree(target)
        kills += 1
        if kills > 10:
            assert child(10**6) == 0
            break
    assert kills and held.files(target) == complete
    assert {each.name for each in target.parent.iterdir()} == {"source", "made", "count"}
print(total)
"""


def test_a_run_that_is_killed_anywhere_continues_to_the_same_bytes(small, tmp_path):
    """Before each twelfth of its calls for files, and then at ten random ones."""
    command = [sys.executable, "-c", KILLED, str(small), str(tmp_path / "made"), "12", "0"]
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert int(done.stdout) > 50


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_moment_continues_in_little_memory(tmp_path, capsys):
    """`python tests/killed.py --gb 4` is the same with a larger model."""
    killed.check(tmp_path, 5e8, seed=0)
    assert "the same bytes after" in capsys.readouterr().out


def stopped(small, target, **options):
    """A run that ends by an exception after half of its bytes."""

    def stop(done, total):
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_folder(small, target, progress=stop, **options)


def test_a_run_continues_where_it_was(small, tmp_path, monkeypatch):
    monkeypatch.setattr("nvfp4kern.quantizing.folder.SYNC_BYTES", 0)
    stopped(small, tmp_path / "made")
    assert not (tmp_path / "made").exists()
    told = []
    quantize_folder(small, tmp_path / "made", progress=lambda *now: told.append(now))
    quantize_folder(small, tmp_path / "other")
    assert contents(tmp_path / "made") == contents(tmp_path / "other")
    assert 0 < told[0][0] < told[1][0] and told[-1][0] == told[-1][1]
    assert len(told) < 13  # a call for each step, of 15, that was left


def test_a_run_of_other_settings_is_not_continued(small, tmp_path):
    stopped(small, tmp_path / "made")
    with pytest.raises(FileExistsError, match=r"settings \(recipe, exclude\); delete it to begin"):
        quantize_folder(small, tmp_path / "made", recipe="four_six", exclude=("nothing",))
    (file, *_) = small.glob("*.safetensors")
    os.utime(file)
    with pytest.raises(FileExistsError, match=r"settings \(source\)"):
        quantize_folder(small, tmp_path / "made")


def test_two_runs_do_not_mix(small, tmp_path):
    stopped(small, tmp_path / "made")
    with open(tmp_path / ".made.incomplete-quantize" / "done") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError, match="another process is quantising into it: '.*made"):
            quantize_folder(small, tmp_path / "made")
    quantize_folder(small, tmp_path / "made")


@pytest.mark.parametrize("there", ["file", "folder", "empty", "link"])
def test_what_is_there_stays(small, tmp_path, there):
    target = tmp_path / "made"
    if there == "file":
        target.write_text("mine")
    else:
        (tmp_path / "real" if there == "link" else target).mkdir()
    if there == "folder":
        (target / "mine").write_text("mine")
    if there == "link":
        target.symlink_to("real")
    if there in ("file", "folder"):
        with pytest.raises(FileExistsError, match="expected a new or empty directory"):
            quantize_folder(small, target)
        assert (target / "mine" if there == "folder" else target).read_text() == "mine"
        assert not list(tmp_path.glob(".made*"))
    else:
        quantize_folder(small, target)
        assert inspect(target).problems == []
        assert target.is_symlink() == (there == "link")


def test_a_source_that_changes_meanwhile_is_an_error(small, tmp_path):
    (file, *_) = sorted(small.glob("*.safetensors"))
    with pytest.raises(CheckpointError, match="was changed while it was read"):
        quantize_folder(small, tmp_path / "made", progress=lambda *_: os.utime(file))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("what", ["codes", "copy"])
def test_verifying_sees_what_is_wrong_before_it_is_there(small, tmp_path, what, monkeypatch):
    def wrong(*arguments):
        made = quantize_weight(*arguments)
        made.data.bitwise_xor_(0x88)  # the signs
        return made

    if what == "codes":
        monkeypatch.setattr(weights, "quantize_weight", wrong)
    else:
        write = Shard.write
        monkeypatch.setattr(
            Shard,
            "write",
            lambda shard, name, data, at=0: write(
                shard, name, bytes(len(data)) if name == "1.norm" else data, at
            ),
        )
    with pytest.raises(CheckpointError, match=r"a relative error of [12]|: the copy differs"):
        quantize_folder(small, tmp_path / "made", verify=True)
    assert not (tmp_path / "made").exists()


# --- Memory ---

MEASURED = """
import sys
sys.modules["nvfp4kern.transformers.architecture"] = None
import torch
import nvfp4kern
from nvfp4kern.quantizing import quantize_folder
from peak_memory import Peak

nvfp4kern.quantize(torch.zeros(64, 64))  # what modules and threads take once
with Peak() as peak:
    quantize_folder(sys.argv[1], sys.argv[2], recipe=sys.argv[3], verify=sys.argv[3] == "amax")
print(peak.grown)
"""


@pytest.mark.parametrize("recipe", ["amax", pytest.param("four_six", marks=pytest.mark.slow)])
def test_memory_is_less_than_the_largest_tensor_and_its_result(tmp_path, recipe):
    n = k = 4096
    drawn = torch.randn(2**16).bfloat16().expand(n * k // 2**16, -1)
    tensors = {"embed.weight": drawn.reshape(n, k).clone(), "a.weight": drawn.reshape(n, k)}
    source = folder(tmp_path / "source", tensors)
    command = [sys.executable, "-c", FOUND + MEASURED, str(source), str(tmp_path / "made"), recipe]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = n * k // 2 + n * k // 16
    assert int(done.stdout) < 1.3 * (2 * n * k + result)
