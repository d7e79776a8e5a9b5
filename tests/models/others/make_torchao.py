"""The checkpoints torchao-* in this folder: torchao 0.18 made them by transformers, on a CPU.

    python make_torchao.py     # wants torchao, transformers

Scale factors are in the blocked layout, and safetensors' metadata says what each tensor is.
"""

import shutil
import tempfile
import warnings
from pathlib import Path

import torch

HERE = Path(__file__).parent
SIZES = dict(
    vocab_size=32,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=32,
    initializer_range=0.2,
    bos_token_id=0,
    eos_token_id=1,
)
MADE = {"torchao-two-level": True, "torchao-one-level": False}  # folder -> a global scale, too?


def export(folder, two_level):
    from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig
    from transformers import AutoModelForCausalLM, LlamaConfig, TorchAoConfig

    torch.manual_seed(24)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES), dtype=torch.bfloat16)
    config = NVFP4WeightOnlyConfig(use_dynamic_per_tensor_scale=two_level)
    with tempfile.TemporaryDirectory() as plain:
        model.save_pretrained(plain)
        how = TorchAoConfig(quant_type=config)
        model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=how)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name, two_level in MADE.items():
        export(HERE / name, two_level)
        print(name, sum(f.stat().st_size for f in (HERE / name).iterdir()))
