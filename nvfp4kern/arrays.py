"""Allocation for array types without DLPack's C exchange API.

The only place that knows array libraries by name. It imports none: whoever holds an array has
loaded its library.
"""

import sys
from typing import Any

_STORED_AS = {"float4_e2m1fn_x2": "uint8", "float8_e4m3fn": "uint8"}
"""NumPy and CuPy have no such types: the bytes themselves."""


def _library(array: Any) -> Any:
    """The library that `array` or a base class of it comes from; None where it is none of ours."""
    for base in type(array).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("numpy", "cupy", "torch"):
            return sys.modules[root]
    return None


def _unsupported(array: Any, name: str) -> TypeError:
    kind = f"{type(array).__module__}.{type(array).__qualname__}"
    return TypeError(
        f"out: None, but no {kind} can be made for {name}; pass NumPy or torch tensors as out="
    )


def empty(array: Any, dtype: str, shape: tuple[int, ...], name: str) -> Any:
    """Uninitialised memory of the kind and on the device of `array`, for the output `name`."""
    library = _library(array)
    if library is None:
        raise _unsupported(array, name)
    if library.__name__ == "torch":
        return library.empty(shape, dtype=getattr(library, dtype), device=array.device)
    if dtype == "bfloat16":
        raise TypeError(
            f"out_dtype: bfloat16, but {library.__name__} has no such type; pass out= or another"
        )
    dtype = _STORED_AS.get(dtype, dtype)
    if library.__name__ == "cupy":
        with array.device:
            return library.empty(shape, dtype)
    return library.empty(shape, dtype)


def current_stream(array: Any) -> int:
    """The current stream of `array`'s library; 0, the default stream, where nobody knows."""
    library = _library(array)
    if library is not None and library.__name__ == "torch":
        return library.cuda.current_stream(array.device).cuda_stream
    if library is not None and library.__name__ == "cupy":
        with array.device:
            return library.cuda.get_current_stream().ptr
    return 0
