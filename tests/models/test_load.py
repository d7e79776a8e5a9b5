"""load_checkpoint on tiny models of transformers: what lands where, and that all of it does."""

import shutil

import pytest
import torch
from damage import changed
from empty_model import empty
from packing import dequantized
from safetensors.torch import load_file, save_file
from torch import nn

from nvfp4kern.checkpoint import CheckpointError, load_checkpoint, meta_parameters, save_checkpoint
from nvfp4kern.nn import NVFP4Experts, NVFP4Linear
from nvfp4kern.nn.linear import quantize_input
from nvfp4kern.verify import reference

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

ARCHITECTURES = ("llama", "qwen3", "qwen3_moe", "mixtral", "deepseek_v3")
FORMATS = (
    "modelopt-nvfp4", "modelopt-w4a16", "modelopt-awq", "modelopt-mixed",
    "ct-w4a4", "ct-w4a16", "ct-mixed",
)  # fmt: skip


def weights_of(model):
    """{plain name: float64 weight} of a loaded model, experts one by one."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, NVFP4Linear):
            weight = module.dequantize().double()
            if module.pre_quant_scale is not None:
                weight = weight * module.pre_quant_scale.double()
            found[f"{name}.weight"] = weight
            if module.bias is not None:
                found[f"{name}.bias"] = module.bias.double()
        elif isinstance(module, NVFP4Experts):
            gate_up, down = (
                module.dequantize(key).double() for key in ("gate_up_proj", "down_proj")
            )
            for e in range(module.num_experts):
                gate, up = gate_up[e].chunk(2)
                for key, value in (("gate", gate), ("up", up), ("down", down[e])):
                    found[f"{name}.{e}.{key}_proj.weight"] = value
        else:
            for key, value in (
                *module.named_parameters(recurse=False),
                *module.named_buffers(recurse=False),
            ):
                found[f"{name}.{key}"] = value.detach().double()
    return found


RENAMED = {
    ".block_sparse_moe.": ".mlp.",
    ".w1.": ".gate_proj.",
    ".w3.": ".up_proj.",
    ".w2.": ".down_proj.",
}


def renamed(name):
    for theirs, ours in RENAMED.items():
        name = name.replace(theirs, ours)
    return name


def check(model, directory):
    assert not [n for n, v in model.named_parameters() if v.is_meta]
    got = weights_of(model)
    want = {renamed(name): value for name, value in dequantized(directory).items()}
    assert want.keys() <= got.keys()
    for name, value in want.items():
        # A dequantised float32 value is rounded once or twice, one of FP8 goes to bfloat16.
        ulp = 2.0**-8 if "o_proj" in name else 2.0**-22
        assert bool(((got[name] - value).abs() <= ulp * value.abs()).all()), name


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_weight_lands_in_its_place(checkpoint, architecture, form):
    directory = checkpoint(architecture, form, spread=True, shards=3)
    model = empty(directory)
    report = load_checkpoint(model, directory, device="cpu")
    check(model, directory)
    with torch.no_grad():
        logits = model(torch.arange(24).reshape(2, 12)).logits
    assert bool(logits.isfinite().all()) and logits.std() > 0.1
    assert report is not None
    assert type(model.lm_head) is nn.Linear


class Expert(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False, dtype=torch.bfloat16)
        self.up_proj = nn.Linear(hidden, inner, bias=False, dtype=torch.bfloat16)
        self.down_proj = nn.Linear(inner, hidden, bias=False, dtype=torch.bfloat16)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("stacked", [None, "E2"])
@pytest.mark.parametrize("missing", [(), ("*experts.1.*", "*experts.2.up_proj")])
def test_single_experts_of_a_model(checkpoint, stacked, missing):
    """A model whose experts are modules, whatever the files stack."""
    if stacked and missing:
        pytest.skip("a stacked tensor has a scale for each expert")
    options = {"stacked": stacked, "missing": missing, "spread": True}
    directory = checkpoint("qwen3_moe", "modelopt-nvfp4", **options)
    model = empty(directory)
    for layer in model.model.layers:
        stack = getattr(layer.mlp, "experts", None)
        if stack is not None:
            e, h, i = stack.down_proj.shape
            with meta_parameters():
                layer.mlp.experts = nn.ModuleList(Expert(h, i) for _ in range(e))
    load_checkpoint(model, directory, device="cpu")
    check(model, directory)
    experts = next(x.mlp.experts for x in model.model.layers if hasattr(x.mlp, "experts"))
    scales = torch.stack([each.up_proj.input_scale for each in experts])
    assert bool((scales > 0).all())
    if missing:
        assert scales[1] == scales.max() == scales[2]


@pytest.mark.parametrize("form", ["modelopt-nvfp4", "ct-w4a4"])
def test_an_expert_without_input_scale_gets_the_largest(checkpoint, form):
    """vllm #45212, #45320, #54444, #54189: uninitialised memory served as a scale."""
    directory = checkpoint("qwen3_moe", form, spread=True, missing=("*experts.1.*",))
    model = empty(directory)
    with pytest.warns(UserWarning, match=r"experts\.1\.down_proj.*5 more"):
        load_checkpoint(model, directory, device="cpu")
    for module in model.modules():
        if isinstance(module, NVFP4Experts):
            for name in ("gate_up_proj_input_scale", "down_proj_input_scale"):
                scale = getattr(module, name)
                if form == "ct-w4a4":
                    assert scale is None
                    scale = 1 / getattr(module, f"{name}_inverse")
                assert torch.equal(scale[1], scale.amax(0)) and bool((scale > 0).all())
    check(model, directory)


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_divisors_of_inputs_are_taken_as_they_are(checkpoint, architecture, tmp_path):
    """504 is one of many numbers that fl(1 / fl(1 / x)) changes."""
    directory = checkpoint(architecture, "ct-w4a4")
    shutil.copytree(directory, tmp_path / "divisors")
    for file in (tmp_path / "divisors").glob("*.safetensors"):
        tensors = load_file(file)
        for name in tensors:
            if name.endswith("input_global_scale"):
                tensors[name] = torch.full_like(tensors[name], 504)
        save_file(tensors, file, metadata={"format": "pt"})
    model = empty(directory)
    load_checkpoint(model, tmp_path / "divisors", device="cpu")
    assert 1 / (1 / torch.tensor(504.0)) != 504
    linear = model.model.layers[0].self_attn.q_proj
    assert linear.input_scale is None and linear.input_scale_inverse == 504
    assert torch.equal(linear.alpha, linear.weight_scale_2 / 504)
    x = torch.randn(7, linear.in_features, generator=torch.Generator().manual_seed(3))
    codes, scales, _ = quantize_input(x, "static", linear.input_scale_inverse, True)
    want_codes, want_scales, _ = reference.quantize(x.numpy(), inverse=504)
    assert torch.equal(codes, torch.from_numpy(want_codes))
    assert torch.equal(scales.view(torch.uint8), torch.from_numpy(want_scales))
    for module in model.modules():
        if isinstance(module, NVFP4Experts):
            assert module.gate_up_input == module.down_input == 504
            assert torch.equal(module.down_alpha, module.down_proj_weight_scale_2 / 504)
    save_checkpoint(model, tmp_path / "saved")
    again = empty(tmp_path / "saved")
    load_checkpoint(again, tmp_path / "saved", device="cpu")
    assert again.model.layers[0].self_attn.q_proj.input_scale == 1 / torch.tensor(504.0)


