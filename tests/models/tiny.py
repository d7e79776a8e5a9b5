"""Tiny checkpoint directories with random weights, as their producers write them.

`make(directory, architecture, format)` writes config.json and safetensors; `packing.dequantized`
says what such a directory means. Nothing here knows the package.
"""

import json
import zlib
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import torch
from packing import E4M3, Packed, encode
from safetensors.torch import save_file
from tiny_architectures import ARCHITECTURES, EXPERTS, HIDDEN, Architecture
from tiny_formats import AWQ, CT, FORMATS, FP8, W4A16, compressed_config, modelopt_config

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))
SPREAD = {"k_proj": 2.0, "v_proj": 0.75, "up_proj": 2.0, "w3": 2.0}  # of the multipliers
FUSED = {"q_proj": "qkv_proj", "gate_proj": "gate_up_proj"}  # the first of a group -> its name


@dataclass(frozen=True)
class Options:
    """What exports differ in.

    spread: q, k, v and gate, up have globals that differ by 2 and more (else one global, as new
    exports have); one_input: but input scales do not. one_element: scalars are [1]
    (compressed-tensors: always), else []. missing:
    patterns of layers without input_scale. fused: dense gate_up_proj and qkv_proj in one tensor
    with one scalar. stacked: "E", "E11" or "E2", the shape of the multipliers of stacked experts
    (None: a tensor for each). exclude: patterns of what is not quantised. shards: files.
    config_in: which files hold ModelOpt's config. leftover: W4A16 layers carry an input_scale, too.
    """

    seed: int = 0
    dtype: torch.dtype = torch.bfloat16
    spread: bool = False
    one_input: bool = False
    one_element: bool = False
    missing: tuple = ()
    fused: bool = False
    stacked: str | None = None
    exclude: tuple = ("lm_head", "*mlp.gate", "*block_sparse_moe.gate")
    tied: bool = False
    shards: int = 1
    config_in: tuple = ("config.json", "hf_quant_config.json")
    leftover: bool = False


def siblings(name):
    """The layers, this one too, that read the same x and that engines fuse."""
    parent, _, own = name.rpartition(".")
    group = next((g for g in GROUPS if own in g), (own,))
    return [f"{parent}.{n}" if parent else n for n in group]


