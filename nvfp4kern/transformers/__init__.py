"""NVFP4 checkpoints in transformers: import this, then call `from_pretrained` as always.

    import nvfp4kern.transformers
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)

The import registers a quantiser for "modelopt", which transformers 5.17 to 5.24 do not know. Linear
layers and experts become those of `nvfp4kern.nn`. Everything else stays as transformers made it.

transformers itself reads checkpoints of compressed-tensors, and dequantises them. After
`take_over()` they run on our layers, and after `take_over("nvfp4")` its own NVFP4Config does.

quantization_config=NVFP4KernConfig(...) quantises a plain model while it is loaded.
"""

from .config import NVFP4KernConfig, hand_back, take_over
from .quantizer import NVFP4KernQuantizer

__all__ = ["NVFP4KernConfig", "NVFP4KernQuantizer", "hand_back", "take_over"]
