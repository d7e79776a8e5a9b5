"""Operators for JAX's programs, on CPUs and on CUDA: jax.ffi calls, which jit compiles.

quantize, dequantize, gemm, gemv and linear are those of nvfp4kern for JAX arrays, and return new
ones. Codes are uint8 [.., K/2], or float4_e2m1fn [.., K]; scale factors are float8_e4m3fn or uint8.
Numbers and words are static, arrays are not: each new number is another program, which is kept for
ever, so a scale that changes is an array. vmap makes one call after the other. There is no
gradient. A compiled program has a call of Python in it, which takes the GIL and some tens of
microseconds on the host, and which jax.export cannot take along.
"""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp

from .. import _C
from ..layout import NVFP4, SF_VEC, blocked_shape
from . import ffi

__all__ = ["NVFP4", "dequantize", "gemm", "gemv", "linear", "quantize"]

jax.tree_util.register_pytree_node(
    NVFP4, lambda q: (tuple(q), q.scale_layout), lambda layout, parts: NVFP4(*parts, layout)
)


_numbers = itertools.count()


@functools.cache
def _target(operator: str, names: tuple[str, ...], options: tuple[tuple[str, Any], ...]) -> str:
    """The name of a target for calls with these arrays and these numbers and words."""
    name = f"nvfp4kern_{operator}_{next(_numbers)}"

    def run(arguments: list[Any], results: list[Any]) -> None:
        given = dict(zip(names, arguments, strict=True)) | dict(options)
        if operator == "dequantize":
            given = {"q": [given.pop(part) for part in NVFP4._fields], **given}
            given["q"] = tuple(given["q"])
        out = results[0] if len(results) == 1 else tuple(results)
        getattr(_C, operator)(**given, out=out)

    ffi.register(name, run)
    return name


def _dtype(name: str, dtype: Any) -> Any:
    """One that operators know. TypeError where it is none."""
    found = jnp.dtype(dtype)
    if found.name not in ffi.DTYPES.values():
        raise TypeError(f"{name}: {found.name}, expected one of {', '.join(ffi.DTYPES.values())}")
    return found


def _call(operator: str, results: Any, **given: Any) -> Any:
    """Arrays become operands of the program, all else a part of it."""
    arrays = {n: jnp.asarray(value) for n, value in given.items() if hasattr(value, "shape")}
    for name, value in arrays.items():
        _dtype(name, value.dtype)
    options = {name: value for name, value in given.items() if name not in arrays}
    options = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in options.items()
        if value is not None or name in NVFP4._fields
    }
    target = _target(operator, tuple(arrays), tuple(options.items()))
    call = jax.ffi.ffi_call(target, results, vmap_method="sequential")
    return call(*arrays.values())


