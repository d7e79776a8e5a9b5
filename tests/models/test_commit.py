"""load_checkpoint changes the model last: completely, or not at all."""

from functools import partial

import pytest
import torch
from held import interrupted, meaning
from torch import nn

from nvfp4kern.checkpoint import load, load_checkpoint, save_checkpoint
from nvfp4kern.checkpoint.load import commit
from nvfp4kern.nn import NVFP4Linear, quantize_

pytest.importorskip("safetensors", reason="safetensors is not installed")


class Own(nn.Module):
    """Layers, a norm, a buffer that no file has, a tied parameter, and one module twice."""

    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(32, 16)
        self.norm = nn.LayerNorm(32)
        self.down_proj = NVFP4Linear.from_linear(nn.Linear(32, 32, bias=False).bfloat16())
        self.down_proj.input_scale = nn.Parameter(torch.ones(()), requires_grad=False)
        self.again = nn.ModuleList([self.q_proj, self.norm])
        self.tied = nn.LayerNorm(32, bias=False)
        self.tied.weight = self.norm.weight
        self.register_buffer("steps", torch.arange(3.0), persistent=False)
        self.bfloat16()


@pytest.fixture
def own(tmp_path):
    """A directory of it. It has no config.json, which is a warning."""
    torch.manual_seed(0)
    model = Own()
    quantize_(model)
    save_checkpoint(model, tmp_path / "own")
    (tmp_path / "own" / "hf_quant_config.json").unlink()
    return tmp_path / "own"


def whole(model):
    """What a model is: its modules, and each tensor's identity and bytes."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    tensors = [(n, id(t), t.detach().reshape(-1).view(torch.uint8).tolist()) for n, t in named]
    return [(n, id(m), m.training) for n, m in model.named_modules(remove_duplicate=False)], tensors


DEVICES = ["meta", "xpu", "cpu:-1", "nonsense", None, 1.5, torch.device("meta")]


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_device_that_is_none_of_ours_changes_nothing(own, device):
    model = Own()
    before = whole(model)
    with pytest.raises(ValueError, match="device: .*, expected 'cpu', 'cuda' or 'cuda:<index>'$"):
        load_checkpoint(model, own, device=device)
    assert whole(model) == before


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("device", ["cpu:0", torch.device("cpu"), torch.device("cpu", 0)], ids=str)
def test_any_name_of_the_cpu(own, device):
    model = Own()
    load_checkpoint(model, own, device=device)
    assert type(model.q_proj) is NVFP4Linear and model.again[0] is model.q_proj


def test_a_warning_that_is_an_error_changes_nothing(own):
    model = Own()
    before = whole(model)
    with pytest.raises(UserWarning, match="config.json: says nothing of quantisation"):
        load_checkpoint(model, own, device="cpu")
    assert whole(model) == before


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_interrupt_anywhere_changes_nothing(own, monkeypatch):
    """At each third line that `commit` and what it calls run, until the model is complete."""
    line = 0
    monkeypatch.setattr(load, "commit", lambda *given: interrupted(partial(commit, *given), line))
    for line in range(1, 10_000, 3):
        model = Own().train(line % 2 == 0)
        before = whole(model)
        try:
            load_checkpoint(model, own, device="cpu", progress=False)
            break
        except KeyboardInterrupt:
            if whole(model) != before:
                break
    complete = Own().train(model.training)
    monkeypatch.undo()
    load_checkpoint(complete, own, device="cpu", progress=False)
    assert line > 100 and meaning(model) == meaning(complete)
