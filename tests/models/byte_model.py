"""Folders of tiny models whose tokenizer has an id for each byte."""

import sys
from pathlib import Path

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


def byte_tokenizer(**options):
    """That of benchmarks/recipes.py."""
    if BENCHMARKS not in sys.path:
        sys.path.insert(0, BENCHMARKS)
    import recipes

    return recipes.byte_tokenizer(**options)


def make(path, architecture="llama", seed=0, **options):
    """A folder of a tiny model of `architecture`, 16 bits, random weights, no token that ends."""
    import torch
    import transformers
    from tiny_architectures import ARCHITECTURES

    changes = {"vocab_size": 256, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    config = transformers.AutoConfig.for_model(**ARCHITECTURES[architecture].config | changes)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.generation_config.do_sample, model.generation_config.top_k = True, 40
    model.generation_config.temperature, model.generation_config.num_beams = 0.7, 2
    model.save_pretrained(path)
    byte_tokenizer(**options).save_pretrained(path)
    return path
