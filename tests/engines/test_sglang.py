"""nvfp4kern.sglang in SGLang's own layers, without an engine: when it registers, what its configs
choose, and what layers that SGLang's loaders filled compute."""

import json
import logging
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from sglang_layers import FORMS, PREFIX, config_of, inputs_of, made_by, registered  # noqa: F401

import nvfp4kern.torch as nk

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.skipif(find_spec("sglang") is None, reason="sglang is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of what SGLang imports
]

K = 96
SHARDS = {"gate": 32, "up": 48}
GLOBALS = [0.002, 0.008, 0.0005]  # of which SGLang takes the largest
LAYERS = ("mlp.gate_up_proj", "mlp.down_proj", "self_attn.qkv_proj", "self_attn.kv_b_proj")


@pytest.fixture
def ranks():
    """ranks(rank, size): SGLang's tensor parallelism, as far as layers ask for it."""
    from sglang.srt.runtime_context import get_parallel

    entered = []

    def set_to(rank, size):
        group = SimpleNamespace(rank_in_group=rank, world_size=size)
        scope = get_parallel().override(tp_group=group)
        scope.__enter__()
        entered.append(scope)

    set_to(0, 1)
    yield set_to
    for scope in reversed(entered):
        scope.__exit__(None, None, None)


def layer_of(form, name, **changed):
    from sglang.srt.layers import linear

    options = {"bias": False, "params_dtype": torch.bfloat16, "prefix": PREFIX + name}
    options["quant_config"] = config_of(form, **changed)
    if name.endswith("gate_up_proj"):
        return linear.MergedColumnParallelLinear(K, list(SHARDS.values()), **options)
    if name.endswith("qkv_proj"):
        return linear.QKVParallelLinear(K, 16, 4, 2, **options)
    if name.endswith("down_proj"):
        return linear.RowParallelLinear(K, 48, **options)
    return linear.ColumnParallelLinear(K, 48, **options)


def shards_of(name):
    """A shard's id in SGLang's loaders, and its rows in the files."""
    if name.endswith("gate_up_proj"):
        return list(enumerate(SHARDS.values()))
    return [("q", 64), ("k", 32), ("v", 32)] if name.endswith("qkv_proj") else [(None, 48)]


def fill(layer, form, name, seed=0, scale_of_inputs=0.01, without=None):
    """Loads a random layer's files by SGLang's loader, but for tensors of one name, and what they
    mean, in float64: [N, K]."""
    random, meant = torch.Generator().manual_seed(seed), []
    compressed = form.startswith("ct")
    names = ["weight", "weight_scale", "weight_scale_2", "input_scale"]
    if compressed:
        names = ["weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"]
    for (shard, rows), value in zip(shards_of(name), GLOBALS, strict=False):
        whole = nk.quantize(torch.randn(rows, K, generator=random), data_dtype=torch.uint8)
        codes, scales, _ = whole
        of_weight, of_input = torch.tensor(value), torch.tensor(scale_of_inputs)
        one = nk.dequantize(whole, out_dtype=torch.float32).double()
        if compressed:
            meant.append(one / (1 / of_weight).double())
            of_weight, of_input = (1 / of_weight).reshape(1), (1 / of_input).reshape(1)
        else:
            meant.append(one * of_weight.double())
        for tensor, value in zip(names, (codes, scales, of_weight, of_input), strict=True):
            if hasattr(layer, tensor) and tensor != without:
                parameter = getattr(layer, tensor)
                args = (parameter, value) if shard is None else (parameter, value, shard)
                parameter.weight_loader(*args)
    layer.quant_method.process_weights_after_loading(layer)
    return torch.cat(meant)


def assert_close(got, expected):
    """One rounding to bfloat16, and sums in float32."""
    assert got.dtype == torch.bfloat16 and got.shape == expected.shape
    error = (got.double() - expected).abs()
    assert bool((error <= 2.0**-8 * expected.abs() + 1e-5 * expected.abs().max()).all())


