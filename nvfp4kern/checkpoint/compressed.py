"""compressed-tensors' checkpoints, which llm-compressor writes: global scales are divisors."""

from typing import Any

from .files import Files
from .mxfp4 import SCALES, take_mxfp4
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

FORMAT = "nvfp4-pack-quantized"
SOURCES = {
    "weight": Source("weight_packed"),
    "weight_scale": Source("weight_scale"),
    "weight_scale_2": Source("weight_global_scale", divisor=True),
    "input_scale": Source("input_global_scale", divisor=True),
    "bias": Source("bias"),
}
WEIGHTS: dict[str, tuple[object, ...]] = {
    "num_bits": (4,),
    "type": ("float",),
    "strategy": ("tensor_group", "group"),
    "group_size": (16,),
    "symmetric": (True, None),
    "scale_dtype": ("torch.float8_e4m3fn", "float8_e4m3fn", None),
}
"""What a group says of weights that are NVFP4."""
MX_WEIGHTS: dict[str, tuple[object, ...]] = {
    **WEIGHTS,
    "strategy": ("group",),
    "group_size": (32,),
    "scale_dtype": ("torch.uint8", "uint8", "torch.float8_e8m0fnu", None),
}
FORMATS = {FORMAT: WEIGHTS, "mxfp4-pack-quantized": MX_WEIGHTS}
Groups = dict[str, tuple[InputQuant, list[str]]]


def read_groups(quantization: dict[str, Any]) -> Groups:
    """Name -> (input_quant, targets) of each group. Raises CheckpointError for one that is neither
    NVFP4 nor MXFP4, and names it."""
    form = quantization.get("format", FORMAT)
    if form not in (*FORMATS, "mixed-precision"):
        raise CheckpointError(f"format: {in_short(form)}, expected {' or '.join(FORMATS)}")
    status = quantization.get("quantization_status", "compressed")
    if status != "compressed":
        raise CheckpointError(f"quantization_status: {in_short(status)}, expected compressed")
    for key in ("sparsity_config", "transform_config"):
        given = quantization.get(key)
        if given and not (isinstance(given, dict) and given.get("format") == "dense"):
            raise CheckpointError(f"{key}: is not supported")
    groups = quantization.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise CheckpointError(f"config_groups: {in_short(groups)}, expected groups")
    return {name: _group(f"config_groups: {in_short(name)}", g, form) for name, g in groups.items()}


def _group(where: str, group: object, whole: str) -> tuple[InputQuant, list[str]]:
    if isinstance(group, list):  # targets of a preset scheme
        raise CheckpointError(f"{where}: the preset scheme is not supported, expected weights")
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(group, dict) or not isinstance(weights, dict):
        raise CheckpointError(f"{where}: {in_short(group)}, expected an object with weights")
    known = [whole] if whole in FORMATS else list(FORMATS)
    form = group.get("format") or known[0]
    if form not in known:
        raise CheckpointError(f"{where}: format: {in_short(form)}, expected {' or '.join(known)}")
    for key, allowed in FORMATS[form].items():
        if weights.get(key) not in allowed:
            came = f"weights.{key}: {in_short(weights.get(key))}"
            expected = f"{allowed[0]} ({form[:5].upper()})"
            raise CheckpointError(f"{where}: {came}, expected {expected}")
    targets = strings(group.get("targets"), f"{where}: targets")
    return _activations(where, group.get("input_activations"), weights["group_size"]), targets


def _activations(where: str, given: object, size: object) -> InputQuant:
    if given is None:
        return None
    bits = given.get("num_bits") if isinstance(given, dict) else None
    other = isinstance(given, dict) and given.get("group_size") not in (None, size)
    if not isinstance(given, dict) or (bits, given.get("type")) != (4, "float") or other:
        expected = "expected those of the weights or null"
        raise CheckpointError(f"{where}: input_activations: {in_short(given)}, {expected}")
    return "dynamic" if given.get("dynamic") is True else "static"


def plan_compressed(files: Files, quantization: dict[str, Any] | None) -> Plan:
    """`quantization` is None where the files have no configuration. The tensors then say it."""
    groups = read_groups(quantization) if quantization else {}
    ignore = strings(quantization.get("ignore"), "ignore") if quantization else []
    version = quantization.get("version", "") if quantization else ""
    form = quantization.get("format") if quantization else FORMAT
    plan = Plan(
        form if form in FORMATS else FORMAT, f"compressed-tensors {readable(version)[:100]}".strip()
    )
    plan.parts = {part: source.name for part, source in SOURCES.items()}
    modules = modules_of(files.tensors)
    take_kv_scales(plan, modules, files)
    matrices, layers = [], []
    for name, parts in modules.items():
        if quantised(parts, files):
            layers.append(name)
        elif take_plain(plan, name, parts, files):
            matrices.append(name)
    names = Names([*layers, *matrices])
    activations = _by_layer(plan, names, groups)
    for name in layers:
        _add(plan, files, name, modules[name], activations)
    if quantization:
        classes = any("Linear" in targets for _, targets in groups.values())
        compare(plan, matching(plan, names, ignore, "re:"), matrices, classes)
    return plan


def _by_layer(plan: Plan, names: Names, groups: Groups) -> dict[str, InputQuant]:
    """What groups say of activations. Names and "re:" count before classes, as they do in
    compressed-tensors. Files do not say a module's class: those that no name matches are Linear."""
    found: dict[str, InputQuant] = {}
    for quant, targets in groups.values():
        if "Linear" in targets:
            found |= dict.fromkeys(names.names, quant)
    for quant, targets in groups.values():
        found |= dict.fromkeys(matching(plan, names, targets, "re:"), quant)
    return found


def _add(
    plan: Plan, files: Files, name: str, parts: Parts, activations: dict[str, InputQuant]
) -> None:
    """Adds a quantised module as a layer. What is wrong with it becomes a problem."""
    if "weight_packed" not in parts:
        plan.wrong(f"{name}.weight_packed", f"is missing beside {next(iter(parts))}")
        return
    sources = {
        part: Source(parts.pop(source.name), source.divisor)
        for part, source in SOURCES.items()
        if source.name in parts
    }
    for other in parts.values():
        plan.wrong(other, "a tensor of a quantised layer that is not understood")
    layer = Layer(name, "nvfp4", "static" if "input_scale" in sources else None, sources)
    if name in activations:
        layer.input_quant = activations[name]
    scale = sources.get("weight_scale")
    if scale and files.tensors[scale.name].dtype in SCALES and "weight_scale_2" not in sources:
        take_mxfp4(plan, files, layer)
    if layer.input_quant == "dynamic":
        sentence = "its activations' global scale is dynamic; block scales alone are used"
        plan.warn(name, sentence)
    plan.layers[name] = layer
