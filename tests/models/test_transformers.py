"""from_pretrained on the layers of nvfp4kern.nn, and what it refuses."""

import warnings
from pathlib import Path

import pytest
import safetensors.torch
import tiny
import torch
from damage import changed
from tiny_architectures import ARCHITECTURES

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM  # noqa: E402

import nvfp4kern.transformers as nt  # noqa: E402
from nvfp4kern.checkpoint import CheckpointError, load_checkpoint, save_checkpoint  # noqa: E402
from nvfp4kern.nn import NVFP4Experts, NVFP4Linear, quantize_  # noqa: E402

FORMS = ("modelopt-nvfp4", "modelopt-w4a16", "modelopt-awq", "modelopt-mixed", "ct-w4a4")
OTHERS = Path(__file__).parent / "others"
PROMPT = torch.arange(2, 8)[None]


@pytest.fixture(autouse=True)
def quiet():
    """No bars; and compressed-tensors' NVFP4 is ours meanwhile."""
    transformers.utils.logging.disable_progress_bar()
    nt.take_over()
    yield
    nt.hand_back()


def from_pretrained(directory, cls=AutoModelForCausalLM, **options):
    """The model; every tensor of the files has its place, and every parameter its tensor."""
    options = {"dtype": torch.bfloat16} | options
    model, report = cls.from_pretrained(directory, output_loading_info=True, **options)
    assert not any(report.values()), report
    return model


def tokens_and_logits(model):
    model.eval()
    prompt = PROMPT.to(model.device)
    with torch.no_grad():
        logits = model(prompt).logits
    tokens = model.generate(
        prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0
    )
    return tokens[0, PROMPT.shape[1] :].tolist(), logits


def with_own_loader(directory, device="cpu"):
    config = AutoConfig.from_pretrained(directory)
    config.quantization_config = None
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    load_checkpoint(model, directory, device=device, progress=False)
    return model


# --- What loads ---


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_model_is_that_of_our_own_loader(checkpoint, architecture, form):
    """q, k, v and gate, up have different global scales, and tensors lie in two files."""
    directory = checkpoint(architecture, form, spread=True, shards=2)
    tokens, logits = tokens_and_logits(from_pretrained(directory))
    expected_tokens, expected = tokens_and_logits(with_own_loader(directory))
    assert torch.equal(logits, expected)
    assert tokens == expected_tokens


@pytest.mark.parametrize("form", ["modelopt-nvfp4", "modelopt-w4a16", "ct-w4a4"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "deepseek_v3"])
def test_a_gpus_model_is_that_of_our_own_loader(gpu, monkeypatch, checkpoint, architecture, form):
    pytest.importorskip("accelerate", reason="accelerate is not installed")  # for device_map
    directory = checkpoint(architecture, form, spread=True, shards=2)
    model = from_pretrained(directory, device_map=gpu.device)
    assert {tensor.device.type for tensor in model.state_dict().values()} == {gpu.device}
    tokens, logits = tokens_and_logits(model)
    expected_tokens, expected = tokens_and_logits(with_own_loader(directory, gpu.device))
    assert torch.equal(logits, expected)
    assert tokens == expected_tokens
    monkeypatch.delenv("NVFP4KERN_BACKEND")
    on_cpu = tokens_and_logits(from_pretrained(directory))[1]
    assert (logits.cpu() - on_cpu).norm() < 0.1 * on_cpu.norm()


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in OTHERS.glob("modelopt-*/config.json"))
)
def test_files_that_modelopt_wrote(name):
    _, logits = tokens_and_logits(from_pretrained(OTHERS / name))
    assert torch.equal(logits, tokens_and_logits(with_own_loader(OTHERS / name))[1])


@pytest.mark.parametrize(
    ("architecture", "form", "options"),
    [
        ("llama", "modelopt-nvfp4", dict(fused=True)),
        ("llama", "modelopt-nvfp4", dict(one_element=True, config_in=("config.json",))),
        ("llama", "modelopt-w4a16", dict(leftover=True, tied=True)),
        ("llama", "modelopt-nvfp4", dict(exclude=("*.0.*", "lm_head"))),
        ("qwen3", "modelopt-nvfp4", dict(exclude=())),  # a quantised lm_head
        ("qwen3", "ct-w4a16", dict(exclude=())),
        ("qwen3", "ct-mixed", dict(exclude=("*v_proj",))),
        ("mixtral", "modelopt-nvfp4", dict(exclude=("*.experts.*", "*gate", "lm_head"))),
        ("qwen3_moe", "modelopt-nvfp4", dict(stacked="E")),
        ("qwen3_moe", "modelopt-nvfp4", dict(stacked="E2", spread=True)),
    ],
)
def test_exports_differ(checkpoint, architecture, form, options):
    directory = checkpoint(architecture, form, **options)
    model = from_pretrained(directory)
    assert torch.equal(
        tokens_and_logits(model)[1], tokens_and_logits(with_own_loader(directory))[1]
    )
    plain = "lm_head" in options.get("exclude", ("lm_head",))
    assert type(model.lm_head) is (torch.nn.Linear if plain else NVFP4Linear)


