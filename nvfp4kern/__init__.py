"""NVFP4 kernels of large-model inference, with one meaning on every device."""

from . import _checkout

_checkout.extend(__path__)

from . import _C  # noqa: E402

_checkout.check(_C)

from ._C import (  # noqa: E402
    BackendError,
    __version__,
    backends,
    combine,
    dequantize,
    dual_gemm,
    explain,
    from_blocked,
    gemm,
    gemv,
    grouped_dual_gemm,
    grouped_gemm,
    quantize,
    route,
    sort_by_expert,
    to_blocked,
    warmup,
)
from .layout import NVFP4, global_scale_from_divisor  # noqa: E402
from .whole import linear  # noqa: E402

__all__ = [
    "NVFP4",
    "BackendError",
    "__version__",
    "backends",
    "combine",
    "dequantize",
    "dual_gemm",
    "explain",
    "from_blocked",
    "gemm",
    "gemv",
    "global_scale_from_divisor",
    "grouped_dual_gemm",
    "grouped_gemm",
    "linear",
    "quantize",
    "route",
    "sort_by_expert",
    "to_blocked",
    "warmup",
]
