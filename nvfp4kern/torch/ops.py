"""torch.ops.nvfp4kern.*: schemas, kernels, and what an operator without a gradient raises.

Operators are registered through torch.library.Library, since Python layers are most of what a call
costs. On the CPU (best of several runs) nvfp4kern.gemm takes 4 us. The same through a Library takes
15 us; with torch.library.register_autograd in place of the Autograd kernels below 19 us; as a
custom_op 26 us.

An argument that is a number or a tensor in the Python API is two arguments here: of `alpha` and
`alpha_tensor` the tensor counts where it is given. A pair of scale layouts is `sfa_layout` and
`sfb_layout`. Every operator <op> has a sibling <op>_out, which writes to the tensors that it is
given and returns nothing.
"""

from functools import partial

import torch

from .. import _C
from . import fake, fake_route

NAMESPACE = "nvfp4kern"
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")  # registrations end with this object

_LAYOUTS = 'str sfa_layout="linear", str sfb_layout="linear"'
_GEMV = f"""Tensor a, Tensor b, Tensor sfa, Tensor? sfb=None, float alpha=1.0,
    Tensor? alpha_tensor=None, {_LAYOUTS}"""
_GEMM = f"""Tensor a, Tensor b, Tensor? sfa, Tensor sfb, float alpha=1.0,
    Tensor? alpha_tensor=None, Tensor? bias=None, {_LAYOUTS}"""
_DUAL_GEMM = f"""Tensor a, Tensor b1, Tensor b2, Tensor? sfa, Tensor sfb1, Tensor sfb2,
    float alpha1=1.0, Tensor? alpha1_tensor=None, float alpha2=1.0, Tensor? alpha2_tensor=None,
    str activation="silu", {_LAYOUTS}"""
_GROUPED_GEMM = f"""Tensor a, Tensor b, Tensor? sfa, Tensor? sfb, Tensor offsets, float alpha=1.0,
    Tensor? alpha_tensor=None, Tensor? bias=None, {_LAYOUTS}, Tensor? rows=None,
    SymInt rows_per_token=1"""
_GROUPED_DUAL_GEMM = f"""Tensor a, Tensor b, Tensor? sfa, Tensor sfb, Tensor offsets,
    float alpha=1.0, Tensor? alpha_tensor=None, str activation="silu", {_LAYOUTS},
    Tensor? rows=None, SymInt rows_per_token=1"""
_GROUPED_DUAL_GEMM_QUANTIZED = f"""{_GROUPED_DUAL_GEMM}, float global_scale=1.0,
    Tensor? global_scale_tensor=None"""
_GROUPED_GEMM_LIST = f"""Tensor[] a, Tensor[] b, Tensor?[] sfa, Tensor?[] sfb, float[] alpha,
    Tensor?[] alpha_tensor, Tensor?[] bias, {_LAYOUTS}"""
_ROUTE = """Tensor? x, Tensor? w, int k, str score="topk_softmax", Tensor? correction_bias=None,
    int n_group=1, int topk_group=1, bool? renormalize=None, float scaling_factor=1.0,
    float alpha=1.0, Tensor? alpha_tensor=None, bool dense=False, Tensor? logits=None,
    Tensor? expert_map=None, int? num_local_experts=None"""
_SORT_BY_EXPERT = """Tensor ids, int num_experts, Tensor? expert_map=None,
    int? num_local_experts=None"""
_COMBINE = "Tensor products, Tensor row_of, Tensor weights, Tensor? residual=None"
_QUANTIZE = """Tensor x, Tensor? up=None, float global_scale=1.0,
    Tensor? global_scale_tensor=None, str scale_layout="linear", Tensor? offsets=None"""
_QUANTIZE_AMAX = """Tensor x, Tensor? up=None, str scale_layout="linear", Tensor? offsets=None"""
_DEQUANTIZE = """Tensor data, Tensor scales, float global_scale=1.0,
    Tensor? global_scale_tensor=None, str scale_layout="linear" """


# ---------------------------------------------------------------------------------------------
# Kernels: the same call on every device
# ---------------------------------------------------------------------------------------------


def _or(number, tensor):
    return number if tensor is None else tensor


def _gemv(
    a, b, sfa, sfb=None, alpha=1.0, alpha_tensor=None, sfa_layout="linear", sfb_layout="linear",
    out_dtype=None, *, out=None,
):  # fmt: skip
    return _C.gemv(
        a, b, sfa, sfb, alpha=_or(alpha, alpha_tensor), scale_layout=(sfa_layout, sfb_layout),
        out=out, out_dtype=out_dtype,
    )  # fmt: skip


