"""Tiny checkpoints that vLLM's attention on CPUs takes: it has no heads of 16 columns, and latent
attention of DeepSeek's widths alone. Adapters for them, and their weights without quantisation."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.append(str(Path(__file__).parents[1] / "models"))

import packing  # noqa: E402
import tiny  # noqa: E402
from tiny_architectures import ARCHITECTURES  # noqa: E402

LATENT = {"head_dim": 64, "qk_rope_head_dim": 64, "kv_lora_rank": 512}
ROUTER = {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}  # what vLLM wants to be told
WIDTHS = {"deepseek_v3": LATENT | ROUTER}


def widened(name):
    kind = ARCHITECTURES[name]
    return replace(kind, config=kind.config | WIDTHS.get(name, {"head_dim": 32}))


def make(folder, name, form, **options):
    """See tiny.make. The folder, as vLLM wants it."""
    kind = widened(name)
    return str(tiny.make(folder, kind, form, **options))


def make_plain(folder, quantised):
    """A checkpoint of what those weights mean, in float16. The folder."""
    meant = packing.dequantized(quantised)
    tensors = {name: value.to(torch.float16).contiguous() for name, value in meant.items()}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((Path(quantised) / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    return str(folder)


def make_adapter(folder, name, targets, rank=4):
    """A LoRA as peft writes it, for layers whose names end in one of `targets`. The folder."""
    random, kind = torch.Generator().manual_seed(0), widened(name)
    tensors = {}
    for i in range(kind.config["num_hidden_layers"]):
        for layer, rows, columns in kind.linears(i):
            if layer.endswith(targets):
                at = f"base_model.model.model.layers.{i}.{layer}"
                a = torch.randn(rank, columns, generator=random) * columns**-0.5
                tensors[f"{at}.lora_A.weight"] = a
                tensors[f"{at}.lora_B.weight"] = torch.randn(rows, rank, generator=random) * 0.3
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "r": rank}
    config |= {"lora_alpha": 2 * rank, "target_modules": list(targets)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)
