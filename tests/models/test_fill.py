"""What load_checkpoint refuses of values: those that the model's dtype does not have, and two for
one parameter."""

import math
import warnings

import pytest
import torch
from damage import changed
from torch import nn

from nvfp4kern.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from nvfp4kern.nn import quantize_

pytest.importorskip("safetensors", reason="safetensors is not installed")


class Tied(nn.Module):
    """An embedding, a head of its weight where `tied`, and a layer under two names."""

    def __init__(self, tied, dtype=torch.bfloat16):
        super().__init__()
        self.embed = nn.Embedding(8, 32)
        self.up_proj = nn.Linear(32, 32)
        self.twice = nn.ModuleList([self.up_proj if tied else nn.Linear(32, 32)])
        self.norm = nn.LayerNorm(32)
        self.lm_head = nn.Linear(32, 8, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight
        self.to(dtype)


@pytest.fixture
def directory(tmp_path):
    """Files with both names of everything, and the same values."""
    torch.manual_seed(0)
    model = Tied(tied=False)
    model.lm_head.weight.data.copy_(model.embed.weight)
    model.twice[0].load_state_dict(model.up_proj.state_dict())
    quantize_(model)
    save_checkpoint(model, tmp_path / "m", config={})
    return tmp_path / "m"


PARTS = ("up_proj.weight", "up_proj.bias", "up_proj.weight_scale", "up_proj.weight_scale_2")


@pytest.mark.parametrize("name", ["embed.weight", "lm_head.weight", *PARTS])
def test_both_names_of_a_tied_parameter_have_the_same_values(directory, tmp_path, name):
    model = Tied(tied=True)
    load_checkpoint(model, directory, device="cpu")
    assert model.lm_head.weight is model.embed.weight and model.twice[0] is model.up_proj

    def change(tensors):
        tensors[name].view(-1).view(torch.uint8)[0] ^= 2

    other = changed(directory, tmp_path / "other", change)
    names = rf".*\.{name.rpartition('.')[2]}"  # the one that lies behind the other
    with pytest.raises(
        CheckpointError, match=rf"^({names}): differs from what else the files have"
    ):
        load_checkpoint(model, other, device="cpu")
    load_checkpoint(Tied(tied=False), other, device="cpu")


F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
VALUES = [  # the files' dtype, a value, the model's dtype, what it becomes there
    (F64, 1e39, BF16, None),
    (F64, -1e39, F32, None),
    (F64, 1e300, F16, None),
    (F32, 3.4e38, BF16, None),
    (F32, -3.4e38, BF16, None),
    (F32, 1e5, F16, None),
    (BF16, 1e5, F16, None),
    (F32, 65519.0, F16, 65504.0),
    (F64, 1e38, F32, 1e38),
    (F16, 65504.0, BF16, 65536.0),
    (F32, math.inf, BF16, math.inf),
    (F64, -math.inf, F16, -math.inf),
    (F64, math.nan, F16, math.nan),
]


@pytest.mark.parametrize("beside", [0.0, math.inf, math.nan])
@pytest.mark.parametrize("have, value, want, becomes", VALUES, ids=str)
def test_a_finite_value_does_not_become_infinite(
    directory, tmp_path, have, value, want, becomes, beside
):
    values = torch.full((32,), beside, dtype=have)
    values[7] = value
    other = changed(directory, tmp_path / "other", **{"norm.weight": values})
    model = Tied(tied=False, dtype=want)
    options = {"device": "cpu", "input_quant": "dynamic"}
    if becomes is None:
        message = r"^norm\.weight: .* is too large for .*, the dtype of the model's norm\.weight$"
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(model, other, **options)
        return
    load_checkpoint(model, other, **options)
    expected = torch.tensor(becomes, dtype=want)
    assert torch.allclose(model.norm.weight[7], expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("scale, infinite", [(1.0, False), (3e38, True)])
def test_an_fp8_weight_does_not_become_infinite(directory, tmp_path, scale, infinite):
    def config(content):
        layers = {"lm_head": "FP8"}
        content["quantization_config"].update(quant_algo="MIXED_PRECISION", quantized_layers=layers)

    weight = torch.full((8, 32), -2.0).to(torch.float8_e4m3fn)
    tensors = {"lm_head.weight": weight, "lm_head.weight_scale": torch.tensor(scale)}
    other = changed(directory, tmp_path / "other", config=config, **tensors)
    model = Tied(tied=False)
    with warnings.catch_warnings(action="ignore"):
        if not infinite:
            load_checkpoint(model, other, device="cpu")
            assert (model.lm_head.weight == -2).all()
            return
        with pytest.raises(CheckpointError, match=r"^lm_head\.weight_scale: 3e\+38 makes the weig"):
            load_checkpoint(model, other, device="cpu")
