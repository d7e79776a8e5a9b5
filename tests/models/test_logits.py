"""Tiny models of every architecture and format against float64: layer by layer, and the logits."""

import pytest
import torch
from packing import E4M3, dequantized, read_directory, units
from tiny_architectures import ARCHITECTURES
from tiny_formats import FORMATS

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")
from float64_model import float64_model, plain_model  # noqa: E402
from quantised_model import TOKENS, Truth, check, check_modules, load, logits  # noqa: E402

WEIGHTS_ONLY = ("modelopt-w4a16", "ct-w4a16")
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)
every_format = pytest.mark.parametrize("form", FORMATS)


def rms(x):
    return x.double().square().mean().sqrt().item()


# --- Layer by layer ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@every_format
@every_architecture
def test_each_layer_is_within_the_contracts_bound(checkpoint, architecture, form, dtype):
    """Globals of q, k, v and of gate, up differ by 2 and more, those of inputs by 1.25."""
    check(checkpoint(architecture, form, spread=True), dtype)


@pytest.mark.parametrize(
    "options",
    [
        dict(one_element=True, shards=3),
        dict(fused=True),
        dict(tied=True),
        dict(exclude=("*mlp.gate",)),
        dict(config_in=("config.json",)),
        dict(config_in=("hf_quant_config.json",)),
        dict(dtype=torch.float16),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["modelopt-nvfp4", "modelopt-mixed", "ct-w4a4"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_what_exports_differ_in(checkpoint, architecture, form, options):
    if form.startswith("ct") and "config_in" in options:
        pytest.skip("compressed-tensors has one file for its config")
    dtype = options.get("dtype", torch.bfloat16)
    check(checkpoint(architecture, form, **options), dtype)


@pytest.mark.parametrize("stacked", ["E", "E11", "E2"])
@pytest.mark.parametrize("form", ["modelopt-nvfp4", "modelopt-w4a16"])
def test_stacked_experts(checkpoint, form, stacked):
    directory = checkpoint("qwen3_moe", form, stacked=stacked, spread=stacked == "E2")
    _, together = check(directory)
    if stacked != "E2":
        _, apart = check(checkpoint("qwen3_moe", form))
        assert torch.equal(together, apart)


def test_a_layer_in_fp8_is_its_value_rounded_once(checkpoint):
    directory = checkpoint("llama", "modelopt-mixed")
    model, plain = load(directory), dequantized(directory)
    tensors, _ = read_directory(directory)
    names = [n for n, t in tensors.items() if t.dtype == E4M3 and n.endswith(".weight")]
    assert names
    for name in names:
        got = model.get_parameter(name)
        assert got.dtype == torch.bfloat16
        assert units(got, plain[name], torch.bfloat16) <= 0.5 + 2.0**-16  # fp32 comes first


@pytest.mark.parametrize("input_quant", [None, "dynamic"])
@pytest.mark.parametrize("form", ["modelopt-nvfp4", "ct-w4a4"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_inputs_are_quantised_as_the_caller_says(checkpoint, architecture, form, input_quant):
    """Not at all, or by block scales alone: a global scale of 1."""
    directory = checkpoint(architecture, form, spread=True)
    model, truth = load(directory, input_quant=input_quant), Truth.of(directory)
    truth.scales = dict.fromkeys(truth.scales, 1.0) if input_quant else {}
    check_modules(model, truth, lambda: model(TOKENS))


def take_largest(model):
    """One global scale for q, k and v, as some engines take it."""
    attention = model.model.layers[0].self_attn
    attention.q_proj.weight_scale_2.copy_(attention.k_proj.weight_scale_2)
    return attention.q_proj


def swap(name):
    def halves(model):
        experts = model.model.layers[0].mlp.experts
        scales = getattr(experts, name)
        scales.copy_(scales.flip(1) if scales.dim() == 2 else scales.roll(1))
        return experts

    return halves


def take_an_experts_own(model):
    """The input's global scale of one expert, where it is the largest of all."""
    experts = model.model.layers[0].mlp.experts
    experts.gate_up_proj_input_scale.fill_(experts.gate_up_proj_input_scale.min())
    return experts


def nudge(model):
    """One scale factor of one block by one step."""
    layer = model.model.layers[1].self_attn.o_proj
    layer.weight_scale.view(torch.uint8)[3, 1] ^= 1
    return layer


FAULTS = {
    "globals merged": take_largest,
    "gate's global for up": swap("gate_up_proj_weight_scale_2"),
    "another expert's global": swap("down_proj_weight_scale_2"),
    "an expert's own input scale": take_an_experts_own,
    "one step of one block's scale": nudge,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_bound_notices(checkpoint, fault, dtype):
    """What makes a loader wrong leaves the interval, in the module where it is."""
    directory = checkpoint("qwen3_moe", "modelopt-nvfp4", spread=True)
    model = load(directory, dtype)
    module = FAULTS[fault](model)
    module.finish()
    name = next(name for name, each in model.named_modules() if each is module)
    with pytest.raises(AssertionError, match=name.replace(".", r"\.")):
        check_modules(model, Truth.of(directory), lambda: model(TOKENS))


# --- Logits ---


@pytest.mark.parametrize("form", WEIGHTS_ONLY)
@every_architecture
def test_logits_of_quantised_weights(checkpoint, architecture, form):
    """As near to float64 as torch's own fp16 model of the dequantised weights, within half more.

    Both round each layer's result to fp16, and ours reads exact weights: 0.7 to 1.0 of it is usual.
    In bf16 a router may choose another expert for one rounding's difference, hence fp16.
    """
    directory = checkpoint(architecture, form, spread=True)
    exact = logits(float64_model(directory))
    theirs = rms(logits(plain_model(directory, torch.float16)) - exact)
    ours = rms(logits(load(directory, torch.float16)) - exact)
    assert 2 < rms(exact) < 8
    assert ours < 1.5 * theirs < 0.015


@pytest.mark.parametrize("form", [f for f in FORMATS if f not in WEIGHTS_ONLY])
@every_architecture
def test_logits_of_quantised_inputs(checkpoint, architecture, form):
    """Nearer to the float64 model with quantised inputs than that is to the one without.

    No closer bound holds: one rounding moves an input over a tie, which is a step of E2M1, up to a
    third of the value, and later layers see that. Layer by layer, above, inputs are known exactly.
    """
    directory = checkpoint(architecture, form, spread=True)
    exact = logits(float64_model(directory))
    noise = rms(exact - logits(plain_model(directory)))
    assert rms(logits(load(directory, torch.float16)) - exact) < 0.9 * noise < 2
