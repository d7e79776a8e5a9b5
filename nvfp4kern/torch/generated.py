"""The operators' schemas, kernels and functions.

Written by build_tools/generate.py from operators.py; do not edit."""

from typing import TypeAlias

import torch
from torch import Tensor

from .. import _C
from ..types import Activation, DtypeName, Layout, Layouts
from ..whole import layout_of
from .arguments import dtype_of, either, number, one, pair, parts

Scalar: TypeAlias = float | Tensor
OutDtype: TypeAlias = DtypeName | torch.dtype | None
_OPS = torch.ops.nvfp4kern

__all__ = [
    "dequantize", "to_blocked", "from_blocked", "gemv", "dual_gemm", "combine",
]
FUNCTIONS = (
    "quantize", "dequantize", "to_blocked", "from_blocked", "gemv", "gemm", "dual_gemm",
    "grouped_gemm", "grouped_dual_gemm", "route", "sort_by_expert", "combine",
)

def dequantize(
    q: tuple[Tensor, Tensor, Scalar | None], *, scale_layout: Layout | None = None,
    out: Tensor | None = None, out_dtype: OutDtype = None,
) -> Tensor:
    args = (*parts(q), layout_of(q, "q", scale_layout))
    return one(
        _OPS.dequantize.default, _OPS.dequantize_out.default, args, out, dtype_of(out_dtype, out),
    )


def to_blocked(scales: Tensor, *, out: Tensor | None = None) -> Tensor:
    args = (scales,)
    return one(_OPS.to_blocked.default, _OPS.to_blocked_out.default, args, out)


def from_blocked(buffer: Tensor, rows: int, cols: int, *, out: Tensor | None = None) -> Tensor:
    args = (buffer, rows, cols)
    return one(_OPS.from_blocked.default, _OPS.from_blocked_out.default, args, out)


def gemv(
    a: Tensor, b: Tensor, sfa: Tensor, sfb: Tensor | None = None, *, alpha: Scalar = 1.0,
    row_scale: Tensor | None = None, scale_layout: Layouts = "linear", out: Tensor | None = None,
    out_dtype: OutDtype = None,
) -> Tensor:
    args = (a, b, sfa, sfb, *number(alpha, "alpha"), row_scale, *pair(scale_layout))
    return one(_OPS.gemv.default, _OPS.gemv_out.default, args, out, dtype_of(out_dtype, out))


def dual_gemm(
    a: Tensor, b1: Tensor, b2: Tensor, sfa: Tensor | None, sfb1: Tensor, sfb2: Tensor, *,
    alpha1: Scalar = 1.0, alpha2: Scalar = 1.0, row_scale: Tensor | None = None,
    bias1: Tensor | None = None, bias2: Tensor | None = None, activation: Activation = "silu",
    limit: float | None = None, activation_scale: float = 1.702, scale_layout: Layouts = "linear",
    out: Tensor | None = None, out_dtype: OutDtype = None,
) -> Tensor:
    args = (
        a, b1, b2, sfa, sfb1, sfb2, *number(alpha1, "alpha1"), *number(alpha2, "alpha2"), row_scale,
        bias1, bias2, activation, limit, activation_scale, *pair(scale_layout),
    )
    return one(
        _OPS.dual_gemm.default, _OPS.dual_gemm_out.default, args, out, dtype_of(out_dtype, out),
    )


def combine(
    products: Tensor, row_of: Tensor, weights: Tensor, *, residual: Tensor | None = None,
    out: Tensor | None = None, out_dtype: OutDtype = None,
) -> Tensor:
    args = (products, row_of, weights, residual)
    return one(_OPS.combine.default, _OPS.combine_out.default, args, out, dtype_of(out_dtype, out))


def _quantize(
    x, up=None, global_scale=1.0, global_scale_tensor=None, scale_layout="linear", offsets=None,
    global_scale_inverse=None, global_scale_inverse_tensor=None, smallest_scale=0.0, recipe="amax",
    data_dtype=None, *, out=None,
):
    return _C.quantize(
        x, up=up, global_scale=either(global_scale, global_scale_tensor),
        global_scale_inverse=either(global_scale_inverse, global_scale_inverse_tensor),
        smallest_scale=smallest_scale, recipe=recipe, scale_layout=scale_layout, offsets=offsets,
        out=out, data_dtype=data_dtype,
    )[:2]


def _quantize_amax(
    x, up=None, scale_layout="linear", offsets=None, smallest_scale=0.0, recipe="amax",
    data_dtype=None, *, out=None,
):
    return _C.quantize(
        x, up=up, global_scale="amax", smallest_scale=smallest_scale, recipe=recipe,
        scale_layout=scale_layout, offsets=offsets, out=out, data_dtype=data_dtype,
    )[:3]


