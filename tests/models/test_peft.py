"""peft's LoRA on NVFP4 layers: it trains, it is saved and loaded, and it is not merged."""

import re
from pathlib import Path

import pytest
import torch
from held import contents
from tiny_architectures import ARCHITECTURES
from torch import nn

pytest.importorskip("transformers", reason="transformers is not installed")
peft = pytest.importorskip("peft", reason="peft is not installed")

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

import nvfp4kern.peft as ours  # noqa: E402
from nvfp4kern.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from nvfp4kern.nn import NVFP4Config, NVFP4Linear, NVFP4SwiGLU, quantize_  # noqa: E402

# peft asks transformers about what it has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
TOKENS = torch.arange(2, 34).reshape(2, 16)


ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


def quantized(architecture="llama", **options):
    torch.manual_seed(0)
    config = AutoConfig.for_model(**ARCHITECTURES[architecture].config)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    quantize_(model, NVFP4Config(**options))
    return model


def adapted(model=None, **options):
    options = dict(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM") | options
    return peft.get_peft_model(model or quantized(), peft.LoraConfig(**options))


def trained(model, steps=3):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    losses = []
    for _ in range(steps):
        loss = model(input_ids=TOKENS, labels=TOKENS).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        gradients = {name for name, p in model.named_parameters() if p.grad is not None}
        optimizer.zero_grad()
    return losses, gradients


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=TOKENS).logits


@pytest.mark.parametrize("options", [{}, {"input_quant": "dynamic"}], ids=str)
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_training_changes_adapters_alone(architecture, options):
    model = quantized(architecture, **options)
    before, plain = logits(model), {k: v.clone() for k, v in model.state_dict().items()}
    model = adapted(model, target_modules="all-linear" if architecture == "llama" else ATTENTION)
    layers = [m for m in model.modules() if isinstance(m, ours.NVFP4LoraLinear)]
    assert len(layers) == sum(isinstance(m, NVFP4Linear) for m in model.modules()) >= 8
    assert {type(m) for m in model.modules() if isinstance(m, peft.tuners.lora.LoraLayer)} == {
        ours.NVFP4LoraLinear
    }
    assert torch.equal(logits(model), before)
    losses, gradients = trained(model.train())
    assert losses[-1] < losses[0] - 0.1
    assert gradients == {n for n, p in model.named_parameters() if p.requires_grad}
    assert gradients and all("lora_" in name for name in gradients)
    with model.disable_adapter():
        assert torch.equal(logits(model), before)
    base = model.unload()
    assert not torch.equal(logits(model), before) or torch.equal(logits(base), before)
    state = base.state_dict()
    assert state.keys() == plain.keys()
    assert {k: contents(v) for k, v in state.items()} == {k: contents(v) for k, v in plain.items()}


def test_an_adapter_is_saved_alone_and_loaded(tmp_path):
    base = quantized()
    save_checkpoint(base, tmp_path / "base")
    model = adapted(base)
    trained(model.train())
    want = logits(model)
    model.save_pretrained(tmp_path / "adapter")
    files = {file.name: file.stat().st_size for file in (tmp_path / "adapter").iterdir()}
    assert files["adapter_model.safetensors"] < 100_000 and "model.safetensors" not in files
    again = AutoModelForCausalLM.from_config(base.config, dtype=torch.bfloat16)
    load_checkpoint(again, tmp_path / "base", device="cpu", progress=False)
    loaded = peft.PeftModel.from_pretrained(again, tmp_path / "adapter", is_trainable=True)
    assert torch.equal(logits(loaded), want)
    loaded.load_adapter(tmp_path / "adapter", "second")
    loaded.set_adapter("second")
    assert torch.equal(logits(loaded), want)
    assert trained(loaded.train())[0][0] < 10


def test_merging_is_refused_before_anything_is_merged():
    """Also where a plain layer would be the first."""
    model = adapted(quantized(exclude="*.0.self_attn.q_proj"), target_modules=["q_proj", "v_proj"])
    trained(model.train())
    first, second = (model.base_model.model.model.layers[i].self_attn.q_proj for i in (0, 1))
    assert type(first) is peft.tuners.lora.Linear and type(second) is ours.NVFP4LoraLinear
    want, weight = logits(model), first.base_layer.weight.clone()
    for merge in (model.merge_and_unload, model.merge_adapter, second.merge):
        with pytest.raises(ValueError, match=r"merge: .* is NVFP4, and the sum would have to be"):
            merge()
    assert torch.equal(first.base_layer.weight, weight) and torch.equal(logits(model), want)
    assert not first.merged and type(model.base_model.model.model.layers[0].self_attn.q_proj) is (
        type(first)
    )


REFUSED = {
    "use_dora": (dict(use_dora=True), "Invalid or unsupported variant combination"),
    "pissa": (dict(init_lora_weights="pissa"), "'pissa' reads the weight of an NVFP4 layer"),
    "olora": (dict(init_lora_weights="olora"), "'olora' reads the weight of an NVFP4 layer"),
    "experts": (dict(target_modules=["experts"]), "target_modules: NVFP4Experts takes no LoRA"),
    "all of a mixture": (dict(target_modules="all-linear"), "NVFP4Experts takes no LoRA"),
    "an expert's weight": (
        dict(target_modules=[], target_parameters=["experts.gate_up_proj"]),
        "NVFP4Experts takes no LoRA",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_reads_the_weight_is_refused(kind):
    options, message = REFUSED[kind]
    with pytest.raises(ValueError, match=message):
        adapted(quantized("qwen3_moe"), **{"target_modules": ATTENTION} | options)


def test_a_bias_and_several_adapters():
    model = adapted(bias="all")
    model.add_adapter("more", peft.LoraConfig(r=2, target_modules="all-linear", bias="none"))
    assert set(model.peft_config["more"].target_modules) == set(
        model.peft_config["default"].target_modules
    )
    _, gradients = trained(model.train())
    assert any(name.endswith("q_proj.base_layer.bias") for name in gradients)


def test_layers_of_a_swiglu_that_hold_adapters():
    from layers import activations, filled

    layer = filled(NVFP4SwiGLU(64, 96, input_quant="static"), 4)
    gate, up, down = layer.gate_proj, layer.up_proj, layer.down_proj
    x = activations(5, 64)
    want = down(nn.functional.silu(gate(x)) * up(x))
    config = peft.LoraConfig(r=4, target_modules=["gate_proj", "down_proj"])
    assert torch.equal(peft.get_peft_model(nn.Sequential(layer), config)(x), want)


def test_the_recipe_of_the_documents():
    text = (Path(__file__).parents[2] / "docs" / "own-model.md").read_text()
    (code,) = re.findall(r"^```python\n(import peft.*?)^```$", text, flags=re.M | re.S)
    names = {"config": AutoConfig.for_model(**ARCHITECTURES["llama"].config), "batch": TOKENS}
    exec(code, names)
    assert names["loss"].isfinite()
