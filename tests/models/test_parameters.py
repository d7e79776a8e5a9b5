"""What layers are to torch: parameters that are never trained, and buffers that follow from them
however these are set."""

import copy
import io

import pytest
import torch
from layers import activations, filled, near
from torch import nn

from nvfp4kern.nn import NVFP4Experts, NVFP4Linear, NVFP4MoE, NVFP4SwiGLU, quantize_

LAYERS = {
    "linear": lambda **where: NVFP4Linear(64, 32, input_quant="static", **where),
    "swiglu": lambda **where: NVFP4SwiGLU(64, 32, input_quant="static", **where),
    "experts": lambda **where: NVFP4Experts(64, 32, 4, **where),
    "static experts": lambda **where: NVFP4Experts(64, 32, 4, input_quant="static", **where),
}


def result(layer, x=None):
    x = activations(5, 64) if x is None else x
    if isinstance(layer, NVFP4Experts):
        ids = torch.arange(10).reshape(5, 2) % 4
        return layer(x, ids, torch.full((5, 2), 0.5))
    return layer(x)


# --- Ways of setting parameters ---


def owners(layer):
    for path, module in layer.named_modules():
        for name in module._parameters:
            yield module, name, f"{path}.{name}" if path else name


def by_setattr(layer, values):
    for module, name, key in owners(layer):
        if key in values:
            setattr(module, name, nn.Parameter(values[key], values[key].is_floating_point()))


def past_setattr(layer, values):
    for module, name, key in owners(layer):
        if key in values:
            module._parameters[name] = nn.Parameter(values[key], False)


def as_transformers(layer, values):
    """Buffers that no file has come last, with any values."""
    by_setattr(layer, values)
    for module in layer.modules():
        for name, value in module._buffers.items():
            if value is not None:
                setattr(module, name, torch.full_like(value, 1e4, device="cpu"))


def in_place(layer, values):
    layer.to_empty(device="cpu")
    with torch.no_grad():
        for name, value in layer.named_parameters():
            value.copy_(values[name])


def by_data(layer, values):
    layer.to_empty(device="cpu")
    for name, value in layer.named_parameters():
        value.data.copy_(values[name])


WAYS = [
    by_setattr,
    past_setattr,
    as_transformers,
    in_place,
    by_data,
    lambda layer, values: layer.to_empty(device="cpu").load_state_dict(values),
    lambda layer, values: layer.load_state_dict(values, assign=True),
]


@pytest.mark.parametrize("before", ["meta", "set", "used"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", LAYERS)
def test_no_way_of_loading_leaves_what_follows_unset(kind, way, before):
    given = filled(LAYERS[kind](), 3)
    if before == "meta":
        layer = LAYERS[kind](device="meta")
    else:
        layer = filled(LAYERS[kind](), 8)
        if before == "used":
            assert not torch.equal(result(layer), result(given))
    way(layer, given.state_dict())
    assert torch.equal(result(layer), result(given))


@pytest.mark.parametrize("kind", LAYERS)
def test_writing_to_a_scale_counts_from_the_next_call(kind):
    layer, doubled = filled(LAYERS[kind](), 3), filled(LAYERS[kind](), 3)
    result(layer)
    for each in (layer, doubled):
        with torch.no_grad():
            next(p for n, p in each.named_parameters() if n.endswith("weight_scale_2")).mul_(2)
    doubled.finish()
    assert torch.equal(result(layer), result(doubled))
    for twin in (copy.deepcopy(layer), layer.to("meta").to_empty(device="cpu")):
        twin.load_state_dict(doubled.state_dict())
        assert torch.equal(result(twin), result(doubled))


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_of_inference_mode_serve_outside(kind):
    with torch.inference_mode():
        layer = filled(LAYERS[kind](), 3)
        want = result(layer)
    assert torch.equal(result(layer), want)
    layer.finish()
    assert torch.equal(result(layer), want)


def test_values_of_a_tracer_are_not_kept():
    layer = LAYERS["linear"](device="meta")
    assert layer(activations(5, 64).to("meta")).shape == (5, 32)
    given = filled(LAYERS["linear"](), 3)
    by_setattr(layer, given.state_dict())
    program = torch.export.export(layer, (activations(5, 64),)).module()
    assert torch.equal(program(activations(5, 64)), result(given))
    assert torch.equal(result(layer), result(given))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*autograd.function:DeprecationWarning")  # Dynamo's own
@pytest.mark.parametrize("kind", LAYERS)
def test_compiled_before_its_first_call(kind):
    given, layer = filled(LAYERS[kind](), 3), LAYERS[kind](device="meta")
    by_setattr(layer, given.state_dict())
    compiled, x = torch.compile(result, fullgraph=True, backend="aot_eager"), activations(5, 64)
    assert torch.equal(compiled(layer, x), result(given))
    other = filled(LAYERS[kind](), 8)
    by_setattr(layer, other.state_dict())
    assert torch.equal(compiled(layer, x), result(other))


# --- Frozen parameters ---


def moe():
    return filled(NVFP4MoE(64, 32, 4, 2, dtype=torch.bfloat16), 3)


@pytest.mark.parametrize("make", [*LAYERS.values(), moe])
def test_training_leaves_codes_and_scales_alone(make):
    model = nn.Sequential(make(), nn.Linear(64, 4))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for each in (
        model,
        copy.deepcopy(model),
        model.to("meta").to_empty(device="cpu"),
        torch.load(file, weights_only=False),
    ):
        by_setattr(each, each.state_dict())
        assert each.requires_grad_(True) is each
        for value in each.parameters():
            value.requires_grad = True
        trained = {name for name, value in each.named_parameters() if value.requires_grad}
        assert trained - {"0.bias", "0.gate.weight"} == {"1.weight", "1.bias"}


def test_a_bias_may_be_trained():
    layer = filled(NVFP4Linear(64, 32, dtype=torch.bfloat16), 3)
    want, x = layer(activations(2, 5, 64)), activations(2, 5, 64)
    assert not layer.bias.requires_grad and not want.requires_grad
    layer.requires_grad_(True)
    for given in (x, x.clone().requires_grad_()):
        layer.bias.grad = None
        y = layer(given)
        assert torch.equal(y, want)
        grad = activations(2, 5, 32, seed=9)
        y.backward(grad)
        near(layer.bias.grad, grad.double().sum((0, 1)), grad.double().abs().sum((0, 1)))
    assert given.grad is not None


def test_a_model_of_quantised_layers_takes_requires_grad():
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16)).bfloat16()
    quantize_(model)
    model.requires_grad_(True)
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {"0.bias", "1.bias"}
    model(activations(3, 64)).sum().backward()
    assert model[0].bias.grad.shape == (32,)
