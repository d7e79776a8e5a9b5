"""nvfp4kern for torch.compile: the functions of `nvfp4kern`, as operators that torch can trace.

`import nvfp4kern.torch as nk` in place of `import nvfp4kern as nk` is all that a model changes.
The operators themselves are `torch.ops.nvfp4kern.*`. They take torch tensors. They have no gradient
(a backward pass through one raises NotImplementedError) and no DTensor rules.
Needs torch 2.8, the first with float4_e2m1fn_x2.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, overload

import torch
from torch import Tensor

from .. import _C
from .._C import BackendError, backends, explain, warmup
from ..layout import NVFP4, global_scale_from_divisor, nvfp4_of
from ..types import Activation, DtypeName, Layout, Layouts, Score
from . import ops

Scalar: TypeAlias = float | Tensor
OutDtype: TypeAlias = DtypeName | torch.dtype | None
CodesDtype: TypeAlias = Literal["float4_e2m1fn_x2", "uint8"] | torch.dtype | None

__all__ = [
    "NVFP4",
    "BackendError",
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
    "quantize",
    "route",
    "sort_by_expert",
    "to_blocked",
    "warmup",
]

_OPS = getattr(torch.ops, ops.NAMESPACE)
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


# ---------------------------------------------------------------------------------------------
# From the Python API's arguments to the schemas'
# ---------------------------------------------------------------------------------------------


def _pair(scale_layout):
    if isinstance(scale_layout, str):
        return scale_layout, scale_layout
    if isinstance(scale_layout, (tuple, list)) and len(scale_layout) == 2:
        return tuple(scale_layout)
    raise ValueError(f"scale_layout: {scale_layout!r}, expected a word or a pair of words")


def _number(value, name):
    """(number, tensor). One of them is `value`, the other the default of the schema."""
    if isinstance(value, torch.Tensor):
        return 1.0, value
    is_number = isinstance(value, (float, int)) or hasattr(value, "__float__")  # NumPy's have it
    if isinstance(value, bool) or not is_number:
        raise TypeError(f"{name}: {type(value).__name__}, expected a number or a tensor")
    return float(value), None


def _dtype(out_dtype, out=None):
    if isinstance(out_dtype, str):
        if out_dtype not in _DTYPES:
            raise ValueError(f"out_dtype: {out_dtype!r}, expected one of {tuple(_DTYPES)}")
        out_dtype = _DTYPES[out_dtype]
    if out is not None and out_dtype is not None and out.dtype != out_dtype:
        raise ValueError(f"out_dtype: {out_dtype}, but out has dtype {out.dtype}")
    return out_dtype


def _data_dtype(data_dtype, out):
    if isinstance(data_dtype, str):
        if data_dtype not in ops.fake.CODES_NAMES:
            raise ValueError(f"data_dtype: {data_dtype!r}, expected one of {ops.fake.CODES_NAMES}")
        data_dtype = getattr(torch, data_dtype)
    if out and data_dtype is not None and out[0] is not None and out[0].dtype != data_dtype:
        raise ValueError(f"data_dtype: {data_dtype}, but out[0] has dtype {out[0].dtype}")
    return data_dtype


def _one(new, writing, args, out, out_dtype):
    """Calls an operator of one output: the new tensor, or `out` itself."""
    dtype = _dtype(out_dtype, out)
    if out is None:
        return new(*args, dtype)
    writing(*args, out=out)
    return out


def _all_given(out, names):
    """`out` by name. Unlike with nvfp4kern.*, no item may be None."""
    if len(out) != len(names) or any(item is None for item in out):
        raise ValueError(f"out: expected tensors ({', '.join(names)})")
    return dict(zip(names, out, strict=True))


# ---------------------------------------------------------------------------------------------
# Operators
# ---------------------------------------------------------------------------------------------


def gemv(
    a: Tensor,
    b: Tensor,
    sfa: Tensor,
    sfb: Tensor | None = None,
    *,
    alpha: Scalar = 1.0,
    scale_layout: Layouts = "linear",
    out: Tensor | None = None,
    out_dtype: OutDtype = None,
) -> Tensor:
    args = (a, b, sfa, sfb, *_number(alpha, "alpha"), *_pair(scale_layout))
    return _one(_OPS.gemv.default, _OPS.gemv_out.default, args, out, out_dtype)


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
    out_dtype: OutDtype = None,
) -> Tensor:
    args = (a, b, sfa, sfb, *_number(alpha, "alpha"), bias, *_pair(scale_layout))
    return _one(_OPS.gemm.default, _OPS.gemm_out.default, args, out, out_dtype)


def dual_gemm(
    a: Tensor,
    b1: Tensor,
    b2: Tensor,
    sfa: Tensor | None,
    sfb1: Tensor,
    sfb2: Tensor,
    *,
    alpha1: Scalar = 1.0,
    alpha2: Scalar = 1.0,
    activation: Activation = "silu",
    scale_layout: Layouts = "linear",
    out: Tensor | None = None,
    out_dtype: OutDtype = None,
) -> Tensor:
    alphas = (*_number(alpha1, "alpha1"), *_number(alpha2, "alpha2"))
    args = (a, b1, b2, sfa, sfb1, sfb2, *alphas, activation, *_pair(scale_layout))
    return _one(_OPS.dual_gemm.default, _OPS.dual_gemm_out.default, args, out, out_dtype)


@overload
def grouped_gemm(
    a: Sequence[Tensor],
    b: Sequence[Tensor],
    sfa: Sequence[Tensor | None] | None = None,
    sfb: Sequence[Tensor | None] | None = None,
    *,
    offsets: None = None,
    rows: None = None,
    rows_per_token: int = 1,
    alpha: float | Sequence[Scalar] | None = None,
    bias: Sequence[Tensor | None] | None = None,
    scale_layout: Layouts = "linear",
    out: list[Tensor] | None = None,
    out_dtype: OutDtype = None,
) -> list[Tensor]: ...
@overload
def grouped_gemm(
    a: Tensor,
    b: Tensor,
    sfa: Tensor | None = None,
    sfb: Tensor | None = None,
    *,
    offsets: Tensor,
    rows: Tensor | None = None,
    rows_per_token: int = 1,
    alpha: Scalar | None = None,
    bias: Tensor | None = None,
    scale_layout: Layouts = "linear",
    out: Tensor | None = None,
    out_dtype: OutDtype = None,
) -> Tensor: ...
def grouped_gemm(
    a: Any, b: Any, sfa: Any = None, sfb: Any = None, *, offsets: Any = None, rows: Any = None,
    rows_per_token: int = 1, alpha: Any = None, bias: Any = None, scale_layout: Layouts = "linear",
    out: Any = None, out_dtype: Any = None,
) -> Any:  # fmt: skip
    alpha = 1.0 if alpha is None else alpha
    if isinstance(a, (list, tuple)):
        for name, given in (("offsets", offsets), ("rows", rows)):
            if given is not None:
                raise ValueError(f"{name}: given, expected None where a is a list")
        if rows_per_token != 1:
            raise ValueError(f"rows_per_token: {rows_per_token}, expected 1 where a is a list")
        return _grouped_gemm_list(a, b, sfa, sfb, alpha, bias, scale_layout, out, out_dtype)
    if offsets is None:
        raise TypeError("offsets: None, expected a tensor")
    args = (
        a, b, sfa, sfb, offsets, *_number(alpha, "alpha"), bias, *_pair(scale_layout), rows,
        rows_per_token,
    )  # fmt: skip
    return _one(_OPS.grouped_gemm.default, _OPS.grouped_gemm_out.default, args, out, out_dtype)


def _grouped_gemm_list(a, b, sfa, sfb, alpha, bias, scale_layout, out, out_dtype):
    count = len(a)
    if isinstance(alpha, torch.Tensor):
        raise TypeError("alpha: a tensor, expected a number or a list with one item for each of a")
    alphas = list(alpha) if isinstance(alpha, (list, tuple)) else [alpha] * count
    if count == 0:  # no tensor says which device, and there is nothing to do
        return [] if out is None else out
    numbers = [_number(1.0 if item is None else item, "alpha") for item in alphas]
    none = [None] * count
    args = (
        list(a), list(b), none if sfa is None else list(sfa), none if sfb is None else list(sfb),
        [number for number, _ in numbers], [tensor for _, tensor in numbers],
        none if bias is None else list(bias), *_pair(scale_layout),
    )  # fmt: skip
    for given in () if out is None else out:
        _dtype(out_dtype, given)
    if out is None:
        return list(_OPS.grouped_gemm_list.default(*args, _dtype(out_dtype)))
    _OPS.grouped_gemm_list_out.default(*args, out=list(out))
    return out


@overload
def grouped_dual_gemm(
    a: Tensor, b: Tensor, sfa: Tensor | None, sfb: Tensor, offsets: Tensor, *,
    rows: Tensor | None = None, rows_per_token: int = 1, alpha: Scalar | None = None,
    activation: Activation = "silu", scale_layout: Layouts = "linear", out: Tensor | None = None,
    out_dtype: OutDtype = None, quantized: Literal[False] = False, global_scale: None = None,
    data_dtype: None = None,
) -> Tensor: ...  # fmt: skip
@overload
def grouped_dual_gemm(
    a: Tensor, b: Tensor, sfa: Tensor | None, sfb: Tensor, offsets: Tensor, *,
    rows: Tensor | None = None, rows_per_token: int = 1, alpha: Scalar | None = None,
    activation: Literal["silu"] = "silu", scale_layout: Layouts = "linear",
    out: Sequence[Tensor] | None = None, out_dtype: None = None, quantized: Literal[True],
    global_scale: Scalar | None = None, data_dtype: CodesDtype = None,
) -> NVFP4[Tensor]: ...  # fmt: skip
def grouped_dual_gemm(
    a: Any, b: Any, sfa: Any, sfb: Any, offsets: Any, *, rows: Any = None, rows_per_token: int = 1,
    alpha: Any = None, activation: Any = "silu", scale_layout: Layouts = "linear", out: Any = None,
    out_dtype: Any = None, quantized: bool = False, global_scale: Any = None,
    data_dtype: Any = None,
) -> Any:  # fmt: skip
    alpha = 1.0 if alpha is None else alpha
    args = (
        a, b, sfa, sfb, offsets, *_number(alpha, "alpha"), activation, *_pair(scale_layout), rows,
        rows_per_token,
    )  # fmt: skip
    if quantized:
        return _grouped_dual_gemm_quantized(args, out, out_dtype, global_scale, data_dtype)
    for name, given in (("global_scale", global_scale), ("data_dtype", data_dtype)):
        if given is not None:
            raise ValueError(f"{name}: given, expected None unless quantized=True")
    new, writing = _OPS.grouped_dual_gemm.default, _OPS.grouped_dual_gemm_out.default
    return _one(new, writing, args, out, out_dtype)


def _grouped_dual_gemm_quantized(args, out, out_dtype, global_scale, data_dtype):
    if out_dtype is not None:
        raise ValueError(f"out_dtype: {out_dtype!r}, expected None with quantized=True")
    if isinstance(global_scale, str):
        raise ValueError(f"global_scale: {global_scale!r}, expected None, a number or a tensor")
    scale = 1.0 if global_scale is None else global_scale
    args = (*args, *_number(scale, "global_scale"))
    dtype = _data_dtype(data_dtype, out)
    if out is None:
        return NVFP4(*_OPS.grouped_dual_gemm_quantized.default(*args, dtype), scale)
    outs = _all_given(out, ("data", "scales"))
    _OPS.grouped_dual_gemm_quantized_out.default(*args, **outs)
    return NVFP4(*out, scale)


def route(
    x: Tensor | None = None,
    w: Tensor | None = None,
    k: int | None = None,
    *,
    logits: Tensor | None = None,
    score: Score = "topk_softmax",
    correction_bias: Tensor | None = None,
    n_group: int = 1,
    topk_group: int = 1,
    renormalize: bool | None = None,
    scaling_factor: float = 1.0,
    alpha: Scalar = 1.0,
    dense: bool = False,
    permutation: bool = False,
    expert_map: Tensor | None = None,
    num_local_experts: int | None = None,
    return_logits: bool = False,
    return_row_of: bool = False,
    out: Sequence[Tensor] | None = None,
    out_dtype: OutDtype = None,
) -> tuple[Tensor, ...]:
    if k is None:
        raise TypeError("k: None, expected an int")
    args = (
        x, w, k, score, correction_bias, n_group, topk_group, renormalize, float(scaling_factor),
        *_number(alpha, "alpha"), dense, logits, expert_map, num_local_experts,
    )  # fmt: skip
    if return_row_of and not permutation:
        raise ValueError("return_row_of: True, expected False unless permutation=True")
    name, outputs = ops.ROUTES[bool(permutation), bool(return_row_of), bool(return_logits)]
    if out is None:
        return getattr(_OPS, name).default(*args, _dtype(out_dtype))
    outs = _all_given(out, outputs)
    _dtype(out_dtype, outs["weights"])
    getattr(_OPS, f"{name}_out").default(*args, **outs)
    return tuple(out)


def sort_by_expert(
    ids: Tensor,
    num_experts: int,
    *,
    expert_map: Tensor | None = None,
    num_local_experts: int | None = None,
    out: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    args = (ids, num_experts, expert_map, num_local_experts)
    if out is None:
        return _OPS.sort_by_expert.default(*args)
    outs = _all_given(out, ops.BOTH)
    _OPS.sort_by_expert_out.default(*args, **outs)
    counts, offsets, sorted_rows, row_of = out
    return counts, offsets, sorted_rows, row_of


def combine(
    products: Tensor,
    row_of: Tensor,
    weights: Tensor,
    *,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: OutDtype = None,
) -> Tensor:
    args = (products, row_of, weights, residual)
    return _one(_OPS.combine.default, _OPS.combine_out.default, args, out, out_dtype)


def quantize(
    x: Tensor,
    *,
    up: Tensor | None = None,
    global_scale: Scalar | Literal["amax"] | None = None,
    scale_layout: Layout = "linear",
    offsets: Tensor | None = None,
    out: Sequence[Tensor] | None = None,
    data_dtype: CodesDtype = None,
) -> NVFP4[Tensor]:
    dtype = _data_dtype(data_dtype, out)
    if isinstance(global_scale, str):
        return _quantize_amax(x, up, global_scale, scale_layout, offsets, out, dtype)
    scale = 1.0 if global_scale is None else global_scale
    args = (x, up, *_number(scale, "global_scale"), scale_layout, offsets)
    if out is None:
        return NVFP4(*_OPS.quantize.default(*args, dtype), scale)
    outs = _all_given(out, ("data", "scales"))
    _OPS.quantize_out.default(*args, **outs)
    return NVFP4(*out, scale)


def _quantize_amax(x, up, word, scale_layout, offsets, out, dtype):
    if word != "amax":
        raise ValueError(f"global_scale: {word!r}, expected 'amax'")
    args = (x, up, scale_layout, offsets)
    if out is None:
        return NVFP4(*_OPS.quantize_amax.default(*args, dtype))
    if len(out) == 2:
        out = (*out, torch.empty(1, dtype=torch.float32, device=x.device))
    _OPS.quantize_amax_out.default(*args, **_all_given(out, ("data", "scales", "global_scale")))
    return NVFP4(*out)


def dequantize(
    q: tuple[Tensor, Tensor, Scalar | None],
    *,
    scale_layout: Layout = "linear",
    out: Tensor | None = None,
    out_dtype: OutDtype = None,
) -> Tensor:
    data, scales, scale = q
    scale = _number(1.0 if scale is None else scale, "q.global_scale")
    args = (data, scales, *scale, scale_layout)
    return _one(_OPS.dequantize.default, _OPS.dequantize_out.default, args, out, out_dtype)


def to_blocked(scales: Tensor, *, out: Tensor | None = None) -> Tensor:
    if out is None:
        return _OPS.to_blocked.default(scales)
    _OPS.to_blocked_out.default(scales, out=out)
    return out


def from_blocked(buffer: Tensor, rows: int, cols: int, *, out: Tensor | None = None) -> Tensor:
    if out is None:
        return _OPS.from_blocked.default(buffer, rows, cols)
    _OPS.from_blocked_out.default(buffer, rows, cols, out=out)
    return out


for _name in ("gemv", "gemm", "dual_gemm", "grouped_gemm", "grouped_dual_gemm", "route",
              "sort_by_expert", "combine", "quantize", "dequantize", "to_blocked",
              "from_blocked"):  # fmt: skip
    globals()[_name].__doc__ = getattr(_C, _name).__doc__

# What torch.load(weights_only=True) calls to make an NVFP4 again.
torch.serialization.add_safe_globals([nvfp4_of])
