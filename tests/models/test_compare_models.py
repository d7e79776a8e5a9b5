"""nvfp4kern.comparing against figures computed here, one by one, in float64."""

import copy
import json
import math
import sys

import numpy as np
import pytest
import torch
from byte_model import byte_tokenizer, make
from tiny_sizes import sizes
from torch import nn

from nvfp4kern.__main__ import main
from nvfp4kern.comparing import compare_models, measures
from nvfp4kern.comparing.models import weight_error
from nvfp4kern.nn import NVFP4Config, NVFP4Experts, NVFP4Linear, quantize_
from nvfp4kern.quantizing import quantize_folder

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SEQUENCES = [torch.arange(90) * 7 % 256, torch.tensor([5]), torch.tensor([9, 4, 4])]
TEXT = "It was a dark and stormy night; the rain fell in torrents. " * 3


def probabilities(logits):
    """Of one position, by the definition."""
    logits = logits.double().numpy()
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def by_definition(reference, model, sequences):
    """(perplexities, divergences, share of the same likeliest) position by position."""
    losses, divergences, same = ([], []), [], []
    for ids in sequences:
        with torch.no_grad():
            logits = [each(input_ids=ids[None]).logits[0] for each in (reference, model)]
        for at in range(len(ids) - 1):
            p, q = (probabilities(each[at]) for each in logits)
            for some, each in zip(losses, (p, q), strict=True):
                some.append(-math.log(each[ids[at + 1]]))
            divergences.append(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a))
            same.append(p.argmax() == q.argmax())
    return [math.exp(sum(each) / len(each)) for each in losses], divergences, np.mean(same)


def errors_by_definition(reference, model, sequences):
    """Layer -> of its results."""
    inputs = {}

    def seen(name):
        return lambda _, given, output: inputs.setdefault(name, []).append((given, output))

    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (NVFP4Linear, NVFP4Experts))
    }
    hooks = [reference.get_submodule(n).register_forward_hook(seen(n)) for n in layers]
    found = {}
    with torch.no_grad():
        for ids in sequences:
            reference(input_ids=ids[None])
        for name, layer in layers.items():
            pairs = [(output.double(), layer(*given).double()) for given, output in inputs[name]]
            exact = [output.flatten() for output, _ in pairs]
            wrong = [(other - output).flatten() for output, other in pairs]
            found[name] = torch.cat(wrong).norm() / torch.cat(exact).norm()
    for hook in hooks:
        hook.remove()
    return found


def sharpened(model):
    """Logits that say something, so that a divergence is no rounding."""
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    return model.eval()


@pytest.fixture(scope="module", params=["llama", "qwen3_moe", "gpt_oss", "gpt2"])
def models(request):
    if request.param == "gpt2":
        options = {"vocab_size": 256, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}
        config = transformers.GPT2Config(**options, tie_word_embeddings=False)
    elif request.param == "gpt_oss":  # whose stacks lie across, with gates and ups in turn
        config = transformers.GptOssConfig(
            **sizes(256, 64, 96, layers=2, heads=4, kv_heads=2, positions=128),
            num_local_experts=4,
            num_experts_per_tok=2,
            initializer_range=0.1,
        )
    else:
        from tiny_architectures import ARCHITECTURES

        options = ARCHITECTURES[request.param].config | {
            "vocab_size": 256,
            "initializer_range": 0.1,
        }
        config = transformers.AutoConfig.for_model(**options)
    made = []
    for _ in range(2):
        torch.manual_seed(4)
        made.append(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16))
        sharpened(made[-1])
    quantize_(made[1], NVFP4Config(input_quant="dynamic"))
    return made


