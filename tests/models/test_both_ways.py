"""from_pretrained and load_checkpoint make the same model of files: of Llama-4, whose stacks lie
across, of MXFP4, gpt-oss's too, of SVDQuant, and of experts without a gate."""

import json

import pytest
import torch
from damage import changed
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.integrations.mxfp4 import convert_moe_packed_tensors  # noqa: E402

import nvfp4kern.transformers as nt  # noqa: E402
from nvfp4kern.checkpoint import (  # noqa: E402
    CheckpointError,
    Files,
    load_checkpoint,
    meta_parameters,
    save_checkpoint,
)
from nvfp4kern.nn import NVFP4Config, NVFP4Experts, NVFP4Linear, quantize_  # noqa: E402
from nvfp4kern.quantizing import quantize_folder, weights  # noqa: E402
from nvfp4kern.transformers.calibration import Largest, watched_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("quiet")
OTHERS = ("compressed-tensors", "quark", "mxfp4")
PROMPT = torch.arange(2, 8)[None]
LLAMA4 = dict(
    vocab_size=128, hidden_size=64, intermediate_size=48, intermediate_size_mlp=96,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2,
    max_position_embeddings=64, pad_token_id=0,
)  # fmt: skip

QUARK = {
    "quant_method": "quark",
    "export": {"kv_cache_group": [], "pack_method": "reorder"},
    "global_quant_config": {
        "weight": {
            "dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0",
            "is_dynamic": False,
        },
    },
    "exclude": ["lm_head"],
}  # fmt: skip
ARIA = dict(
    vocab_size=128, hidden_size=64, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, moe_num_experts=4, moe_topk=2,
    moe_num_shared_experts=2, max_position_embeddings=64, pad_token_id=0,
)  # fmt: skip
GPT_OSS = dict(
    vocab_size=128, hidden_size=64, intermediate_size=32, num_hidden_layers=2, head_dim=16,
    num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
    sliding_window=16, max_position_embeddings=64, pad_token_id=0,
)  # fmt: skip
NEMOTRON_H = dict(
    vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=64,
    pad_token_id=0, num_experts_per_tok=2, moe_intermediate_size=48, n_routed_experts=4,
    layers_block_type=["mamba", "moe", "attention", "mlp"], moe_shared_expert_intermediate_size=48,
    ssm_state_size=16, mamba_num_heads=4, mamba_head_dim=16, n_groups=2, chunk_size=16,
)  # fmt: skip


@pytest.fixture
def quiet():
    """No bars; and compressed-tensors' NVFP4 is ours meanwhile."""
    transformers.utils.logging.disable_progress_bar()
    for method in OTHERS:
        nt.take_over(method)
    yield
    for method in OTHERS:
        nt.hand_back(method)


def built(name, sizes):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return config, model.eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=PROMPT).logits