class FusedAttention(nn.Module):
    """Rows of q, k and v in one layer, as engines have them."""

    def __init__(self, old):
        super().__init__()
        layers = [old.q_proj, old.k_proj, old.v_proj]
        rows = sum(layer.out_features for layer in layers)
        self.qkv_proj = nn.Linear(
            old.q_proj.in_features, rows, old.q_proj.bias is not None,
            device="meta", dtype=torch.bfloat16,
        )  # fmt: skip
        self.o_proj = old.o_proj
        for name in ("q_norm", "k_norm"):
            if hasattr(old, name):
                setattr(self, name, getattr(old, name))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("form", ["modelopt-nvfp4", "ct-w4a16"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_model_that_fuses_layers(checkpoint, form, fused):
    directory = checkpoint("llama", form, spread=not fused, fused=fused)
    model = empty(directory)
    for layer in model.model.layers:
        layer.self_attn = FusedAttention(layer.self_attn)
    load_checkpoint(model, directory, device="cpu")
    want = dequantized(directory)
    for i, layer in enumerate(model.model.layers):
        for key in ("weight", "bias"):
            names = [f"model.layers.{i}.self_attn.{x}_proj.{key}" for x in "qkv"]
            if names[0] in want:
                rows = torch.cat([want[name] for name in names])
                qkv = layer.self_attn.qkv_proj
                got = qkv.dequantize().double() if key == "weight" else qkv.bias.double()
                assert bool(((got - rows).abs() <= 2.0**-22 * rows.abs()).all())
    if form == "modelopt-nvfp4" and not fused:
        qkv = model.model.layers[0].self_attn.qkv_proj
        assert len(qkv.weight_scale_2.unique()) == 3 and qkv.input_scale.dim() == 0


def test_tied_embeddings_stay_tied(checkpoint):
    directory = checkpoint("llama", "modelopt-w4a16", tied=True)
    model = empty(directory)
    model.tie_weights()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    load_checkpoint(model, directory, device="cpu")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    check(model, directory)


# --- Nothing or all ---


AT = "model.layers.1.self_attn.k_proj"


def nan_global(tensors):
    tensors[f"{AT}.weight_scale_2"] = torch.tensor(torch.nan)


def nan_scale(tensors):
    scales = tensors[f"{AT}.weight_scale"].view(torch.uint8)
    scales[3, 1] = 0x7F
    tensors[f"{AT}.weight_scale"] = scales.view(torch.float8_e4m3fn)


ROWS = ("weight", "weight_scale", "bias")
BROKEN = {
    "NaN global": (nan_global, "weight_scale_2: nan"),
    "no global": (lambda t: t.pop(f"{AT}.weight_scale_2"), "weight_scale_2"),
    "NaN block scale": (nan_scale, "weight_scale: 1 scale factors are NaN or negative"),
    "wrong rows": (
        lambda t: t.update({f"{AT}.{key}": t[f"{AT}.{key}"][:-16].clone() for key in ROWS}),
        r"k_proj\.weight: \[\d+, \d+\], expected \[\d+, \d+\] as in the model's",
    ),
    "no norm": (lambda t: t.pop("model.norm.weight"), r"model\.norm\.weight: the model has them"),
    "norm's shape": (
        lambda t: t.update({"model.norm.weight": t["model.norm.weight"][:-1].clone()}),
        r"model\.norm\.weight: \[63\], expected \[64\]",
    ),
    "norm's dtype": (
        lambda t: t.update({"model.norm.weight": t["model.norm.weight"].to(torch.int32)}),
        r"model\.norm\.weight: int32, expected bfloat16",
    ),
    "a stranger": (
        lambda t: t.update({"model.stranger.weight": torch.zeros(2)}),
        r"model\.stranger\.weight: not in the model",
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_checkpoint_changes_nothing(checkpoint, tmp_path, kind):
    change, message = BROKEN[kind]
    source = checkpoint("llama", "modelopt-nvfp4", spread=True)
    directory = changed(source, tmp_path / "m", change)
    model = empty(source)
    load_checkpoint(model, source, device="cpu")
    before = {name: (value, value.clone()) for name, value in model.state_dict().items()}
    modules = dict(model.named_modules())
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(model, directory, device="cpu")
    assert dict(model.named_modules()) == modules
    for name, value in model.state_dict().items():
        kept, copy = before[name]
        assert value.data_ptr() == kept.data_ptr(), name
        assert torch.equal(
            value.view(torch.uint8) if value.dim() else value,
            copy.view(torch.uint8) if value.dim() else copy,
        ), name


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_strangers_are_a_warning_where_asked_for(checkpoint, tmp_path):
    source = checkpoint("llama", "modelopt-nvfp4")
    directory = changed(
        source, tmp_path / "m", lambda t: t.update({"model.stranger": torch.zeros(2)})
    )
    report = load_checkpoint(empty(source), directory, device="cpu", strict=False)
    assert any("model.stranger: not in the model, ignored" in w for w in report.warnings)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_float16_cannot_hold_is_an_error(checkpoint, tmp_path):
    source = checkpoint("llama", "modelopt-nvfp4")
    large = torch.full((64,), 1e6, dtype=torch.bfloat16)
    directory = changed(source, tmp_path / "m", lambda t: t.update({"model.norm.weight": large}))
    load_checkpoint(empty(source), directory, device="cpu")
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight: 999424 is too large for f"):
        load_checkpoint(empty(source).half(), directory, device="cpu")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fp8_weights_with_nan_are_an_error(checkpoint, tmp_path):
    source, name = checkpoint("llama", "modelopt-mixed"), "model.layers.0.self_attn.o_proj.weight"

    def spoil(tensors):
        codes = tensors[name].view(torch.uint8)
        codes[1, 2] = 0xFF
        tensors[name] = codes.view(torch.float8_e4m3fn)

    directory = changed(source, tmp_path / "m", spoil)
    with pytest.raises(CheckpointError, match=r"0\.self_attn\.o_proj\.weight: 1 elements are NaN"):
        load_checkpoint(empty(source), directory, device="cpu")


def test_a_float32_model_is_refused_where_inputs_stay_as_they_are(checkpoint):
    directory = checkpoint("llama", "modelopt-w4a16")
    model = empty(directory).float()
    with pytest.raises(ValueError, match=r"model: model\..* is float32; inputs that are not quant"):
        load_checkpoint(model, directory, device="cpu")
    load_checkpoint(model, directory, device="cpu", input_quant="dynamic")
    with torch.no_grad():
        assert model(torch.arange(4)[None]).logits.dtype == torch.float32


def test_buffers_on_the_meta_device_are_refused_with_advice(checkpoint):
    directory = checkpoint("llama", "modelopt-nvfp4")
    config = transformers.AutoConfig.from_pretrained(directory)
    del config.quantization_config
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="inv_freq is a buffer on the meta.*meta_parameter"):
        load_checkpoint(model, directory, device="cpu")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_of_nvfp4_layers_loads_again(checkpoint):
    directory = checkpoint("qwen3_moe", "modelopt-nvfp4", spread=True)
    model = empty(directory)
    load_checkpoint(model, directory, device="cpu")
    load_checkpoint(model, directory, device="cpu", input_quant=None)
    check(model, directory)
    assert {m.input_quant for m in model.modules() if isinstance(m, NVFP4Linear)} == {None}


def test_what_is_wrong_with_the_call_is_said_of_the_argument(tmp_path):
    layer = NVFP4Linear.from_linear(nn.Linear(32, 16, bias=False))
    save_file(layer.state_dict(), tmp_path / "model.safetensors")
    bare = nn.Linear(32, 16, bias=False).bfloat16()
    with pytest.raises(ValueError, match="model: itself a layer, expected a module that has it"):
        load_checkpoint(bare, tmp_path, device="cpu")
    with pytest.raises(ValueError, match="input_quant: 'int8', expected one of 'auto', None"):
        load_checkpoint(bare, tmp_path, device="cpu", input_quant="int8")