def test_figures_are_those_of_the_definitions(models):
    found = compare_models(*models, SEQUENCES)
    (exact, other), divergences, same = by_definition(*models, SEQUENCES)
    assert found.perplexity_of_reference == pytest.approx(exact, rel=1e-9)
    assert found.perplexity == pytest.approx(other, rel=1e-9)
    assert exact != other
    assert found.divergences.tolist() == pytest.approx(divergences, rel=1e-6, abs=1e-12)
    assert found.kl == pytest.approx(np.mean(divergences), rel=1e-9) and found.kl > 1e-3
    assert found.kl_at(0.99) == pytest.approx(np.percentile(divergences, 99), rel=1e-6)
    assert found.same == pytest.approx(same) and 0.2 < found.same < 1
    assert (found.sequences, len(found.losses)) == (2, 91)
    assert found.to_dict()["kl"]["most"] == max(found.divergences.tolist())


def test_layers_get_the_references_inputs(models):
    found = compare_models(*models, SEQUENCES).layers
    expected = errors_by_definition(*models, [SEQUENCES[0], SEQUENCES[2]])
    assert found.keys() == expected.keys() and len(found) >= 8
    for name, error in expected.items():
        assert found[name].output == pytest.approx(float(error), rel=1e-5), name
        assert 0.05 < found[name].output < 0.4


def test_errors_of_weights(models):
    reference, model = models
    found = compare_models(*models, SEQUENCES).layers
    for name, errors in found.items():
        exact, layer = reference.get_submodule(name), model.get_submodule(name)
        if isinstance(layer, NVFP4Linear):
            weight = exact.weight.T if type(exact).__name__ == "Conv1D" else exact.weight
            pairs = [(weight, layer.dequantize())]
        else:
            up, down = exact.gate_up_proj, exact.down_proj
            if type(exact).__name__ == "GptOssExperts":
                up, down = torch.cat([up[..., ::2], up[..., 1::2]], -1).mT, down.mT
            quantised = [layer.dequantize(each) for each in ("gate_up_proj", "down_proj")]
            pairs = list(zip((up, down), quantised, strict=True))
        flat = [
            torch.cat([each.detach().double().flatten() for each in some])
            for some in zip(*pairs, strict=True)
        ]
        expected = (flat[1] - flat[0]).norm() / flat[0].norm()
        assert errors.weight == pytest.approx(float(expected), rel=1e-6), name


def test_a_gpu_finds_much_the_same(gpu, models, monkeypatch):
    monkeypatch.delenv("NVFP4KERN_BACKEND")
    expected = compare_models(*models, SEQUENCES)
    found = compare_models(*(copy.deepcopy(each).to(gpu.device) for each in models), SEQUENCES)
    assert found.perplexity_of_reference == pytest.approx(expected.perplexity_of_reference, rel=0.1)
    assert found.kl == pytest.approx(expected.kl, rel=0.3)
    for name, errors in expected.layers.items():
        assert found.layers[name].weight == pytest.approx(errors.weight, rel=1e-5)
        assert found.layers[name].output == pytest.approx(errors.output, rel=0.1)


def test_a_model_is_itself(models):
    found = compare_models(models[1], models[1], SEQUENCES)
    assert found.kl == 0 and found.same == 1 and found.perplexity == found.perplexity_of_reference
    assert {(each.output, each.weight) for each in found.layers.values()} == {(0, 0)}


def test_what_multiplies_the_input_belongs_to_the_weight():
    torch.manual_seed(0)
    linear, scale = nn.Linear(64, 32, bias=False).bfloat16(), torch.rand(64).add(0.5).bfloat16()
    scaled = nn.Linear(64, 32, bias=False).bfloat16()
    scaled.weight.data = (linear.weight / scale).detach()
    layer = NVFP4Linear(64, 32, bias=False, pre_quant_scale=True, dtype=torch.bfloat16)
    made = NVFP4Linear.from_linear(scaled)
    layer.load_state_dict(made.state_dict() | {"pre_quant_scale": scale})
    exact = linear.weight.detach().double()
    expected = (made.dequantize().double() * scale.double() - exact).norm() / exact.norm()
    assert weight_error("a", linear, layer) == pytest.approx(float(expected), rel=1e-6)
    assert expected < 0.15 < (made.dequantize() - exact).norm() / exact.norm()