def _quantize_token(
    x, up=None, scale_layout="linear", offsets=None, smallest_scale=0.0, recipe="amax",
    data_dtype=None, *, out=None,
):
    return _C.quantize(
        x, up=up, global_scale="token", smallest_scale=smallest_scale, recipe=recipe,
        scale_layout=scale_layout, offsets=offsets, out=out, data_dtype=data_dtype,
    )[:3]


def _dequantize(
    data, scales, global_scale=1.0, global_scale_tensor=None, scale_layout="linear", out_dtype=None,
    *, out=None,
):
    return _C.dequantize(
        (data, scales, either(global_scale, global_scale_tensor)), scale_layout=scale_layout,
        out=out, out_dtype=out_dtype,
    )


def _to_blocked(scales, *, out=None):
    return _C.to_blocked(scales, out=out)


def _from_blocked(buffer, rows, cols, *, out=None):
    return _C.from_blocked(buffer, rows, cols, out=out)


def _gemv(
    a, b, sfa, sfb=None, alpha=1.0, alpha_tensor=None, row_scale=None, sfa_layout="linear",
    sfb_layout="linear", out_dtype=None, *, out=None,
):
    return _C.gemv(
        a, b, sfa, sfb, alpha=either(alpha, alpha_tensor), row_scale=row_scale,
        scale_layout=(sfa_layout, sfb_layout), out=out, out_dtype=out_dtype,
    )


def _gemm(
    a, b, sfa, sfb, alpha=1.0, alpha_tensor=None, bias=None, sfa_layout="linear",
    sfb_layout="linear", row_scale=None, out_dtype=None, *, out=None,
):
    return _C.gemm(
        a, b, sfa, sfb, alpha=either(alpha, alpha_tensor), row_scale=row_scale, bias=bias,
        scale_layout=(sfa_layout, sfb_layout), out=out, out_dtype=out_dtype,
    )


def _dual_gemm(
    a, b1, b2, sfa, sfb1, sfb2, alpha1=1.0, alpha1_tensor=None, alpha2=1.0, alpha2_tensor=None,
    row_scale=None, bias1=None, bias2=None, activation="silu", limit=None, activation_scale=1.702,
    sfa_layout="linear", sfb_layout="linear", out_dtype=None, *, out=None,
):
    return _C.dual_gemm(
        a, b1, b2, sfa, sfb1, sfb2, alpha1=either(alpha1, alpha1_tensor),
        alpha2=either(alpha2, alpha2_tensor), row_scale=row_scale, bias1=bias1, bias2=bias2,
        activation=activation, limit=limit, activation_scale=activation_scale,
        scale_layout=(sfa_layout, sfb_layout), out=out, out_dtype=out_dtype,
    )


def _grouped_gemm(
    a, b, sfa, sfb, offsets, alpha=1.0, alpha_tensor=None, bias=None, sfa_layout="linear",
    sfb_layout="linear", rows=None, rows_per_token=1, activation="identity", row_scale=None,
    expected_rows=None, out_dtype=None, *, out=None,
):
    return _C.grouped_gemm(
        a, b, sfa, sfb, offsets=offsets, rows=rows, rows_per_token=rows_per_token,
        expected_rows=expected_rows, alpha=either(alpha, alpha_tensor), row_scale=row_scale,
        bias=bias, activation=activation, scale_layout=(sfa_layout, sfb_layout), out=out,
        out_dtype=out_dtype,
    )


def _grouped_gemm_quantized(
    a, b, sfa, sfb, offsets, alpha=1.0, alpha_tensor=None, bias=None, sfa_layout="linear",
    sfb_layout="linear", rows=None, rows_per_token=1, activation="identity", row_scale=None,
    expected_rows=None, global_scale=1.0, global_scale_tensor=None, global_scale_inverse=None,
    global_scale_inverse_tensor=None, data_dtype=None, *, out=None,
):
    return _C.grouped_gemm(
        a, b, sfa, sfb, offsets=offsets, rows=rows, rows_per_token=rows_per_token,
        expected_rows=expected_rows, alpha=either(alpha, alpha_tensor), row_scale=row_scale,
        bias=bias, activation=activation, scale_layout=(sfa_layout, sfb_layout), out=out,
        quantized=True, global_scale=either(global_scale, global_scale_tensor),
        global_scale_inverse=either(global_scale_inverse, global_scale_inverse_tensor),
        data_dtype=data_dtype,
    )[:2]


