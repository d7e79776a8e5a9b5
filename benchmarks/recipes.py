"""What each recipe costs in perplexity: a small Llama on the bytes of this project's own text.

    python benchmarks/recipes.py [--json FILE] [--folder FOLDER]

It is trained here on the CPU, at one thread in some minutes, on the documents and the sources. One
file in 16 is kept out of it. On these the folder in 16 bits is compared with one of each recipe and
each way to quantise inputs, as `python -m nvfp4kern compare` does. Nothing is downloaded. Sources
change, and so do the figures; those of one run can be compared.

Needs transformers, tokenizers and accelerate. benchmarks/figures.py makes the table of --json.
"""

import argparse
import math
import sys
import tempfile
import time
from pathlib import Path

import tokenizers
import torch
import transformers
from torch import Tensor

from nvfp4kern import results
from nvfp4kern.comparing.folders import compare_folders
from nvfp4kern.machine import cpu_in_use, software
from nvfp4kern.nn.recipes import RECIPES
from nvfp4kern.quantizing import quantize_folder

ROOT = Path(__file__).parents[1]
TEXTS = ("*.md", "docs/**/*.md", "nvfp4kern/**/*.py", "csrc/**/*.[ch]", "csrc/**/*.cu*")
EVERY = 16
"""One file in so many is not trained on."""
INPUTS = (None, "dynamic", "static")
CONTEXT, BATCH, RATE, WARM = 512, 4, 2e-3, 50
CALIBRATED = 1 << 16
"""Characters."""


def texts() -> tuple[str, str]:
    """(to be trained on, kept out)"""
    files = sorted({path for pattern in TEXTS for path in ROOT.glob(pattern) if path.is_file()})
    parts = [path.read_text(encoding="utf-8") for path in files]
    kept = parts[::EVERY]
    return "\n".join(part for i, part in enumerate(parts) if i % EVERY), "\n".join(kept)


def byte_tokenizer(**options) -> transformers.PreTrainedTokenizerFast:
    """Has an id for each byte of UTF-8, in the order of GPT-2's alphabet, and no other."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    ids = {letter: i for i, letter in enumerate(alphabet)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(ids, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **options)


def ids_of(text: str) -> Tensor:
    return torch.tensor(byte_tokenizer()(text, verbose=False).input_ids)


def trained(ids: Tensor, steps: int, hidden: int, layers: int) -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(steps):
        rate = RATE * min(1, (step + 1) / WARM) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(ids) - CONTEXT, (BATCH,))
        batch = torch.stack([ids[start : start + CONTEXT] for start in starts])
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}: {loss.item():.3f} nats a byte", file=sys.stderr, flush=True)
    return model.bfloat16()


def row(plain: Path, folder: Path, recipe: str, inputs: str | None, text: str, most: int) -> dict:
    """How far the folder is from the plain one. `more` is what a token's loss is larger by, and
    `error` the standard error of that mean, tokens taken as independent."""
    found = compare_folders(plain, folder, text, tokens=most)
    more = found.losses - found.losses_of_reference
    said = found.to_dict()
    layers = said.pop("layers").values()
    return {
        "recipe": recipe,
        "inputs": inputs,
        **said,
        "more": float(more.mean()),
        "error": float(more.std() / len(more) ** 0.5),
        "weights": sum(each["weight"] for each in layers) / len(layers),
        "results": sum(each["output"] for each in layers) / len(layers),
    }


def environment() -> dict:
    return {
        **software("cpu"),
        "transformers": transformers.__version__,
        **cpu_in_use(torch.empty(1, 1, dtype=torch.uint8)),
    }


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and environment")
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help="keep the model here")
    parser.add_argument("--steps", type=int, default=600, help="of training; default: 600")
    parser.add_argument("--tokens", type=int, default=1 << 15, help="compared; default: 32768")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    learnt, kept = texts()
    begin = time.perf_counter()
    model = trained(ids_of(learnt), asked.steps, asked.hidden, asked.layers)
    found = {
        "environment": environment(),
        "training": {
            "parameters": model.num_parameters(),
            "bytes_of_text": len(learnt.encode()),
            "bytes_seen": asked.steps * BATCH * CONTEXT,
            "seconds": round(time.perf_counter() - begin),
        },
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as temporary:
        plain = asked.folder or Path(temporary) / "plain"
        model.save_pretrained(plain)
        byte_tokenizer().save_pretrained(plain)
        for recipe in RECIPES:
            for inputs in INPUTS:
                folder = Path(temporary) / f"{recipe}-{inputs}"
                needed = inputs == "static" or recipe == "gptq"
                text = learnt[:CALIBRATED] if needed else None
                quantize_folder(plain, folder, recipe=recipe, input_quant=inputs, calibrate=text)
                found["rows"].append(row(plain, folder, recipe, inputs, kept, asked.tokens))
                print(line(found["rows"][-1]), flush=True)
    if asked.json:
        results.write(asked.json, found)
    return 0


def line(row: dict) -> str:
    how = "W4A16" if row["inputs"] is None else f"W4A4 {row['inputs']}"
    loss = f"loss {row['more']:+.5f} +- {row['error']:.5f}"
    kl = f"KL {row['kl']['mean']:.5f}, 99 % {row['kl']['p99']:.4f}"
    exact, other = row["perplexity_of_reference"], row["perplexity"]
    return f"{row['recipe']} {how}: perplexity {exact:.4f}, {other:.4f}; {loss}; {kl}"


if __name__ == "__main__":
    sys.exit(main())
