"""torch.nn.functional.linear of comfy_kitchen's NVFP4 weights and 16-bit inputs.

comfy_kitchen dequantises such weights and multiplies them by torch. Ours are never dequantised.
"""

from typing import Any

import torch
from comfy_kitchen.tensor import (
    QuantizedTensor,
    TensorCoreNVFP4Layout,
    base,
    register_layout_op,
)
from torch.nn.functional import pad

from .. import torch as nk
from ..nn.linear import readable
from .backend import FLOAT, serves

LINEAR = torch.ops.aten.linear.default
_TABLE = base._LAYOUT_DISPATCH_TABLE[LINEAR]
_theirs = _TABLE[TensorCoreNVFP4Layout]


def linear(qt: Any, args: Any, kwargs: Any) -> Any:
    x, weight = args[:2]
    bias = args[2] if len(args) > 2 else None
    if (
        isinstance(x, QuantizedTensor)
        or not isinstance(weight, QuantizedTensor)
        or x.dtype not in (torch.float16, torch.bfloat16)
        or weight.device != x.device
        or not serves(x.device)
        or weight.params.transposed
        or (bias is not None and (bias.dtype not in FLOAT or bias.shape != weight.shape[:1]))
    ):
        return _theirs(qt, args, kwargs)
    codes, scale, scales = TensorCoreNVFP4Layout.get_plain_tensors(weight)
    (n, k), columns = weight.shape, 2 * codes.shape[1]
    tokens = x.reshape(-1, k).contiguous()  # flip would keep the strides of a view
    tokens = pad(tokens, (0, columns - k)) if columns > k else tokens
    # The even element of a byte is in its high nibble, ours in the low one: of the two operands the
    # tokens are cheaper to change.
    tokens = tokens.view(len(tokens), columns // 2, 2).flip(-1).view(len(tokens), columns)
    y = nk.gemm(
        tokens, readable(codes[:n]), None, scales.contiguous(),
        alpha=scale.reshape(()), bias=bias, scale_layout=("linear", "blocked"),
        out_dtype=x.dtype,
    )  # fmt: skip
    return y.view(*x.shape[:-1], n)


def register() -> None:
    register_layout_op(LINEAR, TensorCoreNVFP4Layout)(linear)
