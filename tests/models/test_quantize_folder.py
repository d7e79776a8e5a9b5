"""nvfp4kern.quantizing: a folder becomes one with NVFP4 weights, whole or not at all."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from empty_model import empty
from folders import by_names, folder
from safetensors.torch import load_file

from nvfp4kern.__main__ import main
from nvfp4kern.checkpoint import CheckpointError, Files, inspect, load_checkpoint, read_plan
from nvfp4kern.nn import NVFP4Experts, NVFP4Linear
from nvfp4kern.nn.recipes import global_scale_of, quantize_weight
from nvfp4kern.quantizing import choice, quantize_folder, weights
from nvfp4kern.quantizing.calibrating import Stored
from nvfp4kern.quantizing.command import Lines, lines

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
from nvfp4kern.transformers import NVFP4KernConfig  # noqa: E402

IDS = torch.arange(24).reshape(2, 12)
ARCHITECTURES = ("llama", "qwen3_moe", "mixtral", "deepseek_v3")


@pytest.fixture(scope="module")
def plain(checkpoint, tmp_path_factory):
    """Makes a folder of several shards that is not quantised, once for each architecture."""
    made = {}

    def make(architecture):
        if architecture not in made:
            config = transformers.AutoConfig.from_pretrained(
                checkpoint(architecture, "modelopt-nvfp4")
            )
            del config.quantization_config
            torch.manual_seed(1)
            automatic = transformers.AutoModelForCausalLM
            model = automatic.from_config(config, dtype=torch.bfloat16)
            made[architecture] = tmp_path_factory.mktemp("plain") / architecture
            model.save_pretrained(made[architecture], max_shard_size="100kB")
            (made[architecture] / "tokenizer.json").write_text("{}")
        return made[architecture]

    return make


@pytest.mark.parametrize("form", ["modelopt", "compressed-tensors"])
@pytest.mark.parametrize("quant", [None, "dynamic", "token"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folder_is_quantised_and_loads_by_both_ways(plain, tmp_path, architecture, quant, form):
    import nvfp4kern.transformers as ours

    source, target = plain(architecture), tmp_path / "made"
    made = quantize_folder(source, target, input_quant=quant, format=form, verify=True)
    assert 0.05 < min(made.errors.values()) and max(made.errors.values()) < 0.12
    assert inspect(target).problems == []
    assert {each.name for each in source.iterdir()} <= {each.name for each in target.iterdir()}
    with Files(target) as files:
        assert files.quantization.get("nvfp4kern") == (quant and {"input_quant": quant})
        scaled = any(name.endswith(("input_scale", "input_global_scale")) for name in files.tensors)
        assert scaled == (quant == "dynamic")
    model = empty(source)
    assert load_checkpoint(model, target, device="cpu").warnings == []
    kinds = {m.input_quant for m in model.modules() if isinstance(m, (NVFP4Linear, NVFP4Experts))}
    assert kinds == {quant}
    automatic = transformers.AutoModelForCausalLM
    ours.take_over()
    again = automatic.from_pretrained(target, dtype=torch.bfloat16)
    ours.hand_back()
    with torch.no_grad():
        logits = model(IDS).logits
        assert torch.equal(logits, again(IDS).logits)
        exact = automatic.from_pretrained(source, dtype=torch.bfloat16)(IDS).logits
    error = (logits - exact).norm() / exact.norm()
    assert 0.01 < error < 0.4
    assert all(name.endswith((".gate", "lm_head", "embed_tokens")) for name in made.kept)


@pytest.mark.parametrize("recipe", ["amax", "four_six", "mse"])
def test_codes_are_the_recipes_and_fused_layers_share_a_scale(plain, tmp_path, recipe, monkeypatch):
    """Whatever the pieces in which weights are read."""
    monkeypatch.setattr(weights, "ELEMENTS", {"amax": 200, "four_six": 700, "mse": 500})
    source, target = plain("qwen3_moe"), tmp_path / "made"
    quantize_folder(source, target, recipe=recipe)
    with Files(source) as before, Files(target) as after:
        layers = read_plan(after).layers
        assert any(".experts.0.up_proj" in name for name in layers)
        for name in layers:
            parent, _, last = name.rpartition(".")
            groups = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
            group = next((each for each in groups if last in each), (last,))
            members = [before.read(f"{parent}.{each}.weight") for each in group]
            largest = torch.stack([each.abs().amax() for each in members]).amax()
            (alone,) = [w for w, each in zip(members, group, strict=True) if each == last]
            scale = global_scale_of(largest, recipe, members)
            expected = quantize_weight(alone, recipe, scale)
            assert torch.equal(after.read(f"{name}.weight"), expected.data)
            found = after.read(f"{name}.weight_scale").view(torch.uint8)
            assert torch.equal(found, expected.scales.view(torch.uint8))
            assert torch.equal(after.read(f"{name}.weight_scale_2"), scale)


@pytest.mark.parametrize("by", ["model", "names"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_names_choose_what_the_model_does(plain, by, architecture, monkeypatch):
    """But for a router of another name, which a pattern of the user's excludes."""
    if by == "names":
        by_names(monkeypatch)
    with Files(plain(architecture)) as files:
        found = choice.choose(files, ("*lm_head", "*.gate"))
        kept = {name.rpartition(".")[2] for name in found.kept}
        assert kept == {"lm_head", "embed_tokens"} | (
            {"gate"} - {architecture == "llama" and "gate"}
        )
        assert found.by.startswith("the modules of" if by == "model" else "names, as there is no")


