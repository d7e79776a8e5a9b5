"""quantize_ and its recipes."""

import copy
import re

import pytest
import torch
from held import identity, interrupted, meaning
from layers import E4M3, VALUES, activations, decoded
from torch import nn
from torch.nn.utils import prune, spectral_norm, weight_norm

from nvfp4kern.checkpoint import load_checkpoint, save_checkpoint
from nvfp4kern.distributed import ColumnParallel, slice_
from nvfp4kern.nn import NVFP4Config, NVFP4Experts, NVFP4Linear, quantize_
from nvfp4kern.nn.recipes import RECIPES

ALONE = tuple(recipe for recipe in RECIPES if recipe != "gptq")
"""Of weights, without inputs."""


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(32, 64, dtype=torch.bfloat16)
        self.mlp = nn.ModuleDict({"gate": nn.Linear(32, 4), "odd": nn.Linear(20, 4)})
        self.lm_head = nn.Linear(64, 16, dtype=torch.bfloat16)

    def forward(self, x):
        return self.up(x)


def stack(act_fn):
    experts = nn.Module()
    experts.gate_up_proj = nn.Parameter(torch.randn(2, 64, 32))
    experts.down_proj = nn.Parameter(torch.randn(2, 32, 32))
    experts.act_fn = act_fn
    return experts.bfloat16()


@pytest.mark.parametrize("recipe", ALONE)
def test_quantize_in_place(recipe):
    torch.manual_seed(0)
    model = Toy()
    weight, bias = model.up.weight.detach().double(), model.up.bias
    assert quantize_(model, NVFP4Config(recipe=recipe)) == ["up"]
    assert type(model.up) is NVFP4Linear and type(model.mlp["gate"]) is nn.Linear
    assert torch.equal(model.up.bias, bias)
    error = model.up.dequantize() - weight
    relative = error.norm() / weight.norm()
    most = {"amax": 0.105, "four_six": 0.09, "mse": 0.085}  # of uniform weights 0.102, 0.087, 0.082
    assert relative < most[recipe]
    assert torch.equal(model(activations(3, 32)), model.up(activations(3, 32)))


def test_four_six_is_never_worse_in_any_block():
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(4))
    layer = nn.Linear(128, 64, bias=False)
    layer.weight.data = weight
    ours = NVFP4Linear.from_linear(layer, recipe="four_six")
    got = decoded(ours.weight, ours.weight_scale, ours.weight_scale_2.double())
    assert ours.weight_scale_2 == weight.abs().max() / (6 * 256)
    error = (got - weight).unflatten(-1, (-1, 16)).square().sum(-1)
    for target in (6, 4):
        step = weight.unflatten(-1, (-1, 16)).abs().amax(-1) / target / ours.weight_scale_2
        step = step.clamp(max=448).to(E4M3).double() * ours.weight_scale_2.double()
        scaled = weight.double().unflatten(-1, (-1, 16)) / step[..., None]
        nearest = VALUES[(scaled[..., None] - VALUES).abs().argmin(-1)] * step[..., None]
        other = (nearest - weight.unflatten(-1, (-1, 16))).square().sum(-1)
        assert bool((error <= other * (1 + 1e-5)).all())


def test_filter_and_refusals_leave_the_model_as_it_was():
    model = Toy()
    assert quantize_(model, filter_fn=lambda module, name: name == "nothing") == []
    with pytest.raises(ValueError, match="model: itself a layer"):
        quantize_(nn.Linear(16, 16))
    model.up.weight.data = model.up.weight.data.double()
    with pytest.raises(TypeError, match=r"up\.weight: torch\.float64, expected float16"):
        quantize_(model, NVFP4Config(exclude=()))
    assert type(model.up) is nn.Linear and type(model.lm_head) is nn.Linear
    model = Toy()
    model.experts = stack(nn.SiLU())
    with pytest.raises(ValueError, match="experts: experts have no input_quant='amax'"):
        quantize_(model, NVFP4Config(input_quant="amax"))
    assert type(model.up) is nn.Linear
    with pytest.raises(ValueError, match="recipe: 'x', expected one of 'amax', 'four_six'"):
        NVFP4Config(recipe="x")
    with pytest.raises(ValueError, match="input_quant: 'static', expected one of None"):
        NVFP4Config(input_quant="static")
    for patterns in (b"*lm_head", ["*lm_head", 3], None):
        with pytest.raises(TypeError, match=f"exclude: {re.escape(repr(patterns))}, expected pat"):
            NVFP4Config(exclude=patterns)
    assert NVFP4Config(exclude=iter(["a"])) == NVFP4Config(exclude=("a",))
    assert NVFP4Config(exclude="*a") == NVFP4Config(exclude=("*a",))
    with pytest.raises(ValueError, match="exclude: '<heads>', expected '<head>' or '<router>'"):
        NVFP4Config(exclude=("*a", "<heads>"))


