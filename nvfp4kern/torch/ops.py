"""torch.ops.nvfp4kern.*: schemas, kernels, and what operators without derivatives raise.

Operators are registered through torch.library.Library, since Python layers are most of what a call
costs. On the CPU (best of several runs) nvfp4kern.gemm takes 4 us. The same through a Library takes
15 us; with torch.library.register_autograd in place of the Autograd kernels below 19 us; as a
custom_op 26 us.

An argument that is a number or a tensor in the Python API is two arguments here: of `alpha` and
`alpha_tensor` the tensor counts where it is given. A pair of scale layouts is `sfa_layout` and
`sfb_layout`. Every operator <op> has a sibling <op>_out, which writes to the tensors that it is
given and returns nothing. None of these is called `out`: Dynamo would take the operator for one of
torch's own, and refuse strides that are not contiguous.
"""

import inspect
from functools import partial

import torch
from torch.autograd import forward_ad

from .. import _C
from . import fake
from .arguments import either
from .generated import REGISTERED

NAMESPACE = "nvfp4kern"
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")  # registrations end with this object

_GROUPED_GEMM_LIST = """Tensor[] a, Tensor[] b, Tensor?[] sfa, Tensor?[] sfb, float[] alpha,
    Tensor?[] alpha_tensor, Tensor?[] bias, Tensor?[] row_scale, str sfa_layout="linear",
    str sfb_layout="linear", str activation="identity" """


def _grouped_gemm_list(
    a, b, sfa, sfb, alpha, alpha_tensor, bias, row_scale, sfa_layout="linear",
    sfb_layout="linear", activation="identity", out_dtype=None, *, out=None,
):  # fmt: skip
    return _C.grouped_gemm(
        a, b, sfa, sfb, alpha=list(map(either, alpha, alpha_tensor)), bias=bias,
        row_scale=row_scale, activation=activation, scale_layout=(sfa_layout, sfb_layout),
        out=out, out_dtype=out_dtype,
    )  # fmt: skip


# --- Derivatives: there are none ---


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


def _flat(op):
    """How to find a call's tensors: torch looks into no list that has a None."""
    lists = any(isinstance(each.type, torch.ListType) for each in op._schema.arguments)
    return _tensors_in if lists else iter


def has_tangent(tensor):
    return forward_ad.unpack_dual(tensor).tangent is not None


def _refuse_tangents(op, values):
    """Forward-mode AD would take a result without a tangent for a constant."""
    if any(map(has_tangent, _tensors_in(values))):
        raise NotImplementedError(
            f"{op.name()} has no forward-mode derivative, but one of its arguments has a tangent: "
            "nvfp4kern's operators are for inference"
        )


def _autograd(op):
    """The Autograd kernel of an operator that returns new tensors."""
    flat = _flat(op)

    def autograd(keyset, *args):
        if forward_ad._current_level >= 0:
            _refuse_tangents(op, args)
        if not _is_enabled() or not _any_requires_grad(*flat(args)):
            return op.redispatch(keyset & _below_autograd, *args)

        def run():
            return op.redispatch(keyset & _below_autograd, *args)

        result = _NoGradient.apply(op.name(), run, *_tensors_in(args))
        is_list = isinstance(result, tuple) and len(op._schema.returns) == 1
        return list(result) if is_list else result

    return autograd


def _autograd_out(op):
    """The Autograd kernel of an operator that writes to its arguments."""
    flat = _flat(op)

    def autograd(keyset, *args, **outs):
        if forward_ad._current_level >= 0:
            _refuse_tangents(op, (*args, *outs.values()))
        if _is_enabled() and _any_requires_grad(*flat(args), *flat(outs.values())):
            raise NotImplementedError(
                f"{op.name()} has no gradient, but one of its arguments requires grad: call it "
                "under torch.no_grad() or torch.inference_mode()"
            )
        for out in _tensors_in(outs.values()):
            if not out.is_inference():
                torch.autograd.graph.increment_version(out)
        op.redispatch(keyset & _below_autograd, *args, **outs)

    return autograd


