"""AMD Quark's checkpoints of MXFP4: a layer has weight [N, K/2] and weight_scale [N, K/32]."""

from typing import Any

from .files import Files
from .modelopt import add_layer
from .mxfp4 import SCALES, take_mxfp4
from .patterns import Names
from .plan import Plan, compare, matching, modules_of, quantised, strings, take_plain
from .untrusted import CheckpointError, in_short

MXFP4: dict[str, object] = {
    "dtype": "fp4",
    "qscheme": "per_group",
    "group_size": 32,
    "scale_format": "e8m0",
    "is_dynamic": False,
}
FP8: dict[str, object] = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}


def read_quark(quantization: dict[str, Any]) -> bool:
    """Whether inputs are quantised, too. Raises CheckpointError for weights that are neither MXFP4
    nor FP8 with one scale, and names them."""
    whole = quantization.get("global_quant_config")
    by_layer = quantization.get("layer_quant_config") or {}
    by_class = quantization.get("layer_type_quant_config") or {}
    if not isinstance(whole, dict) or not isinstance(by_layer, dict) or by_class:
        came = f"{in_short(whole)}, {in_short(by_layer)} and {in_short(by_class)}"
        expected = "expected objects of weights and inputs, and none by class"
        raise CheckpointError(f"global_quant_config and those of layers: {came}, {expected}")
    _check("global_quant_config", whole, (MXFP4,))
    for name, each in by_layer.items():
        _check(f"layer_quant_config: {in_short(name)}", each, (MXFP4, FP8))
    return bool(whole.get("input_tensors"))


def _check(where: str, given: object, known: tuple[dict[str, object], ...]) -> None:
    weight = given.get("weight", 0) if isinstance(given, dict) else 0
    if weight is None and FP8 in known:
        return  # an output of the key-value cache, alone
    found = isinstance(weight, dict) and any(
        all(weight.get(key) == value for key, value in each.items()) for each in known
    )
    if not found:
        expected = "MXFP4 (fp4, per_group of 32, e8m0)"
        expected += " or FP8 (fp8_e4m3, per_tensor)" if FP8 in known else ""
        raise CheckpointError(f"{where}: weight: {in_short(weight)}, expected {expected}")


def plan_quark(files: Files, quantization: dict[str, Any]) -> Plan:
    inputs = read_quark(quantization)
    plan = Plan("MXFP4", "AMD Quark")
    modules = modules_of(files.tensors)
    matrices = []
    for name, parts in modules.items():
        if "output_scale" in parts:  # of the key-value cache
            plan.ignored.append(parts.pop("output_scale"))
        if quantised(parts, files):
            add_layer(plan, files, None, name, parts)
        elif take_plain(plan, name, parts, files):
            matrices.append(name)
    for layer in plan.layers.values():
        if layer.kind == "nvfp4":
            scale = layer.sources.get("weight_scale")
            if scale is None or files.tensors[scale.name].dtype not in SCALES:
                came = files.tensors[scale.name].dtype if scale else "is missing"
                plan.wrong(plan.name_of(layer, "weight_scale"), f"{came}, expected {SCALES[0]}")
            else:
                layer.input_quant = "dynamic" if inputs else None
                take_mxfp4(plan, files, layer)
    names = Names([*plan.layers, *matrices])
    exclude = strings(quantization.get("exclude"), "exclude")
    compare(plan, matching(plan, names, exclude, ""), matrices, True)
    return plan
