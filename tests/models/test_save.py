"""save_checkpoint: what it writes is ModelOpt's layout, and comes back to the bit."""

import json
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from empty_model import empty
from safetensors.torch import load_file
from skeletons import Stack
from torch import nn

from nvfp4kern.checkpoint import CheckpointError, Files, load_checkpoint, read_plan, save_checkpoint
from nvfp4kern.nn import NVFP4Config, NVFP4Experts, NVFP4Linear, fuse, quantize_

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

IDS = torch.arange(24).reshape(2, 12)


def as_saved(tensors):
    """Files have no inverses of input scales."""
    for name, value in tensors.items():
        inverse = name.endswith("input_scale_inverse")
        yield (name.removesuffix("_inverse"), 1 / value) if inverse else (name, value)


def same(a, b):
    """Both models' tensors are equal to the bit, and so are their logits, unless b's are those
    that files have for a's inverses of input scales."""
    ours, theirs = dict(as_saved(a.state_dict())), b.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype and torch.equal(
            value.double(), theirs[name].double()
        ), name
    if ours.keys() == a.state_dict().keys():
        with torch.no_grad():
            assert torch.equal(a(IDS).logits, b(IDS).logits)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("form", ["modelopt-nvfp4", "modelopt-awq", "ct-w4a16", "ct-mixed"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "mixtral", "deepseek_v3"])
def test_a_loaded_model_comes_back(checkpoint, tmp_path, architecture, form):
    directory = checkpoint(architecture, form, spread=True)
    first, second = empty(directory), empty(directory)
    load_checkpoint(first, directory, device="cpu")
    save_checkpoint(first, tmp_path / "saved", max_shard_bytes=50_000)
    report = load_checkpoint(second, tmp_path / "saved", device="cpu")
    same(first, second)
    assert report.warnings == []
    third = empty(directory)
    save_checkpoint(second, tmp_path / "again")
    load_checkpoint(third, tmp_path / "again", device="cpu")
    same(second, third)  # nothing is inverted any more: logits, too
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert "model.safetensors.index.json" in names and "config.json" in names
    sizes = [path.stat().st_size for path in (tmp_path / "saved").glob("*.safetensors")]
    assert len(sizes) >= 2
    assert not list(tmp_path.glob(".saved*"))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("architecture", ["llama", "mixtral"])