def test_layers_are_ours(checkpoint):
    model = from_pretrained(checkpoint("qwen3_moe", "modelopt-nvfp4"))
    kinds = {name: type(module) for name, module in model.named_modules()}
    assert kinds["model.layers.0.mlp.experts"] is NVFP4Experts
    assert kinds["model.layers.1.self_attn.o_proj"] is NVFP4Linear
    assert not any(kinds[name] is torch.nn.Linear for name in kinds if name != "lm_head")
    assert model.model.layers[0].self_attn.o_proj.input_quant == "static"
    for name, value in model.named_parameters():
        trained = not ("mlp.experts" in name or "_proj." in name)
        assert value.requires_grad == trained, name


def test_an_expert_without_input_scale_gets_the_largest(checkpoint):
    directory = checkpoint("mixtral", "modelopt-nvfp4", missing=("*.experts.2.*",), spread=True)
    with pytest.warns(UserWarning, match=r"experts.*input_scale"):
        model = from_pretrained(directory)
    scales = model.model.layers[1].mlp.experts.gate_up_proj_input_scale
    assert torch.equal(scales[2], scales[[0, 1, 3]].max(0).values)


def test_models_without_a_head_and_with_fewer_layers(checkpoint):
    directory = checkpoint("qwen3", "modelopt-w4a16", exclude=())
    whole = from_pretrained(directory)
    with torch.no_grad():
        expected = whole.model(PROMPT).last_hidden_state
        headless = AutoModel.from_pretrained(directory, dtype=torch.bfloat16)
        assert torch.equal(headless(PROMPT).last_hidden_state, expected)
    config = AutoConfig.from_pretrained(directory, num_hidden_layers=1)
    config.layer_types = config.layer_types[:1]
    short = AutoModelForCausalLM.from_pretrained(directory, config=config, dtype=torch.bfloat16)
    first = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(short.get_parameter(first), whole.get_parameter(first))


def test_a_quantised_head_is_not_tied(checkpoint, tmp_path):
    untied = checkpoint("qwen3", "modelopt-w4a16", exclude=())
    tied = changed(untied, tmp_path / "m", config=lambda c: c.update(tie_word_embeddings=True))
    model = from_pretrained(tied)
    model.tie_weights()
    assert torch.equal(tokens_and_logits(model)[1], tokens_and_logits(from_pretrained(untied))[1])


def test_scales_of_the_key_value_cache_are_ignored(checkpoint, tmp_path):
    parts = ("k_proj.k_scale", "v_proj.v_scale")
    scales = {f"model.layers.0.self_attn.{part}": torch.tensor(0.5) for part in parts}
    from_pretrained(changed(checkpoint("llama", "modelopt-nvfp4"), tmp_path / "m", **scales))


def test_the_dtype_is_the_files_or_the_callers(checkpoint):
    directory = checkpoint("llama", "modelopt-w4a16")
    assert from_pretrained(directory, dtype="auto").dtype == torch.bfloat16
    half = from_pretrained(directory, dtype=torch.float16)
    layer = half.model.layers[0].self_attn.q_proj
    assert layer.bias.dtype == torch.float16
    assert layer.weight_scale.dtype == torch.float8_e4m3fn
    assert layer.weight_scale_2.dtype == torch.float32


def test_hf_quant_config_alone(checkpoint):
    """config.json says nothing of it, so the caller does."""
    directory = checkpoint("llama", "modelopt-nvfp4", config_in=("hf_quant_config.json",))
    expected = from_pretrained(checkpoint("llama", "modelopt-nvfp4"))
    model = from_pretrained(directory, quantization_config=nt.NVFP4KernConfig())
    assert torch.equal(tokens_and_logits(model)[1], tokens_and_logits(expected)[1])


def test_a_plain_model_is_quantised(tmp_path):
    config = AutoConfig.for_model(**ARCHITECTURES["qwen3_moe"].config)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path)
    given = nt.NVFP4KernConfig(input_quant="dynamic", exclude=("lm_head", "*.o_proj"))
    model = from_pretrained(tmp_path, quantization_config=given)
    assert type(model.model.layers[0].mlp.experts) is NVFP4Experts
    assert model.model.layers[0].self_attn.q_proj.input_quant == "dynamic"
    assert type(model.model.layers[0].self_attn.o_proj) is torch.nn.Linear
    assert len(tokens_and_logits(model)[0]) == 8
    assert model.config.quantization_config.to_dict()["input_quant"] == "dynamic"


