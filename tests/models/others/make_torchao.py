"""The checkpoints torchao-* in this folder: torchao 0.18 made them by transformers, on a CPU.

    PYTHONPATH=.. python make_torchao.py     # wants torchao, transformers

Scale factors are in the blocked layout, and safetensors' metadata says what each tensor is.
"""

import shutil
import tempfile
import warnings

import torch
from tiny_sizes import EXPORTED, OTHERS, exported

MADE = {"torchao-two-level": True, "torchao-one-level": False}  # folder -> a global scale, too?


def export(folder, two_level):
    from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig
    from transformers import AutoModelForCausalLM, LlamaConfig, TorchAoConfig

    torch.manual_seed(24)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**EXPORTED), dtype=torch.bfloat16)
    config = NVFP4WeightOnlyConfig(use_dynamic_per_tensor_scale=two_level)
    with tempfile.TemporaryDirectory() as plain:
        model.save_pretrained(plain)
        how = TorchAoConfig(quant_type=config)
        model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=how)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    exported(folder)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name, two_level in MADE.items():
        export(OTHERS / name, two_level)
