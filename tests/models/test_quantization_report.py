"""What quantize_ leaves as it is, and what its report says."""

import copy

import pytest
import torch
from layers import activations
from torch import nn

from nvfp4kern.nn import NVFP4Config, NVFP4Linear, quantize_


def toy():
    model = nn.Module()
    model.up = nn.Linear(32, 64, dtype=torch.bfloat16)
    model.mlp = nn.ModuleDict({"gate": nn.Linear(32, 4), "odd": nn.Linear(20, 4)})
    model.lm_head = nn.Linear(64, 16, dtype=torch.bfloat16)
    return model


class Named(nn.Module):
    """Linear layers of these names."""

    def __init__(self, *names):
        super().__init__()
        for name in names:
            parent = self
            *path, last = name.split(".")
            for part in path:
                if part not in parent._modules:
                    parent.add_module(part, nn.Module())
                parent = parent.get_submodule(part)
            parent.add_module(last, nn.Linear(32, 32, dtype=torch.bfloat16))


def test_the_report_is_a_list_and_says_what_stayed_and_why():
    model = toy()
    report = quantize_(model)
    assert report == ["up"] and list(report) == ["up"] and len(report) == 1
    assert report.kept == {
        "mlp.gate": "excluded by '*.gate'",
        "mlp.odd": "has K = 20, expected a multiple of 16",
        "lm_head": "excluded by '*lm_head*'",
    }
    linear = 32 * 64 * 2 + 64 * 16 * 2 + (32 + 20) * 4 * 4
    assert (report.linear_bytes, report.quantized_bytes) == (linear, 32 * 64 * 2)
    assert report.share == 32 * 64 * 2 / linear
    lines = str(report).splitlines()
    assert lines[0] == "1 layers quantised: 59% of the linear bytes, 0.0 of 0.0 MB"
    assert lines[1:] == [f"  {name} stays: {why}" for name, why in report.kept.items()]
    assert copy.deepcopy(report).kept == report.kept and repr(report) == "['up']"
    again = quantize_(model)  # what is NVFP4 counts as that
    assert again == [] and again.share == report.share and again.kept == report.kept
    assert quantize_(nn.Sequential(nn.ReLU())).share == 0


def test_layers_of_one_name_are_a_line_of_the_report():
    model = nn.Sequential(*(Named("up", "mlp.router.0", "mlp.down") for _ in range(12)))
    assert quantize_(model).reasons() == ["*.mlp.router.* (12) stays: excluded by '*router*'"]


def test_less_than_half_is_a_warning_which_as_an_error_changes_nothing():
    names = ["up", "odd.lm_head", "router", "down"]
    with pytest.warns(
        UserWarning, match=r"^quantize_: 25% of .*: odd\.lm_head stays: .*; router st"
    ):
        quantize_(Named(*names), NVFP4Config(exclude=("*lm_head", "router", "down")))
    model = Named(*names)
    quantize_(model, filter_fn=lambda module, name: name == "up")  # chosen so
    assert type(model.up) is NVFP4Linear and type(model.down) is nn.Linear
    model = Named(*names)
    with pytest.raises(UserWarning, match="0% of the linear bytes"):
        quantize_(model, NVFP4Config(exclude="*"))
    assert type(model.up) is nn.Linear


STAY = ("lm_head", "transformer.output_layer", "embed_out", "proj_out", "score", "classifier.dense",
        "cls.predictions.decoder", "mlp.gate", "moe.gate.wg", "block_sparse_moe.gate", "gate",
        "mlp.shared_expert_gate", "feed_forward.router", "q_proj.lora_A.default")  # fmt: skip
BECOME = (
    "mlp.gate_proj",
    "mlp.gate_up_proj",
    "gate_proj",
    "self_attn.o_proj",
    "gates.up",
    "encoder.fc1",
)


def test_what_is_called_as_heads_classifiers_routers_and_adapters_stays():
    model = Named(*(f"layers.{name}" for name in (*BECOME, *STAY)))
    report = quantize_(model, filter_fn=lambda *_: True)
    assert {*report} == {f"layers.{name}" for name in BECOME}
    assert report.kept.keys() == {f"layers.{name}" for name in STAY}
    assert quantize_(Named("gate", "up", "down", "more")).kept == {"gate": "excluded by 'gate'"}
    assert {*quantize_(Named(*STAY), NVFP4Config(exclude=()))} == {*STAY}


