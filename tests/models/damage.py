"""Ways to damage a checkpoint's directory, and cases drawn from them by a seed.

A way changes the files and returns names, of which an error has to have one: the tensor, or else
the file. Its stage says who can notice: "lint" means `inspect` and whoever loads, "load" only who
has a model to compare with.
"""

import json
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

INDEX = "model.safetensors.index.json"
E4M3 = torch.float8_e4m3fn
BASES = {
    "modelopt": ("llama", "modelopt-nvfp4", dict(shards=3)),
    "modelopt-moe": ("qwen3_moe", "modelopt-nvfp4", dict(shards=3, spread=True)),
    "stacked": ("qwen3_moe", "modelopt-nvfp4", dict(shards=3, stacked="E2")),
    "mixed": ("llama", "modelopt-mixed", dict(shards=3)),
    "compressed": ("llama", "ct-w4a4", dict(shards=3)),
    "compressed-moe": ("qwen3_moe", "ct-w4a4", dict(shards=3)),
}
"""Name -> what the fixture `checkpoint` makes."""


@dataclass(frozen=True)
class Way:
    name: str
    stage: str
    of: str
    """What it changes: "tensors" or "files". Files come last: nobody can read them then."""
    apply: Callable


@dataclass(frozen=True)
class Case:
    base: str
    seed: int
    ways: tuple[Way, ...]

    def __str__(self):
        return "-".join([self.base, *(way.name for way in self.ways), str(self.seed)])

    @property
    def stage(self):
        return "lint" if any(way.stage == "lint" for way in self.ways) else "load"

    def damage(self, directory):
        """Damages a directory, and returns the names of which the error has to have one."""
        draw = random.Random(self.seed)
        return [name for way in self.ways for name in way.apply(Spot(directory, draw))]


WAYS: list[Way] = []


def way(stage, of="tensors"):
    def register(function):
        WAYS.append(Way(function.__name__, stage, of, function))
        return function

    return register


def cases(seed, count):
    """`count` cases: every way in turn, three in ten together with another of the other sort."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        for first in draw.sample(WAYS, len(WAYS)):
            others = [w for w in WAYS if (w.of, w.stage) == ("files", "lint") and first.of != w.of]
            both = (first, draw.choice(others)) if others and draw.random() < 0.3 else (first,)
            base = draw.choice(list(BASES))
            found.append(Case(base, draw.randrange(10**6), both))
    return found[:count]


class Spot:
    """A directory of three shards, and where in it to strike."""

    def __init__(self, directory, draw):
        self.directory, self.draw = Path(directory), draw
        self.index = json.loads((self.directory / INDEX).read_text())
        self.map = self.index["weight_map"]

    # -- tensors

    def layer(self, dense=False):
        """A quantised layer: {part: name of its tensor}, with ModelOpt's names of parts."""
        names = [n for n in self.map if n.endswith(("weight_scale_2", "weight_global_scale"))]
        names = [n for n in names if not dense or ".experts." not in n]
        name = self.draw.choice(sorted(names))
        if name.endswith("weight_global_scale"):
            head = name.removesuffix("weight_global_scale")
            parts = ("weight_packed", "weight_scale", "weight_global_scale", "input_global_scale")
            return self.parts(head, parts)
        head = name.removesuffix("weight_scale_2")
        weight = head.removesuffix("_") if head.endswith("_") else f"{head}weight"
        found = self.parts(head, ("weight", "weight_scale", "weight_scale_2", "input_scale"))
        return found | {"weight": weight}

    def parts(self, head, theirs):
        ours = ("weight", "weight_scale", "weight_scale_2", "input_scale")
        found = {part: head + name for part, name in zip(ours, theirs, strict=True)}
        return {p: n for p, n in found.items() if n in self.map or p == "weight"}

    def read(self, name):
        return load_file(self.directory / self.map[name])[name]

    def put(self, name, tensor, like=None):
        """Writes a tensor, None to remove it; a new one goes to the shard of `like`."""
        shard = self.map.get(name) or self.map[like]
        tensors = load_file(self.directory / shard)
        if tensor is None:
            tensors.pop(name)
            del self.map[name]
        else:
            tensors[name], self.map[name] = tensor.clone(), shard
        save_file(tensors, self.directory / shard)
        self.write_json(INDEX, self.index)
        return [name]

    def rename(self, name, to):
        tensor, shard = self.read(name), self.map[name]
        self.put(name, None)
        self.map[to] = shard
        self.put(to, tensor)

    # -- files

    def shard(self):
        return self.directory / self.draw.choice(sorted(set(self.map.values())))

    def write_json(self, file, content):
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        (self.directory / file).write_bytes(text)
        return [file]

    def config(self, change):
        """Changes quantization_config; config.json itself is fine."""
        config = json.loads((self.directory / "config.json").read_text())
        change(config["quantization_config"])
        self.write_json("config.json", config)

    def header(self, change):
        """Rewrites a shard's header, by a function of the dictionary that may return bytes."""
        path = self.shard()
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        text = change(header)
        text = json.dumps(header).encode() if text is None else text
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
        return [path.name]

    def entry(self, header):
        """The name of a tensor of a header, one with a value."""
        names = [n for n, entry in header.items() if n != "__metadata__"]
        full = [n for n in names if header[n]["data_offsets"][1] > header[n]["data_offsets"][0]]
        return self.draw.choice(sorted(full))

    def instead(self, make):
        """Something else in the place of a shard."""
        path = self.shard()
        path.unlink()
        make(path)
        return [path.name]


def spoilt_json(draw, good):
    """JSON that no reader may take."""
    return draw.choice(
        [
            b"", b"{", b"[]", b"null", b"3", b"\xff\xfe{}", b'{"a": 1, "a": 2}', b'{"a": 1,}',
            b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b'{"a": ' + b"9" * 5000 + b"}",
            good[: len(good) // 2], good + b"}", good.replace(b":", b";", 1), b"\0" * len(good),
        ]
    )  # fmt: skip


Q = "model.layers.0.self_attn.q_proj"
EXPERTS = "model.layers.0.mlp.experts"


def changed(directory, to, change=None, *, config=None, **tensors):
    """A copy of a directory with one file of tensors. Those of these names are replaced, or left
    out where it is None; functions change {name: tensor} and the content of config.json."""
    shutil.copytree(directory, to)
    held = load_file(to / "model.safetensors") | tensors
    held = {name: tensor for name, tensor in held.items() if tensor is not None}
    if change:
        change(held)
    save_file(held, to / "model.safetensors", metadata={"format": "pt"})
    if config:
        content = json.loads((to / "config.json").read_text())
        config(content)
        (to / "config.json").write_text(json.dumps(content))
    return to
