"""nvfp4kern.nn's linear layers against products of dequantised float64 weights."""

import copy
import io

import pytest
import torch
from layers import (
    E4M3,
    UINT8,
    activations,
    decoded,
    filled,
    near,
    quantized,
    seen,
    with_tangent,
)
from torch import nn
from torch.autograd import forward_ad

from nvfp4kern.nn import NVFP4Experts, NVFP4Linear, NVFP4SwiGLU, fuse

QUANTS = (None, "static", "dynamic", "amax", "token")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("input_quant", QUANTS)
@pytest.mark.parametrize("options", [{}, {"pre_quant_scale": True}, {"row_scales": True}], ids=str)
def test_linear(dtype, input_quant, options):
    layer = NVFP4Linear(96, 40, input_quant=input_quant, dtype=dtype, **options)
    filled(layer, 5)
    x = activations(2, 3, 96, dtype=dtype)
    weight = decoded(layer.weight, layer.weight_scale, layer.weight_scale_2.double()[..., None])
    assert torch.equal(layer.dequantize(), weight.float())
    a = seen(layer, x)
    near(layer(x), a @ weight.T + layer.bias.double(), a.abs() @ weight.abs().T)
    assert layer(x).dtype == dtype and layer(x[0, 0]).shape == (40,)


def test_linear_takes_strided_and_deep_inputs():
    layer = filled(NVFP4Linear(32, 16, dtype=torch.bfloat16), 1)
    x = activations(2, 3, 4, 32)
    moved = x.transpose(1, 2)
    assert torch.equal(layer(moved), layer(moved.contiguous()))
    assert torch.equal(layer(x[0, 0].T.contiguous().T), layer(x[0, 0]))


@pytest.mark.parametrize("input_quant", QUANTS)
def test_the_meta_device_gives_shapes_and_dtypes(input_quant):
    layer = NVFP4Linear(32, 24, input_quant=input_quant, device="meta", dtype=torch.bfloat16)
    y = layer(torch.empty(2, 3, 32, device="meta", dtype=torch.bfloat16))
    assert y.is_meta and y.shape == (2, 3, 24) and y.dtype == torch.bfloat16


def test_names_shapes_and_dtypes_are_modelopts():
    layer = NVFP4Linear(
        64, 24, input_quant="static", pre_quant_scale=True, dtype=torch.bfloat16, device="meta"
    )
    found = {name: (tuple(v.shape), v.dtype) for name, v in layer.state_dict().items()}
    assert found == {
        "weight": ((24, 32), UINT8),
        "weight_scale": ((24, 4), E4M3),
        "weight_scale_2": ((), torch.float32),
        "input_scale": ((), torch.float32),
        "pre_quant_scale": ((64,), torch.bfloat16),
        "bias": ((24,), torch.bfloat16),
    }


@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict_takes_scalars_of_one_element_and_renews_alpha(assign):
    source = filled(NVFP4Linear(32, 16, input_quant="static", dtype=torch.bfloat16), 3)
    state = {name: value.clone() for name, value in source.state_dict().items()}
    state["weight_scale_2"] = state["weight_scale_2"].reshape(1)
    layer = NVFP4Linear(32, 16, input_quant="static", dtype=torch.bfloat16)
    assert {name for name, _ in layer.faults()} == {"weight_scale_2", "input_scale"}
    layer.load_state_dict(state, assign=assign)
    assert list(layer.faults()) == [] and layer.weight_scale_2.shape == ()
    x = activations(3, 32)
    assert torch.equal(layer(x), source(x))


def test_casts_leave_scale_factors_alone():
    layer = filled(NVFP4Linear(32, 16, input_quant="static"), 3)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    layer.to(torch.bfloat16)
    assert layer.bias.dtype == torch.bfloat16
    for name in ("weight_scale", "weight_scale_2", "input_scale"):
        after = getattr(layer, name)
        assert after.dtype == before[name].dtype
        assert torch.equal(after.float(), before[name].float())
    assert layer.to("meta").weight_scale.is_meta


def test_copies_and_files_of_torch():
    layer = filled(NVFP4Linear(32, 16, input_quant="static", dtype=torch.bfloat16), 3)
    x = activations(3, 32)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for twin in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert torch.equal(twin(x), layer(x))


@pytest.mark.parametrize("value", [float("nan"), 0.0, -1.0, float("inf")])
def test_faults_names_what_is_wrong(value):
    layer = filled(NVFP4Linear(32, 16, bias=False), 3)
    layer.weight_scale_2.data.fill_(value)
    ((name, sentence),) = layer.faults()
    assert name == "weight_scale_2" and sentence.startswith(f"{value}, expected a finite number")


