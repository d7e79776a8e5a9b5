"""Experts of nvfp4kern.sglang in SGLang's own layers, filled by its own loaders: what they compute,
on one rank and on two, what a reload must bring, and what stays SGLang's."""

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec

import pytest
import sglang_layers
import torch
from sglang_layers import FORMS, PREFIX, config_of, inputs_of, made_by, registered, server  # noqa: F401
from torch import nn

import nvfp4kern.torch as nk

pytestmark = [
    pytest.mark.skipif(find_spec("sglang") is None, reason="sglang is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of what SGLang imports
]

HIDDEN, INNER, EXPERTS, TOP_K, TOKENS = 64, 96, 4, 2, 9
PARTS = {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
GLOBALS = {"gate_proj": 0.002, "up_proj": 0.008, "down_proj": 0.004}  # of expert 0
INPUTS = {"gate_proj": 0.01, "up_proj": 0.01, "down_proj": 0.02}
MODELOPT = ("weight", "weight_scale", "weight_scale_2", "input_scale")
COMPRESSED = ("weight_packed", "weight_scale", "weight_global_scale", "input_global_scale")
OURS = {"ct": "NVFP4KernCompressedTensorsMoEScheme"}


@pytest.fixture
def parallel():
    """parallel(..): experts that are made later are those of `server(..)`."""
    with ExitStack() as entered:

        def set_to(**asked):
            entered.enter_context(server(**asked))

        set_to()
        yield set_to


class Model(nn.Module):
    """What loads experts of files, as models of SGLang do."""

    def __init__(self, form, options=None, experts=EXPERTS, **changed):
        from sglang.srt.layers.moe.fused_moe_triton import FusedMoE

        super().__init__()
        config = config_of(form, **changed)
        given = {"top_k": TOP_K, "params_dtype": torch.bfloat16, "quant_config": config}
        given |= {"prefix": f"{PREFIX}mlp.experts"} | (options or {})
        self.experts = FusedMoE(experts, HIDDEN, given.pop("width", INNER), 0, **given)
        names = "gate_proj", "down_proj", "up_proj"
        if not given.get("is_gated", True):
            names = "up_proj", "down_proj", "no such name"
        self.mapping = FusedMoE.make_expert_params_mapping(*names, experts)

    def load_weights(self, weights):
        parameters = dict(self.named_parameters())
        started = []
        with ThreadPoolExecutor(4) as pool:
            for name, value in weights:
                for to, part, expert, shard in self.mapping:
                    if part in name:
                        to = name.replace(part, to)
                        one, of = parameters[to], {"shard_id": shard, "expert_id": expert}
                        started.append(pool.submit(one.weight_loader, one, value, to, **of))
        for each in started:
            each.result()


def load(model, files):
    sglang_layers.load(model, files)
    return model.experts


def files_of(form, seed=0, experts=EXPERTS, inputs=INPUTS):
    """A checkpoint, and what its weights mean, in float64: [E, N, K] of each part."""
    random, files = torch.Generator().manual_seed(seed), {}
    meant = {part: [] for part in PARTS}
    compressed = form.startswith("ct")
    for expert in range(experts):
        for part, shape in PARTS.items():
            whole = nk.quantize(torch.randn(*shape, generator=random), data_dtype=torch.uint8)
            one = nk.dequantize((whole[0], whole[1], None), out_dtype=torch.float32).double()
            of_weight = torch.tensor(GLOBALS[part] * (1 + expert / 2))
            of_input = torch.tensor(inputs[part])
            if compressed:
                of_weight, of_input = (1 / of_weight).reshape(1), (1 / of_input).reshape(1)
            meant[part].append(one / of_weight.double() if compressed else one * of_weight.double())
            tensors = (*whole[:2], of_weight, of_input)
            for name, value in zip(COMPRESSED if compressed else MODELOPT, tensors, strict=True):
                if not (name == "input_global_scale" and form.endswith("w4a16")):
                    files[f"experts.{expert}.{part}.{name}"] = value
    return files, {part: torch.stack(each) for part, each in meant.items()}


def routed(experts=EXPERTS, seed=5):
    """Tokens, their experts and the router's weights."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(TOKENS, HIDDEN, generator=random).bfloat16()
    ids = torch.stack([torch.randperm(experts, generator=random)[:TOP_K] for _ in range(TOKENS)])
    return x, ids.int(), torch.rand(TOKENS, TOP_K, generator=random)


def gate_and_up(gate, up):
    return nn.functional.silu(gate) * up


def expected(form, meant, x, ids, weights, scales=(0.01, 0.02), act=gate_and_up):
    """The sum of experts in float64, and how much two roundings to bfloat16 may change it."""
    given, total, most = inputs_of(form, x, scales[0]), 0, 0
    for choice in range(ids.shape[1]):
        *first, down = (each[ids[:, choice].long()] for each in meant.values())
        h = act(*(torch.einsum("tnk,tk->tn", each, given) for each in first))
        if form.endswith("w4a4"):
            h = inputs_of(form, h.float(), scales[1])
        by = weights[:, choice, None].double()
        total = total + by * torch.einsum("tnk,tk->tn", down, h)
        most = most + by * torch.einsum("tnk,tk->tn", down.abs(), h.abs())
    return total, most


def assert_close(form, got, wanted):
    """W4A16: each sum within two roundings of what it adds. W4A4: codes of h that lie between two
    may be the other one, since h is of float32 sums: within a hundredth of all."""
    total, most = wanted
    assert got.dtype == torch.bfloat16 and got.shape == total.shape
    error = (got.double() - total).abs()
    if form.endswith("w4a16"):
        assert bool((error <= 2.0**-8 * (most + total.abs())).all())
    assert float(error.norm()) <= 0.01 * float(total.norm()) and float(total.norm()) > 0


def run(layer, x, ids, weights):
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    return layer(x, StandardTopKOutput(weights, ids, None))


@pytest.mark.parametrize("form", FORMS)
def test_experts_that_sglang_loads_are_those_of_the_files(parallel, form):
    """Gates and ups have global scales that differ four times."""
    files, meant = files_of(form)
    layer = load(Model(form), files)
    assert made_by(layer) == OURS.get(form.split("-")[0], "NVFP4KernMoEMethod")
    given = routed()
    assert_close(form, run(layer, *given), expected(form, meant, *given))
    x, ids, weights = given
    assert run(layer, x[:0], ids[:0], weights[:0]).shape == (0, HIDDEN)


def limited(gate, up):
    return gate_and_up(gate.clamp(max=0.5), up.clamp(-0.5, 0.5))


def gelu(gate, up, **how):
    return nn.functional.gelu(gate, **how) * up


@pytest.mark.parametrize("form", ["modelopt-w4a4", "ct-w4a16"])
@pytest.mark.parametrize(
    "options, act",
    [
        ({"swiglu_limit": 0.5}, limited),
        ({"activation": "gelu"}, gelu),
        ({"activation": "gelu_tanh"}, partial(gelu, approximate="tanh")),
    ],
)
def test_gates(parallel, form, options, act):
    files, meant = files_of(form)
    layer = load(Model(form, options), files)
    assert made_by(layer).startswith("NVFP4Kern")
    given = routed()
    assert_close(form, run(layer, *given), expected(form, meant, *given, act=act))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("activation", ["relu2", "silu"])
def test_experts_without_a_gate(parallel, form, activation):
    files, meant = files_of(form)
    del meant["gate_proj"]
    layer = load(
        Model(form, {"is_gated": False, "activation": activation}),
        {name: value for name, value in files.items() if "gate_proj" not in name},
    )
    assert layer.w13_weight.shape == (EXPERTS, INNER, HIDDEN // 2)
    act = {"relu2": lambda up: up.relu().square(), "silu": nn.functional.silu}[activation]
    given = routed()
    assert_close(form, run(layer, *given), expected(form, meant, *given, act=act))


@pytest.mark.parametrize("form", ["modelopt-w4a4", "ct-w4a4", "ct-w4a16"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_has_its_columns(parallel, form, rank):
    files, meant = files_of(form)
    parallel(tp=(rank, 2))
    layer = load(Model(form), files)
    assert layer.w2_weight.shape == (EXPERTS, HIDDEN, INNER // 4)
    own = {part: meant[part].chunk(2, dim=1)[rank] for part in ("gate_proj", "up_proj")}
    own["down_proj"] = meant["down_proj"].chunk(2, dim=2)[rank]
    given = routed()
    assert_close(form, run(layer, *given), expected(form, own, *given))


@pytest.mark.parametrize("form", ["modelopt-w4a4", "ct-w4a4", "ct-w4a16"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_has_its_experts(parallel, form, rank):
    """Experts of other ranks add nothing, but for the input scale: it is the largest of all."""
    files, meant = files_of(form)
    largest = torch.tensor(0.03)
    for name in ("input_scale", "input_global_scale"):
        if f"experts.3.up_proj.{name}" in files:
            value = 1 / largest.reshape(1) if form.startswith("ct") else largest
            files[f"experts.3.up_proj.{name}"] = value
    parallel(ep=(rank, 2))
    layer = load(Model(form), files)
    assert len(layer.w13_weight) == EXPERTS // 2
    x, ids, weights = routed()
    mine = weights * (ids // 2 == rank)
    assert_close(
        form, run(layer, x, ids, weights), expected(form, meant, x, ids, mine, (0.03, 0.02))
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_has_the_fused_shared_expert(parallel, rank):
    """The last one, which SGLang chooses for each token beside those of the router."""
    form = "modelopt-w4a4"
    files, meant = files_of(form, experts=EXPERTS + 1)
    parallel(ep=(rank, 2))
    options = {"num_fused_shared_experts": 1, "top_k": TOP_K + 1}
    layer = load(Model(form, options, experts=EXPERTS + 1), files)
    x, ids, weights = routed()
    ids = torch.cat([ids, torch.full((TOKENS, 1), EXPERTS)], 1).int()
    weights = torch.cat([weights, torch.full((TOKENS, 1), 0.5)], 1)
    mine = weights * ((ids // 2 == rank) | (ids == EXPERTS))
    assert_close(form, run(layer, x, ids, weights), expected(form, meant, x, ids, mine))


@pytest.mark.parametrize("form", ["modelopt-w4a16", "ct-w4a16"])
def test_the_routers_factor_is_ours_on_gpus(parallel, monkeypatch, form):
    """On CPUs SGLang leaves it to its models, some of which multiply what experts return."""
    from nvfp4kern.sglang import experts

    files, meant = files_of(form)
    layer = load(Model(form, {"routed_scaling_factor": 2.5}), files)
    assert not layer.should_fuse_routed_scaling_factor_in_topk
    x, ids, weights = routed()
    assert_close(form, run(layer, x, ids, weights), expected(form, meant, x, ids, weights))
    monkeypatch.setattr(experts.common, "is_cuda", lambda: True)
    assert_close(form, run(layer, x, ids, weights), expected(form, meant, x, ids, 2.5 * weights))


# --- Global scales ---


@pytest.mark.parametrize("larger", ["gate_proj", "up_proj"])
def test_a_token_has_the_larger_scale_of_gate_and_up(parallel, larger):
    """SGLang's loader gives both the last one."""
    form = "modelopt-w4a4"
    files, meant = files_of(form, inputs=INPUTS | {larger: 0.03})
    layer = load(Model(form), files)
    assert float(layer.w13_nvfp4_input_scale) == float(torch.tensor(0.03))
    given = routed()
    assert_close(form, run(layer, *given), expected(form, meant, *given, (0.03, 0.02)))


@pytest.mark.parametrize("form", ["modelopt-w4a4", "ct-w4a4"])
def test_an_expert_without_input_scale_takes_the_largest(parallel, form):
    files, meant = files_of(form)
    missing = [name for name in files if "experts.1." in name and "input" in name]
    layer = load(Model(form), {name: files[name] for name in files if name not in missing})
    assert len(missing) == 3
    given = routed()
    assert_close(form, run(layer, *given), expected(form, meant, *given))


@pytest.mark.parametrize("form", FORMS)
def test_a_scale_that_no_file_had_is_an_error(parallel, form):
    files, _ = files_of(form)
    missing = f"experts.1.up_proj.{(COMPRESSED if form.startswith('ct') else MODELOPT)[2]}"
    del files[missing]
    name = missing.rpartition(".")[2]
    with pytest.raises(ValueError, match=f"mlp.experts.w13_{name}: not all were loaded"):
        load(Model(form), files)


# --- Reloads ---


@pytest.mark.parametrize("form", FORMS)
def test_a_reload_fills_the_same_memory(parallel, form):
    model = Model(form)
    layer = load(model, files_of(form)[0])
    before = {name: each.data_ptr() for name, each in layer.named_parameters()}
    files, meant = files_of(form, seed=3, inputs={part: 2 * INPUTS[part] for part in PARTS})
    load(model, files)
    assert {name: each.data_ptr() for name, each in layer.named_parameters()} == before
    assert len({*before.values()}) == len(before)
    given = routed()
    assert_close(form, run(layer, *given), expected(form, meant, *given, (0.02, 0.04)))


@pytest.mark.parametrize("form", FORMS)
def test_a_reload_without_a_global_scale_is_an_error(parallel, form):
    """Not the old one beside new weights, nor where SGLang catches the error. All that is loaded
    after it is right again."""
    model = Model(form)
    files, meant = files_of(form)
    layer = load(model, files)
    names = (COMPRESSED if form.startswith("ct") else MODELOPT)[2:]
    names = names if form.endswith("w4a4") else names[:1]
    for name in names:
        left = {each: value for each, value in files.items() if not each.endswith(name)}
        with pytest.raises(ValueError, match=f"mlp.experts.w13_{name}: .*loaded"):
            load(model, left)
        assert bool(run(layer, *routed()).isnan().all())
    load(model, files)
    given = routed()
    assert_close(form, run(layer, *given), expected(form, meant, *given))


def test_experts_of_which_files_have_nothing_stay(parallel):
    form = "modelopt-w4a4"
    model = Model(form)
    files, meant = files_of(form)
    layer = load(model, files)
    load(model, {})
    given = routed()
    assert_close(form, run(layer, *given), expected(form, meant, *given))


# --- What stays SGLang's ---


def test_what_is_not_served_says_why(parallel, caplog, monkeypatch):
    from nvfp4kern.sglang import configs

    monkeypatch.setattr(configs, "_said", set())
    caplog.set_level(logging.WARNING, "sglang.nvfp4kern")
    cases = (
        ({"activation": "situ"}, "activation situ with a gate"),
        ({"is_gated": False, "activation": "gelu"}, "activation gelu without a gate"),
        ({"gemm1_alpha": 1.702}, "factors of SwiGLU (gemm1_alpha)"),
        (
            {"swiglu_limit": 7.0, "activation": "gelu"},
            "swiglu_limit 7.0 of gelu with a gate",
        ),
        ({"with_bias": True}, "biases"),
        ({"apply_router_weight_on_input": True}, "router weights that multiply the input"),
        ({"no_combine": True}, "results that are not summed"),
        ({"width": 72}, "72 columns of down_proj on a rank, no multiple of 16"),
    )
    for options, _ in cases:
        assert made_by(Model("ct-w4a16", options).experts) == "CompressedTensorsW4A16Nvfp4MoE"
    said = [record.getMessage() for record in caplog.records]
    begins = "Experts with NVFP4 weights run by SGLang's own method: nvfp4kern does not serve "
    assert said == [begins + what for what in dict.fromkeys(what for _, what in cases)]


@pytest.mark.parametrize(
    "changed, what",
    [
        ({"group_size": 32}, "blocks of 32"),
        ({"quant_algo": "NVFP4_AWQ"}, "a pre_quant_scale"),
        (None, "global scales of tokens"),
    ],
)
def test_files_that_are_not_served_are_sglangs(parallel, caplog, monkeypatch, changed, what):
    """Its method says that no kernel of its own runs on a CPU."""
    from nvfp4kern.sglang import configs

    monkeypatch.setattr(configs, "_said", set())
    if changed is None:
        monkeypatch.setenv("SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION", "1")
    with pytest.raises(ValueError, match="does not support NVFP4"):
        Model("modelopt-w4a4", **(changed or {}))
    assert f"nvfp4kern does not serve {what}" in caplog.text


@pytest.mark.parametrize(
    "asked, what",
    [
        ({"enable_eplb": True}, "EPLB"),
        ({"ep_num_redundant_experts": 2}, "EPLB"),
        ({"init_expert_location": "x.json"}, "EPLB"),
        ({"moe_dp_size": 2, "tp_size": 2}, "data parallelism"),
        ({"dwdp_size": 2, "tp_size": 2}, "data parallelism"),
        ({"attn_cp_size": 2, "tp_size": 2}, "context parallelism"),
        ({"enable_lora": True}, "LoRA"),
        ({"enable_paged_experts": True}, "experts in the CPU's memory"),
        ({"kt_weight_path": "x"}, "experts in the CPU's memory"),
    ],
)
def test_servers_that_are_not_served(parallel, asked, what):
    from nvfp4kern.sglang.experts import why_not

    layer = Model("ct-w4a16").experts
    assert why_not(layer) is None
    parallel(**asked)
    assert why_not(layer) == what


def test_layers_that_are_not_served(parallel):
    from sglang.srt.layers.moe.fused_moe_triton import FusedMoE

    from nvfp4kern.sglang.experts import why_not

    class Own(FusedMoE):
        pass

    layer = Model("ct-w4a16").experts
    layer.hidden_size = HIDDEN + 8
    assert why_not(layer) == "72 columns of the input, no multiple of 16"
    layer.hidden_size, layer.__class__ = HIDDEN, Own
    assert why_not(layer) == "a subclass of FusedMoE, Own"


def test_runners_that_are_not_served(parallel):
    from sglang.srt.layers.moe.utils import MoeA2ABackend, MoeRunnerBackend
    from sglang.srt.runtime_context import get_flags

    from nvfp4kern.sglang.experts import why_not

    layer = Model("ct-w4a16").experts
    with get_flags().moe.override(runner_backend=MoeRunnerBackend.FLASHINFER_TRTLLM):
        assert why_not(layer) == "--moe-runner-backend flashinfer_trtllm"
    with get_flags().moe.override(a2a_backend=MoeA2ABackend.DEEPEP):
        assert why_not(layer) == "--moe-a2a-backend deepep"
    with get_flags().dp.override(enabled=True):
        assert why_not(layer) == "data parallelism"
    for backend in (MoeRunnerBackend.MARLIN, MoeRunnerBackend.TRITON):
        with get_flags().moe.override(runner_backend=backend):
            assert why_not(layer) is None


def test_excluded_experts_are_sglangs(parallel):
    layer = Model("modelopt-w4a4", ignore=["*experts*"]).experts
    assert made_by(layer) == "UnquantizedFusedMoEMethod"