def _gemm(
    a, b, sfa, sfb, alpha=1.0, alpha_tensor=None, bias=None, sfa_layout="linear",
    sfb_layout="linear", out_dtype=None, *, out=None,
):  # fmt: skip
    return _C.gemm(
        a, b, sfa, sfb, alpha=_or(alpha, alpha_tensor), bias=bias,
        scale_layout=(sfa_layout, sfb_layout), out=out, out_dtype=out_dtype,
    )  # fmt: skip


def _dual_gemm(
    a, b1, b2, sfa, sfb1, sfb2, alpha1=1.0, alpha1_tensor=None, alpha2=1.0, alpha2_tensor=None,
    activation="silu", sfa_layout="linear", sfb_layout="linear", out_dtype=None, *, out=None,
):  # fmt: skip
    return _C.dual_gemm(
        a, b1, b2, sfa, sfb1, sfb2, alpha1=_or(alpha1, alpha1_tensor),
        alpha2=_or(alpha2, alpha2_tensor), activation=activation,
        scale_layout=(sfa_layout, sfb_layout), out=out, out_dtype=out_dtype,
    )  # fmt: skip


def _grouped_gemm(
    a, b, sfa, sfb, offsets, alpha=1.0, alpha_tensor=None, bias=None, sfa_layout="linear",
    sfb_layout="linear", rows=None, rows_per_token=1, out_dtype=None, *, out=None,
):  # fmt: skip
    return _C.grouped_gemm(
        a, b, sfa, sfb, offsets=offsets, rows=rows, rows_per_token=rows_per_token,
        alpha=_or(alpha, alpha_tensor), bias=bias,
        scale_layout=(sfa_layout, sfb_layout), out=out, out_dtype=out_dtype,
    )  # fmt: skip


def _grouped_dual_gemm(
    a, b, sfa, sfb, offsets, alpha=1.0, alpha_tensor=None, activation="silu", sfa_layout="linear",
    sfb_layout="linear", rows=None, rows_per_token=1, out_dtype=None, *, out=None,
):  # fmt: skip
    return _C.grouped_dual_gemm(
        a, b, sfa, sfb, offsets, rows=rows, rows_per_token=rows_per_token,
        alpha=_or(alpha, alpha_tensor), activation=activation,
        scale_layout=(sfa_layout, sfb_layout), out=out, out_dtype=out_dtype,
    )  # fmt: skip


def _grouped_dual_gemm_quantized(
    a, b, sfa, sfb, offsets, alpha=1.0, alpha_tensor=None, activation="silu", sfa_layout="linear",
    sfb_layout="linear", rows=None, rows_per_token=1, global_scale=1.0, global_scale_tensor=None,
    data_dtype=None, *, out=None,
):  # fmt: skip
    q = _C.grouped_dual_gemm(
        a, b, sfa, sfb, offsets, rows=rows, rows_per_token=rows_per_token,
        alpha=_or(alpha, alpha_tensor), activation=activation,
        scale_layout=(sfa_layout, sfb_layout), quantized=True,
        global_scale=_or(global_scale, global_scale_tensor), data_dtype=data_dtype, out=out,
    )  # fmt: skip
    return q.data, q.scales


def _grouped_gemm_list(
    a, b, sfa, sfb, alpha, alpha_tensor, bias, sfa_layout="linear", sfb_layout="linear",
    out_dtype=None, *, out=None,
):  # fmt: skip
    return _C.grouped_gemm(
        a, b, sfa, sfb, alpha=list(map(_or, alpha, alpha_tensor)), bias=bias,
        scale_layout=(sfa_layout, sfb_layout), out=out, out_dtype=out_dtype,
    )  # fmt: skip


def _route(
    x, w, k, score="topk_softmax", correction_bias=None, n_group=1, topk_group=1, renormalize=None,
    scaling_factor=1.0, alpha=1.0, alpha_tensor=None, dense=False, logits=None, expert_map=None,
    num_local_experts=None, out_dtype=None, *, permutation=False, return_logits=False,
    return_row_of=False, out=None,
):  # fmt: skip
    return _C.route(
        x, w, k, logits=logits, score=score, correction_bias=correction_bias, n_group=n_group,
        topk_group=topk_group, renormalize=renormalize, scaling_factor=scaling_factor,
        alpha=_or(alpha, alpha_tensor), dense=dense, permutation=permutation,
        expert_map=expert_map, num_local_experts=num_local_experts, return_logits=return_logits,
        return_row_of=return_row_of, out=out, out_dtype=out_dtype,
    )  # fmt: skip


