"""Layers of torch with NVFP4 weights: what a checkpoint of NVIDIA's ModelOpt holds, by its names.

A layer's parameters have the names, shapes and dtypes of such a file, so `load_state_dict` takes
them as they are. Nothing is repacked, and scale factors stay linear.

Layers are for inference: their weights are frozen. Their input has a gradient, for adapters.

Where the parts of a fused layer have different global scales, its values are still exact: kernels
take a global scale for each row or expert.
"""

from .experts import NVFP4Experts
from .frozen import InputQuant
from .linear import NVFP4Linear, NVFP4SwiGLU, fuse
from .mixture import NVFP4MoE
from .quantize import NVFP4Config, QuantizationReport, quantize_

__all__ = [
    "InputQuant",
    "NVFP4Config",
    "NVFP4Experts",
    "NVFP4Linear",
    "NVFP4MoE",
    "NVFP4SwiGLU",
    "QuantizationReport",
    "fuse",
    "quantize_",
]
