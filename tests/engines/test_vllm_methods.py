"""nvfp4kern.vllm without an engine: when it registers, and what its methods compute."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import nvfp4kern.torch as nk
from nvfp4kern.nn import NVFP4Experts, NVFP4Linear

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of what vLLM imports
]

HERE = Path(__file__).parent
SHARDS, K = [64, 32, 48], 96
GLOBALS = [0.002, 0.0005, 0.008]  # four times as large and as small


def parameter(value):
    return nn.Parameter(value, requires_grad=False)


def weight(*shape, seed=0):
    """Codes and scale factors of a random matrix."""
    random = torch.Generator().manual_seed(seed)
    codes, scales, _ = nk.quantize(torch.randn(*shape, generator=random), data_dtype=torch.uint8)
    return codes, scales


def fill(layer, names, codes, scales, weight_global, input_global=None):
    """What vLLM's loader leaves."""
    setattr(layer, names.weight, parameter(codes))
    layer.weight_scale = parameter(scales)
    for name, value in ((names.weight_global, weight_global), (names.input_global, input_global)):
        if value is not None:
            value = torch.tensor(value)
            setattr(layer, name, parameter(1 / value if names.divisors else value))


@pytest.fixture(params=["modelopt", "compressed"])
def names(request):
    from nvfp4kern.vllm import linear

    return {"modelopt": linear.MODELOPT, "compressed": linear.COMPRESSED}[request.param]


# --- Linear layers ---


def alone(codes, scales, value, names, input_scale=None):
    """The NVFP4Linear of one shard."""
    how = None if input_scale is None else "static"
    inverse = how is not None and names.divisors
    layer = NVFP4Linear(
        K, len(codes), bias=False, input_quant=how, input_scale_inverse=inverse, device="meta"
    )
    value = torch.tensor(value)
    value = 1 / (1 / value) if names.divisors else value
    more = {}
    if how:
        scale = torch.tensor(input_scale)
        more = {"input_scale_inverse": 1 / scale} if inverse else {"input_scale": scale}
    layer._set(weight=codes, weight_scale=scales, weight_scale_2=value, **more)
    return layer


@pytest.mark.parametrize("w4a4", [False, True])
@pytest.mark.parametrize("tokens", [1, 7])
def test_shards_keep_their_global_scales(backend, monkeypatch, names, w4a4, tokens):
    """To the bit the layers that were fused, of which each has its own global scale."""
    backend.force(monkeypatch)
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    from nvfp4kern.vllm.linear import process_weights, product

    codes, scales = weight(sum(SHARDS), K)
    layer = nn.Module()
    layer.logical_widths = SHARDS
    inputs = [0.003, 0.003, 0.003] if w4a4 else None
    fill(layer, names, codes, scales, GLOBALS, inputs)
    process_weights(layer, names, w4a4)
    x = torch.randn(2, tokens, K, dtype=torch.bfloat16).to(backend.device)
    bias = torch.randn(sum(SHARDS), dtype=torch.bfloat16).to(backend.device)
    layer.to(backend.device)
    got = product(layer, x, bias, w4a4, names.divisors)
    parts = []
    for rows, of, value in zip(codes.split(SHARDS), scales.split(SHARDS), GLOBALS, strict=True):
        shard = alone(rows, of, value, names, 0.003 if w4a4 else None).to(backend.device)
        shard.bias = parameter(bias[sum(each.shape[-1] for each in parts) :][: len(rows)])
        parts.append(shard(x))
    assert torch.equal(got, torch.cat(parts, -1))
    left = dict(layer.named_parameters())
    assert layer.nvfp4_alpha.shape == (sum(SHARDS),)
    assert left.keys() - {"nvfp4_input_scale"} == {"weight", "weight_scale", "nvfp4_alpha"}


def test_the_input_has_the_largest_of_the_shards_scales(names):
    from nvfp4kern.vllm.linear import process_weights

    layer = nn.Module()
    layer.logical_widths = SHARDS
    inputs = [0.003, 0.004, 0.001]
    fill(layer, names, *weight(sum(SHARDS), K), GLOBALS, inputs)
    process_weights(layer, names, True)
    largest = 1 / torch.tensor(0.004) if names.divisors else torch.tensor(0.004)
    assert torch.equal(layer.nvfp4_input_scale, largest)