def test_what_svd_takes_off_belongs_to_the_weight():
    torch.manual_seed(0)
    linear = nn.Linear(64, 32, bias=False).bfloat16()
    low, high = torch.randn(4, 64).bfloat16() / 8, torch.randn(32, 4).bfloat16()
    rest = nn.Linear(64, 32, bias=False).bfloat16()
    rest.weight.data = (linear.weight.detach().float() - high.float() @ low.float()).bfloat16()
    layer = NVFP4Linear(64, 32, bias=False, low_rank=4, dtype=torch.bfloat16)
    made = NVFP4Linear.from_linear(rest)
    parts = {"svdquant_lora_a": low, "svdquant_lora_b": high}
    layer.load_state_dict(made.state_dict() | parts)
    exact = linear.weight.detach().double()
    whole = made.dequantize().double() + high.double() @ low.double()
    expected = (whole - exact).norm() / exact.norm()
    assert weight_error("a", linear, layer) == pytest.approx(float(expected), rel=1e-5)
    assert expected < (made.dequantize() - exact).norm() / exact.norm() / 2


def test_zeros_and_infinities():
    lowest = -torch.inf
    p = torch.tensor([[0.0, 0.0, lowest], [0.0, 1.0, 2.0], [0.0, lowest, lowest]]).double()
    q = torch.tensor([[0.0, 0.0, 5.0], [0.0, lowest, 2.0], [0.0, 0.0, lowest]]).double()
    found = measures.divergence(p, q).tolist()
    assert found[0] == pytest.approx(math.log(2 + math.exp(5)) - math.log(2))
    assert found[1] == math.inf and found[2] == pytest.approx(math.log(2))
    squares = measures.Squares()
    squares.add(torch.zeros(2), torch.tensor([3.0, 4.0]))
    assert squares.error() == 5
    squares.add(torch.tensor([10.0]), torch.tensor([10.0]))
    assert squares.error() == 0.5


