"""From a model to NVFP4 files and to text: a tiny Llama and a tiny Qwen3-MoE, random weights.

    python docs/examples/tiny_models.py [FOLDER]

Needs the extra `models`; nothing is downloaded. A real model takes the same calls.
"""

import sys
import tempfile
from pathlib import Path

import tokenizers
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen3MoeConfig

import nvfp4kern.transformers  # noqa: F401 (tells transformers about NVFP4 files)
from nvfp4kern.checkpoint import load_checkpoint, meta_parameters, save_checkpoint
from nvfp4kern.nn import NVFP4Config, quantize_

SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MODELS = {
    "llama": LlamaConfig(**SIZES),
    "qwen3_moe": Qwen3MoeConfig(
        **SIZES, head_dim=16, moe_intermediate_size=48, num_experts=8, num_experts_per_tok=2
    ),
}


def tokenizer():
    """An id for each byte, so that `python -m nvfp4kern generate FOLDER/llama hello` runs."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    ids = {letter: i for i, letter in enumerate(alphabet)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(ids, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def tokens_of(model):
    """Twelve tokens, the likeliest each time."""
    prompt = torch.tensor([[1, 5, 9, 13]])
    return model.generate(prompt, max_new_tokens=12, do_sample=False)[0].tolist()


def main(folder):
    for name, config in MODELS.items():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()

        model.save_pretrained(folder / f"{name}-16bit")
        tokenizer().save_pretrained(folder / f"{name}-16bit")
        layers = quantize_(model, NVFP4Config(recipe="four_six"))
        save_checkpoint(model, folder / name, tokenizer=tokenizer())
        print(f"{name}: {len(layers)} layers quantised, {', '.join(layers[:2])} and others")

        # Into a model of transformers, by transformers ...
        theirs = AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.bfloat16)

        # ... or by our loader, into any model that has the files' names.
        with meta_parameters():
            ours = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        print(load_checkpoint(ours.eval(), folder / name, device="cpu"))

        found = [tokens_of(each) for each in (model, theirs, ours)]
        assert found[0] == found[1] == found[2], found
        print(f"{name} says {found[0]}\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
