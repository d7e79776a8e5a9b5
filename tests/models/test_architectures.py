"""Models of many architectures: quantised, reported on, saved, loaded by both ways, and run."""

import re
import warnings

import pytest
import torch
from layers import decoded, near
from tiny_sizes import sizes
from torch import nn

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import nvfp4kern.transformers  # noqa: E402, F401
from nvfp4kern.checkpoint import load_checkpoint, meta_parameters, save_checkpoint  # noqa: E402
from nvfp4kern.nn import NVFP4Experts, NVFP4Linear, quantize_  # noqa: E402
from nvfp4kern.nn.chosen import weights_of  # noqa: E402
from nvfp4kern.nn.linear import is_conv1d  # noqa: E402
from nvfp4kern.nn.stacks import SORTED, gate_of, is_transposed  # noqa: E402

COMMON = sizes(128, 64, 96, layers=2, heads=4, kv_heads=2, positions=64) | {"pad_token_id": 0}
MIXTURE = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
OLDER = dict(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)
MAMBA = dict(ssm_state_size=16, mamba_num_heads=4, mamba_head_dim=16, n_groups=2, chunk_size=16)
KINDS = ("mamba", "moe", "attention", "mlp")
MODELS = {
    "gpt_oss": dict(COMMON, num_local_experts=4, num_experts_per_tok=2, sliding_window=16),
    "llama4_text": dict(COMMON, intermediate_size=48, intermediate_size_mlp=96,
                        num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2),
    "aria_text": dict(COMMON, intermediate_size=48, moe_num_experts=4, moe_topk=2,
                      moe_num_shared_experts=2),
    "nemotron_h": dict(COMMON, **MIXTURE, **MAMBA, num_hidden_layers=4, n_routed_experts=4,
                       layers_block_type=list(KINDS), moe_shared_expert_intermediate_size=48),
    "qwen3_next": dict(COMMON, **MIXTURE, num_hidden_layers=4, num_experts=4,
                       linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16,
                       linear_value_head_dim=16, shared_expert_intermediate_size=48),
    "glm4_moe": dict(COMMON, **MIXTURE, n_routed_experts=4, n_shared_experts=1,
                     first_k_dense_replace=1),
    "minimax": dict(COMMON, num_local_experts=4, num_experts_per_tok=2, block_size=16,
                    layer_types=["linear_attention", "full_attention"]),
    "hunyuan_v1_moe": dict(COMMON, num_experts=32, moe_topk=2, moe_intermediate_size=48,
                           num_shared_expert=1),
    "falcon": dict(OLDER, bos_token_id=0, eos_token_id=1),
    "gpt2": dict(vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0,
                 eos_token_id=1),
    "mamba": dict(vocab_size=128, hidden_size=64, state_size=16, num_hidden_layers=2,
                  bos_token_id=0, eos_token_id=1, pad_token_id=0),
    "t5": dict(vocab_size=128, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4,
               decoder_start_token_id=0, feed_forward_proj="gated-gelu"),
    "bert": dict(OLDER, intermediate_size=96, max_position_embeddings=64),
    "whisper": dict(vocab_size=128, num_mel_bins=16, d_model=64, max_source_positions=32,
                    max_target_positions=64, decoder_start_token_id=2, pad_token_id=0,
                    bos_token_id=0, eos_token_id=1, suppress_tokens=[], begin_suppress_tokens=[],
                    **{f"{side}_{what}": size for side in ("encoder", "decoder")
                       for what, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 96))}),
}  # fmt: skip
AUTO = {
    "t5": "AutoModelForSeq2SeqLM",
    "bert": "AutoModelForMaskedLM",
    "whisper": "AutoModelForSpeechSeq2Seq",
}
STAYING = {  # (a name, why), of what is no head and no router
    "nemotron_h": {("mixer.out_proj", "MambaRMSNormGated|Mamba2Mixer reads its weight")},
    "qwen3_next": {("in_proj_ba", r"excluded by '\*linear_attn"),
                   ("shared_expert_gate", r"excluded by '\*_gate'")},
    "minimax": {("output_gate", r"excluded by '\*_gate'")},
    "mamba": {("x_proj", "reads its weight"), ("out_proj", "reads its weight"),
              ("dt_proj", "has K = 4|reads its weight")},
    "t5": {("wo", "reads its weight")},
    "bert": {("transform.dense", "excluded by '.*cls.predictions")},
}  # fmt: skip
PROMPT = torch.arange(2, 8)[None]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*falling back"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
]


@pytest.fixture(autouse=True)
def quiet():
    transformers.utils.logging.disable_progress_bar()
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    yield
    transformers.utils.logging.set_verbosity(before)