@pytest.mark.parametrize("recipe", ALONE)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_refused_by_name(recipe, value):
    """Codes have neither, so the largest of them would take their place."""
    model = nn.ModuleDict({"good": nn.Linear(32, 16), "bad": nn.Linear(32, 16)}).bfloat16()
    model["bad"].weight.data[3, 5] = value
    with pytest.raises(ValueError, match="^bad: weight: has NaN or infinities"):
        quantize_(model, NVFP4Config(recipe=recipe))
    assert type(model["good"]) is nn.Linear and type(model["bad"]) is nn.Linear
    with pytest.raises(ValueError, match="^weight: has NaN or infinities"):
        NVFP4Linear.from_linear(model["bad"], recipe=recipe)


def test_a_failure_on_the_way_leaves_the_model_as_it_was(monkeypatch):
    model = Toy()
    before, x = dict(model.named_modules()), activations(3, 32)
    want, make, made = model(x), NVFP4Linear.from_linear, []

    def until_memory_ends(layer, **options):
        if made:
            raise MemoryError
        made.append(layer)
        return make(layer, **options)

    monkeypatch.setattr(NVFP4Linear, "from_linear", until_memory_ends)
    with pytest.raises(MemoryError):
        quantize_(model, NVFP4Config(exclude=()))
    assert made == [model.up] and dict(model.named_modules()) == before
    assert torch.equal(model(x), want)


def test_a_layer_that_a_model_has_twice_stays_one():
    model = Toy().eval()
    model.again = model.up
    assert quantize_(model) == ["up", "again"]
    assert type(model.up) is NVFP4Linear and model.again is model.up
    assert not model.up.training


def loaded(model, folder):
    """Fills a model from a checkpoint of the same one, quantised."""
    source = Toy().bfloat16()
    quantize_(source)
    save_checkpoint(source, folder, config={"model_type": "toy"})
    load_checkpoint(model, folder, device="cpu", progress=False)


CHANGES = {"quantize_": lambda model, folder: quantize_(model), "load_checkpoint": loaded}
CHANGES["slice_"] = lambda model, _: slice_(model, {"*up": ColumnParallel.slice_of})


def changeable(change):
    """A model that a change takes."""
    model = Toy().bfloat16()
    if change == "slice_":
        model.up = NVFP4Linear.from_linear(model.up)
    return model


@pytest.mark.parametrize("change", CHANGES)
def test_hooks_of_calls_stay_and_their_handles(change, tmp_path, as_rank):
    as_rank(0, 1)
    model, calls = changeable(change), []
    layer, before = model.up, type(model.up)
    handles = [
        layer.register_forward_pre_hook(lambda module, args: calls.append("before")),
        layer.register_forward_hook(
            lambda module, args, kwargs, y: calls.append(type(module)), with_kwargs=True
        ),
    ]
    CHANGES[change](model, tmp_path)
    assert type(model.up) is not before
    model(activations(1, 32))
    assert calls == ["before", type(model.up)]
    handles[0].remove()
    model(activations(1, 32))
    assert calls[2:] == [type(model.up)]


