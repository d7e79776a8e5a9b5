"""NVFP4 layers of image and video models in ComfyUI, where its own kernels need Blackwell.

ComfyUI multiplies by comfy_kitchen, which has a registry of backends. Ours takes NVFP4 on CPUs and
on GPUs of compute capability 8.0 to 9.0; docs/comfyui.md says how it gets there.
"""

import logging
import os

__all__ = ["register"]

logger = logging.getLogger("nvfp4kern.comfy")


def register(*, quantize_input: bool = False) -> bool:
    """Puts our products into comfy_kitchen and, where it runs, opens ComfyUI for them.

    quantize_input: inputs of layers become NVFP4, too, as ComfyUI has it on Blackwell. Without it
        they stay at 16 bits, as ComfyUI has it on these GPUs. A program without ComfyUI quantises
        them itself: there, and before ComfyUI is imported, this changes nothing, and a message
        says so.

    Returns whether it did; one message says why not, but for NVFP4KERN_COMFY=0. May be called
    again. Raises nothing: a custom node that does would be left out with a traceback.
    """
    if os.environ.get("NVFP4KERN_COMFY", "").lower() in ("0", "false", "no", "off"):
        return False
    try:
        from . import registering

        reason = registering.why_not()
        if reason is None:
            registering.register(quantize_input)
    except Exception as e:  # what it builds on is gone, or was never there
        reason = f"{type(e).__name__}: {e}"
    if reason is not None:
        logger.warning("nvfp4kern leaves comfy_kitchen as it is: %s", reason)
    return reason is None
