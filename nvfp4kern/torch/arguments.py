"""From the Python API's arguments to the schemas', in Python that Dynamo can trace, and back."""

import torch

from .fake import CODES_NAMES

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def pair(scale_layout):
    if scale_layout is None:
        return "linear", "linear"
    if isinstance(scale_layout, str):
        return scale_layout, scale_layout
    if isinstance(scale_layout, (tuple, list)) and len(scale_layout) == 2:
        return tuple(scale_layout)
    raise ValueError(f"scale_layout: {scale_layout!r}, expected a word or a pair of words")


def number(value, name):
    """(number, tensor). One of them is `value`, the other the default of the schema."""
    if isinstance(value, torch.Tensor):
        return 1.0, value
    is_number = isinstance(value, (float, int))
    if not is_number and hasattr(value, "__float__"):  # NumPy's have it, its bool and complex, too
        is_number = getattr(getattr(value, "dtype", None), "kind", "") not in ("b", "c")
    if isinstance(value, bool) or not is_number:
        raise TypeError(f"{name}: {type(value).__name__}, expected a number or a tensor")
    return float(value), None


def number_or_none(value, name):
    """(number, tensor) of which one is `value`, the other None; (None, None) of None."""
    if value is None:
        return None, None
    scalar, tensor = number(value, name)
    return (scalar, None) if tensor is None else (None, tensor)


def scale_of(global_scale, inverse):
    """The global scale of a result."""
    if global_scale is not None:
        return global_scale
    return 1.0 if inverse is None else 1.0 / inverse


def parts(q):
    """Codes, scale factors, and the global scale as number() has it."""
    data, scales, scale = q
    return data, scales, *number(1.0 if scale is None else scale, "q.global_scale")


def either(number, tensor):
    """What number() was given."""
    return number if tensor is None else tensor


def dtype_of(out_dtype, out=None):
    if isinstance(out_dtype, str):
        if out_dtype not in DTYPES:
            raise ValueError(f"out_dtype: {out_dtype!r}, expected one of {tuple(DTYPES)}")
        out_dtype = DTYPES[out_dtype]
    if out is not None and out_dtype is not None and out.dtype != out_dtype:
        raise ValueError(f"out_dtype: {out_dtype}, but out has dtype {out.dtype}")
    return out_dtype


def codes_dtype_of(data_dtype, out):
    if isinstance(data_dtype, str):
        if data_dtype not in CODES_NAMES:
            raise ValueError(f"data_dtype: {data_dtype!r}, expected one of {CODES_NAMES}")
        data_dtype = getattr(torch, data_dtype)
    if out and data_dtype is not None and out[0] is not None and out[0].dtype != data_dtype:
        raise ValueError(f"data_dtype: {data_dtype}, but out[0] has dtype {out[0].dtype}")
    return data_dtype


def one(new, writing, args, out, *dtype):
    """Calls an operator of one output: the new tensor, or `out` itself."""
    if out is None:
        return new(*args, *dtype)
    writing(*args, result=out)
    return out


def all_given(out, names):
    """`out` by name. Unlike with nvfp4kern.*, no item may be None."""
    if len(out) != len(names) or any(item is None for item in out):
        raise ValueError(f"out: expected tensors ({', '.join(names)})")
    return dict(zip(names, out, strict=True))