def _sort_by_expert(ids, num_experts, expert_map=None, num_local_experts=None, *, out=None):
    return _C.sort_by_expert(
        ids, num_experts, expert_map=expert_map, num_local_experts=num_local_experts, out=out
    )


def _combine(products, row_of, weights, residual=None, out_dtype=None, *, out=None):
    return _C.combine(products, row_of, weights, residual=residual, out=out, out_dtype=out_dtype)


def _quantize(
    x, up=None, global_scale=1.0, global_scale_tensor=None, scale_layout="linear", offsets=None,
    data_dtype=None, *, out=None,
):  # fmt: skip
    q = _C.quantize(
        x, up=up, global_scale=_or(global_scale, global_scale_tensor), scale_layout=scale_layout,
        offsets=offsets, out=out, data_dtype=data_dtype,
    )  # fmt: skip
    return q.data, q.scales


def _quantize_amax(
    x, up=None, scale_layout="linear", offsets=None, data_dtype=None, *, out=None
):  # fmt: skip
    return tuple(
        _C.quantize(
            x, up=up, global_scale="amax", scale_layout=scale_layout, offsets=offsets, out=out,
            data_dtype=data_dtype,
        )
    )  # fmt: skip


def _dequantize(
    data, scales, global_scale=1.0, global_scale_tensor=None, scale_layout="linear",
    out_dtype=None, *, out=None,
):  # fmt: skip
    q = (data, scales, _or(global_scale, global_scale_tensor))
    return _C.dequantize(q, scale_layout=scale_layout, out=out, out_dtype=out_dtype)


# ---------------------------------------------------------------------------------------------
# Gradients: there are none
# ---------------------------------------------------------------------------------------------


class _NoGradient(torch.autograd.Function):
    """Passes on an operator's outputs. Its backward raises."""

    @staticmethod
    def forward(ctx, name, run, *tensors):
        ctx.name = name
        result = run()
        return tuple(result) if isinstance(result, list) else result

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError(
            f"{ctx.name} has no gradient: nvfp4kern's operators are for inference. Call it under "
            "torch.no_grad() or torch.inference_mode(), or detach what goes in or comes out"
        )


def _tensors_in(values):
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)


# As torch.library.register_autograd and custom_op do, and for keyword-only arguments, too.
_below_autograd = torch._C._after_autograd_keyset
_is_enabled = torch.is_grad_enabled
_any_requires_grad = torch._C._any_requires_grad


def _autograd(op):
    """The Autograd kernel of an operator that returns new tensors."""

    def autograd(keyset, *args):
        if not _is_enabled() or not _any_requires_grad(*args):
            return op.redispatch(keyset & _below_autograd, *args)

        def run():
            return op.redispatch(keyset & _below_autograd, *args)

        result = _NoGradient.apply(op.name(), run, *_tensors_in(args))
        is_list = isinstance(result, tuple) and len(op._schema.returns) == 1
        return list(result) if is_list else result

    return autograd


def _autograd_out(op):
    """The Autograd kernel of an operator that writes to its arguments."""

    def autograd(keyset, *args, **outs):
        if _is_enabled() and _any_requires_grad(*args, **outs):
            raise NotImplementedError(
                f"{op.name()} has no gradient, but one of its arguments requires grad: call it "
                "under torch.no_grad() or torch.inference_mode()"
            )
        for out in _tensors_in(outs.values()):
            if not out.is_inference():
                torch.autograd.graph.increment_version(out)
        op.redispatch(keyset & _below_autograd, *args, **outs)

    return autograd


# ---------------------------------------------------------------------------------------------
# Registration
# ---------------------------------------------------------------------------------------------


def _writing(names, kernel):
    """The kernel of an operator that writes to the tensors `names`."""

    def write(*args, **outs):
        kernel(*args, out=outs["out"] if names == ("out",) else tuple(outs[n] for n in names))

    return write


def _checking(names, rule):
    """The fake of an operator that writes to the tensors `names`."""

    def check(*args, **outs):
        specs = rule(*args)
        if isinstance(specs, list):
            fake.given([f"out[{g}]" for g in range(len(specs))], outs["out"], specs)
        else:
            specs = specs if isinstance(specs, tuple) else (specs,)
            fake.given(names, tuple(outs[n] for n in names), specs)

    return check


