"""nvfp4kern for torch.compile: the functions of `nvfp4kern`, as operators that torch can trace.

`import nvfp4kern.torch as nk` in place of `import nvfp4kern as nk` is all that a model changes.
The operators themselves are `torch.ops.nvfp4kern.*`. They take torch tensors. They have no gradient
(a backward pass through one, and forward-mode AD, raise NotImplementedError) and no DTensor rules.
Needs torch 2.8, the first with float4_e2m1fn_x2.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, overload

import torch
from torch import Tensor

from .. import _C
from .._C import BackendError, backends, explain, warmup
from ..arrays import tell_torch
from ..layout import NVFP4, global_scale_from_divisor, nvfp4_of
from ..types import Activation, ActivationAlone, GateUp, Layout, Layouts, ScaleRecipe, Score
from ..whole import apart, weights
from ..whole import linear as _linear
from . import generated, ops
from .arguments import (
    all_given,
    codes_dtype_of,
    dtype_of,
    number,
    number_or_none,
    one,
    pair,
    scale_of,
)
from .fake import token_shape
from .generated import *  # noqa: F403
from .generated import FUNCTIONS, OutDtype, Scalar

CodesDtype: TypeAlias = Literal["float4_e2m1fn_x2", "uint8"] | torch.dtype | None

__all__ = [
    "NVFP4",
    "BackendError",
    "backends",
    "explain",
    "gemm",
    "global_scale_from_divisor",
    "grouped_dual_gemm",
    "grouped_gemm",
    "linear",
    "quantize",
    "route",
    "sort_by_expert",
    "warmup",
]
__all__ += generated.__all__

_OPS = torch.ops.nvfp4kern
tell_torch(NVFP4)  # here, since Dynamo cannot trace it
Whole: TypeAlias = tuple[Tensor, Tensor, Scalar | None]


def gemm(
    a: Tensor | Whole, b: Tensor | Whole, sfa: Tensor | None = None, sfb: Tensor | None = None, *,
    alpha: Scalar = 1.0, row_scale: Tensor | None = None, bias: Tensor | None = None,
    scale_layout: Layouts | None = None, out: Tensor | None = None, out_dtype: OutDtype = None,
) -> Tensor:  # fmt: skip
    if isinstance(a, tuple) or isinstance(b, tuple):
        whole = apart(a, b, sfa, sfb, alpha, row_scale, scale_layout)
        a, b, sfa, sfb, alpha, row_scale, scale_layout = whole
    if sfb is None:
        raise ValueError("sfb: None, expected the scale factors of b")
    args = (a, b, sfa, sfb, *number(alpha, "alpha"), bias, *pair(scale_layout), row_scale)
    return one(_OPS.gemm.default, _OPS.gemm_out.default, args, out, dtype_of(out_dtype, out))


def linear(
    x: Tensor | Whole, w: Whole, bias: Tensor | None = None, *, out: Tensor | None = None,
    out_dtype: OutDtype = None,
) -> Tensor:  # fmt: skip
    return gemm(x, weights(w), bias=bias, out=out, out_dtype=out_dtype)


linear.__doc__ = _linear.__doc__


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
    expected_rows: None = None,
    alpha: float | Sequence[Scalar] | None = None,
    row_scale: Sequence[Tensor | None] | None = None,
    bias: Sequence[Tensor | None] | None = None,
    activation: ActivationAlone = "identity",
    scale_layout: Layouts = "linear",
    out: list[Tensor] | None = None,
    out_dtype: OutDtype = None,
    quantized: Literal[False] = False,
    global_scale: None = None,
    global_scale_inverse: None = None,
    data_dtype: None = None,
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
    expected_rows: int | None = None,
    alpha: Scalar | None = None,
    row_scale: Tensor | None = None,
    bias: Tensor | None = None,
    activation: ActivationAlone = "identity",
    scale_layout: Layouts = "linear",
    out: Tensor | None = None,
    out_dtype: OutDtype = None,
    quantized: Literal[False] = False,
    global_scale: None = None,
    global_scale_inverse: None = None,
    data_dtype: None = None,
) -> Tensor: ...
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
    expected_rows: int | None = None,
    alpha: Scalar | None = None,
    row_scale: Tensor | None = None,
    bias: Tensor | None = None,
    activation: ActivationAlone = "identity",
    scale_layout: Layouts = "linear",
    out: Sequence[Tensor] | None = None,
    out_dtype: None = None,
    quantized: Literal[True],
    global_scale: Scalar | None = None,
    global_scale_inverse: Scalar | None = None,
    data_dtype: CodesDtype = None,
) -> NVFP4[Tensor]: ...
def grouped_gemm(
    a: Any, b: Any, sfa: Any = None, sfb: Any = None, *, offsets: Any = None, rows: Any = None,
    rows_per_token: int = 1, expected_rows: int | None = None, alpha: Any = None,
    row_scale: Any = None, bias: Any = None, activation: ActivationAlone = "identity",
    scale_layout: Layouts = "linear", out: Any = None, out_dtype: Any = None,
    quantized: bool = False, global_scale: Any = None, global_scale_inverse: Any = None,
    data_dtype: Any = None,
) -> Any:  # fmt: skip
    alpha = 1.0 if alpha is None else alpha
    encoding = global_scale, global_scale_inverse, data_dtype
    if not quantized:
        _refuse_encoding(*encoding)
    if isinstance(a, (list, tuple)):
        if quantized:
            raise ValueError("quantized: True, expected False where a is a list")
        none = {"offsets": offsets, "rows": rows, "expected_rows": expected_rows}
        for name, given in none.items():
            if given is not None:
                raise ValueError(f"{name}: given, expected None where a is a list")
        if rows_per_token != 1:
            raise ValueError(f"rows_per_token: {rows_per_token}, expected 1 where a is a list")
        given = a, b, sfa, sfb, alpha, row_scale, bias, activation, scale_layout
        return _grouped_gemm_list(*given, out, out_dtype)
    if offsets is None:
        raise TypeError("offsets: None, expected a tensor")
    args = (
        a, b, sfa, sfb, offsets, *number(alpha, "alpha"), bias, *pair(scale_layout), rows,
        rows_per_token, activation, row_scale, expected_rows,
    )  # fmt: skip
    if quantized:
        return _encoded("grouped_gemm_quantized", args, out, out_dtype, *encoding)
    new, writing = _OPS.grouped_gemm.default, _OPS.grouped_gemm_out.default
    return one(new, writing, args, out, dtype_of(out_dtype, out))


def _grouped_gemm_list(
    a, b, sfa, sfb, alpha, row_scale, bias, activation, scale_layout, out, out_dtype
):
    count = len(a)
    if isinstance(alpha, torch.Tensor):
        raise TypeError("alpha: a tensor, expected a number or a list with one item for each of a")
    alphas = list(alpha) if isinstance(alpha, (list, tuple)) else [alpha] * count
    if count == 0:  # no tensor says which device, and there is nothing to do
        return [] if out is None else out
    numbers = [number(1.0 if item is None else item, "alpha") for item in alphas]
    none = [None] * count
    args = (
        list(a), list(b), none if sfa is None else list(sfa), none if sfb is None else list(sfb),
        [number for number, _ in numbers], [tensor for _, tensor in numbers],
        none if bias is None else list(bias), none if row_scale is None else list(row_scale),
        *pair(scale_layout), activation,
    )  # fmt: skip
    for given in () if out is None else out:
        dtype_of(out_dtype, given)
    if out is None:
        return list(_OPS.grouped_gemm_list.default(*args, dtype_of(out_dtype)))
    _OPS.grouped_gemm_list_out.default(*args, result=list(out))
    return out


@overload
def grouped_dual_gemm(
    a: Tensor, b: Tensor, sfa: Tensor | None, sfb: Tensor, offsets: Tensor, *,
    rows: Tensor | None = None, rows_per_token: int = 1, expected_rows: int | None = None,
    alpha: Scalar | None = None, row_scale: Tensor | None = None, bias: Tensor | None = None,
    gate_up: GateUp = "halves", activation: Activation = "silu", limit: float | None = None,
    activation_scale: float = 1.702,
    scale_layout: Layouts = "linear", out: Tensor | None = None, out_dtype: OutDtype = None,
    quantized: Literal[False] = False, global_scale: None = None,
    global_scale_inverse: None = None, data_dtype: None = None,
) -> Tensor: ...  # fmt: skip
@overload
def grouped_dual_gemm(
    a: Tensor, b: Tensor, sfa: Tensor | None, sfb: Tensor, offsets: Tensor, *,
    rows: Tensor | None = None, rows_per_token: int = 1, expected_rows: int | None = None,
    alpha: Scalar | None = None, row_scale: Tensor | None = None, bias: Tensor | None = None,
    gate_up: GateUp = "halves", activation: Activation = "silu", limit: float | None = None,
    activation_scale: float = 1.702,
    scale_layout: Layouts = "linear", out: Sequence[Tensor] | None = None, out_dtype: None = None,
    quantized: Literal[True], global_scale: Scalar | None = None,
    global_scale_inverse: Scalar | None = None, data_dtype: CodesDtype = None,
) -> NVFP4[Tensor]: ...  # fmt: skip
def grouped_dual_gemm(
    a: Any, b: Any, sfa: Any, sfb: Any, offsets: Any, *, rows: Any = None, rows_per_token: int = 1,
    expected_rows: int | None = None, alpha: Any = None, row_scale: Any = None, bias: Any = None,
    gate_up: Any = "halves", activation: Any = "silu", limit: float | None = None,
    activation_scale: float = 1.702, scale_layout: Layouts = "linear", out: Any = None,
    out_dtype: Any = None, quantized: bool = False, global_scale: Any = None,
    global_scale_inverse: Any = None, data_dtype: Any = None,
) -> Any:  # fmt: skip
    alpha = 1.0 if alpha is None else alpha
    args = (
        a, b, sfa, sfb, offsets, *number(alpha, "alpha"), activation, *pair(scale_layout), rows,
        rows_per_token, limit, activation_scale, bias, gate_up, row_scale, expected_rows,
    )  # fmt: skip
    encoding = global_scale, global_scale_inverse, data_dtype
    if quantized:
        return _encoded("grouped_dual_gemm_quantized", args, out, out_dtype, *encoding)
    _refuse_encoding(*encoding)
    new, writing = _OPS.grouped_dual_gemm.default, _OPS.grouped_dual_gemm_out.default
    return one(new, writing, args, out, dtype_of(out_dtype, out))


def _refuse_encoding(*given):
    names = "global_scale", "global_scale_inverse", "data_dtype"
    for name, value in zip(names, given, strict=True):
        if value is not None:
            raise ValueError(f"{name}: given, expected None unless quantized=True")


def _encoded(name, args, out, out_dtype, global_scale, inverse, data_dtype):
    """The result of experts as NVFP4, by the operator of this name."""
    if out_dtype is not None:
        raise ValueError(f"out_dtype: {out_dtype!r}, expected None with quantized=True")
    if isinstance(global_scale, str):
        raise ValueError(f"global_scale: {global_scale!r}, expected None, a number or a tensor")
    scale = number(1.0 if global_scale is None else global_scale, "global_scale")
    args = (*args, *scale, *number_or_none(inverse, "global_scale_inverse"))
    dtype = codes_dtype_of(data_dtype, out)
    global_scale = scale_of(global_scale, inverse)
    if out is None:
        q = getattr(_OPS, name).default(*args, dtype)
        return NVFP4(*q, global_scale, "linear")
    outs = all_given(out, ("data", "scales"))
    getattr(_OPS, f"{name}_out").default(*args, **outs)
    return NVFP4(*out, global_scale, "linear")


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
    per_expert_scale: Tensor | None = None,
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
        *number(alpha, "alpha"), dense, logits, expert_map, num_local_experts,
        per_expert_scale,
    )  # fmt: skip
    if return_row_of and not permutation:
        raise ValueError("return_row_of: True, expected False unless permutation=True")
    name, outputs = ops.ROUTES[bool(permutation), bool(return_row_of), bool(return_logits)]
    if out is None:
        return getattr(_OPS, name).default(*args, dtype_of(out_dtype))
    outs = all_given(out, outputs)
    dtype_of(out_dtype, outs["weights"])
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
    outs = all_given(out, ops.BOTH)
    _OPS.sort_by_expert_out.default(*args, **outs)
    counts, offsets, sorted_rows, row_of = out
    return counts, offsets, sorted_rows, row_of


def quantize(
    x: Tensor,
    *,
    up: Tensor | None = None,
    global_scale: Scalar | Literal["amax", "token"] | None = None,
    global_scale_inverse: Scalar | None = None,
    smallest_scale: float = 0.0,
    recipe: ScaleRecipe = "amax",
    scale_layout: Layout = "linear",
    offsets: Tensor | None = None,
    out: Sequence[Tensor] | None = None,
    data_dtype: CodesDtype = None,
) -> NVFP4[Tensor]:
    dtype = codes_dtype_of(data_dtype, out)
    known = scale_layout if offsets is None else None
    if isinstance(global_scale, str):
        if global_scale_inverse is not None:
            word = repr(global_scale)
            raise ValueError(f"global_scale_inverse: given, expected None with global_scale={word}")
        args = (x, up, scale_layout, offsets, float(smallest_scale), recipe)
        return _quantize_by_word(args, global_scale, out, dtype, known)
    scale = number(1.0 if global_scale is None else global_scale, "global_scale")
    inverse = number_or_none(global_scale_inverse, "global_scale_inverse")
    args = (x, up, *scale, scale_layout, offsets, *inverse, float(smallest_scale), recipe)
    global_scale = scale_of(global_scale, global_scale_inverse)
    if out is None:
        return NVFP4(*_OPS.quantize.default(*args, dtype), global_scale, known)
    outs = all_given(out, ("data", "scales"))
    _OPS.quantize_out.default(*args, **outs)
    return NVFP4(*out, global_scale, known)


def _quantize_by_word(args, word, out, dtype, known):
    if word not in ("amax", "token"):
        raise ValueError(f"global_scale: {word!r}, expected 'amax' or 'token'")
    name = f"quantize_{word}"
    if out is None:
        return NVFP4(*getattr(_OPS, name).default(*args, dtype), known)
    if len(out) == 2:
        size = token_shape(args[0]) if word == "token" else (1,)
        out = (*out, torch.empty(size, dtype=torch.float32, device=args[0].device))
    given = all_given(out, ("data", "scales", "global_scale"))
    getattr(_OPS, f"{name}_out").default(*args, **given)
    return NVFP4(*out, known)


for _name in FUNCTIONS:
    globals()[_name].__doc__ = getattr(_C, _name).__doc__

# What torch.load(weights_only=True) calls to make an NVFP4 again.
torch.serialization.add_safe_globals([nvfp4_of])