def by_both_ways(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    config.quantization_config = None
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    with meta_parameters():
        own = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    load_checkpoint(own, folder, device="cpu", progress=False)
    return theirs.eval(), own.eval()


def turned(model):
    """Tensors as ModelOpt writes Llama-4's and gpt-oss's: stacks [E, K/2, N] with one global scale,
    and gpt-oss's with rows that are gate, up, gate, up."""
    tensors = {}
    for name, value in model.state_dict().items():
        if "gate_up_proj" in name and value.dim() > 1 and "scale_2" not in name:
            if model.config.model_type == "gpt_oss":
                value = torch.stack(value.chunk(2, 1), 2).flatten(1, 2)
        if name.endswith(("_proj", "_proj_weight_scale")):  # of stacks
            value = value.transpose(1, 2)
        elif name.endswith("_proj_weight_scale_2"):
            value = value.flatten()[0]
        tensors[name] = value.contiguous()
    return tensors


@pytest.mark.parametrize("inputs", [None, "static"])
@pytest.mark.parametrize("name, sizes", [("llama4_text", LLAMA4), ("gpt_oss", GPT_OSS)])
def test_stacks_as_modelopt_writes_them(tmp_path, name, sizes, inputs):
    config, model = built(name, sizes)
    for key, value in model.named_parameters():
        if key.endswith("_proj_bias"):  # of stacks
            torch.nn.init.normal_(value, std=0.1)
    quantize_(model, filter_fn=lambda module, name: name.endswith("experts"))
    for module in model.modules():
        if isinstance(module, NVFP4Experts):
            for stack in ("gate_up_proj", "down_proj"):
                torch.nn.init.constant_(getattr(module, f"{stack}_weight_scale_2"), 2.0**-12)
    want = logits(model)
    tensors = turned(model)
    if inputs:
        stacks = [key for key in tensors if key.endswith(("experts.gate_up_proj", ".down_proj"))]
        tensors |= {f"{key}_input_scale": torch.tensor(0.01) for key in stacks}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    quantization = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4" if inputs else "W4A16_NVFP4",
        "ignore": ["*self_attn*", "*shared_expert*", "*forward.[gud]*_proj", "*router", "lm_head"],
    }
    text = json.dumps({**config.to_dict(), "quantization_config": quantization})
    (tmp_path / "config.json").write_text(text)
    for again in by_both_ways(tmp_path):
        experts = [m for m in again.modules() if isinstance(m, NVFP4Experts)]
        assert {e.input_quant for e in experts} == {inputs}
        if inputs is None:
            assert torch.equal(logits(again), want)
        else:  # the router of the next layer may choose others
            assert (logits(again) - want).norm() < 0.5 * want.norm()


