"""What read_plan makes of every producer's files, and which formats it refuses by name."""

import json
from pathlib import Path

import pytest
import torch
from damage import EXPERTS, Q, changed
from safetensors.torch import load_file, save_file
from tiny_formats import FORMATS, FP8, W4A16

from nvfp4kern.checkpoint import CheckpointError, Files, Source, read_plan
from nvfp4kern.checkpoint.plan import refuse

OTHERS = Path(__file__).parent / "others"


def plan_of(directory, **options):
    files = Files(directory)
    plan = read_plan(files, **options)
    used = [source.name for layer in plan.layers.values() for source in layer.sources.values()]
    assert sorted([*used, *plan.plain, *plan.ignored]) == sorted(files.tensors)
    return plan


def sentences(plan, fatal=None):
    return [str(p) for p in plan.problems if fatal is None or p.fatal == fatal]


def configured(directory, to, quantization):
    """A copy with this quantization_config, changed by a function or whole."""

    def change(config):
        if callable(quantization):
            quantization(config["quantization_config"])
        elif quantization is None:
            del config["quantization_config"]
        else:
            config["quantization_config"] = quantization

    copy = changed(directory, to, config=change)
    if quantization is None:
        (copy / "hf_quant_config.json").unlink(missing_ok=True)
    return copy


# --- What is understood ---


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "mixtral", "deepseek_v3"])
def test_every_format_and_architecture(checkpoint, architecture, form):
    exclude = ("lm_head", "*mlp.gate", "*block_sparse_moe.gate", "*layers.1.self_attn*")
    directory = checkpoint(architecture, form, exclude=exclude, spread=True)
    plan = plan_of(directory)
    assert plan.problems == [] and len(plan.layers) >= 7
    assert plan.producer.startswith(FORMATS[form].producer)
    assert not any("layers.1.self_attn" in name or "lm_head" in name for name in plan.layers)
    compressed = FORMATS[form].producer == "compressed-tensors"
    for name, layer in plan.layers.items():
        scheme = FORMATS[form].scheme(name)
        assert layer.kind == ("fp8" if scheme == FP8 else "nvfp4")
        assert layer.input_quant == (None if scheme in (FP8, W4A16) else "static")
        if layer.kind == "nvfp4":
            weight = "weight_packed" if compressed else "weight"
            assert layer.sources["weight"] == Source(f"{name}.{weight}")
            scale = "weight_global_scale" if compressed else "weight_scale_2"
            assert layer.sources["weight_scale_2"] == Source(f"{name}.{scale}", compressed)
    if FORMATS[form].algorithm != "MIXED_PRECISION":
        attention = {name for name in plan.excluded if "layers.1.self_attn" in name}
        assert "lm_head" in plan.excluded and len(attention) >= 4


@pytest.mark.parametrize("layout", ["E", "E11", "E2"])
def test_stacked_experts(checkpoint, layout):
    plan = plan_of(checkpoint("qwen3_moe", "modelopt-nvfp4", stacked=layout))
    layer = plan.layers[f"{EXPERTS}.gate_up_proj"]
    assert layer.sources == {
        "weight": Source(f"{EXPERTS}.gate_up_proj"),
        "weight_scale": Source(f"{EXPERTS}.gate_up_proj_weight_scale"),
        "weight_scale_2": Source(f"{EXPERTS}.gate_up_proj_weight_scale_2"),
        "input_scale": Source(f"{EXPERTS}.gate_up_proj_input_scale"),
    }
    assert plan.problems == [] and layer.expert is None


def test_fused_projections_and_scalars_of_one_element(checkpoint):
    options = dict(fused=True, one_element=True, config_in=("hf_quant_config.json",))
    plan = plan_of(checkpoint("llama", "modelopt-nvfp4", **options))
    assert plan.problems == []
    assert {"weight", "bias"} <= plan.layers["model.layers.0.self_attn.qkv_proj"].sources.keys()


@pytest.mark.parametrize("name", sorted(p.name for p in OTHERS.iterdir() if p.is_dir()))
def test_files_that_producers_wrote(name):
    plan = plan_of(OTHERS / name)
    producer = "modelopt 0.47.0" if name.startswith("modelopt") else "torchao"
    assert plan.problems == [] and plan.producer == producer and plan.layers