@pytest.mark.parametrize("change", ["quantize_", "slice_"])
def test_an_interrupt_anywhere_changes_nothing(change, as_rank):
    """At each fifth line that it runs."""
    as_rank(0, 1)
    torch.manual_seed(0)
    model = changeable(change)
    model.experts, model.second_up = stack(nn.SiLU()), model.up
    model.up.register_forward_hook(print)
    plain, complete, before = model.up, copy.deepcopy(model), identity(model)
    hooks = dict(plain._forward_hooks)
    CHANGES[change](complete, None)
    for line in range(1, 100_000, 5):
        try:
            interrupted(lambda: CHANGES[change](model, None), line)
            break
        except KeyboardInterrupt:
            if identity(model) != before:
                break
            assert plain._forward_hooks == hooks and torch.is_grad_enabled()
    assert line > 100 and meaning(model) == meaning(complete)


def test_backward_hooks_stay():
    model, calls = Toy().bfloat16(), []
    model.up.register_full_backward_hook(lambda module, to, of: calls.append(type(module)))
    quantize_(model)
    model(activations(1, 32).requires_grad_()).sum().backward()
    assert calls == [NVFP4Linear]


UNKEPT = {
    "hooks of its state_dict": lambda layer: layer.register_state_dict_pre_hook(print),
    "its forward was replaced": lambda layer: setattr(layer, "forward", print),
    "its part would be lost": lambda layer: layer.register_module("part", nn.Linear(32, 32)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("what", UNKEPT)
def test_what_a_layer_cannot_keep_is_refused_by_name(change, what, tmp_path, as_rank):
    as_rank(0, 1)
    model = changeable(change)
    layer = model.up
    UNKEPT[what](layer)
    with pytest.raises(ValueError, match=f"up: .*{what}"):
        CHANGES[change](model, tmp_path)
    assert model.up is layer


def test_a_layer_of_ours_is_not_loaded_over_what_it_cannot_keep(tmp_path):
    model = changeable("slice_")
    model.up.forward = print
    with pytest.raises(ValueError, match="up: its forward was replaced"):
        loaded(model, tmp_path)


def test_hooks_of_an_activation_that_experts_would_not_call():
    model = nn.Sequential(stack(nn.SiLU()))
    model[0].act_fn.register_forward_hook(print)
    with pytest.raises(ValueError, match="0: its act_fn has hooks"):
        quantize_(model)


NORMS = {
    "spectral_norm": spectral_norm,
    "weight_norm": weight_norm,
    "pruning": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "pruning of a bias": lambda layer: prune.l1_unstructured(layer, "bias", 0.5),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("norm", NORMS)
def test_weights_that_hooks_make_are_not_taken_as_they_are(norm, tmp_path):
    """They are those of the last call."""
    model = Toy()
    NORMS[norm](model.up)
    with pytest.warns(UserWarning, match="0% of the linear bytes became NVFP4: up stays: has a "):
        assert quantize_(model) == [] and type(model.up) is nn.Linear
    with pytest.raises(ValueError, match="^linear: its (weight|bias) is no parameter"):
        NVFP4Linear.from_linear(model.up)
    with pytest.raises(ValueError, match="up: its (weight|bias) is no parameter"):
        loaded(model.bfloat16(), tmp_path)
    assert type(model.up) is nn.Linear
    experts = stack(nn.SiLU())
    prune.l1_unstructured(experts, "down_proj", 0.5)
    assert NVFP4Experts.why_not(experts) == "has a down_proj that is no parameter"


def raising(x):
    raise RuntimeError("expected three dimensions")


ACTIVATIONS = {
    "silu": nn.SiLU(),
    "silu in place": nn.SiLU(inplace=True),
    "gelu": nn.GELU(),
    "raises": raising,
    "on meta": nn.PReLU(device="meta"),
    "a pair": lambda x: (x, x),
    "a word": "silu",
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_experts_without_silu_stay(name):
    model = Toy()
    model.experts = stack(ACTIVATIONS[name])
    if name.startswith("silu"):
        assert quantize_(model) == ["up", "experts"]
        return
    with pytest.warns(UserWarning, match="experts stays: Module has the activation"):
        report = quantize_(model)
    assert report == ["up"] and "expected silu" in report.kept["experts"] or name != "gelu"
