"""What loading takes of memory: the weights, and one tensor of the files.

A process of its own loads random codes into linear layers, and looks at its anonymous memory all
the while: pages that are mapped from files are the system's.
"""

import json
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import GPUS, NO_GPU, SLOW
from peak_memory import FOUND

MIB, GIB = 2**20, 2**30
N = K = 4096
LAYER = N * K // 2 + N * K // 16 + 4

LOAD = """
import sys
import rich.progress
import torch
from torch import nn
import nvfp4kern
from nvfp4kern.checkpoint import load_checkpoint
from peak_memory import Peak

folder, device, layers = sys.argv[1], sys.argv[2], int(sys.argv[3])
with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(layers)))
    model.to(torch.bfloat16)
# What modules, threads and the driver take once.
torch.zeros(64 * 2**20, dtype=torch.uint8, device=device).sum()
nvfp4kern.warmup(device)
if device == "cuda":
    torch.cuda.reset_peak_memory_stats()
with Peak() as peak:
    load_checkpoint(model, folder, device=device)
assert model[-1].weight.device.type == device
sums = [int(model[i].weight[-1].long().sum()) for i in (0, layers - 1)]
print(peak.grown, torch.cuda.max_memory_allocated() if device == "cuda" else 0, *sums)
"""


def write(folder, layers, shards):
    """Files that are written as they are drawn. Returns the last rows' sums of codes."""
    draw, sums, weight_map = np.random.default_rng(0), [], {}
    per_shard = -(-layers // shards)
    for shard in range(shards):
        name, at, header, data = f"model-{shard}.safetensors", 0, {}, []
        for i in range(shard * per_shard, min(layers, (shard + 1) * per_shard)):
            codes = draw.integers(0, 256, (N, K // 2), np.uint8)
            scales = draw.integers(0x28, 0x40, (N, K // 16), np.uint8)
            tensors = {"weight": ("U8", codes), "weight_scale": ("F8_E4M3", scales),
                       "weight_scale_2": ("F32", np.full((), 0.01, np.float32))}  # fmt: skip
            for key, (dtype, array) in tensors.items():
                end = at + array.nbytes
                header[f"{i}.{key}"] = {
                    "dtype": dtype,
                    "shape": array.shape,
                    "data_offsets": (at, end),
                }
                weight_map[f"{i}.{key}"] = name
                data.append(array)
                at = end
            sums.append(int(codes[-1].astype(np.int64).sum()))
        text = json.dumps(header).encode()
        with open(folder / name, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for array in data:
                file.write(array.tobytes())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}}
    (folder / "config.json").write_text(json.dumps(config))
    return sums


def loaded(folder, device, layers):
    command = [sys.executable, "-W", "error", "-c", FOUND + LOAD, str(folder), device, str(layers)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(map(int, done.stdout.split()))


SIZES = [
    pytest.param(24, 3, id="226 MB"),
    pytest.param(440, 5, id="4.1 GB", marks=pytest.mark.large),
]


@pytest.mark.parametrize("layers, shards", SIZES)
def test_to_the_cpu_the_weights_and_one_tensor(tmp_path, layers, shards, request):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    if layers > 100 and not request.config.getoption("--all"):
        pytest.skip(SLOW)
    sums = write(tmp_path, layers, shards)
    grown, _, first, last = loaded(tmp_path, "cpu", layers)
    assert [first, last] == [sums[0], sums[-1]]
    # Pages that were freed before loading are taken again, and do not count as grown.
    assert 0.98 * layers * LAYER < grown < layers * LAYER + N * K // 2 + 32 * MIB


@pytest.mark.parametrize("row", GPUS[:1] or NO_GPU, ids=str)
@pytest.mark.parametrize("layers, shards", SIZES)
def test_to_a_gpu_the_weights_there_and_one_tensor_here(tmp_path, layers, shards, row):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    sums = write(tmp_path, layers, shards)
    grown, there, first, last = loaded(tmp_path, "cuda", layers)
    assert [first, last] == [sums[0], sums[-1]]
    assert grown <= 1.1 * -(-layers // shards) * LAYER
    assert there <= 1.02 * (layers * LAYER + N * K // 2) + 2 * MIB
    assert torch.cuda.is_available()