@pytest.mark.parametrize("input_quant", [None, "static", "dynamic"])
def test_fuse_is_exact_where_global_scales_differ(input_quant):
    q, k, v = (
        filled(NVFP4Linear(64, n, input_quant=input_quant, dtype=torch.bfloat16), seed)
        for seed, n in enumerate((48, 16, 32))
    )
    assert q.weight_scale_2 != k.weight_scale_2
    if input_quant == "static":  # only with one scale for all do the products agree
        for layer in (q, k):
            layer.input_scale.data.copy_(v.input_scale)
            layer.finish()
    x = activations(5, 64)
    fused = fuse([q, k, v])
    assert fused.weight_scale_2.shape == (96,)
    assert torch.equal(fused(x), torch.cat([layer(x) for layer in (q, k, v)], -1))
    same = fuse([q, q])
    assert same.weight_scale_2.shape == () and torch.equal(same(x)[:, :48], q(x))


def with_inverses(layer, made):
    """`layer`, whose input scales are powers of two, as one that has their inverses."""
    for name, value in layer.named_parameters():
        if "input_scale" in name:
            value.data.fill_(2.0 ** -(5 + ("up_proj.input" in name)))
    state = layer.state_dict()
    for name in [name for name in state if "input_scale" in name]:
        state[f"{name}_inverse"] = 1 / state.pop(name)
    made.load_state_dict(state)
    layer.load_state_dict(layer.state_dict())
    return layer, made


def test_inverses_of_input_scales_compute_the_same():
    options = {"input_quant": "static", "dtype": torch.bfloat16}
    linear = filled(NVFP4Linear(64, 32, **options), 1)
    pair = with_inverses(linear, NVFP4Linear(64, 32, input_scale_inverse=True, **options))
    x = activations(5, 64)
    assert pair[1].input_scale is None and torch.equal(pair[0](x), pair[1](x))
    assert torch.equal(fuse([pair[0]] * 2)(x), fuse([pair[1]] * 2)(x))
    with pytest.raises(ValueError, match=r"layers\[1\]\.input_scale_inverse: differs"):
        fuse(pair)

    swiglu = filled(NVFP4SwiGLU(64, 32, input_quant="static"), 2)
    other = NVFP4SwiGLU(64, 32, input_quant="static")
    for name, part in list(other.named_children()):
        sizes = part.in_features, part.out_features, False
        inverse = NVFP4Linear(*sizes, input_quant="static", input_scale_inverse=True)
        setattr(other, name, inverse)
    one, other = with_inverses(swiglu, other)
    assert other.input_scale == 1 / one.input_scale and torch.equal(one(x), other(x))
    other.up_proj = one.up_proj  # of both kinds: one after the other
    apart = nn.functional.silu(other.gate_proj(x)) * other.up_proj(x)
    assert torch.equal(other(x), other.down_proj(apart))

    experts = filled(NVFP4Experts(64, 32, 3, input_quant="static"), 3)
    made = NVFP4Experts(64, 32, 3, input_quant="static", input_scale_inverse=True)
    one, other = with_inverses(experts, made)
    ids = torch.tensor([[0, 2]] * 5)
    assert torch.equal(one(x, ids, torch.ones(5, 2)), other(x, ids, torch.ones(5, 2)))
    x.requires_grad_()
    assert torch.equal(one(x, ids, torch.ones(5, 2)), other(x, ids, torch.ones(5, 2)))


def test_fuse_takes_the_largest_input_scale_and_refuses_what_differs():
    layers = [filled(NVFP4Linear(32, 16, input_quant="static"), seed) for seed in range(2)]
    fused = fuse(layers)
    assert fused.input_scale == max(layer.input_scale for layer in layers)
    with pytest.raises(ValueError, match="layers: empty, expected at least one NVFP4Linear"):
        fuse([])
    with pytest.raises(ValueError, match=r"layers\[1\]\.in_features: 16, expected 32"):
        fuse([layers[0], NVFP4Linear(16, 16, input_quant="static")])
    with pytest.raises(ValueError, match=r"layers\[1\]\.bias"):
        fuse([layers[0], NVFP4Linear(32, 16, False, input_quant="static")])
    with pytest.raises(ValueError, match=r"in_features: 40, expected a multiple of 16"):
        NVFP4Linear(40, 16)
    with pytest.raises(ValueError, match=r"input_quant: 'x', expected one of None, 'static'"):
        NVFP4Linear(16, 16, input_quant="x")


@pytest.mark.parametrize("input_quant", QUANTS)
def test_gradient_of_the_input(input_quant):
    layer = NVFP4Linear(48, 32, input_quant=input_quant, pre_quant_scale=True, dtype=torch.bfloat16)
    filled(layer, 2)
    x = activations(4, 48).requires_grad_()
    y = layer(x)
    assert torch.equal(y.detach(), layer(x.detach()))
    grad = activations(4, 32, seed=9)
    y.backward(grad)
    weight = decoded(layer.weight, layer.weight_scale, layer.weight_scale_2.double())
    want = grad.double() @ weight * layer.pre_quant_scale.double()
    size = grad.double().abs() @ weight.abs() * layer.pre_quant_scale.double().abs()
    near(x.grad, want, 4 * size)