class Fixed(nn.Module):
    """Logits of its own."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, **_):
        return self


def test_what_cannot_be_compared_is_refused(models):
    reference, model = models
    good, odd = Fixed(torch.zeros(1, 3, 8)), torch.zeros(1, 3, 8)
    odd[0, 1, 2] = torch.nan
    for pair, said in (
        ((good, Fixed(torch.zeros(1, 3, 9))), r"model: logits \[3, 9\], expected \[3, 8\] as the"),
        ((good, Fixed(odd)), "model: its logits have NaN"),
        ((Fixed(odd), good), "reference: its logits have NaN"),
        ((good, model), "reference: has no .*, expected what the other model has"),
    ):
        with pytest.raises(ValueError, match=said):
            compare_models(*pair, [torch.arange(3)])
    with pytest.raises(ValueError, match="sequences: no token follows another"):
        compare_models(good, good, [torch.arange(1)])
    with pytest.raises(
        ValueError, match=r"reference: a's weight is \[16, 32\], expected \[16, 64\]"
    ):
        layer = NVFP4Linear.from_linear(nn.Linear(64, 16).bfloat16())
        weight_error("a", nn.Linear(32, 16), layer)


# --- The command ---


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("folders")
    (path / "text").write_text(TEXT)
    make(path / "plain", pad_token="!")
    quantize_folder(path / "plain", path / "made")
    return path


@pytest.fixture
def compare(folders, monkeypatch, capsys):
    """Calls the command; (status, stdout, stderr)."""

    def call(*words, reference="plain", folder="made", text="text"):
        at = [str(folders / name) for name in (reference, folder, text)]
        monkeypatch.setattr(sys, "argv", ["nvfp4kern", "compare", *at[:2], "--text", at[2], *words])
        capsys.readouterr()
        return main(), *capsys.readouterr()

    return call


def test_the_command(folders, compare, tmp_path):
    json_path, picture = tmp_path / "found.json", tmp_path / "found.png"
    words = ("--tokens", "100", "--context", "32", "--device", "cpu")
    status, out, err = compare(*words, "--json", str(json_path), "--plot", str(picture))
    assert status == 0, err
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folders / "plain", dtype=torch.bfloat16)
    other = load(folders / "plain", dtype=torch.bfloat16)
    quantize_(other)
    found = json.loads(json_path.read_text())
    ids = torch.tensor(byte_tokenizer()(TEXT).input_ids[:100])
    (exact, _), _, _ = by_definition(model, other, ids.split(32))
    assert found["perplexity_of_reference"] == pytest.approx(exact, rel=1e-9)
    assert (found["sequences"], found["positions"]) == (4, 96)
    assert found["environment"]["tokens"] == 100 and found["environment"]["device"] == "cpu"
    assert len(found["layers"]) == 14
    said = out.splitlines()
    assert said[0] == "96 tokens predicted in 4 sequences"
    assert said[1].startswith(f"perplexity      {exact:.4f} of the reference, ")
    errors = found["layers"].values()
    line = next(each for each in said if "mlp.down_proj" in each).split()
    mine = [found["layers"][f"model.layers.{i}.mlp.down_proj"] for i in range(2)]
    assert line[:2] == ["model.layers.*.mlp.down_proj", "2"]
    for at, key in ((2, "output"), (4, "weight")):
        values = [each[key] for each in mine]
        assert line[at : at + 2] == [f"{sum(values) / 2:.4f}", f"{max(values):.4f}"]
    worst = max(each["output"] for each in errors)
    assert said[-1].startswith("worst results: ") and f" {worst:.4f}," in said[-1]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert compare(*words)[1] == out


def test_folders_in_16_bits(compare):
    status, out, _ = compare("--tokens", "40", folder="plain")
    assert status == 0 and out.endswith("token the same at 100.00%\nno NVFP4 layers\n")
    assert "KL of logits    mean 0 nats" in out


def test_sequences_are_no_longer_than_the_models_positions(compare):
    assert f"{len(TEXT) - 3} tokens predicted in 3 sequences" in compare()[1]  # it has 64


@pytest.mark.parametrize(
    ("words", "names", "said"),
    [
        (["--tokens", "1"], {}, "--tokens: 1, expected 2 or more"),
        (["--context", "65"], {}, "--context: 65, expected 2 to 64"),
        (["--context", "1"], {}, "--context: 1, expected 2 to 64"),
        (["--json", "/nowhere/a.json"], {}, "--json: cannot be written: "),
        (["--plot", "/nowhere/a.png"], {}, "--plot: cannot be written: "),
        (["--plot", "a.qqq"], {}, "--plot: 'a.qqq', expected a file that ends in .png, "),
        ([], {"text": "none"}, "--text: "),
        ([], {"text": "short"}, "--text: has 1 tokens, expected at least 2"),
        ([], {"text": "binary"}, "--text: "),
        ([], {"reference": "none"}, "REFERENCE: '"),
        ([], {"folder": "none"}, "FOLDER: '"),
        ([], {"folder": "other"}, "FOLDER: its tokenizer makes other tokens of the text than"),
    ],
)
def test_arguments_that_cannot_be_are_refused(folders, compare, words, names, said):
    (folders / "short").write_text("a")
    (folders / "binary").write_bytes(b"\xff\xfe\xfd")
    if names == {"folder": "other"}:
        path = make(folders / "other") / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        ids = tokenizer["model"]["vocab"]
        ids["s"], ids["t"] = ids["t"], ids["s"]
        path.write_text(json.dumps(tokenizer))
    status, out, err = compare(*words, **names)
    assert status == 2 and out == "" and err.startswith(f"error: {said}"), err