@pytest.mark.parametrize("inputs, stacked", [(None, False), (None, True), ("dynamic", False)])
def test_experts_without_a_gate(inputs, stacked, tmp_path):
    """Nemotron-H's, one by one in the files, as ModelOpt writes them, or as stacks."""
    _, model = built("nemotron_h", NEMOTRON_H)
    report = quantize_(model, NVFP4Config(input_quant=inputs))
    (name,) = (n for n in report if n.endswith("mixer.experts"))
    assert any(n.endswith("mixer.up_proj") for n in report)
    save_checkpoint(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for key in ("up_proj", "down_proj"):
        for part in ("weight", "weight_scale", "weight_scale_2"):
            each = [tensors.pop(f"{name}.{e}.{key}.{part}") for e in range(4)]
            tensors[f"{name}.{key}_{part}".removesuffix("_weight")] = torch.stack(each)
    if stacked:
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    want = logits(model)
    for again in by_both_ways(tmp_path):
        experts = again.get_submodule(name)
        assert isinstance(experts, NVFP4Experts) and not experts.gated
        assert experts.gating["activation"] == "relu2" and experts.input_quant == inputs
        assert torch.equal(logits(again), want)


def test_a_folder_of_experts_without_a_gate(tmp_path):
    """Its experts are those that quantize_ makes. Names in files begin with "backbone."."""
    _, model = built("nemotron_h", NEMOTRON_H)
    model.save_pretrained(tmp_path / "plain")
    quantize_folder(tmp_path / "plain", tmp_path / "small")
    (name,) = (n for n in quantize_(model) if n.endswith("mixer.experts"))
    found = list(by_both_ways(tmp_path / "small"))
    for again in found:
        for key in ("up_proj", "down_proj"):
            got, want = (m.get_submodule(name).dequantize(key) for m in (again, model))
            assert torch.equal(got, want)
    assert torch.equal(*map(logits, found))


def test_low_rank_factors(checkpoint, tmp_path):
    """NVFP4_SVD of ModelOpt, and what save_checkpoint makes of it."""
    base = checkpoint("llama", "modelopt-awq")
    added = {}
    for name, value in load_file(base / "model.safetensors").items():
        layer, _, part = name.rpartition(".")
        if part == "weight_scale":
            draw = torch.Generator().manual_seed(len(added))
            n, k = len(value), 16 * value.shape[1]
            for key, shape in (("a", (4, k)), ("b", (n, 4))):
                factor = torch.randn(shape, generator=draw).bfloat16()
                added[f"{layer}.svdquant_lora_{key}"] = factor / 64

    def say(config):
        config["quantization_config"]["quant_algo"] = "NVFP4_SVD"

    directory = changed(base, tmp_path / "m", config=say, **added)
    theirs, own = by_both_ways(directory)
    want = logits(theirs)
    assert all(torch.equal(own.get_parameter(name), value) for name, value in added.items())
    save_checkpoint(own, tmp_path / "again")
    assert '"quant_algo": "NVFP4_SVD"' in (tmp_path / "again" / "config.json").read_text()
    for model in (own, *by_both_ways(tmp_path / "again")):
        assert torch.equal(logits(model), want)
    assert not torch.equal(logits(by_both_ways(base)[0]), want)
    some = dict.fromkeys(added)
    with pytest.raises(CheckpointError, match="svdquant_lora_a: is missing, and no layer of NVFP4"):
        by_both_ways(changed(directory, tmp_path / "lost", **some))


@pytest.mark.parametrize("producer", OTHERS)
def test_mxfp4(checkpoint, tmp_path, producer):
    base = checkpoint("llama", "ct-w4a16")
    tensors = {}
    for name, value in load_file(base / "model.safetensors").items():
        if name.endswith("weight_scale"):
            value = torch.randint(116, 122, (len(value), value.shape[1] // 2), dtype=torch.uint8)
            name += "s" * (producer == "mxfp4")
        elif name.endswith("weight_packed") and producer != "compressed-tensors":
            name = name.removesuffix("_packed") + "_blocks" * (producer == "mxfp4")
            value = value.unflatten(1, (-1, 16)) if producer == "mxfp4" else value
        if not name.endswith("weight_global_scale"):
            tensors[name] = value.contiguous()
    config = json.loads((base / "config.json").read_text())
    said = config["quantization_config"]
    if producer == "compressed-tensors":
        said["format"] = "mxfp4-pack-quantized"
        (group,) = said["config_groups"].values()
        group.pop("format", None)
        group["weights"] |= {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
    else:
        said = QUARK if producer == "quark" else {"quant_method": "mxfp4"}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    theirs, own = by_both_ways(tmp_path)
    assert isinstance(theirs.model.layers[0].mlp.up_proj, NVFP4Linear)
    assert torch.equal(logits(theirs), logits(own)) and bool(logits(own).isfinite().all())


@pytest.mark.parametrize("name, sizes", [("llama4_text", LLAMA4), ("gpt_oss", GPT_OSS)])
def test_a_folder_whose_stacks_lie_across_is_quantised(tmp_path, name, sizes):
    """Rows of gpt-oss's take turns, and have biases."""
    _, model = built(name, sizes)
    for key, value in model.named_parameters():
        if key.endswith("_proj_bias"):
            torch.nn.init.normal_(value)
    model.save_pretrained(tmp_path / "plain")
    made = quantize_folder(tmp_path / "plain", tmp_path / "made", verify=True)
    assert max(made.errors.values()) < 0.12
    assert not any("experts" in name for name in made.kept)
    quantize_(model)
    theirs, own = by_both_ways(tmp_path / "made")
    assert torch.equal(logits(theirs), logits(own))
    stacks = [[m for m in each.modules() if isinstance(m, NVFP4Experts)] for each in (model, own)]
    for stack, again in zip(*stacks, strict=True):
        for key, value in stack.named_parameters():
            if key == "down_proj" or key.endswith("_bias"):
                assert torch.equal(again.get_parameter(key), value), key
        want, got = (each.dequantize("gate_up_proj") for each in (stack, again))
        assert (got - want).norm() < 0.1 * want.norm()  # a file's gate and up share a global scale


@pytest.mark.parametrize("name, sizes", [("llama4_text", LLAMA4), ("gpt_oss", GPT_OSS)])
def test_stacks_that_lie_across_are_read_once(tmp_path, name, sizes, monkeypatch):
    """However small the pieces. Others are read twice at most."""
    _, model = built(name, sizes)
    model.save_pretrained(tmp_path / "plain")
    quantize_folder(tmp_path / "plain", tmp_path / "made")
    monkeypatch.setattr(weights, "ELEMENTS", dict.fromkeys(weights.ELEMENTS, 128))
    count, stacks, read = {}, 0, Files.read

    def counted(files, tensor, *arguments):
        before = files.nbytes_read
        found = read(files, tensor, *arguments)
        count[tensor] = count.get(tensor, 0) + files.nbytes_read - before
        return found

    monkeypatch.setattr(Files, "read", counted)
    quantize_folder(tmp_path / "plain", tmp_path / "again")
    with Files(tmp_path / "plain") as files:
        for tensor, nbytes in count.items():
            stack = ".experts." in tensor and "bias" not in tensor
            stacks += stack
            assert nbytes <= files.tensors[tensor].nbytes * (1 if stack else 2), tensor
    made, again = (load_file(tmp_path / each / "model.safetensors") for each in ("made", "again"))
    assert stacks in (2, 4) and made.keys() == again.keys()
    for key, value in made.items():
        assert torch.equal(value.float(), again[key].float()), key


@pytest.mark.parametrize(
    "name, sizes", [("llama4_text", LLAMA4), ("aria_text", ARIA), ("gpt_oss", GPT_OSS)]
)
def test_calibration_sees_what_stacks_that_lie_across_get(name, sizes):
    _, model = built(name, sizes)
    model.set_experts_implementation("eager")
    (path, *_) = (n for n, each in model.named_modules() if n.endswith(".experts"))
    seen = {}
    experts = model.get_submodule(path)
    if NVFP4Experts.why_not(experts):
        pytest.skip(f"this transformers has no stack in {name}")
    experts.register_forward_pre_hook(lambda _, given: seen.update(given=given[0]))
    found = Largest()
    with found.watching(*watched_of(model)), torch.no_grad():
        model(input_ids=PROMPT)
    assert found.values[f"{path}.gate_up_proj"] <= seen["given"].abs().amax()
    assert 0 < found.values[f"{path}.gate_up_proj"] and 0 < found.values[f"{path}.down_proj"]


def test_gpt_oss_as_openai_writes_it(tmp_path):
    """Weights are those of transformers to the bit, results near its own, and saved again by us."""
    config, model = built("gpt_oss", GPT_OSS)
    tensors, draw = {}, torch.Generator().manual_seed(1)
    for name, value in model.state_dict().items():
        if name.endswith("_proj") and value.dim() == 3:
            shape = (*value.mT.shape[:2], value.shape[1] // 32)
            blocks = torch.randint(0, 256, (*shape, 16), generator=draw, dtype=torch.uint8)
            scales = torch.randint(118, 122, shape, generator=draw, dtype=torch.uint8)
            value.copy_(convert_moe_packed_tensors(blocks, scales))
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        else:
            if name.endswith("_proj_bias"):
                value.normal_(generator=draw)
            tensors[name] = value.contiguous()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    said = {**config.to_dict(), "quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(said))
    want, (theirs, own) = logits(model), by_both_ways(tmp_path)
    for layer, plain in zip(own.model.layers, model.model.layers, strict=True):
        up, down = (
            layer.mlp.experts.dequantize(f"{n}_proj").bfloat16() for n in ("gate_up", "down")
        )
        up = up.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
        for got, weight in (
            (up, plain.mlp.experts.gate_up_proj),
            (down, plain.mlp.experts.down_proj),
        ):
            assert torch.equal(got.mT.contiguous().view(torch.int16), weight.view(torch.int16))
    assert torch.equal(logits(theirs), logits(own))
    assert (logits(own) - want).norm() < 2.0**-6 * want.norm()
    with pytest.warns(UserWarning, match="one for each row"):
        save_checkpoint(own, tmp_path / "again")
    for again in by_both_ways(tmp_path / "again"):
        assert torch.equal(logits(again), logits(own))
