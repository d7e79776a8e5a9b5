"""NVIDIA ModelOpt's checkpoints: a layer's tensors have the names of NVFP4Linear's parameters."""

from dataclasses import dataclass
from typing import Any

from .files import Files
from .patterns import Names
from .plan import (
    InputQuant,
    Layer,
    Parts,
    Plan,
    Source,
    compare,
    matching,
    modules_of,
    quantised,
    strings,
    take_kv_scales,
    take_plain,
)
from .untrusted import CheckpointError, in_short, readable

ACTIVATIONS: dict[str, InputQuant] = {
    "NVFP4": "static",
    "NVFP4_AWQ": "static",
    "NVFP4_SVD": "static",
    "W4A16_NVFP4": None,
}
MIXED = "MIXED_PRECISION"
LOW_RANK = ("svdquant_lora_a", "svdquant_lora_b")
PARTS = (
    "weight",
    "weight_scale",
    "weight_scale_2",
    "input_scale",
    "pre_quant_scale",
    *LOW_RANK,
    "bias",
)


@dataclass
class Config:
    """What ModelOpt's configuration says, in the words of either of its JSON files."""

    algorithm: str
    producer: str
    ignore: list[str]
    layers: dict[str, str]
    """For MIXED_PRECISION, the algorithm of each layer."""
    kv_cache: object


def read_config(quantization: dict[str, Any]) -> Config:
    """Raises CheckpointError for what is malformed, and for an algorithm that we do not load."""
    inner = quantization.get("quantization", quantization)
    if not isinstance(inner, dict):
        raise CheckpointError(f"quantization: {in_short(inner)}, expected an object")
    algorithm = inner.get("quant_algo")
    known = [*ACTIVATIONS, MIXED]
    if algorithm not in known:
        raise CheckpointError(f"quant_algo: {in_short(algorithm)}, expected {', '.join(known)}")
    producer = quantization.get("producer")
    producer = producer if isinstance(producer, dict) else {}
    words = [str(producer.get(key, "")) for key in ("name", "version")]
    ignore = inner.get("ignore", inner.get("exclude_modules"))
    return Config(
        algorithm,
        readable(" ".join(words).strip())[:100] or "modelopt",
        strings(ignore, "ignore"),
        _layers(inner) if algorithm == MIXED else {},
        inner.get("kv_cache_scheme", inner.get("kv_cache_quant_algo")),
    )


def _layers(inner: dict[str, Any]) -> dict[str, str]:
    given = inner.get("quantized_layers")
    if not isinstance(given, dict):
        raise CheckpointError(f"quantized_layers: {in_short(given)}, expected an object")
    found = {}
    for name, entry in given.items():
        algorithm = entry.get("quant_algo") if isinstance(entry, dict) else entry
        if algorithm not in (*ACTIVATIONS, "FP8"):
            expected = ", ".join([*ACTIVATIONS, "FP8"])
            where = f"quantized_layers: {in_short(name)}: quant_algo"
            raise CheckpointError(f"{where}: {in_short(algorithm)}, expected {expected}")
        found[name] = algorithm
    return found


def plan_modelopt(files: Files, config: Config | None) -> Plan:
    """`config` is None where the files have no configuration. The tensors then say it."""
    plan = Plan(config.algorithm if config else "NVFP4", config.producer if config else "unknown")
    modules = modules_of(files.tensors)
    take_kv_scales(plan, modules, files)
    if config and "AFFINE" in str(config.kv_cache):
        _take_kv_biases(plan, modules)
    matrices = []
    for name, parts in modules.items():
        if quantised(parts, files):
            add_layer(plan, files, config, name, parts)
        elif take_plain(plan, name, parts, files):
            matrices.append(name)
    svd = [name for name in plan.layers if _algorithm(config, name) == "NVFP4_SVD"]
    if svd and not any(set(LOW_RANK) & layer.sources.keys() for layer in plan.layers.values()):
        # ModelOpt writes them for diffusers' models, and loses them for transformers'.
        plan.wrong(f"{svd[0]}.{LOW_RANK[0]}", "is missing, and no layer of NVFP4_SVD has one")
    if config:
        names = Names([*plan.layers, *matrices])
        wild = [p for p in config.ignore if not set(p).isdisjoint("*?[")]
        matched = matching(plan, names, wild, "") | _inside(names, set(config.ignore))
        compare(plan, matched, matrices, config.algorithm != MIXED)
        _compare_mixed(plan, config)
    return plan


