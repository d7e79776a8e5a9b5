"""Log probabilities of transformers with our layers, of tokens that vLLM chose."""

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import nvfp4kern.transformers as nt


def open_model(folder, dtype=torch.bfloat16, **options):
    nt.take_over()  # of compressed-tensors' files; "modelopt" is ours by the import
    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options).eval()
    finally:
        nt.hand_back()


def add_adapter(model, folder):
    """checkpoints.make_adapter's: what its layers add is computed in float32."""
    tensors = load_file(f"{folder}/adapter_model.safetensors")
    for name, a in tensors.items():
        layer = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        if layer + ".lora_A.weight" in name:
            b = 2 * tensors[name.replace("lora_A", "lora_B")]  # lora_alpha / r

            def add(_, inputs, out, a=a, b=b):
                return out + (inputs[0].float() @ a.T @ b.T).to(out.dtype)

            model.get_submodule(layer).register_forward_hook(add)


def logprobs(model, prompts, tokens):
    """For each prompt those of the tokens after it, as a list."""
    found = []
    for prompt, ids in zip(prompts, tokens, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0].float()
        at = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        found.append(at.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist())
    return found


def largest_difference(a, b):
    return max(abs(x - y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))