def _register(name, arguments, returns, kernel, rule, autograd):
    _LIBRARY.define(f"{name}({arguments}) -> {returns}", tags=torch.Tag.pt2_compliant_tag)
    qualified = f"{NAMESPACE}::{name}"
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(name, kernel, key)
    torch.library.register_fake(qualified, rule, lib=_LIBRARY)
    op = getattr(getattr(torch.ops, NAMESPACE), name).default
    _LIBRARY.impl(name, autograd(op), "Autograd", with_keyset=True)


def _operator(name, arguments, outputs, kernel, rule, dtype="out_dtype"):
    """Registers <name> and <name>_out. `outputs` names the tensors that <name> returns; `dtype` is
    the argument that says what dtype they get, which <name>_out does not have."""
    if outputs == ("out[]",):
        names, returns, written = ("out",), "Tensor[]", "Tensor(a!)[] out"
    else:
        names = outputs
        returns = ", ".join(f"Tensor {output}" for output in outputs)
        returns = f"({returns})" if len(outputs) > 1 else "Tensor"
        written = ", ".join(f"Tensor(a{i}!) {output}" for i, output in enumerate(outputs))
    new = f"{arguments}, ScalarType? {dtype}=None" if dtype else arguments
    _register(name, new, returns, kernel, rule, _autograd)
    written = f"{arguments}, *, {written}"
    write, check = _writing(names, kernel), _checking(names, rule)
    _register(f"{name}_out", written, "()", write, check, _autograd_out)


ROUTED = ("weights", "ids")
PERMUTATION = ("counts", "offsets", "sorted_rows")
BOTH = (*PERMUTATION, "row_of")
ROUTES = {  # (permutation, return_row_of, return_logits): the operator and what it returns
    (False, False, False): ("route", ROUTED),
    (True, False, False): ("route_permutation", ROUTED + PERMUTATION),
    (True, True, False): ("route_both_permutations", ROUTED + BOTH),
    (False, False, True): ("route_and_logits", (*ROUTED, "logits_out")),
    (True, False, True): ("route_permutation_and_logits", (*ROUTED, *PERMUTATION, "logits_out")),
    (True, True, True): ("route_both_permutations_and_logits", (*ROUTED, *BOTH, "logits_out")),
}

_operator("gemv", _GEMV, ("out",), _gemv, fake.gemv)
_operator("gemm", _GEMM, ("out",), _gemm, fake.gemm)
_operator("dual_gemm", _DUAL_GEMM, ("out",), _dual_gemm, fake.dual_gemm)
_operator("grouped_gemm", _GROUPED_GEMM, ("out",), _grouped_gemm, fake.grouped_gemm)
_operator(
    "grouped_gemm_list", _GROUPED_GEMM_LIST, ("out[]",), _grouped_gemm_list, fake.grouped_gemm_list
)
_operator(
    "grouped_dual_gemm", _GROUPED_DUAL_GEMM, ("out",), _grouped_dual_gemm, fake.grouped_dual_gemm
)
_operator(
    "grouped_dual_gemm_quantized", _GROUPED_DUAL_GEMM_QUANTIZED, ("data", "scales"),
    _grouped_dual_gemm_quantized, fake.grouped_dual_gemm_quantized, "data_dtype",
)  # fmt: skip
for (_permutation, _row_of, _logits), (_name, _outputs) in ROUTES.items():
    _options = {"permutation": _permutation, "return_logits": _logits, "return_row_of": _row_of}
    _operator(
        _name, _ROUTE, _outputs, partial(_route, **_options), partial(fake_route.route, **_options)
    )
_operator("sort_by_expert", _SORT_BY_EXPERT, BOTH, _sort_by_expert, fake_route.sort_by_expert, None)
_operator("combine", _COMBINE, ("out",), _combine, fake_route.combine)
_operator("quantize", _QUANTIZE, ("data", "scales"), _quantize, fake.quantize, "data_dtype")
_operator(
    "quantize_amax", _QUANTIZE_AMAX, ("data", "scales", "global_scale"), _quantize_amax,
    fake.quantize_amax, "data_dtype",
)  # fmt: skip
_operator("dequantize", _DEQUANTIZE, ("out",), _dequantize, fake.dequantize)
_operator("to_blocked", "Tensor scales", ("out",), _C.to_blocked, fake.to_blocked, None)
_operator(
    "from_blocked", "Tensor buffer, SymInt rows, SymInt cols", ("out",), _C.from_blocked,
    fake.from_blocked, None,
)  # fmt: skip
