"""What comfy_kitchen and ComfyUI are told. Importing this needs comfy_kitchen."""

import dataclasses
import inspect
import logging
import sys
from collections.abc import Callable
from typing import Any

import torch
from comfy_kitchen.backends import eager
from comfy_kitchen.registry import registry
from comfy_kitchen.tensor import TensorCoreNVFP4Layout

from . import backend, linear

NAME = "nvfp4kern"
SLOWER = ("triton", "eager")
"""The backends that ours comes before. Before "cuda" it would take what that does in one kernel."""
FIELDS = ["scale", "orig_dtype", "orig_shape", "block_scale", "transposed"]
"""What a weight has beside its codes. Another field could change what they stand for."""

logger = logging.getLogger("nvfp4kern.comfy")


def why_not() -> str | None:
    """Why comfy_kitchen is left as it is, or None."""
    if torch.version.hip:
        return "this torch is one for AMD's GPUs"
    for name in backend.CAPABILITIES:
        theirs, ours = (inspect.signature(getattr(of, name)) for of in (eager, backend))
        if arguments(theirs) != arguments(ours):
            return f"its {name} takes {theirs}, expected {ours}"
    fields = [each.name for each in dataclasses.fields(TensorCoreNVFP4Layout.Params)]
    if fields != FIELDS:
        return f"its NVFP4 weights have {', '.join(fields)}, expected {', '.join(FIELDS)}"
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    if devices and not any(map(backend.serves, devices)):
        found = ", ".join("{}.{}".format(*torch.cuda.get_device_capability(d)) for d in devices)
        return f"GPUs of compute capability {found}, expected 8.0 to 9.0"
    return None


def arguments(signature: inspect.Signature) -> list[tuple[str, Any]]:
    return [(each.name, each.default) for each in signature.parameters.values()]


def register(quantize_input: bool) -> None:
    """What may raise comes first: all is told, or nothing."""
    open_comfyui = opening(quantize_input)
    order = [name for name in registry._priority if name != NAME]
    at = next((i for i, name in enumerate(order) if name in SLOWER), len(order))
    registry.register(NAME, backend, backend.CAPABILITIES)
    registry.set_priority([*order[:at], NAME, *order[at:]])
    linear.register()
    open_comfyui()


def opening(quantize_input: bool) -> Callable[[], None]:
    """What opens ComfyUI, which dequantises the weights before each product where a GPU "does not
    compute NVFP4".

    A word of each format says whether inputs are quantised, too; 0.8 does not know it, and does.
    """
    management = sys.modules.get("comfy.model_management")
    quant_ops = sys.modules.get("comfy.quant_ops")
    if management is None or quant_ops is None:
        level = logging.WARNING if quantize_input else logging.INFO
        logger.log(level, "ComfyUI is not imported, so nvfp4kern leaves it as it is")
        return lambda: None
    formats = quant_ops.QUANT_ALGOS
    if not quantize_input and not any("quantize_input" in each for each in formats.values()):
        raise RuntimeError("this ComfyUI would quantise the inputs, too: quantize_input=True")
    nvfp4, theirs = formats["nvfp4"], management.supports_nvfp4_compute
    ours = getattr(theirs, "__module__", None) == __name__

    def supports_nvfp4_compute(device: Any = None) -> bool:
        if device is None:
            device = management.get_torch_device()
        return backend.serves(torch.device(device)) or theirs(device)

    def open_comfyui() -> None:
        nvfp4["quantize_input"] = quantize_input
        if not ours:
            management.supports_nvfp4_compute = supports_nvfp4_compute

    return open_comfyui