def test_stacks_of_experts_are_written_one_by_one(tmp_path, monkeypatch):
    by_names(monkeypatch)
    up, down = torch.randn(3, 64, 48), torch.randn(3, 48, 32)
    up[1] *= 100
    stacks = {"a.experts.gate_up_proj": up.bfloat16(), "a.experts.down_proj": down.bfloat16()}
    turned = {f"b.experts.{n[10:]}": v.mT.contiguous() for n, v in stacks.items()}
    halves = {"d.experts.gate_up_proj": up[0], "d.experts.down_proj": down.bfloat16()}
    others = {"c.experts.gate_up_proj": up[:, :32].contiguous(), "c.experts.down_proj": down}
    source = folder(tmp_path / "source", {**stacks, **turned, **others, **halves})
    made = quantize_folder(source, tmp_path / "made", verify=True)
    assert made.kept.pop("d.experts.down_proj") == "a stack without its other half"
    assert set(made.kept) == set(others)
    assert {"a stack of experts with gate_up_proj" in why for why in made.kept.values()} == {True}
    found = load_file(tmp_path / "made" / "model.safetensors")
    for e in range(3):
        for role, rows in (("gate_proj", slice(32)), ("up_proj", slice(32, 64))):
            scale = quantize_weight(up[e].bfloat16(), "amax").global_scale
            expected = quantize_weight(up[e, rows].bfloat16(), "amax", scale)
            assert torch.equal(found[f"a.experts.{e}.{role}.weight"], expected.data)
            assert torch.equal(found[f"a.experts.{e}.{role}.weight_scale_2"], scale)
        scale = quantize_weight(down[e].bfloat16(), "amax").global_scale
        expected = quantize_weight(down[e].bfloat16(), "amax", scale)
        assert torch.equal(found[f"a.experts.{e}.down_proj.weight"], expected.data)
    across = {name: value for name, value in found.items() if name.startswith("b.")}
    assert len(across) == 3 * 3 * 3  # parts of layers of experts
    for name, value in across.items():  # the same values, as Llama-4 has them
        want = found[name.replace("b.", "a.", 1)]
        assert torch.equal(value.float(), want.float()), name
    assert torch.equal(found["c.experts.down_proj"], others["c.experts.down_proj"])


