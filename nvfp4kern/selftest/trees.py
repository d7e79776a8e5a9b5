"""Arguments and results as nested lists, tuples and dicts of tensors. Where two results differ."""

import hashlib

import numpy as np
import torch

from ..verify import reference

APPROXIMATE = {"dual_gemm": 1, "contiguous_dual": 1, "contiguous_dual_interleaved": 1}
"""Of calls.OPERATORS: ulps that an exponential may leave between two rows' results."""


def mapped(function, tree, kind=torch.Tensor):
    """The same nesting with `function` of everything of this kind; names of a tuple stay."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, dict):
        return {key: mapped(function, value, kind) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [mapped(function, value, kind) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


def leaves(tree):
    found: list[torch.Tensor] = []
    mapped(found.append, tree)
    return found


def outputs(name, result):
    """The tensors of a result; a global scale given comes back with it."""
    return [t for t in leaves((result,)) if name != "quantize" or t.numel() > 1]


def raw(tensor):
    """The bytes in logical order."""
    if tensor.numel() == 0:
        return np.zeros(0, np.uint8)
    if tensor.element_size() == 1:  # float4 cannot be copied as it is
        return tensor.view(torch.uint8).cpu().contiguous().ravel().numpy()
    return tensor.detach().cpu().contiguous().ravel().view(torch.uint8).numpy()


def values(tensor):
    return tensor.detach().cpu().float().numpy()


def digest(tensors):
    """Names all bytes, types and shapes."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode() + raw(tensor).tobytes())
    return found.hexdigest()[:16]


def difference(name, got, want):
    """What is wrong with a result of the call `name`, or "". Every byte counts; where exponentials
    are involved, a result may be as near as float32 gets."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{tuple(got.shape)}, expected {want.dtype}{tuple(want.shape)}"
    if name in APPROXIMATE:
        bad = reference.ulps(values(got), values(want), "float16") > APPROXIMATE[name]
    elif name.startswith("route") and got.is_floating_point():
        x, y, small = values(got), values(want), got.dtype == torch.float32
        bad = ~np.isclose(
            x, y, rtol=1e-5 if small else 1e-3, atol=0 if small else 1e-6, equal_nan=True
        )
    else:
        bad = (raw(got) != raw(want)).reshape(-1, got.element_size()).any(axis=1)
    return f"{bad.sum()} of {bad.size} differ, first at {int(np.argmax(bad))}" if bad.any() else ""
