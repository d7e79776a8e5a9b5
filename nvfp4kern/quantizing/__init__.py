"""Quantising a folder of safetensors without loading the model: `python -m nvfp4kern quantize`.

Needs torch and safetensors, and google-re2: the extra `models` brings them.
"""

from .folder import Summary, quantize_folder

__all__ = ["Summary", "quantize_folder"]