def test_names_and_values_are_those_of_the_producer(checkpoint, tmp_path, architecture):
    """A ModelOpt directory loaded and saved has the tensors that it had."""
    directory = checkpoint(architecture, "modelopt-nvfp4", spread=True)
    model = empty(directory)
    load_checkpoint(model, directory, device="cpu")
    save_checkpoint(model, tmp_path / "saved")
    before = load_file(directory / "model.safetensors")
    after = load_file(tmp_path / "saved" / "model.safetensors")
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert value.shape == after[name].shape and value.dtype == after[name].dtype, name
        assert torch.equal(value.double(), after[name].double()), name
    configs = [json.loads((d / "config.json").read_text()) for d in (directory, tmp_path / "saved")]
    theirs, ours = (config["quantization_config"] for config in configs)
    assert ours["quant_algo"] == theirs["quant_algo"] == "NVFP4"
    assert ours["config_groups"] == theirs["config_groups"]
    beside = json.loads((tmp_path / "saved" / "hf_quant_config.json").read_text())
    assert beside["quantization"]["exclude_modules"] == ours["ignore"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_awq_is_named_as_modelopt_does(checkpoint, tmp_path):
    directory = checkpoint("llama", "modelopt-awq")
    model = empty(directory)
    load_checkpoint(model, directory, device="cpu")
    save_checkpoint(model, tmp_path / "saved")
    for name in ("config.json", "hf_quant_config.json"):
        theirs, ours = (json.loads((d / name).read_text()) for d in (directory, tmp_path / "saved"))
        key = "quantization_config" if name == "config.json" else "quantization"
        for each in (theirs, ours):
            for other in ("producer", "ignore", "exclude_modules"):
                each[key].pop(other, None)
        assert ours[key] == theirs[key]
    assert "_name_or_path" not in json.loads((tmp_path / "saved" / "config.json").read_text())


def plain(directory):
    """A model of this architecture that is not quantised."""
    config = transformers.AutoConfig.from_pretrained(directory)
    del config.quantization_config
    torch.manual_seed(1)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def inputs_of(model):
    """How each NVFP4 layer quantises its inputs."""
    layers = model.named_modules()
    return {n: m.input_quant for n, m in layers if isinstance(m, (NVFP4Linear, NVFP4Experts))}


@pytest.mark.parametrize("recipe", ["amax", "four_six"])
def test_a_quantised_model_comes_back(checkpoint, tmp_path, recipe):
    directory = checkpoint("qwen3_moe", "modelopt-nvfp4")
    model = plain(directory)
    names = quantize_(model, NVFP4Config(recipe=recipe))
    assert any(name.endswith("experts") for name in names) and "lm_head" not in names
    assert any(isinstance(module, NVFP4Experts) for module in model.modules())
    save_checkpoint(model, tmp_path / "saved")
    again = empty(directory)
    load_checkpoint(again, tmp_path / "saved", device="cpu")
    same(model, again)
    assert read_plan(Files(tmp_path / "saved")).format == "W4A16_NVFP4"


def linear(scale=1.0):
    layer = nn.Linear(32, 16, dtype=torch.bfloat16)
    layer.weight.data *= scale
    return NVFP4Linear.from_linear(layer)


def test_what_cannot_be_said_is_refused_and_nothing_is_written(tmp_path):
    target = tmp_path / "saved"
    with pytest.raises(ValueError, match="model: has no NVFP4 layer"):
        save_checkpoint(nn.Sequential(nn.Linear(16, 16)), target)
    with pytest.raises(ValueError, match=r"0\.weight_scale_2: nan, expected"):
        save_checkpoint(nn.Sequential(NVFP4Linear(32, 16)), target)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("mine")
    with pytest.raises(FileExistsError, match="expected a new or empty directory"):
        save_checkpoint(nn.Sequential(linear()), tmp_path / "there")
    assert (tmp_path / "there" / "mine").read_text() == "mine"


INPUTS = {
    "dynamic": (NVFP4Config("dynamic"), None),
    "amax": (NVFP4Config("amax", exclude=("*gate", "*lm_head", "*experts")), None),
    "token": (NVFP4Config("token"), None),
    "mixed": (NVFP4Config(), "*self_attn*"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("way", ["loader", "transformers"])
@pytest.mark.parametrize("what", INPUTS)
def test_the_quantisation_of_inputs_comes_back(checkpoint, tmp_path, what, way):
    config, dynamic = INPUTS[what]
    directory = checkpoint("qwen3_moe", "modelopt-nvfp4")
    model = plain(directory)
    if dynamic:
        quantize_(model, NVFP4Config("dynamic"), lambda _, name: fnmatchcase(name, dynamic))
    quantize_(model, config)
    kinds = inputs_of(model)
    assert len(set(kinds.values())) == (2 if dynamic else 1)
    save_checkpoint(model, tmp_path / "saved")
    if way == "loader":
        again = empty(directory)
        load_checkpoint(again, tmp_path / "saved", device="cpu")
    else:
        import nvfp4kern.transformers  # noqa: F401

        automatic = transformers.AutoModelForCausalLM
        again = automatic.from_pretrained(tmp_path / "saved", dtype=torch.bfloat16)
    assert inputs_of(again) == kinds
    same(model, again)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_to_other_engines_dynamic_inputs_are_an_equal_static_scale(checkpoint, tmp_path):
    directory = checkpoint("qwen3_moe", "modelopt-nvfp4")
    model, again = plain(directory), empty(directory)
    quantize_(model, NVFP4Config("dynamic"))
    save_checkpoint(model, tmp_path / "saved")
    for name in ("config.json", "hf_quant_config.json"):
        said = json.loads((tmp_path / "saved" / name).read_text())
        assert said.get("quantization_config", said).pop("nvfp4kern") == {"input_quant": "dynamic"}
        (tmp_path / "saved" / name).write_text(json.dumps(said))
    report = load_checkpoint(again, tmp_path / "saved", device="cpu")
    assert report.warnings == [] and report.format == "NVFP4"
    assert set(inputs_of(again).values()) == {"static"}
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, again(IDS).logits)


@pytest.mark.parametrize("record", ["dynamic", {"input_quant": "row"}, {"input_quant": {"0": 1}}])
def test_a_record_of_inputs_that_is_not_understood_is_refused(tmp_path, record):
    save_checkpoint(nn.Sequential(linear()), tmp_path / "saved", config={})
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    config["quantization_config"]["nvfp4kern"] = record
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config))
    if record == "dynamic":
        read_plan(Files(tmp_path / "saved"))
        return
    with pytest.raises(CheckpointError, match="nvfp4kern: input_quant: .* expected 'dynamic'"):
        read_plan(Files(tmp_path / "saved"))


