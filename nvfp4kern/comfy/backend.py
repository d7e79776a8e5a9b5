"""The NVFP4 functions of comfy_kitchen's registry: its names, arguments and layouts, our operators.

Two levels of scales and the blocked layout of scale factors are ours, too. A byte has the even
element in its high nibble unless `hi_first` is False, ours in the low one.
"""

from collections.abc import Mapping
from typing import Any

import torch
from comfy_kitchen.constraints import (
    ExactDims,
    FunctionConstraints,
    ParamConstraint,
    ValidationResult,
)
from torch import Tensor
from torch.nn.functional import pad

from .. import torch as nk
from ..layout import SF_VEC
from ..nn.frozen import E4M3
from ..nn.linear import readable

NATIVE = (10, 0)
"""The compute capability from which comfy_kitchen has products of its own."""


def serves(device: torch.device) -> bool:
    """Whether products on it are ours."""
    if device.type != "cuda":
        return device.type == "cpu"
    return (8, 0) <= torch.cuda.get_device_capability(device) < NATIVE


def roundup(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def exchanged(codes: Tensor) -> Tensor:
    """Both nibbles of each byte in the other's place."""
    return codes << 4 | codes >> 4


def quantize_nvfp4(
    x: Tensor,
    per_tensor_scale: Tensor,
    epsilon: float = 0.0,
    pad_16x: bool = False,
    hi_first: bool = True,
) -> tuple[Tensor, Tensor]:
    """x [M, K] -> codes [M, K/2] and blocked scale factors. `epsilon` is unused, as in theirs.

    pad_16x: M and K become multiples of 16, with zeros.
    """
    m, k = x.shape
    rows, columns = (roundup(m, SF_VEC), roundup(k, SF_VEC)) if pad_16x else (m, k)
    x = readable(pad(x, (0, columns - k)) if columns > k else x)
    codes = x.new_empty(rows, columns // 2, dtype=torch.uint8)
    codes[m:] = 0
    scales = x.new_empty(roundup(rows, 128), roundup(columns // SF_VEC, 4), dtype=E4M3)
    nk.quantize(
        x, global_scale=per_tensor_scale, scale_layout="blocked", out=(codes[:m], scales)
    )  # fmt: skip
    return exchanged(codes) if hi_first else codes, scales


def dequantize_nvfp4(
    qx: Tensor,
    per_tensor_scale: Tensor,
    block_scales: Tensor,
    output_type: torch.dtype = torch.bfloat16,
    hi_first: bool = True,
) -> Tensor:
    """Codes [M, K/2] -> [M, K]."""
    codes = exchanged(qx) if hi_first else qx
    whole = readable(codes), block_scales.contiguous(), per_tensor_scale
    return nk.dequantize(whole, scale_layout="blocked", out_dtype=output_type)


def scaled_mm_nvfp4(
    a: Tensor,
    b: Tensor,
    tensor_scale_a: Tensor,
    tensor_scale_b: Tensor,
    block_scale_a: Tensor,
    block_scale_b: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    alpha: Tensor | None = None,
) -> Tensor:
    """Codes [M, K/2] and [N, K/2] -> [M, N]. Both have one order of nibbles, whichever it is: a
    block has one scale factor, so a sum does not depend on the order of its elements.

    bias: of at most N elements, since a layer's rows are padded and its bias is not.
    """
    if alpha is None:
        alpha = tensor_scale_a * tensor_scale_b
    if bias is not None and len(bias) < len(b):
        bias = pad(bias, (0, len(b) - len(bias)))
    return nk.gemm(
        readable(a), readable(b), block_scale_a.contiguous(), block_scale_b.contiguous(),
        alpha=alpha.float().reshape(()), bias=bias, scale_layout="blocked",
        out_dtype=torch.bfloat16 if out_dtype is None else out_dtype,
    )  # fmt: skip


def _checked(main: str, *scales: str) -> Any:
    """A rule for calls of which `main` says the device and `scales` are one number each."""

    def rule(given: Mapping[str, Any]) -> ValidationResult:
        device = given[main].device
        if not serves(device):
            return ValidationResult.fail(main, f"{device} is not served")
        for name in scales:
            value = given.get(name)
            if value is not None and (value.numel() != 1 or value.device != device):
                shape = f"{tuple(value.shape)} on {value.device}"
                return ValidationResult.fail(name, f"{shape}, expected one element on {device}")
        return ValidationResult.ok()

    return rule


def _whole_blocks(given: Mapping[str, Any]) -> ValidationResult:
    columns = given["x"].shape[1]
    if given.get("pad_16x") or columns % SF_VEC == 0:
        return ValidationResult.ok()
    return ValidationResult.fail("x", f"{columns} columns, expected a multiple of {SF_VEC}")


def _scaled(**scales_of: str) -> Any:
    """A rule for codes, by name: of whole blocks, each with its scale factor."""

    def rule(given: Mapping[str, Any]) -> ValidationResult:
        for main, name in scales_of.items():
            m, k = given[main].shape[0], given[main].shape[1] * 2
            if k % SF_VEC:
                return ValidationResult.fail(main, f"K is {k}, expected a multiple of {SF_VEC}")
            rows, columns = roundup(m, 128), roundup(k // SF_VEC, 4)
            if given[name].numel() < rows * columns:
                shape = tuple(given[name].shape)
                return ValidationResult.fail(name, f"{shape}, expected {(rows, columns)} at least")
        return ValidationResult.ok()

    return rule


def _operands(given: Mapping[str, Any]) -> ValidationResult:
    """The same K, and a bias that is not too long."""
    a, b, bias = given["a"], given["b"], given.get("bias")
    if a.shape[1] != b.shape[1]:
        return ValidationResult.fail("a", f"{tuple(a.shape)}, expected [M, {b.shape[1]}] as b has")
    if bias is not None and (bias.dim() != 1 or len(bias) > len(b)):
        return ValidationResult.fail("bias", f"{tuple(bias.shape)}, expected [{len(b)}] at most")
    return ValidationResult.ok()


FLOAT = frozenset({torch.float32, torch.float16, torch.bfloat16})
_FLOATS = ParamConstraint(dtypes=FLOAT)
_MATRIX = ParamConstraint(dtypes=FLOAT, shape_rules=(ExactDims(2),))
_CODES = ParamConstraint(dtypes=frozenset({torch.uint8}), shape_rules=(ExactDims(2),))
_GLOBAL = ParamConstraint(dtypes=frozenset({torch.float32}))
_BLOCKED = ParamConstraint(dtypes=frozenset({E4M3}))

CAPABILITIES = {
    "quantize_nvfp4": FunctionConstraints(
        params={"x": _MATRIX, "per_tensor_scale": _GLOBAL},
        call_rules=(_checked("x", "per_tensor_scale"), _whole_blocks),
    ),
    "dequantize_nvfp4": FunctionConstraints(
        params={
            "qx": _CODES,
            "per_tensor_scale": _GLOBAL,
            "block_scales": _BLOCKED,
            "output_type": _FLOATS,
        },
        call_rules=(_checked("qx", "per_tensor_scale"), _scaled(qx="block_scales")),
    ),
    "scaled_mm_nvfp4": FunctionConstraints(
        params={
            "a": _CODES,
            "b": _CODES,
            "tensor_scale_a": _GLOBAL,
            "tensor_scale_b": _GLOBAL,
            "block_scale_a": _BLOCKED,
            "block_scale_b": _BLOCKED,
            "bias": _FLOATS,
            "out_dtype": _FLOATS,
        },
        call_rules=(
            _checked("a", "tensor_scale_a", "tensor_scale_b", "alpha"),
            _scaled(a="block_scale_a", b="block_scale_b"),
            _operands,
        ),
    ),
}
"""What calls are ours; comfy_kitchen gives others to the next backend."""
