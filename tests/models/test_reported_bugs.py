"""Files that other loaders were reported to read wrongly, each made here and read right.

Numbers are the reports': vL is vllm-project/vllm, SGL sgl-project/sglang, TRT NVIDIA/TensorRT-LLM,
FI flashinfer-ai/flashinfer.

Of these test_logits.py reads every layer within its bound: scalars of one element (vL#37462),
experts of compressed-tensors one by one (vL#39256), globals that differ (SGL#27588, vL#47515),
scale factors in the order of rows (modular#6600, FI#3548), a quantised head (vL#45132), mixed files
(vL#47749), a bias after the global scale (SGL#38115); and test_others.py keys that serve as values,
for Gemma 4 has no v_proj in some layers (TRT#16867).
"""

import pytest
import torch
from damage import changed
from empty_model import empty
from quantised_model import check, load, logits

from nvfp4kern.checkpoint import CheckpointError, load_checkpoint
from nvfp4kern.nn import NVFP4Experts, NVFP4Linear

pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.mark.parametrize("form", ["modelopt-nvfp4", "ct-w4a4", "modelopt-w4a16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_one_scalar_fills_every_part_of_a_fused_layer(checkpoint, architecture, form):
    """SGL#14102: of gate_up_proj's two halves only the first got it."""
    model, fused = check(checkpoint(architecture, form, fused=True))
    _, apart = check(checkpoint(architecture, form))
    assert torch.equal(fused, apart)
    attention = model.model.layers[0].self_attn
    assert len({float(getattr(attention, f"{x}_proj").weight_scale_2) for x in "qkv"}) == 1


@pytest.mark.parametrize("form", ["modelopt-nvfp4", "modelopt-w4a16", "ct-w4a4"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_patterns_exclude_layers(checkpoint, architecture, form):
    """vL#28072, TRT#15470: wildcards and the ignore list were not honoured."""
    exclude = ("lm_head", "model.layers.0.*", "*mlp.gate", "*.k_proj")
    model, _ = check(checkpoint(architecture, form, exclude=exclude))
    first, second = model.model.layers
    assert not any(isinstance(m, (NVFP4Linear, NVFP4Experts)) for m in first.modules())
    assert type(second.self_attn.k_proj) is torch.nn.Linear
    assert isinstance(second.self_attn.q_proj, NVFP4Linear)


@pytest.mark.parametrize("form", ["ct-w4a4", "ct-w4a16"])
def test_strategy_group_is_tensor_group(checkpoint, tmp_path, form):
    """vL#52974: published files say "group"."""

    def config(content):
        for args in content["quantization_config"]["config_groups"]["group_0"].values():
            if isinstance(args, dict):
                args["strategy"] = "group"

    directory = checkpoint("llama", form)
    _, got = check(changed(directory, tmp_path / "m", config=config))
    _, expected = check(directory)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_weights_alone_ignore_a_leftover_input_scale(checkpoint, architecture):
    """vL#21977, vL#47215, vL#45102: old exports of W4A16 carry one."""
    directory = checkpoint(architecture, "modelopt-w4a16", leftover=True)
    model, got = check(directory, weights_only=True)
    kinds = [m.input_quant for m in model.modules() if isinstance(m, (NVFP4Linear, NVFP4Experts))]
    assert set(kinds) == {None}
    assert torch.equal(got, logits(load(checkpoint(architecture, "modelopt-w4a16"))))


def test_experts_with_a_gate_of_their_own_are_refused_by_name(checkpoint):
    """vL#49070: a clamped SwiGLU was computed as a plain one."""
    directory = checkpoint("qwen3_moe", "modelopt-nvfp4")
    model = empty(directory)
    experts = type(model.model.layers[0].mlp.experts)
    clamped = type("Clamped", (experts,), {"_apply_gate": lambda self, x: x.clamp(-7, 7)})
    before = dict(model.named_parameters())
    model.model.layers[1].mlp.experts.__class__ = clamped
    with pytest.raises(CheckpointError, match="model.layers.1.mlp.experts"):
        load_checkpoint(model, directory, device="cpu", progress=False)
    after = dict(model.named_parameters())
    assert after.keys() == before.keys() and all(after[name] is before[name] for name in before)
