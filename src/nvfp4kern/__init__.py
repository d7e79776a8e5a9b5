"""NVFP4 kernels of large-model inference, with one meaning on every device."""

from ._C import (
    BackendError,
    __version__,
    backends,
    dequantize,
    dual_gemm,
    explain,
    from_blocked,
    gemm,
    gemv,
    grouped_gemm,
    quantize,
    route,
    to_blocked,
    warmup,
)
from .layout import NVFP4, global_scale_from_divisor

__all__ = [
    "NVFP4",
    "BackendError",
    "__version__",
    "backends",
    "dequantize",
    "dual_gemm",
    "explain",
    "from_blocked",
    "gemm",
    "gemv",
    "global_scale_from_divisor",
    "grouped_gemm",
    "quantize",
    "route",
    "to_blocked",
    "warmup",
]