def _grouped_dual_gemm(
    a, b, sfa, sfb, offsets, alpha=1.0, alpha_tensor=None, activation="silu", sfa_layout="linear",
    sfb_layout="linear", rows=None, rows_per_token=1, limit=None, activation_scale=1.702, bias=None,
    gate_up="halves", row_scale=None, expected_rows=None, out_dtype=None, *, out=None,
):
    return _C.grouped_dual_gemm(
        a, b, sfa, sfb, offsets, rows=rows, rows_per_token=rows_per_token,
        expected_rows=expected_rows, alpha=either(alpha, alpha_tensor), row_scale=row_scale,
        bias=bias, gate_up=gate_up, activation=activation, limit=limit,
        activation_scale=activation_scale, scale_layout=(sfa_layout, sfb_layout), out=out,
        out_dtype=out_dtype,
    )


def _grouped_dual_gemm_quantized(
    a, b, sfa, sfb, offsets, alpha=1.0, alpha_tensor=None, activation="silu", sfa_layout="linear",
    sfb_layout="linear", rows=None, rows_per_token=1, limit=None, activation_scale=1.702, bias=None,
    gate_up="halves", row_scale=None, expected_rows=None, global_scale=1.0,
    global_scale_tensor=None, global_scale_inverse=None, global_scale_inverse_tensor=None,
    data_dtype=None, *, out=None,
):
    return _C.grouped_dual_gemm(
        a, b, sfa, sfb, offsets, rows=rows, rows_per_token=rows_per_token,
        expected_rows=expected_rows, alpha=either(alpha, alpha_tensor), row_scale=row_scale,
        bias=bias, gate_up=gate_up, activation=activation, limit=limit,
        activation_scale=activation_scale, scale_layout=(sfa_layout, sfb_layout), out=out,
        quantized=True, global_scale=either(global_scale, global_scale_tensor),
        global_scale_inverse=either(global_scale_inverse, global_scale_inverse_tensor),
        data_dtype=data_dtype,
    )[:2]


def _route(
    x, w, k, score="topk_softmax", correction_bias=None, n_group=1, topk_group=1, renormalize=None,
    scaling_factor=1.0, alpha=1.0, alpha_tensor=None, dense=False, logits=None, expert_map=None,
    num_local_experts=None, per_expert_scale=None, out_dtype=None, *, permutation=False,
    return_logits=False, return_row_of=False, out=None,
):
    return _C.route(
        x, w, k, logits=logits, score=score, correction_bias=correction_bias, n_group=n_group,
        topk_group=topk_group, renormalize=renormalize, scaling_factor=scaling_factor,
        per_expert_scale=per_expert_scale, alpha=either(alpha, alpha_tensor), dense=dense,
        permutation=permutation, expert_map=expert_map, num_local_experts=num_local_experts,
        return_logits=return_logits, return_row_of=return_row_of, out=out, out_dtype=out_dtype,
    )


def _sort_by_expert(ids, num_experts, expert_map=None, num_local_experts=None, *, out=None):
    return _C.sort_by_expert(
        ids, num_experts, expert_map=expert_map, num_local_experts=num_local_experts, out=out,
    )


def _combine(products, row_of, weights, residual=None, out_dtype=None, *, out=None):
    return _C.combine(products, row_of, weights, residual=residual, out=out, out_dtype=out_dtype)