class Headed(Named):
    def __init__(self):
        super().__init__("a.up", "a.final", "wg.inner", "embedded", "down")
        self.wg.__class__ = type("HashGate", (nn.Module,), {})
        self.embedding = nn.Embedding(32, 32, dtype=torch.bfloat16)
        self.embedded.weight = self.embedding.weight
        self.a.get_output_embeddings = lambda: self.a.final
        self.get_output_embeddings = self.raising

    def raising(self):
        raise NotImplementedError


def test_heads_and_routers_are_found_by_what_they_are():
    report = quantize_(Headed())
    assert report == ["a.up", "embedded", "down"]
    assert report.kept == {
        "a.final": "excluded by '<head>'",
        "wg.inner": "excluded by '<router>'",
    }
    assert report.linear_bytes == 4 * 32 * 32 * 2  # not what is an embedding, too
    assert quantize_(Headed(), NVFP4Config(exclude="<head>")) == [
        "a.up",
        "wg.inner",
        "embedded",
        "down",
    ]
    added = (*NVFP4Config.exclude, "embedded")
    assert quantize_(Headed(), NVFP4Config(exclude=added)) == ["a.up", "down"]


class Reads(nn.Module):
    """Another module than a layer reads its weight, or where it lies."""

    def __init__(self):
        super().__init__()
        self.called, self.moved, self.cast, self.used = (
            nn.Linear(32, 32, dtype=torch.bfloat16) for _ in range(4)
        )
        self.blocks = nn.ModuleList([Named("w1", "w2"), Named("w1", "w2")])
        self.pretraining_tp = 1

    def forward(self, x):
        x = self.called(x.to(self.moved.weight.device)) + self.moved(x)
        x = self.cast(x.to(self.cast.weight.dtype))
        if self.pretraining_tp > 1:
            x = nn.functional.linear(x, self.called.weight.split(16)[0])
        for i in range(2):
            x = nn.functional.linear(x, self.blocks[i].w2.weight)
        return self.blocks[-1].w1(nn.functional.linear(x, self.used.weight))


def test_layers_whose_weights_others_read_stay():
    model = nn.Sequential(Reads())
    report = quantize_(model, filter_fn=lambda *_: True)
    assert report == ["0.called", "0.moved", "0.blocks.0.w1", "0.blocks.1.w1"]
    stay = ("cast", "used", "blocks.0.w2", "blocks.1.w2")
    assert report.kept == {f"0.{name}": "Reads reads its weight" for name in stay}
    assert model(activations(3, 32)).shape == (3, 32)


def test_the_fast_path_of_torchs_encoder_reads_weights():
    layer = nn.TransformerEncoderLayer(32, 2, 64, dtype=torch.bfloat16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    with pytest.warns(UserWarning, match="0% .*: layers.*.self_attn .2. stays: is a MultiheadAtt"):
        report = quantize_(model)
    assert report.kept["layers.1.linear2"] == "TransformerEncoderLayer reads its weight"
    assert {"layers.0.self_attn", "layers.0.self_attn.out_proj"} < report.kept.keys()
    with torch.no_grad():
        assert model(activations(1, 3, 32)).shape == (1, 3, 32)


def test_a_stack_of_one_expert():
    experts = nn.Module()
    experts.gate_up_proj = nn.Parameter(torch.randn(1, 64, 32))
    experts.down_proj = nn.Parameter(torch.randn(1, 32, 32))
    experts.act_fn = nn.SiLU()
    assert quantize_(nn.Sequential(experts.bfloat16())).share == 1


def test_float32_is_refused_at_once_and_not_in_forward():
    model = Named("up", "down").float()
    with pytest.raises(ValueError, match=r"^model: up is float32; inputs that are not quantised"):
        quantize_(model)
    assert type(model.up) is nn.Linear
    quantize_(model, NVFP4Config(input_quant="dynamic"))
    assert model.up(torch.ones(2, 32)).dtype == torch.float32
    model = Named("up", "down", "norm_of")
    model.norm_of.float()  # as models keep some in float32
    report = quantize_(model)
    assert report.kept == {"norm_of": "is float32 in a model of 16 bits"}
