"""NVFP4 checkpoints in transformers: import this, then call `from_pretrained` as always.

    import nvfp4kern.transformers
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)

The import registers a quantiser for "modelopt", which transformers 5.17 to 5.23 do not know. Linear
layers and experts become those of `nvfp4kern.nn`; everything else stays as transformers made it.
Checkpoints of compressed-tensors transformers dequantises, so it does until `take_over()` is
called. A plain model is quantised while it is loaded by quantization_config=NVFP4KernConfig(...).
"""

from .config import NVFP4KernConfig, hand_back, take_over
from .quantizer import NVFP4KernQuantizer

__all__ = ["NVFP4KernConfig", "NVFP4KernQuantizer", "hand_back", "take_over"]
