"""Files that compressed-tensors, nvidia-modelopt and torchao write, and what we make of them.

Three roundings may differ between two right quantisers: of a block's scale, of the number that an
element is divided by, and of the quotient. So codes may differ where the exact quotient lies next
to a tie of E2M1, and nowhere else.
"""

import json
from pathlib import Path

import producers
import pytest
import torch
from packing import E4M3, MIDDLES, Packed, decode, dequantized, read_directory, units, unpack
from producers import PRODUCERS, imported
from quantised_model import TOKENS, Truth, check, check_modules, load
from safetensors.torch import load_file

import nvfp4kern.torch as nk
from nvfp4kern.nn import NVFP4Linear

OTHERS = Path(__file__).parent / "others"
DTYPES = [torch.bfloat16, torch.float32]
NEAR_A_TIE = 2.0**-22  # relative: a few roundings in fp32


@pytest.fixture(params=PRODUCERS)
def producer(request):
    return PRODUCERS[request.param]()


def weights(dtype, seed=0, rows=96, columns=128):
    """Normal weights of a scale that the seed draws from 1e-3 to 1, with blocks of all sizes."""
    random = torch.Generator().manual_seed(seed)
    scale = 10 ** (-3 * torch.rand((), generator=random))
    blocks = torch.randn(rows, columns // 16, 1, generator=random).exp() * scale
    x = torch.randn(rows, columns // 16, 16, generator=random) * blocks
    return x.flatten(1).to(dtype)


def layer_of(packed):
    """Our layer from another's tensors, by load_state_dict."""
    rows, columns = packed.codes.shape
    layer = NVFP4Linear(2 * columns, rows, bias=False)
    state = dict(weight=packed.codes, weight_scale=packed.scales)
    layer.load_state_dict(state | dict(weight_scale_2=packed.multiplier.float()))
    return layer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(4))
def test_dequantised_weights_are_theirs(producer, dtype, seed):
    """Ours is exact, rounded once; theirs within a unit of bf16, or two of fp32, of ours."""
    packed = producer.quantize(weights(dtype, seed))
    ours, theirs = layer_of(packed).dequantize(), producer.dequantize(packed)
    exact = decode(packed.codes, packed.scales, packed.multiplier.double())
    stored = packed.multiplier.dtype == torch.float32  # else its inverse is, and rounds up to one
    assert units(ours, exact, torch.float32) <= (0.5 if stored else 1.5)
    assert theirs.dtype in (torch.float32, torch.bfloat16)
    assert units(theirs, exact, theirs.dtype) <= 2.0
    assert units(theirs, ours.to(theirs.dtype), theirs.dtype) <= (
        1.0 if theirs.dtype == torch.bfloat16 else 2.0
    )


def compare(x, packed):
    """(scales that differ, codes that differ, the worst distance of those from a tie).

    Codes count in blocks of equal scales; the distance is that of the exact quotient, relative.
    """
    ours = nk.quantize(x, global_scale=packed.multiplier.float().reshape(1), data_dtype=torch.uint8)
    scales = ours.scales.view(torch.uint8) != packed.scales.view(torch.uint8)
    step = packed.scales.double() * packed.multiplier.double()
    quotient = (x.double().unflatten(1, (-1, 16)) / step.unsqueeze(-1)).flatten(1).abs()
    differ = (unpack(ours.data) != unpack(packed.codes)) & ~scales.repeat_interleave(16, 1)
    distance = ((quotient.unsqueeze(-1) - MIDDLES).abs() / MIDDLES).amin(-1)
    worst = distance[differ].max().item() if differ.any() else 0.0
    return int(scales.sum()), int(differ.sum()), worst


@pytest.mark.parametrize("seed", range(4))
def test_our_quantiser_writes_their_bytes(producer, seed):
    """Every byte: of fp32 weights all divide in fp32, as we do, and these have no tie."""
    x = weights(torch.float32, seed)
    packed = producer.quantize(x)
    ours = nk.quantize(x, global_scale=packed.multiplier.float().reshape(1), data_dtype=torch.uint8)
    assert torch.equal(ours.scales.view(torch.uint8), packed.scales.view(torch.uint8))
    assert torch.equal(ours.data, packed.codes)


@pytest.mark.parametrize("name", ["modelopt", "torchao"])
@pytest.mark.parametrize("seed", range(4))
def test_our_quantiser_differs_at_ties_alone(name, seed):
    """bf16 weights have few digits, so quotients lie on ties. Scales are equal there, too."""
    x = weights(torch.bfloat16, seed, rows=256, columns=1024)
    scales, codes, worst = compare(x, PRODUCERS[name]().quantize(x))
    assert scales == 0
    assert codes <= 0.005 * x.numel() and worst < NEAR_A_TIE


@pytest.mark.parametrize("seed", range(4))
def test_compressed_tensors_rounds_block_scales_to_the_weights_dtype_first(seed):
    """amax/6 in bf16, then times the global scale: some scales move by one step of e4m3."""
    x = weights(torch.bfloat16, seed, rows=256, columns=1024)
    packed = PRODUCERS["compressed_tensors"]().quantize(x)
    scales, codes, worst = compare(x, packed)
    assert 0 < scales < 0.1 * packed.scales.numel()
    assert codes <= 0.005 * x.numel() and worst < NEAR_A_TIE
    largest = x.unflatten(1, (-1, 16)).abs().amax(-1)
    rounded = ((largest / 6).double() / packed.multiplier).float().clamp(max=448)
    theirs, same = packed.scales.view(torch.uint8), rounded.to(E4M3).view(torch.uint8)
    assert (theirs.int() - same.int()).abs().max() <= 1 and (theirs != same).sum() <= 8
    in_fp32 = PRODUCERS["compressed_tensors"]().quantize(x.float())
    assert compare(x.float(), in_fp32)[0] == 0


# What a block of nothing becomes; its values are 0 for all.
ZERO_SCALES = {"compressed_tensors": 0.125, "modelopt": 1.0, "torchao": 2.0**-6}


@pytest.mark.parametrize("name", PRODUCERS)
def test_blocks_of_zeros_mean_zero(name):
    producer, x = PRODUCERS[name](), weights(torch.float32)
    x[3:5, 16:48] = 0
    packed = producer.quantize(x)
    assert (packed.scales[3:5, 1:3].float() == ZERO_SCALES[name]).all()
    for dense in (layer_of(packed).dequantize(), layer_of(packed)(torch.eye(128).half()).T):
        assert (dense[3:5, 16:48] == 0).all()


# The least scale that others give a block of small values; ours is the nearest, 2^-9 or 0.
SMALLEST = {"modelopt": 2.0**-9, "torchao": 2.0**-6}


@pytest.mark.parametrize("name", SMALLEST)
def test_small_blocks_differ_below_their_smallest_scale(name):
    scales = 2.0 ** -torch.arange(0.0, 12.0)
    x = torch.tensor([6.0, -4, 3, -2, 1.5, -1, 0.5, 0] * 2) * scales.unsqueeze(-1)
    x = torch.cat((torch.full((1, 16), 2688.0), x)).reshape(1, -1)  # so the global scale is 1
    packed = PRODUCERS[name]().quantize(x)
    ours = nk.quantize(x, global_scale=1.0, data_dtype=torch.uint8)
    assert packed.multiplier == 1
    got, theirs = ours.scales.float()[0, 1:], packed.scales.float()[0, 1:]
    assert torch.equal(theirs, scales.clamp(min=SMALLEST[name]))
    assert torch.equal(got, scales.where(scales >= 2.0**-9, 0))  # 2^-10 is a tie, which is even
    there = torch.cat((torch.ones(1, dtype=torch.bool), got == theirs)).repeat_interleave(8)
    assert torch.equal(ours.data[0, there], packed.codes[0, there])


# --- Whole checkpoints ---


@pytest.fixture(params=sorted(p.name for p in OTHERS.glob("modelopt-*")))
def stored(request):
    """A checkpoint that ModelOpt wrote once (others/make_modelopt.py)."""
    return OTHERS / request.param


def nvfp4_layers(tensors):
    """{layer: {its tensors by their last names}}"""
    names = (n.removesuffix("weight") for n, t in tensors.items() if t.dtype == torch.uint8)
    return {
        n[:-1]: {k.removeprefix(n): t for k, t in tensors.items() if k.startswith(n)} for n in names
    }


def check_layers(folder):
    """Each layer's tensors load by their own names, and mean what float64 says."""
    tensors, plain = read_directory(folder)[0], dequantized(folder)
    layers = nvfp4_layers(tensors)
    assert layers
    for name, state in layers.items():
        for beside in ("k_scale", "v_scale"):  # of the attention's cache
            state.pop(beside, None)
        rows, columns = state["weight"].shape
        layer = NVFP4Linear(
            2 * columns,
            rows,
            bias="bias" in state,
            input_quant="static" if "input_scale" in state else None,
            pre_quant_scale="pre_quant_scale" in state,
            dtype=torch.bfloat16,
        )
        layer.load_state_dict(state)
        assert all(torch.equal(layer.state_dict()[k], t) for k, t in state.items())
        weight = layer.dequantize().double()
        if layer.pre_quant_scale is not None:
            weight *= layer.pre_quant_scale.double()
        assert units(weight, plain[f"{name}.weight"], torch.float32) <= 1.0


def test_modelopts_layers_load_by_their_names(stored):
    check_layers(stored)


def test_modelopts_checkpoints_load_whole(stored):
    """Every module within the contract's bound, which one step of one block would leave."""
    imported("transformers", "transformers is not installed")
    check(stored)


@pytest.mark.parametrize("recipe", ["NVFP4_DEFAULT_CFG", "W4A16_NVFP4_CFG"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "qwen3_moe", "mixtral", "deepseek_v3"])
def test_modelopt_exports_on_a_cpu(tmp_path, architecture, recipe):
    directory = producers.modelopt_checkpoint(tmp_path, architecture, recipe)
    check_layers(directory)
    check(directory)


def test_modelopt_awq_folds_what_it_can(checkpoint):
    """Only o_proj keeps a pre_quant_scale: the others' are in norms and in up_proj's rows."""
    tensors, config = read_directory(OTHERS / "modelopt-awq")
    assert config["quantization_config"]["quant_algo"] == "NVFP4_AWQ"
    found = [n for n in tensors if n.endswith("pre_quant_scale")]
    assert found == ["model.layers.0.self_attn.o_proj.pre_quant_scale"]


def test_tiny_checkpoints_have_modelopts_keys(checkpoint):
    """The files that tests make have the keys of the ones that ModelOpt makes."""
    for form in ("nvfp4", "w4a16", "awq", "mixed"):
        theirs = OTHERS / f"modelopt-{form}"
        ours = checkpoint("llama", f"modelopt-{form}")
        for file in ("config.json", "hf_quant_config.json"):
            a, b = (json.loads((p / file).read_text()) for p in (ours, theirs))
            a, b = (c.get("quantization_config") or c["quantization"] for c in (a, b))
            assert a.keys() | {"kv_cache_scheme"} == b.keys() | {"kv_cache_scheme"}
            assert a["quant_algo"] == b["quant_algo"]


@pytest.mark.parametrize("preset", ["NVFP4", "NVFP4A16"])
def test_tiny_checkpoints_have_compressed_tensors_keys(tmp_path, checkpoint, preset):
    theirs = producers.compressed_tensors_checkpoint(tmp_path, "llama", preset)
    ours = checkpoint("llama", {"NVFP4": "ct-w4a4", "NVFP4A16": "ct-w4a16"}[preset])
    (a, config), (b, other) = read_directory(ours), read_directory(theirs)
    check(theirs)
    assert {n: (t.dtype, t.shape) for n, t in a.items()} == {
        n: (t.dtype, t.shape) for n, t in b.items()
    }
    config, other = config["quantization_config"], other["quantization_config"]
    assert config.keys() <= other.keys() and config["format"] == other["format"]
    group, theirs = config["config_groups"]["group_0"], other["config_groups"]["group_0"]
    assert group["weights"].items() <= theirs["weights"].items()
    assert (group["input_activations"] is None) == (theirs["input_activations"] is None)


@pytest.mark.parametrize("shape", [(32, 64), (128, 64), (200, 144)])
def test_torchaos_swizzled_scales_are_blocked_ones(shape):
    """What torchao saves by default; its buffer's shape is its own, the bytes are ours."""
    theirs = imported("torchao.prototype.mx_formats.nvfp4_tensor", "torchao is not installed")
    x = weights(torch.float32, rows=shape[0], columns=shape[1])
    multiplier = theirs.per_tensor_amax_to_scale(x.abs().max())
    make = theirs.NVFP4Tensor.to_nvfp4
    swizzled = make(x, per_tensor_scale=multiplier, is_swizzled_scales=True)
    linear = make(x, per_tensor_scale=multiplier)
    blocked = swizzled.scale.contiguous().view(torch.uint8).flatten()
    assert torch.equal(nk.to_blocked(linear.scale).view(torch.uint8).flatten(), blocked)
    layer = layer_of(Packed(swizzled.qdata, linear.scale, multiplier))
    assert units(layer.dequantize(), swizzled.dequantize(torch.float32), torch.float32) <= 2.0


@pytest.mark.parametrize("folder", ["torchao-one-level", "torchao-two-level"])
def test_torchaos_checkpoints_load_whole(folder):
    """What transformers saves of a model that torchao quantised (others/make_torchao.py).

    Codes and global scales to the bit, scale factors in rows, every module in its bound.
    """
    imported("transformers", "transformers is not installed")
    model, weights = load(OTHERS / folder), {}
    tensors = load_file(OTHERS / folder / "model.safetensors")
    for name in (n.removesuffix("._weight_qdata") for n in tensors if n.endswith("_qdata")):
        layer, held = model.get_submodule(name), f"{name}._weight_"
        codes, multiplier = tensors[f"{held}qdata"], tensors.get(f"{held}per_tensor_scale", 1.0)
        blocked = tensors[f"{held}scale"].flatten()
        scales = nk.from_blocked(blocked, len(codes), codes.shape[1] // 8)
        assert torch.equal(layer.weight, codes) and layer.weight_scale_2 == multiplier
        assert torch.equal(layer.weight_scale.view(torch.uint8), scales.view(torch.uint8))
        weights[f"{name}.weight"] = decode(codes, scales, float(multiplier))
    assert len(weights) == 7
    truth = Truth(weights, {}, tensors, "", ())
    names, _, _ = check_modules(model, truth, lambda: model(TOKENS))
    assert {f"{name}.weight" for name in names} == weights.keys()