def test_an_expert_without_an_input_scale(checkpoint, tmp_path):
    """vLLM #45212: its scale was uninitialised memory."""
    plan = plan_of(checkpoint("qwen3_moe", "ct-w4a4", missing=("*experts.2.up_proj",)))
    taken = "is missing; the maximum over the other experts takes its place"
    assert sentences(plan) == [
        f"model.layers.{i}.mlp.experts.2.up_proj.input_global_scale: {taken}" for i in (0, 1)
    ]
    assert not any(problem.fatal for problem in plan.problems)
    layer = plan.layers[f"{EXPERTS}.2.up_proj"]
    assert layer.input_quant == "static" and layer.expert == f"{EXPERTS}.*.up_proj"
    none = plan_of(checkpoint("qwen3_moe", "modelopt-nvfp4", missing=("*experts.?.up_proj",)))
    assert f"{EXPERTS}.0.up_proj.input_scale: is missing, and no other expert has one" in sentences(
        none, fatal=True
    )


def test_a_layer_without_an_input_scale(checkpoint):
    directory = checkpoint("llama", "modelopt-nvfp4", missing=("*0.self_attn.q_proj",))
    fatal = sentences(plan_of(directory), fatal=True)
    assert fatal == [f'{Q}.input_scale: is missing; load it with input_quant=None or "dynamic"']
    for quant in (None, "dynamic", "amax", "token"):
        plan = plan_of(directory, input_quant=quant)
        assert plan.problems == [] and plan.layers[Q].input_quant == quant
        assert len(plan.ignored) == 13


def test_what_is_ignored(checkpoint, tmp_path):
    directory = checkpoint("llama", "modelopt-w4a16", leftover=True)
    plan = plan_of(directory)
    assert len(plan.ignored) == 14 and plan.problems == []
    at = "model.layers.0.self_attn"
    scales = [f"{at}.k_proj.k_scale", f"{at}.v_proj.v_scale", f"{at}.q_scale"]
    more = {name: torch.tensor(1.0) for name in scales}
    plan = plan_of(changed(directory, tmp_path / "m", **more))
    assert len(plan.ignored) == 17 and {*scales} <= {*plan.ignored} and plan.problems == []


@pytest.mark.parametrize("form", ["modelopt-nvfp4", "ct-w4a4", "modelopt-w4a16", "ct-w4a16"])
def test_without_a_configuration_tensors_say_it(checkpoint, tmp_path, form):
    plan = plan_of(configured(checkpoint("llama", form), tmp_path / "m", None))
    quant = None if "w4a16" in form else "static"
    assert {layer.input_quant for layer in plan.layers.values()} == {quant}
    assert [(p.fatal, p.name) for p in plan.problems] == [(False, "config.json")]


def test_configuration_and_tensors_contradict(checkpoint, tmp_path):
    base = checkpoint("llama", "modelopt-nvfp4")
    directory = configured(base, tmp_path / "a", lambda q: q.update(ignore=[Q, "*.1.mlp.up*"]))
    assert sentences(plan_of(directory), fatal=True) == []
    excluded = "is quantised, and the configuration excludes it; it is loaded so"
    not_excluded = "is not quantised, and the configuration does not exclude it"
    assert sorted(sentences(plan_of(directory))) == [
        f"lm_head: {not_excluded}",
        f"model.layers.0.self_attn.q_proj: {excluded}",
        f"model.layers.1.mlp.up_proj: {excluded}",
    ]
    base = checkpoint("llama", "modelopt-mixed")
    layers = json.loads((base / "config.json").read_text())["quantization_config"]
    layers = layers["quantized_layers"]
    layers[Q] = {"quant_algo": "FP8"}
    layers["model.layers.9.x"] = {"quant_algo": "NVFP4"}
    directory = configured(base, tmp_path / "b", lambda q: q.update(quantized_layers=layers))
    assert sentences(plan_of(directory), fatal=False) == [
        f"{Q}: its tensors are nvfp4, the configuration says FP8",
        "model.layers.9.x: is NVFP4 by quantized_layers, not by tensors",
    ]


