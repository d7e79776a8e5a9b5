"""The architectures of tiny checkpoints: config.json, and the names of a checkpoint's tensors."""

from dataclasses import dataclass, field

from tiny_sizes import sizes

HIDDEN, DENSE, EXPERT, EXPERTS = 64, 96, 48, 4  # widths of a token, an MLP, an expert; experts

COMMON = dict(
    sizes(128, HIDDEN, DENSE, layers=2, heads=4, kv_heads=2, positions=64),
    hidden_act="silu",
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
)
LATENT = dict(
    head_dim=8,  # the rotated part
    num_key_value_heads=4,
    q_lora_rank=48,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
    rope_interleave=True,
)


def attention(c):
    """q, k, v and o: (name, out, in) of each linear layer."""
    q, kv = (c[n] * c["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
    rows = {"q_proj": q, "k_proj": kv, "v_proj": kv}
    yield from ((f"self_attn.{n}", r, c["hidden_size"]) for n, r in rows.items())
    yield "self_attn.o_proj", c["hidden_size"], q


def latent_attention(c):
    """DeepSeek's: low-rank q and kv."""
    heads, rank, kv = c["num_attention_heads"], c["q_lora_rank"], c["kv_lora_rank"]
    rope, nope, value = c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"]
    yield "self_attn.q_a_proj", rank, c["hidden_size"]
    yield "self_attn.q_b_proj", heads * (nope + rope), rank
    yield "self_attn.kv_a_proj_with_mqa", kv + rope, c["hidden_size"]
    yield "self_attn.kv_b_proj", heads * (nope + value), kv
    yield "self_attn.o_proj", c["hidden_size"], heads * value


def gated(parent, width, names=("gate_proj", "up_proj", "down_proj")):
    """An MLP or one expert."""
    gate, up, down = (f"{parent}.{n}" for n in names)
    return [(gate, width, HIDDEN), (up, width, HIDDEN), (down, HIDDEN, width)]


@dataclass(frozen=True)
class Architecture:
    """What config.json says, and what a decoder layer consists of."""

    config: dict
    attention: object = attention
    norms: dict = field(default_factory=dict)  # name within self_attn -> config's key of its size
    experts: str | None = None  # the name of the mixture; None: every MLP is dense
    expert_names: tuple = ("gate_proj", "up_proj", "down_proj")
    dense_layers: int = 0
    shared: bool = False
    correction: bool = False

    def linears(self, layer):
        """(name within the layer, out, in) of what may be quantised."""
        yield from self.attention(self.config)
        if self.experts is None or layer < self.dense_layers:
            yield from gated("mlp", DENSE)
            return
        for e in range(EXPERTS):
            yield from gated(f"{self.experts}.experts.{e}", EXPERT, self.expert_names)
        if self.shared:
            yield from gated(f"{self.experts}.shared_experts", EXPERT)

    def others(self, layer):
        """(name within the layer, shape, kind) of what is never quantised."""
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}.weight", (HIDDEN,), "norm"
        for name, key in self.norms.items():
            yield f"self_attn.{name}.weight", (self.config[key],), "norm"
        if self.experts is not None and layer >= self.dense_layers:
            yield f"{self.experts}.gate.weight", (EXPERTS, HIDDEN), "router"
            if self.correction:
                yield f"{self.experts}.gate.e_score_correction_bias", (EXPERTS,), "correction"


def config_of(model_type, cls, **more):
    return dict(COMMON, model_type=model_type, architectures=[cls], **more)


HEAD_NORMS = {"q_norm": "head_dim", "k_norm": "head_dim"}
ARCHITECTURES = {
    "llama": Architecture(config_of("llama", "LlamaForCausalLM", attention_bias=True)),
    "qwen3": Architecture(config_of("qwen3", "Qwen3ForCausalLM"), norms=HEAD_NORMS),
    "qwen3_moe": Architecture(
        config_of(
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            moe_intermediate_size=EXPERT,
            num_experts=EXPERTS,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        ),
        norms=HEAD_NORMS,
        experts="mlp",
    ),
    "mixtral": Architecture(
        config_of(
            "mixtral",
            "MixtralForCausalLM",
            num_local_experts=EXPERTS,
            num_experts_per_tok=2,
            sliding_window=None,
        )
        | {"intermediate_size": EXPERT},
        experts="block_sparse_moe",
        expert_names=("w1", "w3", "w2"),
    ),
    "deepseek_v3": Architecture(
        config_of(
            "deepseek_v3",
            "DeepseekV3ForCausalLM",
            moe_intermediate_size=EXPERT,
            n_routed_experts=EXPERTS,
            n_shared_experts=1,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.5,
            num_nextn_predict_layers=0,
        )
        | LATENT,
        attention=latent_attention,
        norms={"q_a_layernorm": "q_lora_rank", "kv_a_layernorm": "kv_lora_rank"},
        experts="mlp",
        dense_layers=1,
        shared=True,
        correction=True,
    ),
}
