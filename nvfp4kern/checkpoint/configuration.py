"""What a checkpoint of ours says of itself: ModelOpt's words, and what they cannot say beside."""

from collections.abc import Mapping
from typing import Any

from .. import __version__
from ..layout import SF_VEC
from .compressed import FORMAT
from .plan import InputQuant, Plan
from .untrusted import CheckpointError, in_short

ALGORITHMS: dict[InputQuant, str] = {
    None: "W4A16_NVFP4",
    "static": "NVFP4",
    "dynamic": "NVFP4",
    "amax": "W4A16_NVFP4",
    "token": "W4A16_NVFP4",
}
"""How the inputs are quantised -> ModelOpt's algorithm. Dynamic block scales alone are what a
static input_scale of 1 gives, and such files say that for other engines."""
MIXED, AWQ, SVD = "MIXED_PRECISION", "NVFP4_AWQ", "NVFP4_SVD"
SCALED = (AWQ, SVD)
"""Where a layer may have a pre_quant_scale."""
OWN = "nvfp4kern"
"""The key of what ModelOpt's words cannot say. Other engines pass it over."""
RECORDED = ("dynamic", "amax", "token")


def by_modelopt(
    layers: Mapping[str, str], inputs: Mapping[str, InputQuant], excluded: list[str]
) -> dict[str, Any]:
    """quantization_config of config.json.

    layers: the algorithm of each. inputs: how each quantises its input.
    """
    algorithms = set(layers.values())
    if not algorithms.isdisjoint(SCALED):
        algorithms -= {"NVFP4"}  # ModelOpt's layers of these need not have all of their tensors
    number = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": SF_VEC}
    found: dict[str, Any] = {
        "quant_method": "modelopt",
        "quant_algo": algorithms.pop() if len(algorithms) == 1 else MIXED,
        "ignore": excluded,
        "producer": {"name": "nvfp4kern", "version": __version__},
        **record(inputs),
    }
    if found["quant_algo"] == MIXED:
        found["quantized_layers"] = {
            name: {"quant_algo": algorithm, "group_size": SF_VEC}
            for name, algorithm in layers.items()
        }
        return found
    if found["quant_algo"] in SCALED:
        return found
    group = {"weights": number, "targets": ["Linear"]}
    if found["quant_algo"] == "NVFP4":
        group["input_activations"] = number
    found["config_groups"] = {"group_0": group}
    return found


def beside(found: dict[str, Any]) -> dict[str, Any]:
    """hf_quant_config.json, which says the same in other words."""
    inner = {
        "quant_algo": found["quant_algo"],
        "kv_cache_quant_algo": None,
        "group_size": SF_VEC,
        "exclude_modules": found["ignore"],
    }
    if found["quant_algo"] in SCALED:
        inner |= {"has_zero_point": False, "pre_quant_scale": True}
    if "quantized_layers" in found:
        inner["quantized_layers"] = found["quantized_layers"]
    own = {OWN: found[OWN]} if OWN in found else {}
    return {"producer": found["producer"], "quantization": inner, **own}


def by_compressed_tensors(inputs: Mapping[str, InputQuant], excluded: list[str]) -> dict[str, Any]:
    """quantization_config of a folder in compressed-tensors' layout, all layers alike."""
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": SF_VEC}
    weights |= {"symmetric": True, "dynamic": False}
    scaled = ALGORITHMS[next(iter(inputs.values()), None)] == "NVFP4"
    group = {
        "format": FORMAT,
        "weights": weights,
        "input_activations": {**weights, "dynamic": "local"} if scaled else None,
        "output_activations": None,
        "targets": ["Linear"],
    }
    return {
        "quant_method": "compressed-tensors",
        "format": FORMAT,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": excluded,
        "kv_cache_scheme": None,
        "producer": {"name": "nvfp4kern", "version": __version__},
        **record(inputs),
    }


# --- How inputs are quantised ---


def record(inputs: Mapping[str, InputQuant]) -> dict[str, Any]:
    """The entry of a configuration for `read_record`, {} where ModelOpt's words say it all."""
    said = {name: quant for name, quant in inputs.items() if quant in RECORDED}
    if not said:
        return {}
    alike = len(said) == len(inputs) and len(set(said.values())) == 1
    return {OWN: {"input_quant": next(iter(said.values())) if alike else said}}


def read_record(plan: Plan, quantization: dict[str, Any] | None) -> None:
    """Sets the layers' input_quant to what the files' writer recorded. Raises CheckpointError for
    a record that is not understood."""
    own = (quantization or {}).get(OWN)
    if own is None:
        return
    given = own.get("input_quant") if isinstance(own, dict) else own
    said = given if isinstance(given, dict) else dict.fromkeys(plan.layers, given)
    for name, quant in said.items():
        if quant not in RECORDED:
            expected = "expected 'dynamic', 'amax' or 'token', or an object with these by layer"
            raise CheckpointError(f"{OWN}: input_quant: {in_short(quant)}, {expected}")
        if name not in plan.layers:
            plan.warn(in_short(name), f"is no quantised layer, and has input_quant {quant!r}")
        elif plan.layers[name].kind == "nvfp4":
            plan.layers[name].input_quant = quant
