"""A mixture of SGLang's models, made and filled by SGLang's own code: its experts are those that
transformers gets of the same files."""

from importlib.util import find_spec

import pytest
import torch
from sglang_layers import load, made_by, registered, server  # noqa: F401

pytestmark = [
    pytest.mark.skipif(find_spec("sglang") is None, reason="sglang is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of what SGLang imports
]

FORMS = {
    "modelopt-nvfp4": ("NVFP4KernModelOptLinearMethod", "NVFP4KernMoEMethod"),
    "modelopt-w4a16": ("NVFP4KernModelOptLinearMethod", "NVFP4KernMoEMethod"),
    "ct-w4a4": ("NVFP4KernCompressedTensorsScheme", "NVFP4KernCompressedTensorsMoEScheme"),
    "ct-w4a16": ("NVFP4KernCompressedTensorsScheme", "NVFP4KernCompressedTensorsMoEScheme"),
}


def model_of(folder):
    from sglang.srt.layers import quantization
    from sglang.srt.models.qwen3_moe import Qwen3MoeForCausalLM
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    name = config.quantization_config["quant_method"]
    kind = quantization.get_quantization_config("modelopt_fp4" if name == "modelopt" else name)
    ours = kind.from_config(config.quantization_config)
    fused = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
    ours.update_packed_modules_mapping(fused)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return Qwen3MoeForCausalLM(config, ours)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("form", FORMS)
def test_a_model(tmp_path, form):
    """To the bit. The router of SGLang needs a kernel that is not there."""
    from checkpoints import make
    from reference import open_model
    from safetensors.torch import load_file
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    folder = make(tmp_path / "model", "qwen3_moe", form)
    files = {}
    for path in (tmp_path / "model").glob("*.safetensors"):
        files |= load_file(path)
    with server():
        model = model_of(folder)
        load(model, files)
        for layer, other in zip(model.model.layers, open_model(folder).model.layers, strict=True):
            experts = layer.mlp.experts
            assert (made_by(layer.self_attn.qkv_proj), made_by(experts)) == FORMS[form]
            random = torch.Generator().manual_seed(0)
            x = torch.randn(7, experts.hidden_size, generator=random).bfloat16()
            scores = torch.rand(7, experts.num_experts, generator=random)
            weights, ids = scores.topk(2)
            got = experts(x, StandardTopKOutput(weights, ids.int(), None))
            assert torch.equal(got, other.mlp.experts(x, ids, weights)) and bool(got.any())
        lacking = {name: value for name, value in files.items() if "down_proj" not in name}
        lacking |= {name: files[name] for name in files if name.endswith("down_proj.weight_scale")}
        with pytest.raises(ValueError, match="mlp.experts.w2_weight_.*: not all were loaded"):
            load(model, lacking)
