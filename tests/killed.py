"""Kills while a folder is quantised: `python tests/killed.py --gb 4 --folder FOLDER --seed S`.

A made model is quantised once undisturbed, and once by runs that SIGKILL ends at ten random points,
each of which the next continues. The results have the same bytes. The target is watched meanwhile,
and absent or complete whenever it is looked at, as is each run's anonymous memory.
"""

import argparse
import filecmp
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "models"))
from peak_memory import Peak

N, K = 14336, 4096
"""Of the largest layer."""
LAYERS = {"q": K, "k": 1024, "v": 1024, "o": K, "gate": N, "up": N}
"""Their rows, of K columns; "down" lies the other way."""
BLOCK, TABLE = 2 * K * (sum(LAYERS.values()) + N), 2 * K * 8000
"""Bytes of a block of a model, and of the embeddings."""
SHARD = 200_000_000
KILLS = 10
MOST = 1.3 * (2 * N * K + N * K // 2 + N * K // 16)
"""Bytes of memory that a run may take: the largest layer's weight and result, and a part more."""

QUANTIZE = """
import sys
sys.modules["nvfp4kern.transformers.architecture"] = None  # names decide
import torch
import nvfp4kern
from nvfp4kern.quantizing import quantize_folder

nvfp4kern.quantize(torch.zeros(64, 64))  # what modules and threads take once
print("ready", flush=True)
sys.stdin.readline()
quantize_folder(*sys.argv[1:], progress=lambda done, total: print(done / total, flush=True))
"""


def make(folder, nbytes):
    """A folder of shards with about so many bytes, at least those of a block."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    blocks = max(round((nbytes - TABLE) / BLOCK), 1)
    shapes = {"embed_tokens": (8000, K)}
    for block in range(blocks):
        shapes |= {f"layers.{block}.{name}_proj": (rows, K) for name, rows in LAYERS.items()}
        shapes[f"layers.{block}.down_proj"] = K, N
    shards, weight_map, size = [[]], {}, 0
    for name, shape in shapes.items():
        if size > SHARD:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += 2 * shape[0] * shape[1]
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        tensors = {f"{n}.weight": torch.randn(shapes[n], dtype=torch.bfloat16) for n in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text('{"model_type": "own"}')


def sizes(folder):
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def run(source, target, complete=None, point=None, whole=0.0):
    """Quantises, and is killed where the share `point` is done, by what the `whole` took. Returns
    (its exit status, the share that was done when it began, seconds, bytes of memory). complete:
    what the target has if it is there."""
    command = [sys.executable, "-c", QUANTIZE, str(source), str(target)]
    process = subprocess.Popen(command, stdin=-1, stdout=-1, text=True)
    assert process.stdout.readline() == "ready\n"

    def look():
        if complete is not None and target.exists():
            assert sizes(target) == complete, "the target is there, and not complete"

    with Peak(process.pid, look) as peak:
        process.stdin.write("\n")
        process.stdin.flush()
        began, begin = float(process.stdout.readline()), time.monotonic()
        pause = None if point is None else max(point - began, 0) * whole
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=pause)
        process.kill()
        status = process.wait()
        took = time.monotonic() - begin
    process.stdin.close()
    process.stdout.close()
    return status, began, took, peak.grown


def differing(one, other):
    """Names of files that are not the same in both."""
    names = sizes(one).keys() | sizes(other).keys()
    _, wrong, missing = filecmp.cmpfiles(one, other, names, shallow=False)
    return wrong + missing


def check(folder, nbytes, seed):
    """Asserts all of it, in a folder that has room for twice so many bytes. Prints figures."""
    source, alone, target = (folder / name for name in ("source", "alone", "made"))
    make(source, nbytes)
    os.sync()  # or the undisturbed run alone would be slowed down by what is still written
    status, began, took, most = run(source, alone)
    assert (status, began) == (0, 0)
    complete = sizes(alone)
    read = sum(file.stat().st_size for file in source.iterdir())
    print(f"{read / 1e9:.2f} GB in {took:.1f} s, undisturbed; {most / 1e6:.1f} MB of memory")
    draw, kills = random.Random(seed), 0
    for point in sorted(draw.random() for _ in range(KILLS)):
        status, began, _, memory = run(source, target, complete, point, took)
        most = max(most, memory)
        if status == 0:  # it was quicker this time
            break
        kills += 1
        print(f"killed at {point:.3f}, begun at {began:.3f}; {memory / 1e6:.1f} MB", flush=True)
        if target.exists():  # after the rename
            break
    if not target.exists():
        status, began, _, memory = run(source, target, complete)
        most = max(most, memory)
        assert status == 0
        print(f"ended, begun at {began:.3f}; {memory / 1e6:.1f} MB")
    assert kills > KILLS // 2, kills
    assert not differing(alone, target)
    assert most <= MOST, f"{most} bytes of memory, at most {MOST:.0f}"
    allowed = f"{MOST / 1e6:.1f} MB allowed"
    print(f"the same bytes after {kills} kills; {most / 1e6:.1f} MB of memory, {allowed}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=0.5, help="of the made model; 0.5 by default")
    parser.add_argument("--folder", help="where it is made; twice its size is needed for a while")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        check(Path(made), given.gb * 1e9, given.seed)