def _inside(names: Names, modules: set[str]) -> set[str]:
    """The names of `modules` and of the modules in them."""
    return {name for name in names.names if not modules.isdisjoint(_ancestors(name))}


def _ancestors(name: str) -> list[str]:
    """The name, and those of the modules that hold it."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def _take_kv_biases(plan: Plan, modules: dict[str, Parts]) -> None:
    for module, parts in modules.items():
        for part in ("k_bias", "v_bias"):
            if part in parts and module.endswith(("k_proj", "v_proj")):
                plan.ignored.append(parts.pop(part))


def _algorithm(config: Config | None, name: str) -> str | None:
    if config is None or config.algorithm != MIXED:
        return config.algorithm if config else None
    known = (config.layers[module] for module in _ancestors(name) if module in config.layers)
    return next(known, None)


def add_layer(plan: Plan, files: Files, config: Config | None, name: str, parts: Parts) -> None:
    """Adds a quantised module as a layer. What is wrong with it becomes a problem."""
    if "weight" not in parts:
        plan.wrong(f"{name}.weight", f"is missing beside {next(iter(parts))}")
        return
    if "weight_scale_inv" in parts:
        plan.wrong(parts["weight_scale_inv"], "belongs to FP8 in blocks, which is not supported")
        return
    dtype = files.tensors[parts["weight"]].dtype
    if dtype not in ("uint8", "float8_e4m3fn"):
        expected = "uint8, or float8_e4m3fn, beside scales"
        plan.wrong(parts["weight"], f"{dtype}, expected {expected}")
        return
    sources = {part: Source(parts.pop(part)) for part in PARTS if part in parts}
    if name == sources["weight"].name and "weight_scale" in sources:
        _turn(plan, files, name, sources)
    for other in parts.values():
        plan.wrong(other, "a tensor of a quantised layer that is not understood")
    algorithm = _algorithm(config, name)
    if dtype == "uint8":
        layer = Layer(name, "nvfp4", None, sources)
        layer.input_quant = "static" if "input_scale" in sources else None
        layer.input_quant = ACTIVATIONS.get(algorithm or "", layer.input_quant)
    else:
        layer = Layer(name, "fp8", None, sources)
    if config and (algorithm == "FP8") != (layer.kind == "fp8"):
        plan.warn(name, f"its tensors are {layer.kind}, the configuration says {algorithm}")
    plan.layers[name] = layer


def _turn(plan: Plan, files: Files, name: str, sources: dict[str, Source]) -> None:
    """Lists a stack [E, K, N] as [E, N, K]. ModelOpt leaves two models' so: Llama-4's, and those of
    gpt-oss, whose rows are gate, up, gate, up."""
    scale = sources["weight_scale"].name
    shape = files.tensors[name].shape
    gate_up, gpt_oss = name.endswith(".gate_up_proj"), files.config.get("model_type") == "gpt_oss"
    if len(shape) == 3 and files.tensors[scale].shape == (shape[0], shape[1] // 8, shape[2]):
        files.transpose(name)
        files.transpose(scale)
        for part in {"weight", "weight_scale", "bias"} & sources.keys():
            if gate_up and gpt_oss:
                files.part_by_turns(sources[part].name)
        if gate_up and "bias" in sources and not gpt_oss:
            plan.wrong(name, "a stack with biases, of no gpt-oss: its rows may have either order")
    elif gate_up and gpt_oss:
        plan.wrong(name, "a stack [E, N, K] of gpt-oss, whose rows may have either order")


def _compare_mixed(plan: Plan, config: Config) -> None:
    """Layers that MIXED_PRECISION lists and the tensors do not have."""
    there = {module for name in plan.layers for module in _ancestors(name)}
    for name in sorted(config.layers.keys() - there):
        shown = name if name.isprintable() and len(name) <= 200 else in_short(name)
        plan.warn(shown, f"is {config.layers[name]} by quantized_layers, not by tensors")
