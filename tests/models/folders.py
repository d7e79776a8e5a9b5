"""Folders of safetensors that are not quantised, without a model of transformers."""

import json
import sys

import torch
from safetensors.torch import save_file


def by_names(monkeypatch):
    """As where transformers is not installed."""
    monkeypatch.setitem(sys.modules, "nvfp4kern.transformers.architecture", None)


def folder(path, tensors, **config):
    path.mkdir()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    return path


def sharded(path):
    """Three shards of three layers each, and what else there may be."""
    path.mkdir()
    torch.manual_seed(0)
    names = {}
    for shard in range(3):
        tensors = {f"{shard}.{i}.weight": torch.randn(64, 64) for i in range(3)}
        tensors |= {f"{shard}.norm": torch.randn(40), f"{shard}.ids": torch.arange(5)}
        file = f"model-0000{shard + 1}-of-00003.safetensors"
        save_file(tensors, path / file)
        names |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": names}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text('{"model_type": "own"}')
    (path / "tokenizer.json").write_text("{}")
    return path