def _bytes(codes: Any) -> Any:
    """uint8 [.., K/2] of float4 [.., K]; others as they are."""
    if codes is None or codes.dtype != jnp.float4_e2m1fn:
        return codes
    *rows, k = codes.shape
    if k % 2:
        raise ValueError(f"float4 of shape {codes.shape}, expected two elements for each byte")
    return jax.lax.bitcast_convert_type(codes.reshape(*rows, k // 2, 2), jnp.uint8)


def _array_or_number(value: Any) -> Any:
    """float32 of an array, which others than JAX may have; numbers as they are. np.float64 is
    both, and an array here."""
    is_number = isinstance(value, (int, float, str)) and not hasattr(value, "shape")
    if value is None or is_number:
        return value
    return jnp.asarray(value, jnp.float32)


def _result(like: Any, shape: tuple[int, ...], out_dtype: Any) -> Any:
    """A product's, whose dtype is that of 16-bit tokens unless out_dtype says otherwise."""
    of_tokens = like.dtype if like.dtype in (jnp.float16, jnp.bfloat16) else jnp.float16
    return jax.ShapeDtypeStruct(shape, _dtype("out_dtype", out_dtype or of_tokens))


def _parts(q: Any, scales: Any, layout: str | None) -> tuple[Any, Any, Any, str]:
    """(codes, scale factors, global scale or None, layout) of an operand that may be whole."""
    if not isinstance(q, tuple):
        return _bytes(q), scales, None, layout or "linear"
    known = getattr(q, "scale_layout", None)
    if layout and known and layout != known:
        raise ValueError(f"scale_layout: {layout!r}, but that of the operand is {known!r}")
    data, scales, global_scale = q
    return _bytes(data), scales, _array_or_number(global_scale), layout or known or "linear"


def quantize(
    x: Any,
    *,
    up: Any = None,
    global_scale: Any = None,
    smallest_scale: float = 0.0,
    recipe: str = "amax",
    scale_layout: str = "linear",
) -> NVFP4[Any]:
    """nvfp4kern.quantize of a JAX array [.., M, K] or [K]."""
    *rows, k = x.shape
    if not k or k % SF_VEC:
        raise ValueError(f"x: K = {k}, expected a multiple of {SF_VEC}")
    cols = (*rows, k // SF_VEC)
    if scale_layout == "blocked":
        cols = (*rows[:-1], *blocked_shape(rows[-1] if rows else 1, k))
    results = [
        jax.ShapeDtypeStruct((*rows, k // 2), jnp.uint8),
        jax.ShapeDtypeStruct(cols, jnp.float8_e4m3fn),
    ]
    scale = _array_or_number(global_scale)
    if isinstance(scale, str):
        shape = tuple(rows) if scale == "token" and rows else (1,)
        results.append(jax.ShapeDtypeStruct(shape, jnp.float32))
    made = _call(
        "quantize", results, x=x, up=up, global_scale=scale, smallest_scale=smallest_scale,
        recipe=recipe, scale_layout=scale_layout,
    )  # fmt: skip
    if not isinstance(scale, str):
        made = [*made, 1.0 if scale is None else scale]
    return NVFP4(*made, scale_layout)


def dequantize(q: Any, *, scale_layout: str | None = None, out_dtype: Any = "float16") -> Any:
    """nvfp4kern.dequantize of an NVFP4, or of any tuple (data, scales, global_scale)."""
    data, scales, global_scale, layout = _parts(q, None, scale_layout)
    dtype = _dtype("out_dtype", out_dtype)
    result = jax.ShapeDtypeStruct((*data.shape[:-1], 2 * data.shape[-1]), dtype)
    return _call(
        "dequantize", result, data=data, scales=scales, global_scale=global_scale,
        scale_layout=layout, out_dtype=dtype.name,
    )  # fmt: skip


def gemm(
    a: Any,
    b: Any,
    sfa: Any = None,
    sfb: Any = None,
    *,
    alpha: Any = 1.0,
    row_scale: Any = None,
    bias: Any = None,
    scale_layout: Any = None,
    out_dtype: Any = None,
) -> Any:
    """nvfp4kern.gemm of JAX arrays; a or b may be an NVFP4."""
    layouts = scale_layout if isinstance(scale_layout, (tuple, list)) else (scale_layout,) * 2
    a, sfa, of_a, layout_a = _parts(a, sfa, layouts[0])
    b, sfb, of_b, layout_b = _parts(b, sfb, layouts[1])
    rows = a.shape[:-1]
    alpha = _array_or_number(alpha)
    if getattr(of_a, "size", 1) > 1:
        if row_scale is not None:
            raise ValueError("row_scale: given, expected None where a has a scale for each row")
        of_a, row_scale = None, of_a
    for scale in (of_a, of_b):
        alpha = alpha if scale is None else alpha * scale
    result = _result(a, (*rows, b.shape[-2]), out_dtype)
    return _call(
        "gemm", result, a=a, b=b, sfa=sfa, sfb=sfb, alpha=alpha, row_scale=row_scale, bias=bias,
        scale_layout=(layout_a, layout_b), out_dtype=result.dtype.name,
    )  # fmt: skip


def gemv(
    a: Any,
    b: Any,
    sfa: Any,
    sfb: Any = None,
    *,
    alpha: Any = 1.0,
    row_scale: Any = None,
    scale_layout: Any = "linear",
    out_dtype: Any = None,
) -> Any:
    """nvfp4kern.gemv of JAX arrays: the matrix a times the vector b."""
    a, b = _bytes(a), _bytes(b)
    result = _result(b, (*a.shape[:-1], 1), out_dtype)
    return _call(
        "gemv", result, a=a, b=b, sfa=sfa, sfb=sfb, alpha=_array_or_number(alpha),
        row_scale=row_scale, scale_layout=scale_layout, out_dtype=result.dtype.name,
    )  # fmt: skip


def linear(x: Any, w: Any, bias: Any = None, *, out_dtype: Any = None) -> Any:
    """x @ w.T + bias, of 16-bit or NVFP4 x and the NVFP4 that quantize makes of [N, K]."""
    return gemm(x, w, bias=bias, out_dtype=out_dtype)
