from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, overload

from .layout import NVFP4

__version__: str

class SupportsDLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

Tensor: TypeAlias = SupportsDLPack
Scalar: TypeAlias = float | Tensor
Layout: TypeAlias = Literal["linear", "blocked"]
Layouts: TypeAlias = Layout | tuple[Layout, Layout]
OutDtype: TypeAlias = Any  # "float16", "bfloat16", "float32" or a dtype object of that name

class Backend(TypedDict):
    name: str
    devices: str
    available: bool
    why_not: str | None

class BackendError(RuntimeError): ...

def quantize(
    x: Tensor,
    *,
    up: Tensor | None = None,
    global_scale: Scalar | Literal["amax"] | None = None,
    scale_layout: Layout = "linear",
    offsets: Tensor | None = None,
    out: Sequence[Tensor | None] | None = None,
) -> NVFP4: ...
def dequantize(
    q: NVFP4 | tuple[Tensor, Tensor, Scalar | None],
    *,
    scale_layout: Layout = "linear",
    out: Tensor | None = None,
    out_dtype: OutDtype = "float16",
) -> Any: ...
def to_blocked(scales: Tensor, *, out: Tensor | None = None) -> Any: ...
def from_blocked(buffer: Tensor, rows: int, cols: int, *, out: Tensor | None = None) -> Any: ...
def gemv(
    a: Tensor,
    b: Tensor,
    sfa: Tensor,
    sfb: Tensor | None = None,
    *,
    alpha: Scalar = 1.0,
    scale_layout: Layouts = "linear",
    out: Tensor | None = None,
    out_dtype: OutDtype = "float16",
) -> Any: ...
def gemm(
    a: Tensor,
    b: Tensor,
    sfa: Tensor | None,
    sfb: Tensor,
    *,
    alpha: Scalar = 1.0,
    bias: Tensor | None = None,
    scale_layout: Layouts = "linear",
    out: Tensor | None = None,
    out_dtype: OutDtype = "float16",
) -> Any: ...
def dual_gemm(
    a: Tensor,
    b1: Tensor,
    b2: Tensor,
    sfa: Tensor,
    sfb1: Tensor,
    sfb2: Tensor,
    *,
    alpha1: Scalar = 1.0,
    alpha2: Scalar = 1.0,
    activation: Literal["silu", "gelu", "gelu_tanh", "relu", "identity"] = "silu",
    scale_layout: Layouts = "linear",
    out: Tensor | None = None,
    out_dtype: OutDtype = "float16",
) -> Any: ...
@overload
def grouped_gemm(
    a: list[Any] | tuple[Any, ...],
    b: Sequence[Tensor],
    sfa: Sequence[Tensor | None] | None = None,
    sfb: Sequence[Tensor | None] | None = None,
    *,
    offsets: None = None,
    alpha: float | Sequence[Scalar] | None = None,
    bias: Sequence[Tensor | None] | None = None,
    scale_layout: Layouts = "linear",
    out: Sequence[Tensor] | None = None,
    out_dtype: OutDtype = "float16",
) -> list[Any]: ...
@overload
def grouped_gemm(
    a: Tensor,
    b: Tensor,
    sfa: Tensor | None = None,
    sfb: Tensor | None = None,
    *,
    offsets: Tensor,
    alpha: Scalar | None = None,
    bias: Tensor | None = None,
    scale_layout: Layouts = "linear",
    out: Tensor | None = None,
    out_dtype: OutDtype = "float16",
) -> Any: ...
def route(
    x: Tensor,
    w: Tensor,
    k: int,
    *,
    score: Literal["topk_softmax", "softmax_topk", "sigmoid"] = "topk_softmax",
    correction_bias: Tensor | None = None,
    n_group: int = 1,
    topk_group: int = 1,
    renormalize: bool | None = None,
    scaling_factor: float = 1.0,
    alpha: Scalar = 1.0,
    dense: bool = False,
    permutation: bool = False,
    out: Sequence[Tensor | None] | None = None,
    out_dtype: OutDtype = "float32",
) -> tuple[Any, ...]: ...
def explain(op: str, /, *args: Any, **kwargs: Any) -> dict[str, str | int | bool]: ...
def backends() -> list[Backend]: ...
def _tiles() -> list[str]: ...
def warmup(device: object = None) -> None: ...
def competition_gemv(data: Any, /) -> Any: ...
def competition_gemm(data: Any, /) -> Any: ...
def competition_dual_gemm(data: Any, /) -> Any: ...
def competition_group_gemm(data: Any, /) -> list[Any]: ...