def test_a_fused_layer_comes_back_and_is_warned_of(tmp_path):
    model = nn.Sequential(fuse([linear(), linear(2)]))
    with pytest.warns(UserWarning, match=r"^0\.weight_scale_2: one for each row, which engines"):
        save_checkpoint(model, tmp_path / "saved")
    again = nn.Sequential(nn.Linear(32, 32, dtype=torch.bfloat16))
    load_checkpoint(again, tmp_path / "saved", device="cpu")
    assert again[0].weight_scale_2.shape == (32,)
    assert torch.equal(again[0].dequantize(), model[0].dequantize())


COMPANIONS = ("tokenizer.json", "merges.txt", "vocab.model", "chat_template.jinja", "LICENSE")
OTHERS = (".hidden.json", "old.index.json", "pytorch_model.bin", "picture.png")


@pytest.mark.parametrize("given", ["nothing", "folder", "tokenizer"])
def test_what_a_tokenizer_and_generation_need_comes_along(checkpoint, tmp_path, given):
    origin = tmp_path / "origin"
    model = plain(checkpoint("llama", "modelopt-nvfp4"))
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(origin)
    (origin / "templates").mkdir()
    for name in (*COMPANIONS, *OTHERS, "templates/one.jinja", "templates/two.bin"):
        (origin / name).write_text(name)
    model = transformers.AutoModelForCausalLM.from_pretrained(origin, dtype=torch.bfloat16)
    model.generation_config.top_k = 3
    quantize_(model)
    saves = SimpleNamespace(save_pretrained=lambda to: (to / "own.json").write_text("own"))
    tokenizer = {"nothing": None, "folder": str(origin), "tokenizer": saves}[given]
    save_checkpoint(model, tmp_path / "saved", tokenizer=tokenizer)
    found = {str(p.relative_to(tmp_path / "saved")) for p in (tmp_path / "saved").rglob("*.*")}
    found |= {"LICENSE"} if (tmp_path / "saved" / "LICENSE").exists() else set()
    weights = {"config.json", "hf_quant_config.json", "model.safetensors", "generation_config.json"}
    added = {"own.json"} if given == "tokenizer" else {*COMPANIONS, "templates/one.jinja"}
    assert found == weights | added
    again = transformers.GenerationConfig.from_pretrained(tmp_path / "saved")
    assert (again.max_new_tokens, again.top_k) == (7, 3)