@pytest.mark.parametrize("excluded", ["gate_up_proj", "down_proj"])
def test_halves_of_a_stack_stay_together(tmp_path, monkeypatch, excluded):
    """No model has room for one half as codes of each expert, the other as a stack."""
    by_names(monkeypatch)
    stack = {"a.experts.gate_up_proj": torch.randn(3, 64, 48).bfloat16()}
    stack |= {"a.experts.down_proj": torch.randn(3, 48, 32).bfloat16()}
    stack |= {"b.down_proj.weight": torch.randn(64, 32).bfloat16()}
    source = folder(tmp_path / "source", stack)
    made = quantize_folder(source, tmp_path / "made", exclude=[f"a.experts.{excluded}"])
    (other,) = {"gate_up_proj", "down_proj"} - {excluded}
    assert made.kept == {
        f"a.experts.{excluded}": f"excluded by a.experts.{excluded}",
        f"a.experts.{other}": "a stack whose other half stays",
    }
    found = load_file(tmp_path / "made" / "model.safetensors")
    assert found.keys() > stack.keys() - {"b.down_proj.weight"}


def test_what_is_no_layer_stays_and_is_named(tmp_path, monkeypatch):
    by_names(monkeypatch)
    tensors = {
        "layer.weight": torch.randn(32, 32),
        "layer.bias": torch.randn(32),
        "wte.weight": torch.randn(32, 32),
        "odd.weight": torch.randn(32, 24),
        "numbers.weight": torch.ones(32, 32, dtype=torch.int64),
        "h.c_attn.weight": torch.randn(32, 32),
        "mine.0.weight": torch.randn(32, 32),
        "empty.weight": torch.empty(0, 32),
        "flags": torch.tensor([True, False, True]),
    }
    source = folder(tmp_path / "source", tensors)
    made = quantize_folder(source, tmp_path / "made", exclude="mine", verify=True)
    kept = {"wte": "a table", "odd": "K = 24, no multiple of 16", "numbers": "int64"}
    kept |= {"mine.0": "excluded by mine", "empty": "K = 32, no multiple of 16"}
    kept["h.c_attn"] = "perhaps transposed, which only the model tells"
    assert made.kept == kept and made.layers == 1
    after = load_file(tmp_path / "made" / "model.safetensors")
    for name, value in tensors.items():
        assert name == "layer.weight" or torch.equal(after[name], value)


def test_weights_too_small_for_a_divisor_are_refused(tmp_path, monkeypatch):
    by_names(monkeypatch)
    source = folder(tmp_path / "source", {"a.weight": torch.full((16, 32), 1e-37)})
    with pytest.raises(CheckpointError, match="a.weight: 1e-37 at most, too small for a"):
        quantize_folder(source, tmp_path / "made", format="compressed-tensors")
    quantize_folder(source, tmp_path / "other")