@pytest.mark.parametrize("input_quant", QUANTS)
@pytest.mark.parametrize("wanted", [False, True], ids=["", "and a gradient"])
def test_forward_mode_derivatives_are_refused(input_quant, wanted):
    """Not zero, also where the input wants a gradient, too."""
    linear = NVFP4Linear(48, 32, input_quant=input_quant, dtype=torch.bfloat16)
    x = activations(4, 48)
    for layer in (filled(linear, 2), filled(NVFP4SwiGLU(48, 32, input_quant=input_quant), 2)):
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward"):
            layer(with_tangent(x.clone().requires_grad_(wanted)))


@pytest.mark.parametrize("input_quant", QUANTS)
def test_swiglu(input_quant):
    layer = filled(NVFP4SwiGLU(64, 96, input_quant=input_quant), 4)
    x = activations(2, 3, 64)
    gate, up, down = (
        decoded(each.weight, each.weight_scale, each.weight_scale_2.double())
        for each in (layer.gate_proj, layer.up_proj, layer.down_proj)
    )
    a = x.double()
    if input_quant is not None:
        scale = {"static": layer.input_scale, "dynamic": 1.0}.get(input_quant)
        a = seen(layer.gate_proj, x) if scale is None else quantized(x, scale)
    h = nn.functional.silu(a @ gate.T) * (a @ up.T)
    h16 = h.bfloat16()
    b = seen(layer.down_proj, h16)
    error = (layer(x).double() - b @ down.T).abs()
    # Rounding h to 16 bits may move a code of the second quantisation: by a step, 1/3 of a value.
    bound = (2.0**-7 if input_quant is None else 0.02) * (b.abs() @ down.abs().T)
    assert bool((error <= bound).all())
    wanting = x.clone().requires_grad_()
    layer(wanting).sum().backward()
    assert bool(wanting.grad.isfinite().all()) and bool((wanting.grad != 0).any())