def test_sizes_do_not_depend_on_values(names):
    """So that weights can be loaded into the memory of others."""
    from nvfp4kern.vllm.linear import process_weights

    layer = nn.Module()
    layer.logical_widths = SHARDS
    fill(layer, names, *weight(sum(SHARDS), K), [0.002] * 3)
    process_weights(layer, names, False)
    assert layer.nvfp4_alpha.shape == (sum(SHARDS),)


@pytest.mark.parametrize("loaded, missing", [([], "0, 1, 2"), ([0], "1, 2"), ([0, 2], "1")])
def test_a_scale_that_was_not_loaded_is_an_error(names, loaded, missing):
    from nvfp4kern.vllm.linear import process_weights

    layer = nn.Module()
    layer.logical_widths = SHARDS
    scales = [0.002 if i in loaded else torch.nan for i in range(3)]
    fill(layer, names, *weight(sum(SHARDS), K), scales)
    message = rf"{names.weight_global}: was not loaded for shards \[{missing}\] of 3"
    with pytest.raises(ValueError, match=message):
        process_weights(layer, names, False)


def test_a_rank_with_part_of_a_block_is_an_error(names):
    from nvfp4kern.vllm.linear import create_weights

    with pytest.raises(ValueError, match="input_size_per_partition: 24, expected a multiple of 16"):
        create_weights(nn.Module(), names, 24, [32], None, True)


def test_mla_gets_its_weight(names):
    """vLLM multiplies kv_b_proj by an identity matrix: W4A16, whatever the files have."""
    from nvfp4kern.vllm import configs, linear

    prefix = "model.layers.0.self_attn.kv_b_proj"
    assert linear.NVFP4KernCompressedTensorsScheme(True, True).w4a4 is False
    codes, scales = weight(64, K)
    layer = nn.Module()
    layer.logical_widths = [64]
    fill(layer, names, codes, scales, [0.002], [0.003])
    linear.process_weights(layer, names, not prefix.endswith(configs.IDENTITY))
    got = linear.product(layer, torch.eye(K, dtype=torch.bfloat16), None, False, names.divisors)
    expected = alone(codes, scales, 0.002, names).dequantize(torch.bfloat16)
    assert torch.equal(got.T, expected)


@pytest.mark.parametrize("form", ["modelopt", "mixed", "compressed"])
def test_the_layer_of_mla_keeps_inputs_whatever_the_files_say(form):
    from vllm.model_executor.layers.linear import LinearBase

    from nvfp4kern.vllm import configs

    prefixes = [f"model.layers.0.self_attn.{name}" for name in ("q_b_proj", "kv_b_proj")]
    layer = object.__new__(LinearBase)
    if form == "compressed":
        values = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
        values |= {"symmetric": True, "dynamic": False}
        group = {"weights": values, "input_activations": values | {"dynamic": "local"}}
        group |= {"targets": ["re:.*proj"], "format": "nvfp4-pack-quantized"}
        config = configs.NVFP4KernCompressedTensorsConfig.from_config(
            {"format": "nvfp4-pack-quantized", "config_groups": {"group_0": group}, "ignore": []}
        )
        found = [config.get_scheme(layer, prefix) for prefix in prefixes]
    else:
        kind, algorithm = configs.NVFP4KernModelOptConfig, "NVFP4"
        if form == "mixed":
            kind, algorithm = configs.NVFP4KernMixedConfig, "MIXED_PRECISION"
        layers = {prefix: {"quant_algo": "NVFP4", "group_size": 16} for prefix in prefixes}
        config = kind.from_config(
            {"quant_method": "modelopt", "quant_algo": algorithm, "quantized_layers": layers}
        )
        found = [config.get_quant_method(layer, prefix) for prefix in prefixes]
    assert [each.w4a4 for each in found] == [True, False]


# --- Experts ---

HIDDEN, INNER, EXPERTS = 64, 48, 4