def built(name):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **MODELS[name])
    auto = getattr(transformers, AUTO.get(name, "AutoModelForCausalLM"))
    model = auto.from_config(config, dtype=torch.bfloat16).eval()
    for key, value in model.named_parameters():
        if key.endswith("_proj_bias"):  # of stacks of experts
            nn.init.normal_(value)
    return auto, config, model


def inputs(name):
    if name == "whisper":
        sound = torch.randn(1, 16, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
        return {"input_features": sound}
    return {"input_ids": PROMPT}


def logits(name, model):
    more = {"decoder_input_ids": PROMPT} if name in ("t5", "whisper") else {}
    with torch.no_grad():
        return model(**inputs(name), **more).logits


def tokens(name, model):
    if name == "bert":
        return None
    return model.generate(
        **inputs(name), max_new_tokens=5, min_new_tokens=5, do_sample=False
    ).tolist()


def check_weight(weight, layer):
    """Within half a step of the codes, and the rounding of a scale factor, of a block."""
    values = decoded(layer.weight, layer.weight_scale, layer.weight_scale_2.double())
    error = (values - weight.double()).abs().unflatten(1, (-1, 16))
    largest = weight.double().abs().unflatten(1, (-1, 16)).amax(-1, keepdim=True)
    least = 6 * 2.0**-10 * layer.weight_scale_2.double()
    assert bool((error <= (17 / 16) / 6 * largest + least).all())
    return values


def check_layers(name, model, weights):
    """Each result of a linear layer, of the input that it got in the model, in float64."""
    seen = {}

    def see(module, args, y):
        seen[module] = args[0].clone(), y.clone()  # some models write to theirs

    handles = [
        module.register_forward_hook(see)
        for module in model.modules()
        if isinstance(module, NVFP4Linear)
    ]
    result = logits(name, model)
    for handle in handles:
        handle.remove()
    layers = {n: m for n, m in model.named_modules() if isinstance(m, NVFP4Linear)}
    assert len(seen) >= len(layers) * 0.9 and result.isfinite().all()
    for path, layer in layers.items():
        values = check_weight(weights[path], layer)
        if layer in seen:
            x, y = (each.double().flatten(0, -2) for each in seen[layer])
            bias = 0 if layer.bias is None else layer.bias.double()
            near(y, x @ values.T + bias, x.abs() @ values.abs().T)
    return result


def check_experts(path, experts, before):
    """Against transformers' own computation in float32, of the same weights."""
    reference = before.float()
    for key in experts.stacks:
        weight = getattr(reference, key).data
        values = experts.dequantize(key)
        if key == "gate_up_proj" and gate_of(before).interleaved:
            values = values.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
        values = values.transpose(1, 2) if is_transposed(before) else values
        assert (values - weight).norm() < 0.11 * weight.norm()
        weight.copy_(values)
    x = torch.randn(8, experts.hidden_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    ids = torch.arange(16).reshape(8, 2) % experts.num_experts
    routing = () if type(before).__name__ in SORTED else (ids, torch.full((8, 2), 0.5))
    with torch.no_grad():
        want = reference(x.float(), *routing)
        got = experts(x, *routing)
    assert (got.float() - want).norm() < 2.0**-7 * want.norm(), path


@pytest.mark.parametrize("name", MODELS)
def test_quantised_saved_loaded_and_run(name, tmp_path):
    if name not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {name}")
    auto, config, model = built(name)
    plain = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) or weights_of(module)
    }
    weights = {
        path: module.weight.detach().T if is_conv1d(module) else module.weight.detach()
        for path, module in plain.items()
        if isinstance(module, nn.Linear) or is_conv1d(module)
    }
    count = model.num_parameters()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = quantize_(model)
    assert {*report, *report.kept} == plain.keys() and model.num_parameters() == count
    assert bool(caught) == (report.share < 0.5), caught
    for ending, why in STAYING.get(name, ()):
        found = {n: each for n, each in report.kept.items() if n.endswith(ending)}
        assert found, report.kept
        for each in found.values():
            assert re.search(why, each), each
    if not report:  # all of its layers are of other classes
        assert logits(name, model).isfinite().all()
        with pytest.raises(ValueError, match="has no NVFP4 layer"):
            save_checkpoint(model, tmp_path / "saved")
        return
    want = check_layers(name, model, weights)
    for path, module in model.named_modules():
        if isinstance(module, NVFP4Experts):
            check_experts(path, module, plain[path])
    save_checkpoint(model, tmp_path / "saved")
    theirs = auto.from_pretrained(tmp_path / "saved", dtype=torch.bfloat16).eval()
    with meta_parameters():
        own = auto.from_config(config, dtype=torch.bfloat16).eval()
    load_checkpoint(own, tmp_path / "saved", device="cpu", progress=False)
    said = tokens(name, model)
    for again in (theirs, own):
        assert torch.equal(logits(name, again), want)
        assert tokens(name, again) == said
