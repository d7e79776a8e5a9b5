"""nvfp4kern.torch: the registered operators do what nvfp4kern.* does, eagerly and when traced."""

import inspect

import numpy as np
import pytest
import torch
from cuda_calls import OPERATORS, Call, assert_same, described, leaves, mapped
from generators import raw
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

import nvfp4kern
import nvfp4kern.torch as nk
from nvfp4kern.torch import ops
from nvfp4kern.torch.generated import FUNCTIONS

OPS = sorted({name.split("::")[1] for name in ops._LIBRARY._op_defs})

every_operator = pytest.mark.parametrize("name", OPERATORS)
every_way = pytest.mark.parametrize("way", ["new", "out"])
# What compilers, not nvfp4kern, warn about.
pytestmark = [pytest.mark.one_path, pytest.mark.filterwarnings("ignore")]


def call_of(name, device):
    """A call of nvfp4kern.torch's function, on tensors of its own."""
    call = Call(name, device, "small")
    call.function = getattr(nk, call.function.__name__)
    return call


def plain(call):
    """The same function of nvfp4kern itself."""
    return getattr(nvfp4kern, call.function.__name__)(*call.args, **call.options)


# --- Eagerly ---


@pytest.mark.parametrize("name", [*FUNCTIONS, "linear"])
def test_functions_have_the_signatures_of_the_package(name):
    ours = inspect.signature(getattr(nk, name)).parameters
    theirs = inspect.signature(getattr(nvfp4kern, name)).parameters
    assert [(p.name, p.kind) for p in ours.values()] == [(p.name, p.kind) for p in theirs.values()]
    for parameter in ours.values():  # out_dtype: None stands for the default
        expected = theirs[parameter.name].default
        assert parameter.default == (None if parameter.name == "out_dtype" else expected)
    assert getattr(nk, name).__doc__ == getattr(nvfp4kern, name).__doc__


def test_what_else_is_public_is_the_package_s():
    assert set(nk.__all__) == set(nvfp4kern.__all__) - {"__version__"}
    for name in set(nk.__all__) - {*FUNCTIONS, "linear"}:
        assert getattr(nk, name) is getattr(nvfp4kern, name)


@every_operator
def test_new_tensors_are_those_of_the_package(name, device):
    call = call_of(name, device)
    got, want = call.function(*call.args, **call.options), plain(call)
    assert type(got) is type(want)
    if name.startswith("contiguous"):  # rows of nobody hold anything
        assert described(leaves((got,))) == described(leaves((want,)))
    else:
        assert_same(got, want)