def test_another_tokenizer_is_refused(tmp_path):
    with pytest.raises(TypeError, match="tokenizer: int, expected a folder, or one with save_pre"):
        save_checkpoint(nn.Sequential(linear()), tmp_path / "saved", tokenizer=3)
    with pytest.raises(FileNotFoundError, match="tokenizer: .*nowhere is no directory"):
        save_checkpoint(nn.Sequential(linear()), tmp_path / "saved", tokenizer=tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_no_files(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("nvfp4kern.checkpoint.save.save_file", lambda *_, **__: 1 / 0)
    for name in ("saved", "empty"):
        with pytest.raises(ZeroDivisionError):
            save_checkpoint(nn.Sequential(linear()), tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_a_failure_on_the_way_into_a_directory_leaves_it_empty(tmp_path, monkeypatch):
    replace, left = Path.replace, 1

    def one_alone(file, target):
        nonlocal left
        left -= 1
        return replace(file, target) if left >= 0 else 1 / 0

    monkeypatch.setattr(Path, "replace", one_alone)
    with pytest.raises(ZeroDivisionError):
        save_checkpoint(nn.Sequential(linear()), tmp_path, config={})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [".", "link", "deep/new", "deep/.."])
def test_a_directory_that_is_there_stays_the_same_one(tmp_path, monkeypatch, path):
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    inode = real.stat().st_ino
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(real if path == "." else tmp_path)
    model, again = nn.Sequential(linear()), nn.Sequential(nn.Linear(32, 16, dtype=torch.bfloat16))
    if path == "deep/..":
        (tmp_path / "deep").mkdir()
        with pytest.raises(FileExistsError, match="expected a new or empty directory"):
            save_checkpoint(model, path)
        return
    save_checkpoint(model, path, config={"hidden_size": 32})
    load_checkpoint(again, path, device="cpu")
    assert torch.equal(again[0].weight, model[0].weight)
    files = {"config.json", "hf_quant_config.json", "model.safetensors"}
    assert {file.name for file in Path(path).iterdir()} == files
    assert {each.name for each in tmp_path.iterdir()} <= {"real", "link", "deep"}
    if path in (".", "link"):
        assert real.stat().st_ino == inode and real.stat().st_mode & 0o777 == 0o700
        assert {file.name for file in real.iterdir()} == files


def test_links_to_nothing_and_to_files_are_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    for name, to in (("broken", "nowhere"), ("linked", "file")):
        (tmp_path / name).symlink_to(to)
        with pytest.raises(FileExistsError, match=f"{name} is there already, expected a new or em"):
            save_checkpoint(nn.Sequential(linear()), tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"broken", "linked", "file"}


def test_plain_stacks_of_experts_are_named_as_excluded(tmp_path):
    model = nn.ModuleDict({"mlp": nn.Module(), "up": linear(), "conv": nn.Conv1d(16, 16, 3)})
    model["mlp"].gate = nn.Linear(16, 4)
    model["mlp"].experts = Stack(2, 32, 32, "cpu")
    save_checkpoint(model, tmp_path / "saved", config={})
    said = json.loads((tmp_path / "saved" / "hf_quant_config.json").read_text())
    assert said["quantization"]["exclude_modules"] == ["mlp.gate", "mlp.experts"]


def test_a_model_without_a_configuration(tmp_path):
    model, again = nn.Sequential(linear()), nn.Sequential(nn.Linear(32, 16, dtype=torch.bfloat16))
    save_checkpoint(model, tmp_path)
    load_checkpoint(again, tmp_path, device="cpu")
    x = torch.randn(3, 32, dtype=torch.bfloat16)
    assert torch.equal(model(x), again(x))


def test_a_model_of_ones_own(tmp_path):
    """Its config is no transformers one, and two parameters share their memory."""
    model = nn.Sequential(nn.Linear(32, 16, bias=False), nn.Linear(20, 8), nn.Linear(20, 8))
    model.bfloat16().eval()
    model[2].weight = nn.Parameter(model[1].weight.data)
    model.config = {"hidden": 32}
    quantize_(model)
    save_checkpoint(model, tmp_path / "saved")
    assert not (tmp_path / "saved" / "config.json").exists()
    again = nn.Sequential(nn.Linear(32, 16, bias=False), nn.Linear(20, 8), nn.Linear(20, 8))
    again.bfloat16().eval()
    load_checkpoint(again, tmp_path / "saved", device="cpu")
    for name, value in model.state_dict().items():
        assert torch.equal(value.double(), again.state_dict()[name].double()), name
    assert not any(module.training for module in again.modules())
