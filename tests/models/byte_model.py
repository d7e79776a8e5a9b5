"""A tokenizer that needs no file and has an id for each byte, and folders that have it."""

import shutil


def byte_tokenizer(**options):
    """UTF-8: 256 ids in the order of GPT-2's alphabet."""
    import tokenizers
    import transformers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    ids = {letter: i for i, letter in enumerate(alphabet)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(ids, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **options)


def make(path, architecture="llama", seed=0, **options):
    """A folder of a tiny model of `architecture`, 16 bits, random weights, no token that ends."""
    import torch
    import transformers
    from tiny_architectures import ARCHITECTURES

    changes = {"vocab_size": 256, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    config = transformers.AutoConfig.for_model(**ARCHITECTURES[architecture].config | changes)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    shutil.rmtree(path, ignore_errors=True)
    model.generation_config.do_sample, model.generation_config.top_k = True, 40
    model.generation_config.temperature = 0.7
    model.save_pretrained(path)
    byte_tokenizer(**options).save_pretrained(path)
    return path
