"""Operands that come whole, as an NVFP4: for linear, and taken apart for gemm."""

import math
from typing import Any, TypeVar

from ._C import gemm
from .types import Layout, Layouts, OutDtype, Scalar, Tensor

Array = TypeVar("Array")

EXPECTED = "NVFP4(data, scales, global_scale)"


def linear(
    x: Array | tuple[Array, Tensor, Scalar | None],
    w: tuple[Tensor, Tensor, Scalar | None],
    bias: Tensor | None = None,
    *,
    out: Array | None = None,
    out_dtype: OutDtype = None,
) -> Array:
    """x @ w.T + bias, rounded once: gemm(x, w, bias=bias). Returns [.., N].

    x: the tokens, float16 or bfloat16 [.., K], or an NVFP4.
    w: the weights, the NVFP4 that quantize makes of [N, K].
    bias, out, out_dtype: as of gemm, whose errors call x a, and w b.
    """
    whole: Any = x
    return gemm(whole, weights(w), bias=bias, out=out, out_dtype=out_dtype)


def weights(w: Any) -> Any:
    if not isinstance(w, tuple):
        raise TypeError(f"w: {type(w).__name__}, expected {EXPECTED}")
    return w


def layout_of(q: Any, name: str, given: Layout | None) -> Layout:
    """How q's scale factors lie: as `given`, which must be what q knows, or as q knows."""
    known = getattr(q, "scale_layout", None)
    if given is None:
        return known or "linear"
    if known is not None and given != known:
        raise ValueError(f"scale_layout: {given!r}, but {name}.scale_layout is {known!r}")
    return given


def apart(
    a: Any, b: Any, sfa: Any, sfb: Any, alpha: Any, row_scale: Any, scale_layout: Layouts | None
) -> tuple[Any, Any, Any, Any, Any, Any, Layouts]:
    """gemm's arguments of these names, where a or b, or both, may be whole."""
    pair = scale_layout if isinstance(scale_layout, (tuple, list)) else (scale_layout,) * 2
    if len(pair) != 2:
        raise ValueError(f"scale_layout: {len(pair)} items, expected a pair for (sfa, sfb)")
    alpha = 1.0 if alpha is None else factor(alpha, "alpha")
    layout_a, layout_b = pair
    if isinstance(a, tuple):
        layout_a = layout_of(a, "a", layout_a)
        a, row_scale = by_row(a, row_scale)
        a, sfa, alpha = parts(a, "a", sfa, alpha)
    if isinstance(b, tuple):
        layout_b = layout_of(b, "b", layout_b)
        b, sfb, alpha = parts(b, "b", sfb, alpha)
    return a, b, sfa, sfb, alpha, row_scale, (layout_a or "linear", layout_b or "linear")


def by_row(q: Any, row_scale: Any) -> tuple[Any, Any]:
    """q, and row_scale: q's global scale where that is one for each of several rows."""
    shape = tuple(getattr(q[2], "shape", ())) if len(q) == 3 else ()
    if math.prod(shape) == 1 or shape != tuple(q[0].shape[:-1]):
        return q, row_scale
    if row_scale is not None:
        raise ValueError("row_scale: given, expected None where a.global_scale is one for each row")
    return (q[0], q[1], None), q[2]


def parts(q: Any, name: str, scales: Any, alpha: Any) -> tuple[Any, Any, Any]:
    """(codes, scale factors, alpha times the global scale)"""
    if len(q) != 3:
        raise ValueError(f"{name}: {len(q)} items, expected 3: {EXPECTED}")
    if scales is not None:
        raise ValueError(f"sf{name}: given, expected None where {name} has scale factors")
    data, scales, scale = q
    if scale is None:
        return data, scales, alpha
    scale = factor(scale, f"{name}.global_scale")
    if not isinstance(scale, float) and math.prod(scale.shape) != 1:
        expected = "one element" if name == "b" else "one element, or one for each row"
        raise ValueError(f"{name}.global_scale: shape {tuple(scale.shape)}, expected {expected}")
    if isinstance(scale, float) and scale == 1:
        return data, scales, alpha
    return data, scales, scale if isinstance(alpha, float) and alpha == 1 else alpha * scale


def factor(value: Any, name: str) -> Any:
    """An array, or a float that does not overflow float32."""
    if not isinstance(value, (float, int)) or isinstance(value, bool):
        if hasattr(value, "__dlpack__"):
            return value
        kind = getattr(getattr(value, "dtype", None), "kind", "")  # NumPy's scalars
        if isinstance(value, bool) or kind in ("b", "c") or not hasattr(value, "__float__"):
            raise TypeError(f"{name}: {type(value).__name__}, expected a number or a tensor")
    number = float(value)
    if 2.0**128 <= abs(number) < math.inf:
        raise ValueError(f"{name}: a finite number that overflows float32")
    return number