class QuantisedItself(transformers.Qwen3MoeForCausalLM):
    """Its layers are ours before any weight is there, and no quantiser of ours is asked."""

    def __init__(self, config):
        super().__init__(config)
        layers = [(n, m) for n, m in self.named_modules() if n.endswith(("_proj", "experts"))]
        for name, module in layers:
            kind = NVFP4Experts.like if name.endswith("experts") else like
            self.set_submodule(name, kind(module, input_quant="static", device="meta"))


def like(linear, **options):
    sizes = linear.in_features, linear.out_features, linear.bias is not None
    return NVFP4Linear(*sizes, dtype=linear.weight.dtype, **options)


def test_a_class_that_quantises_itself(checkpoint, tmp_path):
    """from_pretrained sets parameters one by one, and then buffers to memory of any content."""
    given = from_pretrained(checkpoint("qwen3_moe", "modelopt-nvfp4", spread=True))
    safetensors.torch.save_file(given.state_dict(), tmp_path / "model.safetensors")
    config = AutoConfig.for_model(**ARCHITECTURES["qwen3_moe"].config)
    config.save_pretrained(tmp_path)
    model = QuantisedItself.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert torch.equal(tokens_and_logits(model)[1], tokens_and_logits(given)[1])


# --- Whose checkpoints they are ---


def test_compressed_tensors_is_transformers_until_it_is_taken(checkpoint):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    directory = checkpoint("llama", "ct-w4a16")
    assert type(from_pretrained(directory).model.layers[0].mlp.up_proj) is NVFP4Linear
    nt.hand_back()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    assert type(theirs.model.layers[0].mlp.up_proj) is not NVFP4Linear


def test_what_is_taken_is_nvfp4_alone():
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from transformers.quantizers.auto import AutoQuantizationConfig
    from transformers.utils.quantization_config import CompressedTensorsConfig

    weights = dict(num_bits=8, type="int", strategy="channel", symmetric=True, dynamic=False)
    group = dict(weights=weights, input_activations=None, targets=["Linear"])
    config = dict(
        quant_method="compressed-tensors",
        format="pack-quantized",
        quantization_status="compressed",
        config_groups={"group_0": group},
    )
    assert type(AutoQuantizationConfig.from_dict(config)) is CompressedTensorsConfig


def test_taking_needs_a_method_that_we_read():
    with pytest.raises(ValueError, match="'gptq', expected one of compressed-tensors, modelopt"):
        nt.take_over("gptq")


def test_a_method_that_is_claimed_stays_until_it_is_taken(checkpoint, monkeypatch):
    """As a later version of transformers may know ModelOpt."""
    from transformers.quantizers import auto
    from transformers.utils.quantization_config import QuantizationConfigMixin

    from nvfp4kern.transformers.config import register

    class Theirs(QuantizationConfigMixin):
        pass

    monkeypatch.setitem(auto.AUTO_QUANTIZATION_CONFIG_MAPPING, "modelopt", Theirs)
    register()
    assert auto.AUTO_QUANTIZATION_CONFIG_MAPPING["modelopt"] is Theirs
    nt.take_over("modelopt")
    model = from_pretrained(checkpoint("llama", "modelopt-w4a16"))
    assert type(model.model.layers[0].mlp.up_proj) is NVFP4Linear
    nt.hand_back("modelopt")
    assert auto.AUTO_QUANTIZATION_CONFIG_MAPPING["modelopt"] is Theirs


def test_the_import_changes_no_other_method():
    from transformers.quantizers import auto

    nt.hand_back()
    ours = {
        name
        for name, cls in auto.AUTO_QUANTIZATION_CONFIG_MAPPING.items()
        if cls is nt.NVFP4KernConfig
    }
    assert ours == {"modelopt", "nvfp4kern"}


def test_the_configuration_is_kept(checkpoint):
    directory = checkpoint("llama", "modelopt-nvfp4")
    model = from_pretrained(directory)
    assert (
        model.config.to_dict()["quantization_config"]
        == (tiny.read_config(directory)["quantization_config"])
    )


# --- What is refused ---


UP = "model.layers.1.mlp.up_proj"


def algorithm(name):
    return lambda config: config["quantization_config"].update(quant_algo=name)


def moved(tensors):
    for name in [name for name in tensors if UP in name]:
        tensors[name.replace("up_proj", "side_proj")] = tensors.pop(name)