# --- Registration ---


def _writing(names, kernel):
    """The kernel of an operator that writes to the tensors `names`."""

    def write(*args, **outs):
        given = tuple(outs[name] for name in names)
        kernel(*args, out=given[0] if names == ("result",) else given)

    return write


def _by_name(op, rule):
    """The fake of `op`: the rule with those of its arguments that it takes."""
    names = [argument.name for argument in op._schema.arguments]
    wanted = inspect.signature(rule).parameters

    def given(*args):
        pairs = zip(names, args, strict=False)  # the dispatcher leaves out trailing defaults
        return rule(**{name: value for name, value in pairs if name in wanted})

    return given


def _together(op, of):
    """`of`, the fake of `op`, where all tensors are on the meta device or none: it runs for a call
    with any there, whose result would otherwise be memory of any content."""
    names = [argument.name for argument in op._schema.arguments]

    def checked(*args, **outs):
        given = {**dict(zip(names, args, strict=False)), **outs}
        tensors = {n: x for n, x in given.items() if isinstance(x, torch.Tensor) and x.dim()}
        meta = [name for name, x in tensors.items() if x.is_meta]
        if meta and len(meta) < len(tensors):
            device = next(x.device for x in tensors.values() if not x.is_meta)
            raise ValueError(f"{meta[0]}: on the meta device, without values, expected {device}")
        return of(*args, **outs)

    return checked


def _nothing(*args, **outs):
    """The fake of an operator that writes to its arguments: the call checks them."""


def _register(name, arguments, returns, kernel, rule, autograd):
    _LIBRARY.define(f"{name}({arguments}) -> {returns}", tags=torch.Tag.pt2_compliant_tag)
    op = getattr(getattr(torch.ops, NAMESPACE), name).default
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(name, kernel, key)
    of = _together(op, _by_name(op, rule) if rule else _nothing)
    torch.library.register_fake(f"{NAMESPACE}::{name}", of, lib=_LIBRARY)
    _LIBRARY.impl(name, autograd(op), "Autograd", with_keyset=True)


def _operator(name, arguments, outputs, kernel, rule, dtype="out_dtype"):
    """Registers <name> and <name>_out. `outputs` names the tensors that <name> returns; `dtype` is
    the argument that says what dtype they get, which <name>_out does not have."""
    if outputs == ("result[]",):
        names, returns, written = ("result",), "Tensor[]", "Tensor(a!)[] result"
    else:
        names = outputs
        returns = ", ".join(f"Tensor {output}" for output in outputs)
        returns = f"({returns})" if len(outputs) > 1 else "Tensor"
        written = ", ".join(f"Tensor(a{i}!) {output}" for i, output in enumerate(outputs))
    new = f"{arguments}, ScalarType? {dtype}=None" if dtype else arguments
    _register(name, new, returns, kernel, rule, _autograd)
    written = f"{arguments}, *, {written}"
    _register(f"{name}_out", written, "()", _writing(names, kernel), None, _autograd_out)


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

_operator(
    "grouped_gemm_list",
    _GROUPED_GEMM_LIST,
    ("result[]",),
    _grouped_gemm_list,
    fake.grouped_gemm_list,
)
for _name, (_arguments, _outputs, _kernel, _dtype) in REGISTERED.items():
    _rule = getattr(fake, _name)
    if _name != "route":
        _operator(_name, _arguments, _outputs, _kernel, _rule, _dtype)
        continue
    for (_permutation, _row_of, _logits), (_name, _outputs) in ROUTES.items():
        _options = {
            "permutation": _permutation, "return_logits": _logits, "return_row_of": _row_of
        }  # fmt: skip
        _route_kernel, _route_rule = (partial(of, **_options) for of in (_kernel, _rule))
        _operator(_name, _arguments, _outputs, _route_kernel, _route_rule)
