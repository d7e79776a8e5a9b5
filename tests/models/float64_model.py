"""The transformers model of a checkpoint's dequantised weights, in float64."""

import json
import tempfile
from pathlib import Path

import torch
from packing import dequantized
from quantised_model import Truth
from safetensors.torch import save_file


def plain_model(directory, dtype=torch.float64, fold=True):
    """The model of config.json with `dequantized(directory)` as weights.

    transformers loads them from a plain checkpoint, so the names are for it to understand. Its
    norms, softmax and rotations compute in fp32, whatever the model's dtype.
    """
    from transformers import AutoModelForCausalLM

    config = json.loads((Path(directory) / "config.json").read_text())
    config.pop("quantization_config", None)
    plain = {name: t.contiguous() for name, t in dequantized(directory, fold).items()}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        save_file(plain, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
    wrong = {kind: names for kind, names in report.items() if names}
    assert not wrong, wrong
    return model.eval()


def float64_model(directory):
    """plain_model with each input quantised as the files say, nothing else rounded."""
    model, truth = plain_model(directory, fold=False), Truth.of(directory)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, args, name=name: truth.seen(name, *args))
        elif name.endswith("mlp.experts"):
            module.forward = lambda *args, name=name: truth.mixture(name, *args)
    return model
