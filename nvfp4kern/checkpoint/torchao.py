"""torchao's NVFP4Tensor. Its parts are tensors "module._weight_qdata" and so on.

The header's metadata says what they are together: "module.weight". pickled.py makes the same names.
"""

from typing import Any

from .files import Files
from .plan import InputQuant, Layer, Plan, Source
from .untrusted import CheckpointError, in_short, parse_json, readable

PARTS = {
    "weight": "qdata",
    "weight_scale": "scale",
    "weight_scale_2": "per_tensor_scale",
    "input_scale": "act_per_tensor_scale",
}
KIND = "NVFP4Tensor"


def is_torchao(files: Files) -> bool:
    return any("tensor_names" in metadata for metadata in files.metadata.values())


def plan_torchao(files: Files) -> Plan:
    """A weight without a per_tensor_scale has the multiplier 1.

    Raises CheckpointError where the metadata is missing or malformed. torchao's other kinds of
    tensors become problems.
    """
    if not is_torchao(files):
        expected = "expected torchao's metadata in the headers, or a file by torch.save"
        raise CheckpointError(f"{files.path.name}: none of its tensors is quantised; {expected}")
    plan = Plan("NVFP4Tensor", "torchao")
    plan.parts = {part: f"_weight_{own}" for part, own in PARTS.items()}
    used = set()
    for name, entry in _entries(files).items():
        kind = entry.get("_type")
        if kind == KIND:
            used |= _add(plan, files, name, entry.get("_data"))
        elif kind != "Tensor":
            plan.wrong(name, f"{in_short(kind)}, expected {KIND} or Tensor")
    plan.plain = [name for name in files.tensors if name not in used]
    return plan


def _entries(files: Files) -> dict[str, dict[str, Any]]:
    """What the metadata of all shards says of each tensor."""
    texts: dict[str, str] = {}
    for shard, metadata in files.metadata.items():
        for name, text in metadata.items():
            if name in ("tensor_names", "format"):
                continue
            where = f"{shard}: metadata of {readable(name)}"
            if texts.setdefault(name, text) != text:
                raise CheckpointError(f"{where}: another shard says something else")
    return {
        name: parse_json(text.encode(), f"metadata of {readable(name)}")
        for name, text in texts.items()
    }


def _add(plan: Plan, files: Files, name: str, data: object) -> set[str]:
    """A quantised tensor becomes a layer. Returns the names of its tensors."""
    module, _, own = name.rpartition(".")
    head = f"{module}._{own}_" if module else f"_{own}_"
    sources = {p: Source(head + t) for p, t in PARTS.items() if head + t in files.tensors}
    stacked = own != "weight"
    bias = f"{name}_bias" if stacked else f"{module}.bias"
    if sources and bias in files.tensors:
        sources["bias"] = Source(bias)
    used = {source.name for source in sources.values()}
    block = data.get("block_size") if isinstance(data, dict) else None
    if not isinstance(data, dict) or block != 16:
        plan.wrong(readable(name), f"block_size {in_short(block)}, expected 16")
    elif "weight" not in sources or "weight_scale" not in sources:
        missing = head + ("scale" if "weight" in sources else "qdata")
        plan.wrong(readable(missing), "is missing")
    elif data.get("is_swizzled_scales") and not _unblocked(files, sources):
        info = files.tensors[sources["weight_scale"].name]
        came = f"{info.dtype} {list(info.shape)}"
        plan.wrong(sources["weight_scale"].name, f"{came}, expected blocked scales of its weight")
    else:
        layer = Layer(name if stacked else module, "nvfp4", None, sources)
        layer.input_quant = _activations(data.get("act_quant_kwargs"), "input_scale" in sources)
        if "weight_scale_2" not in sources:
            layer.constants["weight_scale_2"] = 1.0
        plan.layers[layer.name] = layer
    return used


def _unblocked(files: Files, sources: dict[str, Source]) -> bool:
    weight = files.tensors[sources["weight"].name].shape
    if len(weight) not in (2, 3) or weight[-1] % 8:
        return False
    return files.unblock(sources["weight_scale"].name, (*weight[:-1], weight[-1] // 8))


def _activations(given: object, static: bool) -> InputQuant:
    """torchao's "dynamic per-tensor scale" is the amax of the whole input."""
    if not isinstance(given, dict):
        return None
    options = given.get("_data")
    if isinstance(options, dict) and options.get("use_dynamic_per_tensor_scale"):
        return "amax"
    return "static" if static else "dynamic"