OURS = {"ct": "NVFP4KernCompressedTensorsScheme"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LAYERS[:3])
def test_layers_that_sglang_loads_are_those_of_the_files(ranks, form, name):
    """Fused shards have global scales that differ sixteen times."""
    layer = layer_of(form, name)
    assert made_by(layer) == OURS.get(form.split("-")[0], "NVFP4KernModelOptLinearMethod")
    meant = fill(layer, form, name)
    x = torch.randn(5, K, generator=torch.Generator().manual_seed(1)).bfloat16()
    bias = torch.randn(len(meant), generator=torch.Generator().manual_seed(2)).bfloat16()
    for given in (None, bias):
        got = layer.quant_method.apply(layer, x, given)
        expected = inputs_of(form, x) @ meant.T
        assert_close(got, expected if given is None else expected + given.double())
    y, _ = layer(x)
    assert torch.equal(y, layer.quant_method.apply(layer, x))


@pytest.mark.parametrize("form", FORMS)
def test_a_reload_fills_the_same_memory(ranks, form):
    """As an update of weights does: the loaders of the same parameters, and the same call after."""
    layer = layer_of(form, LAYERS[0])
    fill(layer, form, LAYERS[0])
    before = {name: each.data_ptr() for name, each in layer.named_parameters()}
    meant = fill(layer, form, LAYERS[0], seed=3, scale_of_inputs=0.02)
    assert {name: each.data_ptr() for name, each in layer.named_parameters()} == before
    x = torch.randn(3, K, generator=torch.Generator().manual_seed(1)).bfloat16()
    got = layer.quant_method.apply(layer, x)
    assert_close(got, inputs_of(form, x, 0.02) @ meant.T)


@pytest.mark.parametrize("form", FORMS)
def test_a_reload_without_a_global_scale_is_an_error(ranks, form):
    """Not the old one beside new weights, nor where SGLang catches the error. All that is loaded
    after it is right again."""
    layer = layer_of(form, LAYERS[0])
    fill(layer, form, LAYERS[0])
    x = torch.randn(3, K, generator=torch.Generator().manual_seed(1)).bfloat16()
    names = "weight_scale_2", "input_scale"
    if form.startswith("ct"):
        names = "weight_global_scale", "input_global_scale"
    for name in names[: 1 + form.endswith("w4a4")]:
        with pytest.raises(ValueError, match=rf"{name}: was not loaded for shards \[0, 1\] of 2"):
            fill(layer, form, LAYERS[0], seed=3, without=name)
        assert bool(layer.quant_method.apply(layer, x).isnan().all())
    meant = fill(layer, form, LAYERS[0], seed=3)
    assert_close(layer.quant_method.apply(layer, x), inputs_of(form, x) @ meant.T)