def routed(names, w4a4):
    """A layer as vLLM's loader leaves it, and the same as NVFP4Experts."""
    layer = nn.Module()
    layer.layer_name, layer.expert_map = "experts", None
    up, down = weight(EXPERTS, 2 * INNER, HIDDEN), weight(EXPERTS, HIDDEN, INNER, seed=1)
    of_up = torch.tensor([0.002, 0.008]) * torch.arange(1, EXPERTS + 1)[:, None]
    of_down = torch.tensor([0.001, 0.003, 0.002, 0.004])
    inputs = {"w13": of_up * 0 + 0.004, "w2": of_down * 3}
    for stack, (codes, scales), value in (("w13", up, of_up), ("w2", down, of_down)):
        setattr(layer, f"{stack}_{names.weight}", parameter(codes))
        setattr(layer, f"{stack}_weight_scale", parameter(scales))
        kept = 1 / value if names.divisors else value
        setattr(layer, f"{stack}_{names.weight_global}", parameter(kept))
        kept = 1 / inputs[stack] if names.divisors else inputs[stack]
        setattr(layer, f"{stack}_{names.input_global}", parameter(kept.clone()))
    inverse = w4a4 and names.divisors
    how = "static" if w4a4 else None
    ours = NVFP4Experts(HIDDEN, INNER, EXPERTS, input_quant=how, input_scale_inverse=inverse)
    given = {"gate_up_proj": (up, of_up, "w13"), "down_proj": (down, of_down, "w2")}
    for name, ((codes, scales), value, stack) in given.items():
        setattr(ours, name, parameter(codes))
        setattr(ours, f"{name}_weight_scale", parameter(scales))
        value = 1 / (1 / value) if names.divisors else value
        setattr(ours, f"{name}_weight_scale_2", parameter(value))
        if inverse:
            setattr(ours, f"{name}_input_scale_inverse", parameter(1 / inputs[stack]))
        elif w4a4:
            setattr(ours, f"{name}_input_scale", parameter(inputs[stack]))
    ours.finish()
    return layer, ours


def method_of(names, w4a4):
    from nvfp4kern.vllm import experts

    if names.divisors:
        method = object.__new__(experts.NVFP4KernCompressedTensorsMoEMethod)
    else:
        method = object.__new__(experts.NVFP4KernModelOptMoEMethod)
    method.use_a16 = not w4a4
    return method


@pytest.mark.parametrize("w4a4", [False, True])
@pytest.mark.parametrize("expert_map", [None, [0, -1, 1, -1]])
def test_experts_are_those_of_our_layer(names, w4a4, expert_map):
    layer, ours = routed(names, w4a4)
    method = method_of(names, w4a4)
    method.process_weights_after_loading(layer)
    x = torch.randn(9, HIDDEN, dtype=torch.bfloat16)
    weights = torch.rand(9, 2)
    ids = torch.stack([torch.randperm(EXPERTS)[:2] for _ in range(9)])
    if expert_map is not None:
        layer.expert_map = torch.tensor(expert_map, dtype=torch.int32)
    mapped = ids if expert_map is None else layer.expert_map[ids]
    got = method.apply(layer, x, weights, ids.int(), None, None)
    assert torch.equal(got, ours(x, mapped, weights)) and bool(got.any())
    sizes = {name: tuple(value.shape) for name, value in layer.named_parameters()}
    assert sizes.pop("w13_nvfp4_alpha") == (EXPERTS, 2 * INNER)
    assert sizes.pop("w2_nvfp4_alpha") == (EXPERTS,)
    stored = {"w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale"}
    inputs = {"w13_nvfp4_input_scale", "w2_nvfp4_input_scale"} if w4a4 else set()
    assert sizes.keys() == stored | inputs


def test_an_expert_without_input_scale_takes_the_largest(names):
    layer, ours = routed(names, True)
    for stack in ("w13", "w2"):
        getattr(layer, f"{stack}_{names.input_global}").data[1] = torch.nan
    method = method_of(names, True)
    method.process_weights_after_loading(layer)
    assert torch.equal(layer.w2_nvfp4_input_scale, ours.derived()["down_input"])


