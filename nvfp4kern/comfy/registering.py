"""What comfy_kitchen and ComfyUI are told. Importing this needs comfy_kitchen."""

import inspect
import sys
from typing import Any

import torch
from comfy_kitchen.backends import eager
from comfy_kitchen.registry import registry

from . import backend, linear

NAME = "nvfp4kern"
SLOWER = ("triton", "eager")
"""The backends that ours comes before. Before "cuda" it would take what that does in one kernel."""


def why_not() -> str | None:
    """Why comfy_kitchen is left as it is, or None."""
    if torch.version.hip:
        return "this torch is one for AMD's GPUs"
    for name in backend.CAPABILITIES:
        theirs, ours = (inspect.signature(getattr(of, name)) for of in (eager, backend))
        if list(theirs.parameters) != list(ours.parameters):
            return f"its {name} takes {theirs}, expected {ours}"
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    if devices and not any(map(backend.serves, devices)):
        found = ", ".join(map(torch.cuda.get_device_name, devices))
        return f"{found}: expected compute capability 8.0 to 9.0"
    return None


def register(quantize_input: bool) -> None:
    management = sys.modules.get("comfy.model_management")
    quant_ops = sys.modules.get("comfy.quant_ops")
    if management is not None and quant_ops is not None:
        _open(management, quant_ops, quantize_input)
    order = [name for name in registry._priority if name != NAME]
    at = next((i for i, name in enumerate(order) if name in SLOWER), len(order))
    registry.register(NAME, backend, backend.CAPABILITIES)
    registry.set_priority([*order[:at], NAME, *order[at:]])
    linear.register()


def _open(management: Any, quant_ops: Any, quantize_input: bool) -> None:
    """ComfyUI dequantises the weights before each product where a GPU "does not compute NVFP4".

    A word of each format says whether inputs are quantised, too; 0.8 does not know it, and does.
    """
    formats = quant_ops.QUANT_ALGOS
    if not quantize_input and not any("quantize_input" in each for each in formats.values()):
        raise RuntimeError("this ComfyUI would quantise the inputs, too: quantize_input=True")
    formats["nvfp4"]["quantize_input"] = quantize_input
    theirs = management.supports_nvfp4_compute
    if getattr(theirs, "__module__", None) == __name__:
        return

    def supports_nvfp4_compute(device: Any = None) -> bool:
        if device is None:
            device = management.get_torch_device()
        return backend.serves(torch.device(device)) or theirs(device)

    management.supports_nvfp4_compute = supports_nvfp4_compute