REFUSED = {  # (what the copy is changed by, the message)
    **{f"algorithm {name}": ({"config": algorithm(name)}, f"quant_algo: .?{name}")
       for name in ("W4A8_NVFP4_FP8", "FP8", "W4A8_AWQ", None)},
    **{f"global scale {value}": ({f"{UP}.weight_scale_2": torch.tensor(value)},
                                 f"{UP}.weight_scale_2: .*above 0")
       for value in (float("nan"), 0.0, -1.0, float("inf"))},
    **{f"no {part}": ({f"{UP}.{part}": None}, f"{UP}.{part}: .*missing")
       for part in ("weight_scale_2", "weight_scale", "input_scale")},
    "another shape": ({"config": lambda config: config.update(intermediate_size=160)},
                      r"layers.0.mlp.*: \[64, 48\], expected \[64, 80\]"),
    "no place": ({"change": moved}, "side_proj: is quantised; the model has no such"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_files_are_refused_by_name(checkpoint, tmp_path, kind):
    changes, message = REFUSED[kind]
    directory = changed(checkpoint("llama", "modelopt-nvfp4"), tmp_path / "m", **changes)
    with pytest.raises(CheckpointError, match=message):
        from_pretrained(directory)


def test_experts_that_are_quantised_in_part_are_refused_by_name(checkpoint):
    exclude = ("*.experts.2.*", "*.mlp.gate", "lm_head")
    directory = checkpoint("qwen3_moe", "modelopt-w4a16", exclude=exclude)
    with pytest.raises(CheckpointError, match="model.layers.0.mlp.experts.*the files do not"):
        from_pretrained(directory)


def test_experts_of_another_kind_are_refused_by_name(checkpoint, tmp_path):
    base = checkpoint("qwen3_moe", "modelopt-w4a16")
    directory = changed(base, tmp_path / "m", config=lambda c: c.update(hidden_act="gelu"))
    with pytest.raises(CheckpointError, match="experts.0.*: is quantised; Qwen3MoeExperts.*silu"):
        from_pretrained(directory)


def test_saving_is_ours(checkpoint, tmp_path):
    model = from_pretrained(checkpoint("mixtral", "ct-w4a4", spread=True))
    with pytest.raises(ValueError, match=r"save_pretrained: model.*expected .*save_checkpoint\("):
        model.save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()
    save_checkpoint(model, tmp_path / "ours")
    again = from_pretrained(tmp_path / "ours")
    assert torch.equal(tokens_and_logits(again)[1], tokens_and_logits(model)[1])


def plain(architecture="llama", **options):
    torch.manual_seed(0)
    config = AutoConfig.for_model(**ARCHITECTURES[architecture].config)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, **options)


@pytest.mark.parametrize("architecture", ["llama", "mixtral"])
def test_a_model_that_holds_our_layers_is_what_it_was(architecture, tmp_path):
    """Also where quantize_ put them in."""
    model = plain(architecture)
    counts = [lambda: model.num_parameters(), lambda: model.num_parameters(False, True)]
    before = [count() for count in counts]
    quantize_(model)
    assert [count() for count in counts] == before
    model.requires_grad_(True)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert model.num_parameters(only_trainable=True) == trained < before[0] / 2
    assert model.dtype == torch.bfloat16 and model.model.layers[0].self_attn.q_proj
    assert {p.dtype for p in model.model.layers.parameters()} > {torch.float8_e4m3fn}
    for each in (model, model.model):
        with pytest.raises(ValueError, match=r"save_pretrained: (model\.)?layers\.0.*is NVFP4"):
            each.save_pretrained(tmp_path / "theirs")
    untouched = plain()
    untouched.save_pretrained(tmp_path / "plain")
    assert untouched.num_parameters() == sum(p.numel() for p in untouched.parameters())


def test_the_dtype_of_a_part_is_not_that_of_its_scale_factors():
    model = plain()
    model.model.embed_tokens.to("meta")
    model.get_input_embeddings().weight.requires_grad_(False)
    part = type(model.model)(model.config).bfloat16()
    del part.embed_tokens
    quantize_(part)
    assert next(p for p in part.parameters() if p.is_floating_point()).element_size() == 1
    assert part.dtype == torch.bfloat16


def test_from_pretrained_keeps_the_report_and_refuses_float32(tmp_path):
    plain().save_pretrained(tmp_path)
    model = from_pretrained(tmp_path, quantization_config=nt.NVFP4KernConfig())
    assert model.hf_quantizer.report.kept == {"lm_head": "excluded by '<head>'"}
    with pytest.raises(ValueError, match="is float32; inputs that are not quantised"):
        from_pretrained(tmp_path, quantization_config=nt.NVFP4KernConfig(), dtype=torch.float32)


def test_options_are_known_ones():
    with pytest.raises(CheckpointError, match="quant_method: None, expected compressed-tensors"):
        nt.NVFP4KernConfig(imput_quant="dynamic")
    with pytest.raises(ValueError, match="input_quant: 'static', expected"):
        nt.NVFP4KernConfig(input_quant="static")
