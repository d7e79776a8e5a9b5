"""What SGLang is told. Importing this needs an SGLang that has everything that is subclassed."""

from sglang.srt.layers import linear, quantization

from .configs import CONFIGS
from .linear import NVFP4KernModelOptLinearMethod

LOADER = NVFP4KernModelOptLinearMethod.__name__


def register() -> None:
    if LOADER not in linear.WEIGHT_LOADER_V2_SUPPORTED:  # SGLang knows methods by names
        linear.WEIGHT_LOADER_V2_SUPPORTED.append(LOADER)
    quantization.QUANTIZATION_METHODS.update(CONFIGS)
    quantization.CPU_QUANTIZATION_METHODS.update(CONFIGS)  # those of CPUs with AMX
