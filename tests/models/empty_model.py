"""A model of transformers without weights."""

import torch

from nvfp4kern.checkpoint import meta_parameters


def empty(directory, dtype=torch.bfloat16):
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with meta_parameters():
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