@pytest.mark.slow
@pytest.mark.parametrize("input_quant", [None, "static", "amax", "token"])
def test_compiles_whole(input_quant):
    model = nn.Sequential(
        filled(NVFP4Linear(64, 64, input_quant=input_quant, dtype=torch.bfloat16), 1),
        filled(NVFP4SwiGLU(64, 96, input_quant=input_quant), 2),
    )
    x = activations(3, 64)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), model(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(compiled(x.float()), model(x))


@pytest.mark.parametrize("input_quant", [None, "static", "dynamic"])
def test_a_gpu_agrees_with_the_cpu(gpu, input_quant):
    layer = filled(NVFP4Linear(96, 40, input_quant=input_quant, dtype=torch.bfloat16), 5)
    x = activations(2, 3, 96)
    weight = decoded(layer.weight, layer.weight_scale, layer.weight_scale_2.double())
    a = seen(layer, x)
    moved = copy.deepcopy(layer).to(gpu.device)
    near(
        moved(x.to(gpu.device)).cpu(), a @ weight.T + layer.bias.double(), a.abs() @ weight.abs().T
    )


@pytest.mark.parametrize("before", [None, "static"])
@pytest.mark.parametrize("after", [None, "static"])
@pytest.mark.parametrize("options", [{}, {"pre_quant_scale": True}, {"bias": True}], ids=str)
def test_swiglu_of_whatever_layers_a_checkpoint_puts_into_it(before, after, options):
    layer = NVFP4SwiGLU(64, 96, input_quant=before)
    for name, (k, n) in {"gate_proj": (64, 96), "up_proj": (64, 96), "down_proj": (96, 64)}.items():
        made = {"bias": False, "dtype": torch.bfloat16, "input_quant": after, **options}
        setattr(layer, name, NVFP4Linear(k, n, **made))
    filled(layer, 4)
    layer.up_proj.input_scale = layer.gate_proj.input_scale  # else one of them is quantised finer
    for module in (layer.up_proj, layer):
        module.finish()
    x = activations(5, 64)
    want = layer.down_proj(nn.functional.silu(layer.gate_proj(x)) * layer.up_proj(x)).float()
    error = (layer(x).float() - want).norm() / want.norm()
    assert error < (0.03 if after else 0.006)


@pytest.mark.parametrize("name", ["gate_proj", "up_proj", "down_proj"])
def test_hooks_of_swiglu_s_layers_run(name):
    layer, seen = filled(NVFP4SwiGLU(64, 96), 4), []
    getattr(layer, name).register_forward_hook(lambda module, args, y: seen.append(y.shape))
    layer(activations(5, 64))
    assert seen == [(5, 64 if name == "down_proj" else 96)]


@pytest.mark.parametrize("name", ["gate_proj", "up_proj"])
def test_swiglu_calls_a_layer_whose_forward_was_replaced(name):
    """accelerate brings offloaded weights by such a one. Meanwhile they are on the meta device."""
    layer, given = filled(NVFP4SwiGLU(64, 96), 4), filled(NVFP4SwiGLU(64, 96), 4)
    getattr(given, name).register_forward_hook(lambda *_: None)  # calls all three
    part = getattr(layer, name)
    weights, forward = part.state_dict(), part.forward
    part.to("meta")

    def bringing(x):
        part.to_empty(device="cpu").load_state_dict(weights)
        return forward(x)

    part.forward = bringing
    assert torch.equal(layer(activations(5, 64)), given(activations(5, 64)))


def test_pre_quant_scale_of_another_dtype():
    layer = filled(NVFP4Linear(64, 32, pre_quant_scale=True), 3)
    x = activations(5, 64)
    assert layer.pre_quant_scale.dtype == torch.float32
    scaled = (x * layer.pre_quant_scale).bfloat16()
    layer_without = copy.deepcopy(layer)
    layer_without.pre_quant_scale = None
    assert torch.equal(layer(x), layer_without(scaled))


@pytest.mark.parametrize("given", [torch.float32, torch.float16])
@pytest.mark.parametrize("input_quant", [None, "dynamic"])
def test_autocast_casts_the_input_as_that_of_a_linear_layer(input_quant, given):
    layer = filled(NVFP4Linear(64, 64, input_quant=input_quant), 3)
    swiglu = filled(NVFP4SwiGLU(64, 96, input_quant=input_quant), 4)
    x = activations(5, 64, dtype=given).requires_grad_()
    for module in (layer, swiglu):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            got, nested = module(x), nn.Sequential(nn.Linear(64, 64), module)(x)
        assert torch.equal(got, module(x.detach().bfloat16())) and got.dtype == torch.bfloat16
        assert nested.dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16):
            module(x).float().sum().backward()
    assert x.grad.dtype == given and bool((x.grad != 0).any())
    if input_quant is None and given == torch.float32:
        with pytest.raises(TypeError, match="a: dtype float32"):
            layer(x.detach())
        with torch.autocast("cpu", enabled=False), pytest.raises(TypeError, match="a: dtype float"):
            layer(x.detach())


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_an_input_of_another_dtype(dtype):
    for module in (filled(NVFP4Linear(64, 64), 3), filled(NVFP4SwiGLU(64, 96), 4)):
        with pytest.raises(TypeError, match=r"^x: dtype (float64|int32), expected float16, "):
            module(torch.ones(5, 64, dtype=dtype))


def test_the_default_dtype_changes_nothing():
    torch.manual_seed(0)
    linear = nn.Linear(64, 32)
    want = NVFP4Linear.from_linear(linear, recipe="four_six")
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = NVFP4Linear.from_linear(linear, recipe="four_six")
        swiglu = NVFP4SwiGLU(64, 32, input_quant="static")
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(got.weight, want.weight)
    assert {buffer.dtype for buffer in swiglu.buffers()} == {torch.float32}


@pytest.mark.parametrize("input_quant", [None, "dynamic"])
@pytest.mark.parametrize("scaled", [False, True])
def test_low_rank_factors_are_added(input_quant, scaled):
    """As ModelOpt's SVDQuant computes them: of the input that the product gets."""
    options = {"input_quant": input_quant, "pre_quant_scale": scaled, "dtype": torch.bfloat16}
    layer = filled(NVFP4Linear(64, 32, low_rank=3, **options), 3)
    plain = filled(NVFP4Linear(64, 32, **options), 3)
    plain.load_state_dict(layer.state_dict(), strict=False)
    a, b = activations(3, 64, seed=4), activations(32, 3, seed=5)
    layer.svdquant_lora_a.copy_(a)
    layer.svdquant_lora_b.copy_(b)
    x = activations(5, 64)
    inner = x * layer.pre_quant_scale if scaled else x
    want = plain(x) + inner @ a.T @ b.T
    assert torch.equal(layer(x), want) and not torch.equal(want, plain(x))
    x2, x3 = x.clone().requires_grad_(), x.clone().requires_grad_()
    grad = activations(5, 32, seed=6)
    layer(x2).backward(grad)
    plain(x3).backward(grad)
    more = (grad.double() @ b.double() @ a.double()) * (
        layer.pre_quant_scale.double() if scaled else 1
    )
    near = x3.grad.double() + more
    assert (x2.grad.double() - near).norm() < 2.0**-7 * near.norm()
    with pytest.raises(ValueError, match=r"^layers\[0\].svdquant_lora_a: layers with one stay ap"):
        fuse([layer, layer])
