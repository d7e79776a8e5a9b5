"""Random checkpoints for vllm_engine.py, W4A16 as compressed-tensors writes it."""

import json
from dataclasses import dataclass

import torch
from safetensors.torch import save_file

import nvfp4kern.torch as nk


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    intermediate: int
    kv_heads: int
    experts: int = 0
    used: int = 0
    heads: int = 32
    width: int = 128
    vocabulary: int = 32000

    def projections(self):
        """{name in a layer: (N, K)}."""
        heads, kv = self.heads * self.width, self.kv_heads * self.width
        at = {"q_proj": heads, "k_proj": kv, "v_proj": kv}
        found = {f"self_attn.{name}": (n, self.hidden) for name, n in at.items()}
        found["self_attn.o_proj"] = self.hidden, heads
        for part in [f"experts.{i}." for i in range(self.experts)] or [""]:
            for name in ("gate_proj", "up_proj"):
                found[f"mlp.{part}{name}"] = self.intermediate, self.hidden
            found[f"mlp.{part}down_proj"] = self.hidden, self.intermediate
        return found

    def modules(self):
        """How many modules of vLLM's have NVFP4 weights: fused ones, and stacks of experts."""
        return self.layers * (3 if self.experts else 4)

    def config(self):
        found = {
            "hidden_size": self.hidden, "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.width, "hidden_act": "silu",
            "vocab_size": self.vocabulary, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0, "tie_word_embeddings": False, "attention_bias": False,
            "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
        }  # fmt: skip
        if not self.experts:
            return found | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        return found | {
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
            "num_experts": self.experts, "num_experts_per_tok": self.used,
            "moe_intermediate_size": self.intermediate, "norm_topk_prob": True,
            "decoder_sparse_step": 1, "mlp_only_layers": [],
        }  # fmt: skip


SHAPES = {
    "dense": Shape(16, 4096, 14336, kv_heads=8),
    "mixture": Shape(12, 2048, 768, kv_heads=4, experts=128, used=8),
}


def quantization():
    """As compressed-tensors writes it for NVFP4A16."""
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
               "symmetric": True, "dynamic": False}  # fmt: skip
    group = {"weights": weights, "input_activations": None, "targets": ["Linear"],
             "format": "nvfp4-pack-quantized"}  # fmt: skip
    return {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
            "quantization_status": "compressed", "config_groups": {"group_0": group},
            "ignore": ["lm_head", "re:.*mlp[.]gate$"], "kv_cache_scheme": None}  # fmt: skip


def make(folder, shape, device):
    """Writes a checkpoint: a file for each layer, one for the rest, and config.json at the end."""
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    with torch.device(device):
        head = torch.randn(shape.vocabulary, shape.hidden, dtype=torch.bfloat16)
        rest = {
            "model.embed_tokens.weight": torch.randn_like(head),
            "lm_head.weight": head * shape.hidden**-0.5,
            "model.norm.weight": torch.ones(shape.hidden, dtype=torch.bfloat16),
        }
        save_file(rest, folder / "model-rest.safetensors")
        for i in range(shape.layers):
            tensors = {f"model.layers.{i}.{name}": value for name, value in layer(shape).items()}
            save_file(tensors, folder / f"model-{i:05}.safetensors")
    config = shape.config() | {"quantization_config": quantization()}
    (folder / "config.json").write_text(json.dumps(config))


def layer(shape):
    found = {}
    for name, (n, k) in shape.projections().items():
        weight = torch.randn(n, k, dtype=torch.bfloat16) * k**-0.5
        scale = torch.tensor([6 * k**-0.5 / 2688])  # one for fused layers, which vLLM merges
        codes, scales, _ = nk.quantize(weight, global_scale=scale, data_dtype=torch.uint8)
        found |= {f"{name}.weight_packed": codes, f"{name}.weight_scale": scales}
        found[f"{name}.weight_global_scale"] = 1 / scale
    norms = {"input_layernorm": shape.hidden, "post_attention_layernorm": shape.hidden}
    if shape.experts:
        norms |= {"self_attn.q_norm": shape.width, "self_attn.k_norm": shape.width}
        router = torch.randn(shape.experts, shape.hidden, dtype=torch.bfloat16)
        found["mlp.gate.weight"] = router * shape.hidden**-0.5
    return found | {f"{at}.weight": torch.ones(n, dtype=torch.bfloat16) for at, n in norms.items()}