FAULTS = {
    "NaN": ({"a.weight": torch.full((16, 32), torch.nan)}, {}, "a.weight: has NaN or infinities"),
    "infinity": ({"a.weight": -torch.ones(16, 32) / 0}, {}, "a.weight: has NaN or infinities"),
    "nothing": ({"a.bias": torch.ones(16)}, {}, "source: has no weight to be quantised"),
    "FP8": (
        {"a.weight": torch.ones(16, 32)},
        {"quantization_config": {"quant_method": "fp8"}},
        "source: is quantised already, by fp8",
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_source_that_cannot_be_quantised_is_refused(tmp_path, what, monkeypatch):
    by_names(monkeypatch)
    tensors, config, said = FAULTS[what]
    source = folder(tmp_path / "source", tensors, **{"model_type": "own", **config})
    with pytest.raises(CheckpointError, match=said):
        quantize_folder(source, tmp_path / "made")
    assert not (tmp_path / "made").exists()


# --- Calibration ---


@pytest.fixture
def calibrated(plain, tmp_path):
    """Makes a folder with a tokenizer of words, "1", "2" .. are their own numbers."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    import tokenizers

    def make(architecture):
        source = shutil.copytree(plain(architecture), tmp_path / "source")
        words = tokenizers.models.WordLevel({str(i): i for i in range(128)}, unk_token="0")
        made = tokenizers.Tokenizer(words)
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        transformers.PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(source)
        return source

    return make


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["modelopt", "compressed-tensors"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "mixtral"])
def test_static_scales_are_those_of_a_text(calibrated, tmp_path, architecture, form, monkeypatch):
    monkeypatch.setattr("nvfp4kern.transformers.calibration.SEQUENCE", 12)
    source = calibrated(architecture)
    text = " ".join(str(i % 50) for i in range(40))
    options = {"input_quant": "static", "calibrate": text, "format": form, "verify": True}
    quantize_folder(source, tmp_path / "made", **options)
    assert inspect(tmp_path / "made").problems == []
    automatic = transformers.AutoModelForCausalLM
    model = automatic.from_pretrained(
        source, dtype=torch.bfloat16, experts_implementation="eager"
    ).eval()
    largest, products = {}, {}

    def see(into, name):
        def hook(_, given, result=None):
            value = float((given[0] if result is None else result).abs().max())
            into[name] = max(into.get(name, 0.0), value)

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) or name.endswith(".experts"):
            module.register_forward_pre_hook(see(largest, name))
    with torch.no_grad():
        for first in range(0, 40, 12):
            model(torch.arange(first, min(first + 12, 40))[None])
    with Files(tmp_path / "made") as files:
        for name, layer in read_plan(files).layers.items():
            assert layer.input_quant == "static"
            stored = layer.sources["input_scale"]
            (scale,) = files.numbers(stored.name)
            scale = 1 / scale if stored.divisor else scale
            parent = name.replace("block_sparse_moe", "mlp").partition(".experts.")[0] + ".experts"
            if ".experts." not in name:
                assert scale == pytest.approx(largest[name] / 2688, rel=0.02), name
            elif name.endswith(("gate_proj", "up_proj", "w1", "w3")):
                assert scale == pytest.approx(largest[parent] / 2688, rel=0.02), name
            else:
                products.setdefault(parent, set()).add(scale)
    assert all(len(scales) == 1 for scales in products.values())
    again = empty(source)
    load_checkpoint(again, tmp_path / "made", device="cpu")
    with torch.no_grad():
        exact, logits = model(IDS).logits, again(IDS).logits
    assert 0.01 < (logits - exact).norm() / exact.norm() < 0.4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "mixtral"])
def test_gptq_takes_the_inputs_of_a_text(calibrated, tmp_path, architecture, monkeypatch):
    """Also where it was interrupted after its calibration."""
    from nvfp4kern.nn.gptq import Compensation, Hessians
    from nvfp4kern.transformers import calibration

    monkeypatch.setattr(calibration, "SEQUENCE", 12)
    source, target = calibrated(architecture), tmp_path / "made"
    text = " ".join(str(i % 2) for i in range(40))

    def end(done, total):
        raise KeyboardInterrupt

    options = {"recipe": "gptq", "calibrate": text}
    with pytest.raises(KeyboardInterrupt):
        quantize_folder(source, target, **options, progress=end)
    with monkeypatch.context() as patch:
        patch.setattr(calibration, "run_text", None)
        made = quantize_folder(source, target, **options, verify=True)
    assert not [path for path in tmp_path.iterdir() if "incomplete" in path.name]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.bfloat16, experts_implementation="eager"
    ).eval()
    seen = Hessians()
    with seen.watching(*calibration.watched_of(model)), torch.no_grad():
        for batch in calibration.batches_of([i % 2 for i in range(40)]):
            model(batch, use_cache=False)
    alone, without = 0, []
    with Files(source) as before, Files(target) as after:
        for name in read_plan(after).layers:
            key = (name, None)
            if ".experts." in name:
                parent, role = name.replace("block_sparse_moe", "mlp").rsplit(".", 1)
                parent, _, e = parent.rpartition(".")
                key = (
                    f"{parent}.{'down' if role in ('down_proj', 'w2') else 'gate_up'}_proj",
                    int(e),
                )
            known = key in seen.values
            without += [] if known else [name]
            how = Compensation(seen.values[key]) if known else None
            weight = before.read(f"{name}.weight")
            scale = after.read(f"{name}.weight_scale_2")
            want = quantize_weight(weight, "gptq" if known else "amax", scale, how)
            assert torch.equal(after.read(f"{name}.weight"), want.data), name
            if known:
                mse = quantize_weight(weight, "mse", scale)
                alone += torch.equal(mse.data, want.data)
    assert alone == 0 and sorted(made.uncalibrated) == sorted(without)
    said = [line for line in lines(made) if "by amax, as no token of --calibrate" in line]
    assert len(said) == bool(without)
    assert bool(without) == (architecture != "llama")


def test_a_text_that_says_nothing_is_refused(calibrated, tmp_path):
    source = calibrated("llama")
    with pytest.raises(ValueError, match="calibrate: expected with input_quant='static' or rec"):
        quantize_folder(source, tmp_path / "made", input_quant="static")
    with pytest.raises(ValueError, match="calibrate: expected with input_quant='static' or rec"):
        quantize_folder(source, tmp_path / "made", recipe="gptq")
    with pytest.raises(ValueError, match="recipe: 'gptq' needs a text"):
        NVFP4KernConfig(recipe="gptq")
    with pytest.raises(ValueError, match="--calibrate: a text without tokens"):
        quantize_folder(source, tmp_path / "made", input_quant="static", calibrate="")


def test_a_disk_without_room_for_hessians_is_known_at_once(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=4 * (64 + 16) - 1))
    wanted = {("a", None): 8, ("b.down_proj", 3): 4}
    with pytest.raises(OSError, match="320 bytes are needed for Hessians, 319 are free"):
        Stored(tmp_path / "hessians", wanted)


def test_no_more_of_a_text_is_tokenised_than_is_run(monkeypatch):
    from nvfp4kern.transformers import calibration

    monkeypatch.setattr(calibration, "TOKENS", 10)
    lengths = []

    class Words:
        def __call__(self, text, **_):
            lengths.append(len(text))
            self.input_ids = [int(word) for word in text.split()]
            return self

    assert calibration.ids_of(Words(), "1 2 " * 1000) == [1, 2] * 5
    assert calibration.ids_of(Words(), "3" + " " * 300 + "4") == [3, 4]
    assert lengths == [80, 80, 160, 302]


@pytest.mark.parametrize("there", [True, False])
def test_a_text_that_is_not_utf8_is_named(tmp_path, monkeypatch, capsys, there):
    file = tmp_path / "text"
    if there:
        file.write_bytes(b"caf\xe9")
    options = ["--recipe", "gptq", "--calibrate", str(file)]
    monkeypatch.setattr(sys, "argv", ["nvfp4kern", "quantize", "source", "made", *options])
    assert main() == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --calibrate: ") and str(file) in said
    assert said.endswith(", expected a file of UTF-8\n")


# --- The command ---


def command(*arguments, **variables):
    words = [sys.executable, "-m", "nvfp4kern", "quantize", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, env=os.environ | variables)


def test_the_command(plain, tmp_path):
    target = tmp_path / "made"
    options = ("--recipe", "four_six", "--exclude", "*layers.0.*", "--inputs", "dynamic")
    done = command(plain("llama"), target, *options, "--verify")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[:2] == ["7 layers quantised, 39% of 157.06 kB; chosen by",
                        "  the modules of LlamaForCausalLM"]  # fmt: skip
    assert "not quantised, excluded by *lm_head*: lm_head" in said
    assert f"{target}: complete after" in said[-1] and said[-2].startswith("worst: model.layers.1.")
    assert inspect(target).format == "NVFP4" and inspect(target).problems == []
    again = command(plain("llama"), target)
    assert again.returncode == 2
    expected = "is there already, expected a new or empty directory"
    assert again.stderr.endswith(f"error: {target} {expected}\n")  # torchao warns before


def test_the_command_says_what_is_left(monkeypatch, capsys):
    clock = iter((0.0, 1.0, 15.0, 16.0, 30.0))
    monkeypatch.setattr("nvfp4kern.quantizing.command.time.monotonic", lambda: next(clock))
    say = Lines()
    for done in (100, 200, 300, 700):
        say(done * 10**6, 10**9)
    assert capsys.readouterr().err.splitlines() == [
        "200.00 MB of 1.00 GB, 6.67 MB/s, 120 s left",
        "700.00 MB of 1.00 GB, 20.00 MB/s, 15 s left",
    ]


def test_the_command_is_interrupted(tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("nvfp4kern.quantizing.command.quantize_folder", interrupted)
    monkeypatch.setattr(sys, "argv", ["nvfp4kern", "quantize", "source", "made"])
    assert main() == 130
    assert capsys.readouterr().err == "interrupted; the same command continues where it was\n"
