"""MXFP4 files: what is loaded is what they say, to the bit, or an error names the row."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from nvfp4kern import NVFP4
from nvfp4kern.checkpoint import (
    CheckpointError,
    Files,
    inspect,
    load_checkpoint,
    nvfp4_of_mxfp4,
    read_plan,
    save_checkpoint,
)
from nvfp4kern.nn import NVFP4Experts, NVFP4Linear

E2M1 = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
BY_COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
                "symmetric": True, "scale_dtype": "torch.uint8",
            },
            "input_activations": None,
        }
    },
}  # fmt: skip


def drawn(*shape, seed=1, span=17):
    """Codes [.., N, K/2] and scales [.., N, K/32] of any exponents, `span` apart in a row."""
    draw = torch.Generator().manual_seed(seed)
    *rows, k = shape
    codes = torch.randint(0, 256, (*rows, k // 2), generator=draw, dtype=torch.uint8)
    first = torch.randint(0, 250 - span, (*rows, 1), generator=draw)
    scales = first + torch.randint(0, span + 1, (*rows, k // 32), generator=draw)
    return codes, scales.to(torch.uint8)


def values(codes, scales):
    """float32 by a table and ldexp, as transformers dequantises them."""
    both = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
    exponents = scales.int() - 127
    blocks = E2M1[both.int()].unflatten(-1, (-1, 32))
    return torch.ldexp(blocks, exponents.unsqueeze(-1)).flatten(-2)


def by_nvfp4(q):
    both = torch.stack((q.data & 15, q.data >> 4), -1).flatten(-2)
    blocks = E2M1[both.int()].unflatten(-1, (-1, 16)) * q.scales.float().unsqueeze(-1)
    return blocks.flatten(-2) * q.global_scale.unsqueeze(-1)


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("span", [0, 5, 17])
@pytest.mark.parametrize("shape", [(40, 256), (3, 24, 64), (5, 0), (0, 32)])
def test_values_are_the_same_to_the_bit(shape, span, blocks):
    codes, scales = drawn(*shape, span=span)
    given = codes.unflatten(-1, (-1, 16)) if blocks else codes
    q = nvfp4_of_mxfp4(given, scales)
    assert q.global_scale.shape == shape[:-1] and q.scales.dtype == torch.float8_e4m3fn
    assert same_bits(by_nvfp4(q), values(codes, scales))
    if hasattr(torch, "float8_e8m0fnu"):
        again = nvfp4_of_mxfp4(given, scales.view(torch.float8_e8m0fnu))
        assert torch.equal(again.global_scale, q.global_scale)


def test_codes_may_lie_anywhere():
    codes, scales = drawn(6, 64)
    odd = torch.cat([codes.new_zeros(1), codes.flatten()])[1:].view(codes.shape)
    apart = torch.stack([codes, codes], 1)[:, 0]
    for each in (odd, apart, codes.T.contiguous().T):
        assert same_bits(by_nvfp4(nvfp4_of_mxfp4(each, scales)), values(codes, scales))


def test_the_ends_of_the_exponents():
    for ends in ((0, 17), (237, 254), (0, 0), (254, 254)):
        codes, _ = drawn(8, 64)
        scales = torch.tensor([ends] * 8, dtype=torch.uint8)
        q = nvfp4_of_mxfp4(codes, scales)
        assert bool((q.global_scale >= 2.0**-126).all())
        if ends[1] < 240:  # beyond, values overflow float32 as they do in MXFP4
            assert same_bits(by_nvfp4(q), values(codes, scales))


def test_blocks_of_zeros_do_not_count():
    codes, scales = drawn(4, 128)
    codes[:, 16:32] = torch.randint(0, 2, (4, 16)).to(torch.uint8) * 0x80  # zeros of either sign
    scales[:, 1] = torch.tensor([0, 1, 253, 254], dtype=torch.uint8)
    codes[3] = 0
    q = nvfp4_of_mxfp4(codes, scales)
    assert same_bits(by_nvfp4(q), values(codes, scales))


@pytest.mark.parametrize("scale, what", [
    (18, "has exponents that differ by more than 17"), (255, "has a scale that is NaN"),
])  # fmt: skip
def test_what_nvfp4_cannot_say_is_refused(scale, what):
    codes, scales = torch.full((2, 3, 32), 0x11, dtype=torch.uint8), torch.zeros(2, 3, 2)
    scales[1, 2, 1] = scale
    with pytest.raises(ValueError, match=f"^scales: row 1, 2 {what}"):
        nvfp4_of_mxfp4(codes, scales.to(torch.uint8))


@pytest.mark.parametrize(
    "codes, scales", [((3, 16), (3, 2)), ((2, 16), (3, 1)), ((3, 2, 8), (3, 2))]
)
def test_shapes_that_do_not_fit_are_refused(codes, scales):
    with pytest.raises(ValueError, match=r"^codes: torch.uint8 \["):
        nvfp4_of_mxfp4(*(torch.zeros(s, dtype=torch.uint8) for s in (codes, scales)))


def test_transformers_dequantises_to_the_same_bits():
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4", reason="needs transformers")
    codes, scales = drawn(2, 24, 128, seed=5)
    want = mxfp4.convert_moe_packed_tensors(
        codes.unflatten(-1, (-1, 16)), scales, dtype=torch.float32
    )
    assert same_bits(by_nvfp4(nvfp4_of_mxfp4(codes, scales)), want.transpose(1, 2))


# --- Files ---


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        options = {"dtype": torch.bfloat16, "device": "meta"}
        self.q_proj = nn.Linear(64, 48, **options)
        self.up_proj = nn.Linear(96, 32, bias=False, **options)
        self.norm = nn.LayerNorm(8, **options)


MX = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
BY_QUARK = {
    "quant_method": "quark",
    "global_quant_config": {"weight": MX | {"is_dynamic": False}, "input_tensors": None},
    "layer_quant_config": {"*k_proj": {"weight": None, "output_tensors": {"dtype": "fp8_e4m3"}}},
    "exclude": ["lm_head"],
}
CONFIGS = {"openai": {"quant_method": "mxfp4"}, "quark": BY_QUARK}


def file_of(folder, form, *, change=lambda tensors: None, config=BY_COMPRESSED):
    """A checkpoint of the Model, and its weights in float32."""
    layers = {"q_proj": (48, 64), "up_proj": (32, 96)}
    tensors, weights = {}, {}
    for seed, (name, shape) in enumerate(layers.items()):
        codes, scales = drawn(*shape, seed=seed)
        scales = (scales.int() % 40 + 100).to(torch.uint8)
        scales = torch.minimum(scales, scales.amin(-1, keepdim=True) + 17)
        weights[name] = values(codes, scales)
        if form == "compressed":
            tensors |= {f"{name}.weight_packed": codes, f"{name}.weight_scale": scales}
        elif form == "quark":
            tensors |= {f"{name}.weight": codes, f"{name}.weight_scale": scales}
        else:
            blocks = codes.unflatten(-1, (-1, 16)).contiguous()
            tensors |= {f"{name}.weight_blocks": blocks, f"{name}.weight_scales": scales}
    tensors["q_proj.bias"] = torch.randn(48).to(torch.bfloat16)
    tensors |= {"norm.weight": torch.ones(8), "norm.bias": torch.ones(8)}
    change(tensors)
    folder.mkdir()
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    text = json.dumps({"quantization_config": CONFIGS.get(form, config)})
    (folder / "config.json").write_text(text)
    return weights


@pytest.fixture
def model():
    return Model()


@pytest.mark.parametrize("form", ["compressed", "openai", "quark"])
def test_linear_layers_are_loaded_exactly(tmp_path, model, form):
    weights = file_of(tmp_path / "m", form)
    assert not inspect(tmp_path / "m").errors
    load_checkpoint(model, tmp_path / "m", device="cpu")
    for name in ("q_proj", "up_proj"):
        layer = getattr(model, name)
        assert isinstance(layer, NVFP4Linear) and layer.input_quant is None
        assert same_bits(layer.dequantize(), weights[name])
    x = torch.randn(3, 64).to(torch.bfloat16)
    want = nn.functional.linear(x.float(), weights["q_proj"], model.q_proj.bias.float())
    assert (model.q_proj(x) - want).abs().max() <= 2**-7 * want.abs().max()


def test_their_activations_stay_at_16_bits_or_become_nvfp4(tmp_path, model):
    config = json.loads(json.dumps(BY_COMPRESSED))
    group = config["config_groups"]["group_0"]
    group["input_activations"] = {**group["weights"], "dynamic": True}
    file_of(tmp_path / "m", "compressed", config=config)
    with pytest.warns(UserWarning, match=r"_proj: its activations are MXFP4; they stay at 16 bits"):
        load_checkpoint(model, tmp_path / "m", device="cpu")
    assert model.q_proj.input_quant is None


@pytest.mark.parametrize(
    "form, part", [("compressed", "scale"), ("openai", "scales"), ("quark", "scale")]
)
@pytest.mark.parametrize("change, message", [
    (lambda t: t[3, :].copy_(torch.tensor([100, 118])), "row 3 has exponents that differ by more"),
    (lambda t: t[5, 1].fill_(255), "row 5 has a scale that is NaN"),
])  # fmt: skip
def test_a_row_that_nvfp4_cannot_say_is_an_error(tmp_path, model, form, part, change, message):
    name = f"q_proj.weight_{part}"
    before = {n: (type(m), id(m)) for n, m in model.named_modules()}
    file_of(tmp_path / "m", form, change=lambda tensors: change(tensors[name]))
    with pytest.raises(CheckpointError, match=f"^{name}: {message}"):
        load_checkpoint(model, tmp_path / "m", device="cpu")
    assert before == {n: (type(m), id(m)) for n, m in model.named_modules()}


def test_quarks_outputs_are_ignored_and_its_fp8_layers_dequantised(tmp_path, model):
    def change(tensors):
        tensors["q_proj.weight"] = torch.randn(48, 64).to(torch.float8_e4m3fn)
        tensors["q_proj.weight_scale"] = torch.tensor(0.5)
        tensors["q_proj.output_scale"] = torch.tensor(2.0)
        fp8.append(tensors["q_proj.weight"])

    fp8 = []
    weights = file_of(tmp_path / "m", "quark", change=change)
    assert not inspect(tmp_path / "m").errors
    load_checkpoint(model, tmp_path / "m", device="cpu")
    assert torch.equal(model.q_proj.weight, (fp8[0].float() / 2).to(torch.bfloat16))
    assert same_bits(model.up_proj.dequantize(), weights["up_proj"])

    def other(tensors):
        tensors["q_proj.weight_scale"] = torch.ones(48, 4).to(torch.float8_e4m3fn)

    file_of(tmp_path / "n", "quark", change=other)
    (error, *_) = inspect(tmp_path / "n").errors
    assert error == "q_proj.weight_scale: float8_e4m3fn, expected uint8"


@pytest.mark.parametrize("part, columns, said", [
    ("scale", 1, "weight_scale: uint8 [48, 1], expected uint8 [48, 2], E8M0 for 32 elements"),
    ("packed", 24, "weight_packed: has K = 48, expected a multiple of 32"),
])  # fmt: skip
def test_wrong_shapes_are_problems(tmp_path, model, part, columns, said):
    def change(tensors):
        name = f"q_proj.weight_{part}"
        tensors[name] = tensors[name][:, :columns].clone()

    file_of(tmp_path / "m", "compressed", change=change)
    (error, *_) = inspect(tmp_path / "m").errors
    assert error == f"q_proj.{said}"
    with pytest.raises(CheckpointError, match=f"^q_proj.weight_{part}: "):
        load_checkpoint(model, tmp_path / "m", device="cpu")


def test_codes_for_what_is_no_linear_layer_are_refused(tmp_path, model):
    file_of(tmp_path / "m", "compressed")
    model.up_proj = nn.Embedding(32, 96, device="meta")
    with pytest.raises(CheckpointError, match="^up_proj.*: is quantised; Embedding is no l"):
        load_checkpoint(model, tmp_path / "m", device="cpu")


# --- Stacks by OpenAI's names ---


def stack_file(folder, prefix="experts", seed=3, change=lambda tensors: None):
    """Two experts of gpt-oss, 64 wide and 32 inside, and the codes and scales of their weights."""
    tensors, drawn_ones = {}, {}
    for name, shape in (("gate_up_proj", (2, 64, 64)), ("down_proj", (2, 64, 32))):
        codes, scales = drawn(*shape, seed=seed)
        drawn_ones[name] = codes, scales
        tensors[f"{prefix}.{name}_blocks"] = codes.unflatten(-1, (-1, 16))
        tensors[f"{prefix}.{name}_scales"] = scales
        tensors[f"{prefix}.{name}_bias"] = torch.randn(shape[:2]).to(torch.bfloat16)
    change(tensors)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"quantization_config": {"quant_method": "mxfp4"}}')
    return drawn_ones


@pytest.mark.parametrize("index", [(), (0,), (1, slice(8, 40)), (slice(1, 2), slice(0, 32))])
def test_stacks_are_read_expert_by_expert_with_transformers_bits(tmp_path, index):
    want = stack_file(tmp_path / "m")
    with Files(tmp_path / "m") as files:
        read_plan(files)
        plan = read_plan(files)  # the second is the first
        assert plan.problems == [] and plan.plain == []
        for name, layer in plan.layers.items():
            parts = [
                files.read(layer.sources[part].name, index)
                for part in ("weight", "weight_scale", "weight_scale_2")
            ]
            weights = values(*want[name.removeprefix("experts.")])
            bias = files.stored(f"{name}_bias")
            if name.endswith("gate_up_proj"):  # gates and ups take turns
                weights, bias = (torch.cat([t[:, ::2], t[:, 1::2]], 1) for t in (weights, bias))
            assert same_bits(by_nvfp4(NVFP4(*parts)), weights[index])
            assert torch.equal(files.read(layer.sources["bias"].name, index), bias[index])


def test_a_row_of_a_stack_that_nvfp4_cannot_say_is_named(tmp_path):
    def change(tensors):
        tensors["experts.gate_up_proj_blocks"].fill_(0x22)
        tensors["experts.gate_up_proj_scales"][1, 21] = torch.tensor([100, 118])

    stack_file(tmp_path / "m", change=change)
    with Files(tmp_path / "m") as files:
        name = read_plan(files).layers["experts.gate_up_proj"].sources["weight_scale"].name
        files.read(name, (0,))
        for index in ((1,), (1, slice(16, 32)), ()):
            with pytest.raises(CheckpointError, match=f"^{name}: row 1, 21 has exponents"):
                files.read(name, index)


def test_gates_and_ups_that_take_turns_become_halves(tmp_path):
    def change(tensors):
        for name in ("gate_up_proj", "down_proj"):
            del tensors[f"experts.{name}_bias"]

    want = stack_file(tmp_path / "m", change=change)
    model = nn.Module()
    model.experts = NVFP4Experts(64, 32, 2, device="meta")
    load_checkpoint(model, tmp_path / "m", device="cpu")
    rows = values(*want["gate_up_proj"])
    halves = torch.cat([rows[:, ::2], rows[:, 1::2]], 1)
    assert same_bits(model.experts.dequantize("gate_up_proj"), halves)
    assert same_bits(model.experts.dequantize("down_proj"), values(*want["down_proj"]))
    stack_file(tmp_path / "n")
    with pytest.raises(CheckpointError, match="^experts.down_proj_bias, .*: not in the model"):
        load_checkpoint(model, tmp_path / "n", device="cpu")


@pytest.mark.parametrize("again", [False, True])
def test_stacks_of_gpt_oss_fill_its_experts(tmp_path, again):
    """Rows of gates, then of ups, with their biases: of a new layer, and of one that is there."""
    want = stack_file(tmp_path / "m")
    gating = {"activation": "swiglu_oai", "limit": 7.0, "bias": True, "dtype": torch.bfloat16}
    model = nn.Module()
    model.experts = NVFP4Experts(64, 32, 2, **gating, device="meta")
    for _ in range(1 + again):
        load_checkpoint(model, tmp_path / "m", device="cpu")
    experts = model.experts
    assert experts.gating | gating == experts.gating | {"bias": True, "dtype": torch.bfloat16}
    both, down = (values(*want[name]) for name in ("gate_up_proj", "down_proj"))
    halves = torch.cat([both[:, 0::2], both[:, 1::2]], 1)
    assert same_bits(experts.dequantize("gate_up_proj"), halves)
    assert same_bits(experts.dequantize("down_proj"), down)
    given = load_file(tmp_path / "m" / "model.safetensors")
    bias = given["experts.gate_up_proj_bias"]
    assert torch.equal(experts.gate_up_proj_bias, torch.cat([bias[:, 0::2], bias[:, 1::2]], 1))
    assert torch.equal(experts.down_proj_bias, given["experts.down_proj_bias"])


def test_biases_of_a_stack_beside_single_experts_are_refused(tmp_path):
    """Its rows are two halves, or take turns: no file says which."""
    model = nn.Module()
    model.experts = NVFP4Experts(64, 32, 1, bias=True)
    for value in model.parameters():
        value.data.fill_(1)
    save_checkpoint(model, tmp_path, config={})
    tensors = load_file(tmp_path / "model.safetensors")
    both = [tensors.pop(f"experts.0.{name}_proj.bias") for name in ("gate", "up")]
    tensors["experts.gate_up_proj_bias"] = torch.cat(both)[None]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="^experts.gate_up_proj_bias: biases of a stack"):
        load_checkpoint(model, tmp_path, device="cpu")


def test_experts_have_a_global_scale_for_each_row(tmp_path):
    """As compressed-tensors writes experts, one by one, into a stack."""
    model = nn.Module()
    model.experts = NVFP4Experts(64, 32, 2, device="meta")
    tensors, weights = {}, {}
    for e in range(2):
        for seed, name in enumerate(("gate_proj", "up_proj", "down_proj")):
            shape = (64, 32) if name == "down_proj" else (32, 64)
            codes, scales = drawn(*shape, seed=10 * e + seed, span=4)
            scales = (scales.int() % 4 + 120).to(torch.uint8)
            weights[e, name] = values(codes, scales)
            tensors[f"experts.{e}.{name}.weight_packed"] = codes
            tensors[f"experts.{e}.{name}.weight_scale"] = scales
    save_file(tensors, tmp_path / "model.safetensors")
    text = json.dumps({"quantization_config": BY_COMPRESSED})
    (tmp_path / "config.json").write_text(text)
    load_checkpoint(model, tmp_path, device="cpu")

    def check(experts):
        for e in range(2):
            both = torch.cat([weights[e, "gate_proj"], weights[e, "up_proj"]])
            assert same_bits(experts.dequantize("gate_up_proj")[e], both)
            assert same_bits(experts.dequantize("down_proj")[e], weights[e, "down_proj"])

    check(model.experts)
    x = torch.randn(3, 64).to(torch.bfloat16)
    got = model.experts(x, torch.tensor([[1]] * 3), torch.ones(3, 1)).float()
    gate, up, down = (weights[1, name] for name in ("gate_proj", "up_proj", "down_proj"))
    inner = nn.functional.silu(x.float() @ gate.T) * (x.float() @ up.T)
    want = inner.to(torch.bfloat16).float() @ down.T
    assert (got - want).abs().max() <= 2**-6 * want.abs().max()
    with pytest.warns(UserWarning, match="one for each row"):
        save_checkpoint(model, tmp_path / "again", config={})
    other = nn.Module()
    other.experts = NVFP4Experts(64, 32, 2, device="meta")
    load_checkpoint(other, tmp_path / "again", device="cpu")
    check(other.experts)