class Maker:
    """Draws the tensors of one checkpoint in an order that the options do not change."""

    def __init__(self, architecture, form, options):
        self.architecture, self.format, self.options = architecture, form, options
        self.random = torch.Generator().manual_seed(options.seed)
        self.tensors = {}
        self.quantised = {}  # layer -> scheme

    def draw(self, *shape, scale=1.0):
        return torch.randn(shape, generator=self.random) * scale

    def uniform(self, low, high):
        return low + (high - low) * torch.rand((), generator=self.random)

    def everything(self):
        dtype = self.options.dtype
        self.tensors["model.embed_tokens.weight"] = self.draw(128, HIDDEN, scale=0.4).to(dtype)
        linears = [("lm_head", 128, HIDDEN, 3.0)]
        for layer in range(self.architecture.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            linears += [(at + n, out, k, 1.0) for n, out, k in self.architecture.linears(layer)]
            for name, shape, kind in self.architecture.others(layer):
                self.tensors[at + name] = self.other(shape, kind)
        self.tensors["model.norm.weight"] = self.other((HIDDEN,), "norm")
        weights = {n: self.draw(o, k, scale=s * k**-0.5) for n, o, k, s in linears}
        biases = {n: self.draw(len(w), scale=0.2).to(dtype) for n, w in weights.items()}
        if self.options.tied:
            del weights["lm_head"]
        self.biases = {n: b for n, b in biases.items() if self.has_bias(n)}
        self.quantise(weights)
        return self.tensors

    def has_bias(self, name):
        return "self_attn" in name and self.architecture.config.get("attention_bias", False)

    def other(self, shape, kind):
        dtype = self.options.dtype
        if kind == "norm":
            return (1 + self.draw(*shape, scale=0.1)).to(dtype)
        if kind == "router":
            return self.draw(*shape, scale=2 * shape[1] ** -0.5).to(dtype)
        return self.draw(*shape, scale=0.1)  # DeepSeek's correction is fp32

    def quantise(self, weights):
        packed = {}
        for name, weight in weights.items():
            if any(fnmatch(name, pattern) for pattern in self.options.exclude):
                self.tensors[f"{name}.weight"] = weight.to(self.options.dtype)
            elif self.format.scheme(name) == FP8:
                self.quantised[name] = FP8
                self.write_fp8(name, weight)
            else:
                self.quantised[name] = self.format.scheme(name)
                packed[name] = self.pack(name, weights)
        if self.options.stacked:
            self.stack(packed)
        elif self.options.fused:
            self.fuse(packed)
        for name, one in packed.items():
            self.write(name, one)
        for name, bias in self.biases.items():
            self.tensors[f"{name}.bias"] = bias

    def pack(self, name, weights):
        own, scheme = name.rpartition(".")[2], self.quantised[name]
        draws = torch.Generator().manual_seed(zlib.crc32(siblings(name)[0].encode()))
        rate = 0.8 + 0.4 * torch.rand((), generator=draws)
        amax = max(weights[n].abs().max() for n in siblings(name) if n in weights)
        multiplier, input_scale = amax / 2688, rate * 5 / 2688
        if self.options.spread:
            multiplier = weights[name].abs().max() / 2688 * SPREAD.get(own, 1.0)
            if not self.options.one_input:
                input_scale = input_scale * (1.25 if own in SPREAD else 1.0)
        if self.format.producer == CT:  # what the file can say: the inverse of an fp32 divisor
            multiplier = 1 / (1 / multiplier)
        one = Packed(*encode(weights[name], multiplier), multiplier)
        bare = any(fnmatch(name, pattern) for pattern in self.options.missing)
        if (scheme != W4A16 or self.options.leftover) and not bare:
            one.input_scale = input_scale
        if scheme == AWQ:
            steps = torch.randn(weights[name].shape[1], generator=draws) / 2
            one.pre_quant_scale = steps.exp2().to(self.options.dtype)
        return one

    def write(self, name, one):
        shape = (1,) if self.options.one_element or self.format.producer == CT else ()
        if self.format.producer == CT:
            self.tensors[f"{name}.weight_packed"] = one.codes
            self.tensors[f"{name}.weight_global_scale"] = (1 / one.multiplier).reshape(shape)
            if one.input_scale is not None:
                self.tensors[f"{name}.input_global_scale"] = (1 / one.input_scale).reshape(shape)
        else:
            self.tensors[f"{name}.weight"] = one.codes
            self.tensors[f"{name}.weight_scale_2"] = one.multiplier.reshape(shape)
            if one.input_scale is not None:
                self.tensors[f"{name}.input_scale"] = one.input_scale.reshape(shape)
            if one.pre_quant_scale is not None:
                self.tensors[f"{name}.pre_quant_scale"] = one.pre_quant_scale
        self.tensors[f"{name}.weight_scale"] = one.scales

    def write_fp8(self, name, weight):
        scale = weight.abs().max() / 448
        self.tensors[f"{name}.weight"] = (weight / scale).to(E4M3)
        self.tensors[f"{name}.weight_scale"] = scale
        self.tensors[f"{name}.input_scale"] = torch.tensor(5 / 448)

    def fuse(self, packed):
        """Dense q, k, v and gate, up become one layer with one scalar each."""
        for name in [n for n in packed if n.rpartition(".")[2] in FUSED and ".experts." not in n]:
            parts = [packed.pop(n) for n in siblings(name)]
            if len({float(p.multiplier) for p in parts}) > 1:
                raise ValueError(f"{name}: a fused tensor has one global, so no spread")
            parent, _, own = name.rpartition(".")
            fused = f"{parent}.{FUSED[own]}"
            codes, scales = (torch.cat([getattr(p, f) for p in parts]) for f in ("codes", "scales"))
            packed[fused] = replace(parts[0], codes=codes, scales=scales)
            self.quantised[fused] = self.quantised[name]
            if name in self.biases:
                biases = [self.biases.pop(n) for n in siblings(name)]
                self.biases[fused] = torch.cat(biases)
            for n in siblings(name):
                del self.quantised[n]

    def stack(self, packed):
        """Experts become experts.gate_up_proj [E, 2I, ..] and experts.down_proj [E, H, ..]."""
        mixtures = sorted({n.rpartition(".experts.")[0] for n in packed if ".experts." in n})
        names = self.architecture.expert_names
        for parent in mixtures:
            experts = [
                [packed.pop(f"{parent}.experts.{e}.{n}") for n in names] for e in range(EXPERTS)
            ]
            for own, part in (("gate_up_proj", slice(0, 2)), ("down_proj", slice(2, 3))):
                self.write_stacked(f"{parent}.experts.{own}", [e[part] for e in experts])

    def write_stacked(self, name, experts):
        layout = self.options.stacked
        layout = "E" if layout == "E2" and len(experts[0]) == 1 else layout
        for key, attribute in (("", "codes"), ("_weight_scale", "scales")):
            rows = [torch.cat([getattr(p, attribute) for p in parts]) for parts in experts]
            self.tensors[name + key] = torch.stack(rows)
        for key, attribute in (("_weight_scale_2", "multiplier"), ("_input_scale", "input_scale")):
            if getattr(experts[0][0], attribute) is None:
                continue
            table = torch.tensor([[float(getattr(p, attribute)) for p in e] for e in experts])
            if layout != "E2" and not (table == table[:, :1]).all():
                raise ValueError(f"{name}: gate and up differ, so their scales are [E, 2]")
            shaped = {"E": table[:, 0], "E11": table[:, :1, None], "E2": table}[layout]
            self.tensors[name + key] = shaped.clone()


# --- Files ---


def make(directory, architecture, form, **options):
    """Write a checkpoint, and return its directory as a Path.

    `architecture` and `form` are keys of ARCHITECTURES and FORMATS, or an Architecture; `options`
    fields of Options.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    own = isinstance(architecture, Architecture)
    kind = architecture if own else ARCHITECTURES[architecture]
    options, form = Options(**options), FORMATS[form]
    maker = Maker(kind, form, options)
    tensors = maker.everything()
    config = dict(kind.config, dtype=str(options.dtype).removeprefix("torch."))
    config["tie_word_embeddings"] = options.tied
    if form.producer == CT:
        config["quantization_config"] = compressed_config(form, maker.quantised, options.exclude)
    else:
        beside, inside = modelopt_config(form, maker.quantised, options.exclude)
        if "config.json" in options.config_in:
            config["quantization_config"] = inside
        if "hf_quant_config.json" in options.config_in:
            write_json(directory / "hf_quant_config.json", beside)
    write_json(directory / "config.json", config)
    write_tensors(directory, tensors, options.shards)
    return directory


def write_json(path, content):
    path.write_text(json.dumps(content, indent=2))


def write_tensors(directory, tensors, shards=1):
    """One file, or an index and several: tensor i lies in shard i % shards."""
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    where = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[i::shards])
        save_file(part, directory / file, metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
    write_json(directory / "model.safetensors.index.json", index)


def read_config(directory):
    return json.loads((Path(directory) / "config.json").read_text())
