"""What computes a linear layer by another name: transformers' Conv1D, subclasses of nn.Linear."""

import pytest
import torch
from empty_model import empty
from torch import nn

from nvfp4kern.checkpoint import load_checkpoint, save_checkpoint
from nvfp4kern.nn import NVFP4Config, NVFP4Linear, quantize_


class Same(nn.Linear):
    """Adds nothing to what it computes."""


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class WithParts(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("mean", torch.zeros(1))


def test_subclasses_of_linear_layers():
    kinds = {"same": Same, "scaled": Scaled, "parts": WithParts}
    model = nn.ModuleDict({name: kind(64, 32) for name, kind in kinds.items()})
    model["odd"] = Same(40, 32)
    linear = nn.Linear(64, 32)
    linear.load_state_dict(model["same"].state_dict())
    want = NVFP4Linear.from_linear(linear, input_quant="dynamic")
    report = quantize_(model, NVFP4Config(input_quant="dynamic"), lambda module, name: True)
    assert report == ["same"] and type(model["same"]) is NVFP4Linear
    x = torch.randn(3, 64)
    assert torch.equal(model["same"](x), want(x))
    assert report.kept["odd"] == "has K = 40, expected a multiple of 16"
    for name in ("scaled", "parts"):
        assert type(model[name]) is kinds[name]
        assert report.kept[name].startswith(f"is a {kinds[name].__name__}, which may compute")


def test_attention_of_torch_stays():
    """Its out_proj is of a subclass that adds nothing, and its weight is read."""
    model = nn.ModuleList([nn.MultiheadAttention(64, 2)])
    report = quantize_(model, NVFP4Config(input_quant="dynamic"), lambda module, name: True)
    assert not report and "0.out_proj" in report.kept
    x = torch.randn(3, 1, 64)
    model[0](x, x, x)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_conv1d_of_gpt2(tmp_path):
    """Its weight is [K, N]."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = dict(n_embd=64, n_layer=1, n_head=2, vocab_size=96, n_positions=32)
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16).eval()
    conv = model.transformer.h[0].mlp.c_fc
    weight, bias = conv.weight.detach().clone(), conv.bias
    report = quantize_(model)
    names = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert report == [f"transformer.h.0.{name}" for name in names]
    layer = model.transformer.h[0].mlp.c_fc
    assert type(layer) is NVFP4Linear and (layer.in_features, layer.out_features) == (64, 256)
    assert torch.equal(layer.bias, bias)
    error = (layer.dequantize() - weight.T.float()).abs().max()
    assert error <= weight.float().abs().max() / 6
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        want = model(tokens).logits
    save_checkpoint(model, tmp_path / "saved")
    again = empty(tmp_path / "saved")
    load_checkpoint(again, tmp_path / "saved", device="cpu")
    with torch.no_grad():
        assert torch.equal(again.eval()(tokens).logits, want)