@pytest.mark.parametrize("form", FORMS)
def test_a_layer_of_which_files_have_nothing_stays(ranks, form):
    layer = layer_of(form, LAYERS[0])
    meant = fill(layer, form, LAYERS[0])
    layer.quant_method.restore_weights_before_loading(layer)
    layer.quant_method.process_weights_after_loading(layer)
    x = torch.randn(3, K, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert_close(layer.quant_method.apply(layer, x), inputs_of(form, x) @ meant.T)


@pytest.mark.parametrize("name", LAYERS[:3])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_has_its_slice(ranks, name, rank):
    form = "modelopt-w4a16"
    whole = fill(layer_of(form, name), form, name)
    ranks(rank, 2)
    layer = layer_of(form, name)
    fill(layer, form, name)
    if name.endswith("down_proj"):
        meant = whole.chunk(2, dim=1)[rank]
    else:
        rows = [rows for _, rows in shards_of(name)]
        meant = torch.cat([part.chunk(2)[rank] for part in whole.split(rows)])
    x = torch.randn(3, meant.shape[1], generator=torch.Generator().manual_seed(1)).bfloat16()
    assert_close(layer.quant_method.apply(layer, x), x.double() @ meant.T)


@pytest.mark.parametrize("form", FORMS)
def test_a_scale_that_no_file_had_is_an_error(ranks, form):
    layer = layer_of(form, LAYERS[0])
    with pytest.raises(ValueError, match=r"was not loaded for shards \[0, 1\] of 2"):
        layer.quant_method.process_weights_after_loading(layer)


def test_a_rank_with_part_of_a_block_is_an_error(ranks):
    ranks(0, 4)
    with pytest.raises(ValueError, match="input_size_per_partition: 24, expected a multiple of 16"):
        layer_of("modelopt-w4a16", "mlp.down_proj")


def test_what_is_not_served_is_sglangs_and_says_why(ranks, caplog, monkeypatch):
    from nvfp4kern.sglang import configs

    monkeypatch.setattr(configs, "_said", set())
    caplog.set_level(logging.WARNING, "sglang.nvfp4kern")
    for form, name, changed in (
        ("modelopt-w4a4", "self_attn.kv_b_proj", {}),
        ("modelopt-w4a4", "self_attn.kv_b_proj", {}),
        ("modelopt-w4a16", "mlp.down_proj", {"group_size": 32}),
        ("modelopt-w4a4", "mlp.gate_up_proj", {"quant_algo": "NVFP4_AWQ"}),
    ):
        assert made_by(layer_of(form, name, **changed)).startswith("ModelOpt")
    said = [record.getMessage().rpartition("serve ")[2] for record in caplog.records]
    assert said == [
        "kv_b_proj, whose weight MLA takes apart",
        "blocks of 32",
        "a pre_quant_scale (NVFP4_AWQ)",
    ]


@pytest.mark.parametrize("form", ["modelopt-w4a4", "modelopt-w4a16"])
def test_excluded_layers_are_sglangs(ranks, form):
    layer = layer_of(form, "mlp.down_proj", ignore=["*down_proj"])
    assert made_by(layer) == "UnquantizedLinearMethod"


def test_the_entry_point_is_named():
    entries = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
    assert entries["entry-points"]["sglang.srt.plugins"] == {
        "nvfp4kern": "nvfp4kern.sglang:register"
    }


def test_sglang_is_left_as_it_is_unless_all_is_known(tmp_path):
    """registering_sglang.py tries one case after the other in a fresh process."""
    path = tmp_path / "result.json"
    subprocess.run([sys.executable, HERE / "registering_sglang.py", path], check=True, timeout=600)
    cases = json.loads(path.read_text())
    untouched = {"switched off", "unknown version", "no NVIDIA GPU", "Blackwell", "Turing"}
    for name in untouched | {"something is missing"}:
        assert cases[name]["configs"] == cases["before"]["configs"], name
        assert cases[name]["loaders"] == cases["before"]["loaders"], name
    said = {name: case["said"] for name, case in cases.items()}
    assert said["before"] == said["switched off"] == []
    leaves = "nvfp4kern leaves SGLang as it is: "
    assert said["unknown version"] == [
        f"WARNING {leaves}its version is 0.5.22.post1, tested is 0.5.23"
    ]
    (none,) = said["no NVIDIA GPU"]
    assert none.startswith(f"INFO {leaves}it runs on neither a CPU")
    (blackwell,) = said["Blackwell"]
    assert blackwell.startswith("INFO") and "NVFP4KERN_SGLANG=1 takes ours" in blackwell
    assert said["Turing"] == [f"INFO {leaves}compute capability 7.5, expected 8.0 or newer"]
    (missing,) = said["something is missing"]
    assert missing.startswith(f"WARNING {leaves}SGLang lacks what it builds on")
    for name in ("Hopper", "Blackwell, asked for", "CPU, by SGLang", "CPU again"):
        ours = cases[name]["configs"]
        assert {config.partition(".")[0] for config in ours} == {"nvfp4kern"}, name
        added = set(cases[name]["loaders"]) - set(cases["before"]["loaders"])
        assert added == {"NVFP4KernModelOptLinearMethod"} and said[name] == [], name
    assert len(cases["CPU again"]["loaders"]) == len(cases["before"]["loaders"]) + 1