def test_a_pattern_that_is_not_evaluated(checkpoint, tmp_path):
    ignore = ["lm_head", r"re:(a+)\1", "re:" + "(.*a)*" * 400]
    directory = configured(
        checkpoint("llama", "ct-w4a4"), tmp_path / "m", lambda q: q.update(ignore=ignore)
    )
    plan = plan_of(directory)
    assert [p.fatal for p in plan.problems] == [False, False] and plan.excluded == ["lm_head"]
    assert all("this pattern is not evaluated" in text for text in sentences(plan))


# --- What is wrong with a layer ---

E4M3 = torch.float8_e4m3fn
WRONG = {  # part -> its tensor, and what the problem says after the name
    "scale dtype": ("weight_scale", torch.zeros(64, 4).half(), "float16 [64, 4], expected float8_"),
    "scale shape": ("weight_scale", torch.zeros(4, 64).to(E4M3), "float8_e4m3fn [4, 64], expected"),
    "scale rank": ("weight_scale", torch.zeros(256).to(E4M3), "float8_e4m3fn [256], expected"),
    "no scale": ("weight_scale", None, "is missing, expected float8_e4m3fn [64, 4]"),
    "weight dtype": ("weight", torch.zeros(64, 32), "float32, expected uint8, or float8_e4m3fn, b"),
    "signed": ("weight", torch.zeros(64, 32, dtype=torch.int8), "int8, expected uint8, or float8"),
    "K": ("weight", torch.zeros(64, 28, dtype=torch.uint8), "uint8 [64, 28], expected uint8 with"),
    "empty": ("weight", torch.zeros(0, 32, dtype=torch.uint8), "uint8 [0, 32], expected uint8"),
    "rank": ("weight", torch.zeros(64, dtype=torch.uint8), "uint8 [64], expected uint8 [N, K/2]"),
    "no weight": ("weight", None, "is missing beside"),
    "global dtype": ("weight_scale_2", torch.tensor(1.0).half(), "float16 [], expected float32"),
    "global shape": ("weight_scale_2", torch.ones(2), "float32 [2], expected float32 [] or [1] or"),
    "no global": ("weight_scale_2", None, "is missing, expected float32 [] or [1] or [64]"),
    "input shape": ("input_scale", torch.ones(64), "float32 [64], expected float32 [] or [1]"),
    "input dtype": ("input_scale", torch.tensor(1), "int64 [], expected float32 [] or [1]"),
    "bias": ("bias", torch.ones(63), "float32 [63], expected float32, float16, bfloat16 [64]"),
    "smoothing": ("pre_quant_scale", torch.ones(32), "float32 [32], expected float32, float16, b"),
    "unknown": ("weight_zero_point", torch.ones(3), "a tensor of a quantised layer that is not un"),
    "lora": (
        "svdquant_lora_a",
        torch.ones(3),
        "float32 [3], expected float32, float16, bfl",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_tensors_are_fatal_and_named(checkpoint, tmp_path, kind):
    part, tensor, expected = WRONG[kind]
    base = checkpoint("llama", "modelopt-nvfp4")
    files = Files(changed(base, tmp_path / "m", **{f"{Q}.{part}": tensor}))
    plan = read_plan(files)
    fatal = sentences(plan, fatal=True)
    assert len(fatal) == 1 and fatal[0].startswith(f"{Q}.{part}: {expected}"), fatal
    with pytest.raises(CheckpointError, match=f"^{Q}.{part}: "):
        refuse(plan.problems)


@pytest.mark.parametrize("index", [(), (2,), (1, slice(16, 48)), (slice(1, 3), slice(0, 16))])
def test_stacked_experts_that_are_transposed_are_read_as_others(checkpoint, tmp_path, index):
    base = checkpoint("qwen3_moe", "modelopt-nvfp4", stacked="E2")
    tensors = load_file(base / "model.safetensors")
    names = [f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.gate_up_proj_weight_scale"]
    turned = {name: tensors[name].transpose(1, 2).contiguous() for name in names}
    with Files(changed(base, tmp_path / "m", **turned)) as files:
        for _ in range(2):
            assert read_plan(files).problems == []
        for name in names:
            assert files.tensors[name].shape == tensors[name].shape
            assert torch.equal(*(each.view(torch.uint8) for each in (
                files.read(name, index), tensors[name][index])))  # fmt: skip


@pytest.mark.parametrize("across", [False, True])
def test_gates_and_ups_are_as_many(checkpoint, tmp_path, across):
    base = checkpoint("qwen3_moe", "modelopt-nvfp4", stacked="E")
    tensors = load_file(base / "model.safetensors")
    name = f"{EXPERTS}.gate_up_proj"
    odd = {key: tensors[key][:, :-1] for key in (name, f"{name}_weight_scale")}
    odd = {key: value.mT if across else value for key, value in odd.items()}
    odd |= {f"{name}_bias": torch.zeros(4, 95)}
    odd = {key: value.contiguous() for key, value in odd.items()}
    with Files(changed(base, tmp_path / "m", **odd)) as files:
        *rest, fatal = sentences(read_plan(files), fatal=True)
    assert ["either order" in each for each in rest] == [True] * across  # of the halves, too
    assert fatal == f"{name}: uint8 [4, 95, 32], expected as many rows of gates as of ups"


def test_stacks_of_gpt_oss_have_gates_and_ups_by_turns(checkpoint, tmp_path):
    """ModelOpt leaves them as transformers has them."""
    base = checkpoint("qwen3_moe", "modelopt-nvfp4", stacked="E")
    tensors = load_file(base / "model.safetensors")
    name, scale, bias = (f"{EXPERTS}.gate_up_proj{part}" for part in ("", "_weight_scale", "_bias"))
    tensors = {key: tensors[key].view(torch.uint8) for key in (name, scale)}
    tensors[bias] = torch.arange(4 * 96, dtype=torch.uint8).view(4, 96).float()
    across = {key: tensors[key].transpose(1, 2).contiguous() for key in (name, scale)}
    across[scale] = across[scale].view(torch.float8_e4m3fn)
    across[bias] = tensors[bias]

    def say(config):
        config["model_type"] = "gpt_oss"

    with Files(changed(base, tmp_path / "m", **across, config=say)) as files:
        for _ in range(2):
            assert not any(name in each for each in sentences(read_plan(files)))
        for key, rows in tensors.items():
            halves = torch.cat([rows[:, ::2], rows[:, 1::2]], 1)
            for index in ((), (1,), (2, slice(8, 32))):
                got = files.read(key, index)
                got = got.view(torch.uint8) if key == scale else got
                assert torch.equal(got, halves[index])

    with Files(changed(base, tmp_path / "o", **across)) as files:
        (fatal, *_) = sentences(read_plan(files), fatal=True)
        assert fatal.startswith(f"{name}: a stack with biases, of no gpt-oss: its rows may have")
    with Files(changed(base, tmp_path / "n", config=say)) as files:
        (fatal, *_) = sentences(read_plan(files), fatal=True)
        assert fatal.startswith(f"{name}: a stack [E, N, K] of gpt-oss, whose rows may have either")


# --- What is refused by name ---


def group(**weights):
    def change(quantization):
        quantization["config_groups"]["group_0"]["weights"] |= weights

    return change


def inputs_of_32(quantization):
    quantization["config_groups"]["group_0"]["input_activations"]["group_size"] = 32


def quark(layers=None, **weight):
    weight = {
        "dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0",
        "is_dynamic": False, **weight,
    }  # fmt: skip
    whole = {"weight": weight, "input_tensors": None}
    return {"quant_method": "quark", "global_quant_config": whole, "layer_quant_config": layers}


REFUSED = [
    ("modelopt-nvfp4", {"quant_method": "gptq"}, "quant_method: 'gptq'"),
    ("modelopt-nvfp4", {"quant_method": "fp8"}, "quant_method: 'fp8', expected modelopt, compr"),
    ("modelopt-nvfp4", {"quant_method": "quark"}, "global_quant_config and those of layers: None"),
    ("modelopt-nvfp4", quark(group_size=16), "global_quant_config: weight: {'dtype': 'fp4'"),
    ("modelopt-nvfp4", quark(dtype="fp6_e3m2"), "global_quant_config: weight: {'dtype': 'fp6_e3m"),
    (
        "modelopt-nvfp4",
        quark({"*v_proj": {"weight": {"dtype": "int4"}}}),
        "layer_quant_config: '*v",
    ),
    ("modelopt-nvfp4", {"quant_method": ["modelopt"]}, "quant_method: ['modelopt']"),
    ("modelopt-nvfp4", {}, "quant_method: None"),
    *(
        ("modelopt-nvfp4", {"quant_algo": name}, f"quant_algo: {name!r}, expected NVFP4, NVFP4_AWQ")
        for name in ("FP8", "NVFP4_X", "W4A8_NVFP4_FP8", "MXFP4", None, [1])
    ),
    ("modelopt-nvfp4", {"ignore": "lm_head"}, "ignore: 'lm_head', expected a list of strings"),
    ("modelopt-mixed", {"quantized_layers": None}, "quantized_layers: None, expected an object"),
    (
        "modelopt-mixed",
        {"quantized_layers": {Q: {"quant_algo": "W4A16_AWQ"}}},
        f"quantized_layers: '{Q}': quant_algo: 'W4A16_AWQ', expected NVFP4",
    ),
    ("ct-w4a4", {"format": "pack-quantized"}, "format: 'pack-quantized', expected nvfp4-pack-qua"),
    ("ct-w4a4", {"format": "mxfp8-quantized"}, "format: 'mxfp8-quantized'"),
    ("ct-w4a4", {"format": "mxfp4-pack-quantized"}, "config_groups: 'group_0': format: 'nv"),
    ("ct-w4a4", {"quantization_status": "frozen"}, "quantization_status: 'frozen'"),
    ("ct-w4a4", {"transform_config": {"config_groups": {"u": {}}}}, "transform_config: is not su"),
    ("ct-w4a4", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config: is not s"),
    ("ct-w4a4", {"config_groups": {}}, "config_groups: {}, expected groups"),
    ("ct-w4a4", {"config_groups": {"NVFP4": ["Linear"]}}, "config_groups: 'NVFP4': the preset"),
    ("ct-w4a4", {"config_groups": {"g": {"weights": None}}}, "config_groups: 'g': {'weights': No"),
    ("ct-w4a4", group(num_bits=8), "config_groups: 'group_0': weights.num_bits: 8, expected 4"),
    ("ct-w4a4", group(group_size=32), "config_groups: 'group_0': weights.group_size: 32"),
    ("ct-w4a4", group(type="int"), "config_groups: 'group_0': weights.type: 'int'"),
    ("ct-w4a4", inputs_of_32, "config_groups: 'group_0': input_activations: {"),
    ("ct-w4a4", group(symmetric=False), "config_groups: 'group_0': weights.symmetric: False"),
]


def in_words(value):
    """The same in every process: a function's address is not."""
    return "function" if callable(value) else str(value)[:40]


@pytest.mark.parametrize("form, change, expected", REFUSED, ids=in_words)
def test_what_is_refused_by_name(checkpoint, tmp_path, form, change, expected):
    def update(quantization):
        quantization.update(change)

    whole = change if callable(change) or "quant_method" in change or not change else update
    directory = configured(checkpoint("llama", form), tmp_path / "m", whole)
    with pytest.raises(CheckpointError) as caught:
        read_plan(Files(directory))
    assert str(caught.value).startswith(expected)


def test_wrong_stacks_by_openais_names_are_problems(tmp_path):
    name = "model.layers.0.mlp.experts.gate_up_proj"
    parts = {f"{name}_{part}": torch.zeros(1, dtype=torch.uint8) for part in ("blocks", "scales")}
    save_file(parts | {f"{name}_bias": torch.zeros(1)}, tmp_path / "m.safetensors")
    (problem, *_) = read_plan(Files(tmp_path)).problems
    assert problem.fatal and str(problem) == f"{name}_blocks: has K = 2, expected a multiple of 32"


def test_the_original_files_of_gpt_oss_are_refused_by_name(tmp_path):
    names = [f"block.0.mlp.mlp1_weight.{part}" for part in ("blocks", "scales")]
    save_file({n: torch.zeros(1, dtype=torch.uint8) for n in names}, tmp_path / "m.safetensors")
    with pytest.raises(
        CheckpointError, match=f"^{names[0]}: belongs to a folder 'original' of gpt"
    ):
        read_plan(Files(tmp_path))