@every_operator
def test_out_is_filled_and_returned(name, device):
    call = call_of(name, device)
    before = [out.tensor._version for out in call.outs]
    result = call.run()
    call.check()
    tensors = call.outputs_of(result)
    assert all(ours is out.tensor for ours, out in zip(tensors, call.outs, strict=True))
    assert all(out.tensor._version > then for out, then in zip(call.outs, before, strict=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@every_operator
def test_grad_modes_change_nothing(name, mode, device):
    with mode():
        call = call_of(name, device)
        call.run()
        call.check()
    call = call_of(name, device)
    with mode():
        call.run()
    call.check()


# --- Schemas and fakes ---


class Recorder(TorchDispatchMode):
    """Which operators of ours are called, and with what."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == ops.NAMESPACE:
            self.calls.append((function, args, kwargs or {}))
        return function(*args, **(kwargs or {}))


def in_bytes(tree):
    """torch can neither copy float4 nor compare float8, which opcheck does with inputs."""
    return mapped(lambda t: t.view(torch.uint8) if t.element_size() == 1 else t, tree)


def covering(call):
    """Offsets under which every row is somebody's: opcheck compares whole outputs."""
    if call.name.startswith("contiguous"):
        offsets, rows = call.options["offsets"], call.options.get("rows")
        offsets[0], offsets[-1] = 0, len(call.args[0] if rows is None else rows)
        if rows is not None:
            rows.clamp_(0, len(call.args[0]) * call.options.get("rows_per_token", 1) - 1)
    return call


@every_way
@every_operator
def test_opcheck_passes(name, way, device):
    call = covering(call_of(name, device))
    out = {"out": call.out} if way == "out" else {}
    with Recorder() as recorder:
        call.function(*call.args, **out, **call.options)
    ((function, args, kwargs),) = recorder.calls
    assert function._schema.name.endswith("_out") == (way == "out")
    opcheck(function, in_bytes(args), in_bytes(kwargs))


@every_operator
def test_fakes_of_float4_and_float8_are_like_the_real_outputs(name, device):
    call = call_of(name, device)
    fp4 = {t for t in call.args if isinstance(t, torch.Tensor) and t.dtype == torch.uint8}
    if name not in ("to_blocked", "from_blocked"):
        call.args = mapped(lambda t: t.view(torch.float4_e2m1fn_x2) if t in fp4 else t, call.args)
    assert_fake_like_real(call.function, call.args, call.options)


def assert_fake_like_real(function, args, options):
    real = function(*args, **options)
    with FakeTensorMode() as mode:
        args, options = mapped(mode.from_tensor, (args, options))
        fake = function(*args, **options)
    assert described(leaves((fake,))) == described(leaves((real,)))


@pytest.mark.parametrize("rows", [0, 1, 128, 129])
@pytest.mark.parametrize("layout", ["linear", "blocked"])
def test_fakes_of_any_number_of_rows(rows, layout, device):
    x = torch.ones((rows, 48), dtype=torch.float16, device=device)
    w = nvfp4kern.quantize(torch.ones((5, 48), dtype=torch.float16, device=device))
    q = nvfp4kern.quantize(x, scale_layout=layout)
    offsets = torch.tensor([0, 0, rows], dtype=torch.int32, device=device)
    own = nvfp4kern.quantize(x, scale_layout="blocked", offsets=offsets)
    layouts = {"scale_layout": (layout, "linear")}
    for function, args, options in (
        (nk.quantize, (x,), {"scale_layout": layout, "global_scale": "amax"}),
        (nk.quantize, (x,), {"scale_layout": "blocked", "offsets": offsets}),
        (nk.dequantize, (tuple(q),), {"scale_layout": layout}),
        (nk.gemm, (q.data, w.data, q.scales, w.scales), layouts),
        (nk.gemv, (q.data, w.data[:1], q.scales, w.scales[:1]), layouts),
        (nk.route, (x, x.new_ones(4, 48), 2), {"permutation": True}),
        (nk.combine, (x, x.new_zeros(0, dtype=torch.int32), x[:, :0]), {"residual": x}),
        (
            nk.grouped_gemm,
            (own.data, w.data.expand(2, 5, 24), own.scales, w.scales.expand(2, 5, 3)),
            {"offsets": offsets, "scale_layout": ("blocked", "linear")},
        ),
        (
            nk.grouped_dual_gemm,
            (x, w.data[:4].expand(2, 4, 24), None, w.scales[:4].expand(2, 4, 3), offsets),
            {"alpha": torch.ones((2, 2), device=device), "activation": "gelu"},
        ),
        (
            nk.grouped_dual_gemm,
            (x, w.data[:1].expand(2, 32, 24), None, w.scales[:1].expand(2, 32, 3), offsets),
            {"quantized": True, "global_scale": torch.ones(1, device=device), "expected_rows": 0},
        ),
        (
            nk.grouped_gemm,
            (x, w.data[:1].expand(2, 16, 24), None, w.scales[:1].expand(2, 16, 3)),
            {"offsets": offsets, "quantized": True, "activation": "relu2", "data_dtype": "uint8"},
        ),
        (
            nk.grouped_gemm,
            (q.data, w.data.expand(2, 5, 24), q.scales, w.scales.expand(2, 5, 3)),
            layouts
            | {
                "offsets": torch.tensor([0, 0, 3 * rows], dtype=torch.int32, device=device),
                "rows": torch.arange(3 * rows, dtype=torch.int32, device=device),
                "rows_per_token": 3,
                "expected_rows": rows,
                "activation": "relu2",
            },
        ),
        (
            nk.grouped_gemm,
            ([x], [w.data], None, [w.scales]),
            {"activation": "silu", "out_dtype": "bfloat16"},
        ),
    ):
        assert_fake_like_real(function, args, options)


@pytest.mark.parametrize("lead", [None, (), (3,), (2, 2), (2, 0, 3)])
@pytest.mark.parametrize("layout", ["linear", "blocked"])
def test_fakes_of_any_rank(lead, layout, device):
    """None: a row alone."""
    shape = (48,) if lead is None else (*lead, 5, 48)
    x, up = (torch.ones(shape, dtype=torch.float16, device=device) for _ in range(2))
    w = nvfp4kern.quantize(torch.ones((7, 48), dtype=torch.float16, device=device))
    q = nvfp4kern.quantize(x, scale_layout=layout)
    layouts = {"scale_layout": (layout, "linear")}
    pair = (w.data, w.data, q.scales, w.scales, w.scales)
    rows = torch.zeros(x[..., :2].numel(), dtype=torch.int32, device=device)
    for function, args, options in (
        (nk.quantize, (x,), {"scale_layout": layout, "up": up}),
        (nk.quantize, (x,), {"scale_layout": layout, "global_scale": "amax"}),
        (nk.quantize, (x,), {"data_dtype": "uint8"}),
        (nk.quantize, (x,), {"data_dtype": torch.uint8, "global_scale": "amax"}),
        (nk.dequantize, (tuple(q),), {"scale_layout": layout}),
        (nk.gemm, (q.data, w.data, q.scales, w.scales), layouts),
        (nk.gemm, (x, w.data, None, w.scales), {}),
        (nk.dual_gemm, (q.data, *pair), layouts),
        (nk.route, (x, x.new_ones(4, 48), 2), {"dense": True}),
        (nk.route, (x, x.new_ones(4, 48), 2), {"permutation": True}),
        (
            nk.route,
            (x, x.new_ones(4, 48), 2),
            {"permutation": True, "return_row_of": True, "return_logits": True},
        ),
        (nk.sort_by_expert, (x[..., 3:9].int(), 3), {}),
        (nk.combine, (w.scales.half(), rows, x[..., :2]), {"out_dtype": "bfloat16"}),
        (nk.route, (x, torch.ones(4, 48, device=x.device), 2), {"return_logits": True}),
        (nk.route, (None, None, 2), {"logits": x[..., 3:20], "dense": True}),
        (
            nk.route,
            (x[..., :47], x.new_ones(4, 47), 2),
            {
                "permutation": True,
                "return_logits": True,
                "num_local_experts": 3,
                "expert_map": torch.arange(-1, 3, dtype=torch.int32, device=x.device),
            },
        ),
    ):
        assert_fake_like_real(function, args, options)


@pytest.mark.parametrize("name", OPS)
def test_defaults_are_those_of_the_schema(name):
    """The dispatcher leaves trailing defaults out, so fakes have them too."""
    base = name.removesuffix("_out")
    shared = "route" if base in [of for of, _ in ops.ROUTES.values()] else base
    schema = getattr(getattr(torch.ops, ops.NAMESPACE), name).default._schema
    arguments = {a.name: a for a in schema.arguments if not a.kwarg_only}
    for parameter in inspect.signature(getattr(ops.fake, shared)).parameters.values():
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            continue
        if parameter.name in ("out_dtype", "data_dtype") and name != base:
            continue
        argument = arguments[parameter.name]
        expected = argument.default_value if argument.has_default_value() else parameter.empty
        assert parameter.default == expected, (name, parameter.name)


# --- Gradients ---


def test_a_gradient_is_refused_by_the_operator_s_name(device):
    x = torch.ones((2, 32), device=device, requires_grad=True)
    q = nvfp4kern.quantize(torch.ones((3, 32), device=device))
    alpha = torch.ones(3, device=device, requires_grad=True)
    half = x.detach().half()
    for name, y in (
        ("dequantize", nk.dequantize(nk.quantize(x))),
        ("gemm", nk.gemm(half, q.data, None, q.scales, alpha=alpha)),
        (
            "grouped_gemm_list",
            nk.grouped_gemm([half], [q.data], None, [q.scales], alpha=[alpha])[0],
        ),
        ("route", nk.route(half, half, 1, alpha=x[0, :1])[0]),
        ("combine", nk.combine(x, torch.zeros(2, dtype=torch.int32, device=device), half[:, :1])),
    ):
        with pytest.raises(NotImplementedError, match=f"nvfp4kern::{name} has no gradient"):
            y.sum().backward()
    with pytest.raises(NotImplementedError, match="nvfp4kern::gemm_out has no gradient"):
        nk.gemm(half, q.data, None, q.scales, alpha=alpha, out=half.new_empty(2, 3))
    with torch.no_grad():
        assert not nk.dequantize(nk.quantize(x)).requires_grad


@pytest.mark.parametrize("wanted", ["alpha", "bias"])
def test_a_gradient_is_found_beside_a_none(wanted, device):
    x, x2 = (torch.ones((2, 32), dtype=torch.float16, device=device) for _ in range(2))
    q = nvfp4kern.quantize(torch.ones((3, 32), device=device))
    operands = [x, x2], [q.data] * 2, None, [q.scales] * 2
    options = {wanted: [torch.ones(3, device=device, requires_grad=True), None]}
    for y in nk.grouped_gemm(*operands, **options):
        assert y.requires_grad
    with pytest.raises(NotImplementedError, match="nvfp4kern::grouped_gemm_list_out has no gra"):
        nk.grouped_gemm(*operands, **options, out=[x.new_empty(2, 3), x.new_empty(2, 3)])


def test_a_forward_mode_derivative_is_refused_by_the_operator_s_name(device):
    x = torch.ones((2, 32), dtype=torch.float16, device=device)
    q = nvfp4kern.quantize(torch.ones((3, 32), device=device))
    functions = {
        "quantize": lambda x: nk.quantize(x).data,
        "gemm": lambda x: nk.gemm(x, q.data, None, q.scales),
        "gemm_out": lambda x: nk.gemm(x, q.data, None, q.scales, out=x.new_empty(2, 3)),
        "grouped_gemm_list": lambda x: nk.grouped_gemm(
            [x.detach()] * 2, [q.data] * 2, None, [q.scales] * 2, bias=[None, x[0, :3].float()]
        ),
        "route": lambda x: nk.route(logits=x, k=2),
    }
    for name, function in functions.items():
        says = pytest.raises(NotImplementedError, match=f"nvfp4kern::{name} has no forward-mode")
        with says:
            torch.func.jvp(function, (x,), (x,))
        with says:
            torch.func.jacfwd(lambda y, f=function: torch.func.jvp(f, (y,), (x,))[1])(x)
        with forward_ad.dual_level(), says:
            function(forward_ad.make_dual(x, x))
        with forward_ad.dual_level(), torch.no_grad(), says:
            function(forward_ad.make_dual(x, x))
    with forward_ad.dual_level():  # constants alone
        assert_same(functions["gemm"](x), nvfp4kern.gemm(x, q.data, None, q.scales))


# --- CUDA graphs ---


@every_operator
def test_captured_operators_replay_on_new_data(name, gpu):
    """New offsets included; with outputs given and with those that the capture allocates."""
    call, graph = call_of(name, gpu.device), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call.run()
        made = call.outputs_of(call.function(*call.args, **call.options))
    for seed in (1, 2, 1):
        call.fill(seed)
        graph.replay()
        call.check(seed)
        for new, out in zip(made, call.outs, strict=True):
            if not name.startswith("contiguous"):  # rows of nobody hold anything
                np.testing.assert_array_equal(raw(new), raw(out.tensor))


@pytest.mark.parametrize("out", [False, True])
def test_tensors_of_the_meta_device_beside_others_are_refused(out):
    """As of a layer whose weights are offloaded: the result was memory of any content."""
    x, w = torch.ones(4, 64), nk.quantize(torch.ones(32, 64))
    options = {"out": torch.empty(4, 32, dtype=torch.float16)} if out else {}
    for data, scales in ((w.data.to("meta"), w.scales), [each.to("meta") for each in w[:2]]):
        with pytest.raises(
            ValueError, match="^b: on the meta device, without values, expected cpu"
        ):
            nk.gemm(x.half(), data, None, scales, **options)
    x = x.half().to("meta")
    assert nk.gemm(x, data, None, scales, alpha=torch.ones(())).is_meta
