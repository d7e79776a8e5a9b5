"""Files that other loaders were reported to read wrongly, each made here and read right.

Numbers are the reports': vL is vllm-project/vllm, SGL sgl-project/sglang, TRT NVIDIA/TensorRT-LLM,
FI flashinfer-ai/flashinfer.
"""

from pathlib import Path

import pytest
import torch
from damage import changed
from quantised_model import check, load, logits, model_of

from nvfp4kern.checkpoint import CheckpointError, load_checkpoint
from nvfp4kern.nn import NVFP4Experts, NVFP4Linear

pytest.importorskip("transformers", reason="transformers is not installed")

# ---------------------------------------------------------------------------------------------
# Scales that are missing
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["modelopt-nvfp4", "ct-w4a4"])
def test_experts_without_any_input_scale_are_an_error(checkpoint, form):
    directory = checkpoint("qwen3_moe", form, missing=("*.experts.*",))
    with pytest.raises(CheckpointError, match=r"experts\.\d+\.\w+\.input_\w*scale: .*missing"):
        load(directory)


def test_a_dense_layer_without_input_scale_is_an_error(checkpoint):
    directory = checkpoint("llama", "modelopt-nvfp4", missing=("*.layers.1.mlp.down_proj",))
    with pytest.raises(CheckpointError, match="layers.1.mlp.down_proj.input_scale: .*missing"):
        load(directory)
    check(directory, weights_only=True, input_quant=None)


# ---------------------------------------------------------------------------------------------
# Shapes and names of scales
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "mixtral"])
def test_scalars_of_no_and_of_one_element_are_the_same(checkpoint, architecture):
    """vL#37462: 0-dim scalars, and a mapping of experts that dropped input_scale."""
    _, scalars = check(checkpoint(architecture, "modelopt-nvfp4", spread=True))
    _, vectors = check(checkpoint(architecture, "modelopt-nvfp4", spread=True, one_element=True))
    assert torch.equal(scalars, vectors)


@pytest.mark.parametrize("form", ["modelopt-nvfp4", "ct-w4a4", "modelopt-w4a16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_one_scalar_fills_every_part_of_a_fused_layer(checkpoint, architecture, form):
    """SGL#14102: of gate_up_proj's two halves only the first got it."""
    model, fused = check(checkpoint(architecture, form, fused=True))
    _, apart = check(checkpoint(architecture, form))
    assert torch.equal(fused, apart)
    attention = model.model.layers[0].self_attn
    assert len({float(getattr(attention, f"{x}_proj").weight_scale_2) for x in "qkv"}) == 1


@pytest.mark.parametrize("architecture", ["qwen3_moe", "mixtral", "deepseek_v3"])
def test_experts_of_compressed_tensors_one_by_one(checkpoint, architecture):
    """vL#39256: a KeyError of such names."""
    model, _ = check(checkpoint(architecture, "ct-w4a16"))
    assert any(isinstance(module, NVFP4Experts) for module in model.modules())


def test_globals_that_differ_stay_apart(checkpoint):
    """SGL#27588, vL#47515: the largest of gate's and up's, of q's, k's and v's, served for all."""
    model, _ = check(checkpoint("qwen3_moe", "modelopt-nvfp4", spread=True))
    pairs = model.model.layers[0].mlp.experts.gate_up_proj_weight_scale_2
    assert ((pairs[:, 1] / pairs[:, 0] - 2).abs() < 0.8).all()


def test_scales_are_in_the_order_of_rows(checkpoint):
    """modular#6600, FI#3548: 128 rows of a head, where the blocked order is another one."""
    model, _ = check(checkpoint("llama", "modelopt-nvfp4", exclude=("*mlp.gate",)))
    assert model.lm_head.weight_scale.shape == (128, 4)


# ---------------------------------------------------------------------------------------------
# What is quantised
# ---------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("form", ["modelopt-nvfp4", "modelopt-w4a16", "ct-w4a4"])
def test_a_quantised_head(checkpoint, form):
    """vL#45132."""
    model, _ = check(checkpoint("llama", form, exclude=("*mlp.gate",)))
    assert isinstance(model.lm_head, NVFP4Linear)


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


@pytest.mark.parametrize("form", ["modelopt-mixed", "ct-mixed"])
@pytest.mark.parametrize("architecture", ["llama", "mixtral"])
def test_mixed_files_keep_each_layers_kind(checkpoint, architecture, form):
    """vL#47749, vL#45102: one format was taken for all."""
    model, _ = check(checkpoint(architecture, form))
    attention = model.model.layers[0].self_attn
    assert attention.q_proj.input_quant is None
    assert isinstance(attention.o_proj, NVFP4Linear) == (form == "ct-mixed")
    quantised = [m for n, m in model.named_modules() if "mlp" in n and hasattr(m, "input_quant")]
    assert {m.input_quant for m in quantised} == {"static"}


def test_keys_that_serve_as_values():
    """TRT#16867: Gemma 4 has no v_proj in some layers, and ModelOpt's files none of its scales."""
    model, _ = check(Path(__file__).parent / "others" / "modelopt-k-eq-v")
    local, whole = (layer.self_attn for layer in model.model.layers)
    assert isinstance(local.v_proj, NVFP4Linear) and whole.v_proj is None
    assert isinstance(whole.k_proj, NVFP4Linear)


def test_a_bias_is_added_after_the_global_scale(checkpoint):
    """SGL#38115."""
    directory = checkpoint("llama", "modelopt-nvfp4", spread=True)
    model, _ = check(directory)
    assert model.model.layers[0].self_attn.q_proj.bias is not None


def test_experts_with_a_gate_of_their_own_are_refused_by_name(checkpoint):
    """vL#49070: a clamped SwiGLU was computed as a plain one."""
    directory = checkpoint("qwen3_moe", "modelopt-nvfp4")
    model = model_of(directory)
    experts = type(model.model.layers[0].mlp.experts)
    clamped = type("Clamped", (experts,), {"_apply_gate": lambda self, x: x.clamp(-7, 7)})
    before = model.state_dict()
    model.model.layers[1].mlp.experts.__class__ = clamped
    with pytest.raises(CheckpointError, match="model.layers.1.mlp.experts"):
        load_checkpoint(model, directory, device="cpu", progress=False)
    after = model.state_dict()
    assert all(after[name] is before[name] or after[name].equal(before[name]) for name in before)
