"""Which producer wrote a checkpoint, and what its tensors are for us."""

from typing import Literal

from .compressed import plan_compressed
from .configuration import read_record
from .files import Files
from .modelopt import plan_modelopt, read_config
from .mxfp4 import plan_mxfp4
from .plan import InputQuant, Layer, Plan, Problem, Source, check_input_scales, check_layer
from .quark import plan_quark
from .torchao import is_torchao, plan_torchao
from .untrusted import CheckpointError, in_short

__all__ = ["Layer", "Plan", "Problem", "Source", "read_plan"]

HANDLED = "modelopt, compressed-tensors, torchao, mxfp4, quark"


def read_plan(files: Files, input_quant: InputQuant | Literal["auto"] = "auto") -> Plan:
    """Says of every tensor what it is, from names, headers and configuration; reads no tensor.
    From now on `files` lists and reads tensors as the plan wants them.

    input_quant: how activations are quantised in every NVFP4 layer; "auto" is what the files say.

    What would make loading fail, and what looks odd, are the plan's problems. Raises
    CheckpointError for a format or an algorithm that is not NVFP4 of ModelOpt, compressed-tensors
    or torchao, nor MXFP4 of compressed-tensors, Quark or OpenAI's names, and names it.
    """
    files.list_anew()
    plan = _plan(files)
    read_record(plan, files.quantization)
    for layer in plan.layers.values():
        if input_quant != "auto" and layer.kind == "nvfp4":
            layer.input_quant = input_quant
        if layer.input_quant != "static" and "input_scale" in layer.sources:
            plan.ignored.append(layer.sources.pop("input_scale").name)
        check_layer(plan, layer, files)
    check_input_scales(plan)
    return plan


def _plan(files: Files) -> Plan:
    quantization = files.quantization
    if quantization is None:
        return plan_torchao(files) if is_torchao(files) else _by_names(files)
    method = quantization.get("quant_method")
    if method == "compressed-tensors":
        return plan_compressed(files, quantization)
    if method == "modelopt" or (method is None and "quantization" in quantization):
        return plan_modelopt(files, read_config(quantization))
    if method == "torchao":
        return plan_torchao(files)
    if method == "quark":
        return plan_quark(files, quantization)
    if method == "mxfp4":
        plan = plan_mxfp4(files)
        if not plan.layers and not plan.problems:
            raise CheckpointError("quant_method: 'mxfp4', expected .._blocks and .._scales then")
        return plan
    raise CheckpointError(f"quant_method: {in_short(method)}, expected {HANDLED}")


def _by_names(files: Files) -> Plan:
    """A plan of files without a configuration."""
    parts = {name.rpartition(".")[2] for name in files.tensors}
    if any(part.endswith("_blocks") and f"{part[:-7]}_scales" in parts for part in parts):
        return plan_mxfp4(files)
    if {"blocks", "scales"} <= parts:
        name = next(name for name in files.tensors if name.endswith(".blocks"))
        other = "expected the files beside that folder, whose names end in _blocks"
        raise CheckpointError(f"{name}: belongs to a folder 'original' of gpt-oss, {other}")
    if "weight_packed" in parts or "weight_global_scale" in parts:
        plan = plan_compressed(files, None)
    else:
        plan = plan_modelopt(files, None)
    if plan.layers:
        plan.warn("config.json", "says nothing of quantisation; activations follow the tensors")
    return plan