# name: (arguments of the schema, outputs, kernel, which argument says their dtype)
REGISTERED = {
    "quantize": (
        '''Tensor x, Tensor? up=None, float global_scale=1.0, Tensor? global_scale_tensor=None, str
        scale_layout="linear", Tensor? offsets=None, float? global_scale_inverse=None, Tensor?
        global_scale_inverse_tensor=None, float smallest_scale=0.0, str recipe="amax"''',
        ("data", "scales"), _quantize, "data_dtype",
    ),
    "quantize_amax": (
        '''Tensor x, Tensor? up=None, str scale_layout="linear", Tensor? offsets=None, float
        smallest_scale=0.0, str recipe="amax"''',
        ("data", "scales", "global_scale"), _quantize_amax, "data_dtype",
    ),
    "quantize_token": (
        '''Tensor x, Tensor? up=None, str scale_layout="linear", Tensor? offsets=None, float
        smallest_scale=0.0, str recipe="amax"''',
        ("data", "scales", "global_scale"), _quantize_token, "data_dtype",
    ),
    "dequantize": (
        '''Tensor data, Tensor scales, float global_scale=1.0, Tensor? global_scale_tensor=None,
        str scale_layout="linear"''',
        ("result",), _dequantize, "out_dtype",
    ),
    "to_blocked": (
        '''Tensor scales''',
        ("result",), _to_blocked, None,
    ),
    "from_blocked": (
        '''Tensor buffer, SymInt rows, SymInt cols''',
        ("result",), _from_blocked, None,
    ),
    "gemv": (
        '''Tensor a, Tensor b, Tensor sfa, Tensor? sfb=None, float alpha=1.0, Tensor?
        alpha_tensor=None, Tensor? row_scale=None, str sfa_layout="linear", str
        sfb_layout="linear"''',
        ("result",), _gemv, "out_dtype",
    ),
    "gemm": (
        '''Tensor a, Tensor b, Tensor? sfa, Tensor sfb, float alpha=1.0, Tensor? alpha_tensor=None,
        Tensor? bias=None, str sfa_layout="linear", str sfb_layout="linear", Tensor?
        row_scale=None''',
        ("result",), _gemm, "out_dtype",
    ),
    "dual_gemm": (
        '''Tensor a, Tensor b1, Tensor b2, Tensor? sfa, Tensor sfb1, Tensor sfb2, float alpha1=1.0,
        Tensor? alpha1_tensor=None, float alpha2=1.0, Tensor? alpha2_tensor=None, Tensor?
        row_scale=None, Tensor? bias1=None, Tensor? bias2=None, str activation="silu", float?
        limit=None, float activation_scale=1.702, str sfa_layout="linear", str
        sfb_layout="linear"''',
        ("result",), _dual_gemm, "out_dtype",
    ),
    "grouped_gemm": (
        '''Tensor a, Tensor b, Tensor? sfa, Tensor? sfb, Tensor offsets, float alpha=1.0, Tensor?
        alpha_tensor=None, Tensor? bias=None, str sfa_layout="linear", str sfb_layout="linear",
        Tensor? rows=None, SymInt rows_per_token=1, str activation="identity", Tensor?
        row_scale=None, SymInt? expected_rows=None''',
        ("result",), _grouped_gemm, "out_dtype",
    ),
    "grouped_gemm_quantized": (
        '''Tensor a, Tensor b, Tensor? sfa, Tensor? sfb, Tensor offsets, float alpha=1.0, Tensor?
        alpha_tensor=None, Tensor? bias=None, str sfa_layout="linear", str sfb_layout="linear",
        Tensor? rows=None, SymInt rows_per_token=1, str activation="identity", Tensor?
        row_scale=None, SymInt? expected_rows=None, float global_scale=1.0, Tensor?
        global_scale_tensor=None, float? global_scale_inverse=None, Tensor?
        global_scale_inverse_tensor=None''',
        ("data", "scales"), _grouped_gemm_quantized, "data_dtype",
    ),
    "grouped_dual_gemm": (
        '''Tensor a, Tensor b, Tensor? sfa, Tensor sfb, Tensor offsets, float alpha=1.0, Tensor?
        alpha_tensor=None, str activation="silu", str sfa_layout="linear", str
        sfb_layout="linear", Tensor? rows=None, SymInt rows_per_token=1, float? limit=None,
        float activation_scale=1.702, Tensor? bias=None, str gate_up="halves", Tensor?
        row_scale=None, SymInt? expected_rows=None''',
        ("result",), _grouped_dual_gemm, "out_dtype",
    ),
    "grouped_dual_gemm_quantized": (
        '''Tensor a, Tensor b, Tensor? sfa, Tensor sfb, Tensor offsets, float alpha=1.0, Tensor?
        alpha_tensor=None, str activation="silu", str sfa_layout="linear", str
        sfb_layout="linear", Tensor? rows=None, SymInt rows_per_token=1, float? limit=None,
        float activation_scale=1.702, Tensor? bias=None, str gate_up="halves", Tensor?
        row_scale=None, SymInt? expected_rows=None, float global_scale=1.0, Tensor?
        global_scale_tensor=None, float? global_scale_inverse=None, Tensor?
        global_scale_inverse_tensor=None''',
        ("data", "scales"), _grouped_dual_gemm_quantized, "data_dtype",
    ),
    "route": (
        '''Tensor? x, Tensor? w, int k, str score="topk_softmax", Tensor? correction_bias=None, int
        n_group=1, int topk_group=1, bool? renormalize=None, float scaling_factor=1.0, float
        alpha=1.0, Tensor? alpha_tensor=None, bool dense=False, Tensor? logits=None, Tensor?
        expert_map=None, int? num_local_experts=None, Tensor? per_expert_scale=None''',
        ("weights", "ids"), _route, "out_dtype",
    ),
    "sort_by_expert": (
        '''Tensor ids, int num_experts, Tensor? expert_map=None, int? num_local_experts=None''',
        ("counts", "offsets", "sorted_rows", "row_of"), _sort_by_expert, None,
    ),
    "combine": (
        '''Tensor products, Tensor row_of, Tensor weights, Tensor? residual=None''',
        ("result",), _combine, "out_dtype",
    ),
}