def test_experts_whose_scale_was_not_loaded_are_an_error(names):
    layer, _ = routed(names, False)
    getattr(layer, f"w2_{names.weight_global}").data[1] = torch.nan
    with pytest.raises(ValueError, match=f"experts.w2_{names.weight_global}: not all were loaded"):
        method_of(names, False).process_weights_after_loading(layer)


def test_what_is_not_served_says_why():
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    from nvfp4kern.vllm.experts import why_not

    def layer(**changed):
        parallel = {"enable_eplb": False, "dp_size": 1, "pcp_size": 1}
        config = {"has_bias": False, "is_lora_enabled": False}
        config["intermediate_size_per_partition"] = 48
        own = {"activation": MoEActivation.SILU, "swiglu_limit": None}
        own["apply_router_weight_on_input"] = False
        for group in (parallel, config, own):
            group |= {name: changed.pop(name) for name in list(changed) if name in group}
        assert not changed
        config["moe_parallel_config"] = SimpleNamespace(**parallel)
        return SimpleNamespace(moe_config=SimpleNamespace(**config), **own)

    assert why_not(layer()) is None
    for changed, what in (
        ({"activation": MoEActivation.SWIGLUOAI}, "activation swigluoai"),
        ({"swiglu_limit": 7.0}, "a limit of SwiGLU"),
        ({"has_bias": True}, "biases"),
        ({"apply_router_weight_on_input": True}, "router weights that multiply the input"),
        ({"enable_eplb": True}, "EPLB"),
        ({"dp_size": 2}, "data parallelism"),
        ({"pcp_size": 2}, "context parallelism of prefill"),
        ({"is_lora_enabled": True}, "LoRA"),
        ({"intermediate_size_per_partition": 24}, "24 columns of down_proj"),
    ):
        assert f"does not serve {what}" in why_not(layer(**changed))


# --- Registration ---


def test_vllm_is_left_as_it_is_unless_all_is_known(tmp_path):
    """registering.py tries one case after the other in a fresh process."""
    path = tmp_path / "result.json"
    subprocess.run([sys.executable, HERE / "registering.py", path], check=True, timeout=600)
    cases = json.loads(path.read_text())
    untouched = {"switched off", "unknown version", "Blackwell", "Turing"}
    untouched |= {"something is missing", "something raises"}
    for name in untouched:
        assert cases[name]["configs"] == cases["before"]["configs"], name
        assert cases[name]["supported"] == cases["before"]["supported"], name
        assert cases[name]["key"] is None, name
    said = {name: case["said"] for name, case in cases.items()}
    assert said["before"] == said["switched off"] == []
    assert said["unknown version"] == [
        "WARNING nvfp4kern leaves vLLM as it is: its version is 0.1.0, tested are 0.30 to 0.32"
    ]
    (blackwell,) = said["Blackwell"]
    assert blackwell.startswith("INFO") and "NVFP4KERN_VLLM=1 takes ours" in blackwell
    assert said["Turing"] == [
        "INFO nvfp4kern leaves vLLM as it is: compute capability 7.5, expected 8.0 or newer"
    ]
    (missing,) = said["something is missing"]
    assert missing.startswith("WARNING") and "vLLM lacks what it builds on" in missing
    assert said["something raises"] == [
        "WARNING nvfp4kern leaves vLLM as it is: RuntimeError: no driver"
    ]
    for name in ("Hopper", "Blackwell, asked for", "CPU", "CPU again"):
        ours = cases[name]["configs"]
        assert {config.partition(".")[0] for config in ours} == {"nvfp4kern"}, name
        assert cases[name]["key"].startswith("registered ") and said[name] == [], name
    supported = cases["CPU again"]["supported"]  # all where it is empty
    assert not supported or {"modelopt_fp4", "modelopt_mixed", "compressed-tensors"} <= set(
        supported
    )
    assert cases["CPU"]["factors"] != cases["before"]["factors"]
    assert cases["CPU"]["batch invariant"] is None
    assert cases["CPU again"]["batch invariant"] == "1"
