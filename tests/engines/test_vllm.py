"""Checkpoints in vLLM beside transformers with our layers: log probabilities of the same tokens.

An engine takes seconds to start and its imports more, so a process runs several.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import checkpoints
import pytest
import torch
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed")

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [9, 9, 9, 100, 101, 102], [7]]
TOKENS = 8
SECONDS = 900
W4A16, W4A4 = ("modelopt-w4a16", "ct-w4a16"), ("modelopt-nvfp4", "ct-w4a4")
BOUNDS = {"float16": 0.02, "float32": 0.002}
"""Of log probabilities. Eager attention of transformers in place of its SDPA changes them by up to
0.005 in float16 and by less than 0.00001 in float32. W4A4 runs in float32: in bfloat16 that change
flips codes, and changes them by 0.5 in this Llama and 2.3 in this mixture."""
OURS = {
    "linear": {
        "modelopt": "NVFP4KernModelOptLinearMethod",
        "ct": "NVFP4KernCompressedTensorsScheme",
    },
    "experts": {
        "modelopt": "NVFP4KernModelOptMoEMethod",
        "ct": "NVFP4KernCompressedTensorsMoEMethod",
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """folder(architecture, form, **options): a checkpoint whose fused shards have global scales
    that differ."""
    made = {}

    def get(name, form, **options):
        key = repr((name, form, sorted(options.items())))
        if key not in made:
            options = {"spread": True, "one_input": True} | options
            at = tmp_path_factory.mktemp(f"{name}-{form}")
            made[key] = checkpoints.make(at, name, form, **options)
        return made[key]

    return get


def in_vllm(runs, at, **environment):
    """What run_vllm.py says of each."""
    job, result = at / "job.json", at / "result.json"
    environment.setdefault("VLLM_CACHE_ROOT", str(at / "cache"))
    job.write_text(
        json.dumps(
            {
                "runs": runs,
                "environment": environment,
                "prompts": PROMPTS,
                "tokens": TOKENS,
                "result": str(result),
            }
        )
    )
    own = {name: value for name, value in os.environ.items() if not name.startswith("NVFP4KERN_")}
    done = subprocess.run(
        [sys.executable, HERE / "run_vllm.py", job],
        env=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return json.loads(result.read_text())


def expected_methods(folder):
    """The class of each NVFP4 layer's method, by its name in vLLM."""
    config = json.loads((Path(folder) / "config.json").read_text())
    producer = "ct" if "compressed" in config["quantization_config"]["quant_method"] else "modelopt"
    mixture = config["model_type"] == "qwen3_moe"
    found = {}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        linear = ["self_attn.qkv_proj", "self_attn.o_proj"]
        linear += [] if mixture else ["mlp.gate_up_proj", "mlp.down_proj"]
        found |= {at + name: OURS["linear"][producer] for name in linear}
        if mixture:
            found[at + "mlp.experts.routed_experts"] = OURS["experts"][producer]
    return found


def check(result, run, ranks=1):
    """Methods are ours on all ranks, and log probabilities those of transformers."""
    from reference import add_adapter, largest_difference, logprobs, open_model

    folder, dtype = run.get("reload", run["model"]), run["dtype"]
    assert len(result["methods"]) == ranks
    for of_rank in result["methods"]:
        expected = expected_methods(folder)
        assert {name: of_rank.get(name) for name in expected} == expected, of_rank
    assert [len(ids) for ids in result["tokens"]] == [TOKENS] * len(PROMPTS)
    model = open_model(folder, getattr(torch, dtype))
    if "lora" in run:
        add_adapter(model, run["lora"])
    expected = logprobs(model, PROMPTS, result["tokens"])
    difference = largest_difference(result["logprobs"], expected)
    assert difference < BOUNDS[dtype], (difference, result["logprobs"], expected)


def run_of(folder, form, **options):
    """Options of vllm.LLM. Static W4A4 layers are those that take float32."""
    dtype = "float32" if form in W4A4 else "float16"
    return {"model": folder, "dtype": dtype, "enforce_eager": True} | options


CASES = {
    **{
        f"{name}-{form}": (name, form, {}, {})
        for name in ("llama", "qwen3_moe")
        for form in W4A16 + W4A4
    },
    "head": ("llama", "modelopt-w4a16", {"exclude": ()}, {}),
    "fused": ("llama", "modelopt-nvfp4", {"fused": True, "spread": False}, {}),
    "left over": ("llama", "modelopt-w4a16", {"leftover": True}, {}),
    "missing": ("qwen3_moe", "modelopt-nvfp4", {"missing": ("*.experts.2.*",)}, {}),
    "compiled": ("llama", "modelopt-w4a16", {}, {"enforce_eager": False}),
    "compiled mixture": ("qwen3_moe", "modelopt-nvfp4", {}, {"enforce_eager": False}),
    "reload": ("llama", "ct-w4a4", {"seed": 1, "spread": False}, {"reload": {}}),
    "reload mixture": ("qwen3_moe", "modelopt-w4a16", {"seed": 1}, {"reload": {}}),
    "mixed": ("qwen3_moe", "modelopt-mixed", {}, {}),
    "adapter": ("llama", "ct-w4a16", {}, {"lora": ("q_proj", "v_proj", "o_proj", "down_proj")}),
    "latent": ("deepseek_v3", "modelopt-w4a16", {}, {}),
}
"""architecture, form, options of the checkpoint, and of vLLM; "reload" has those of the second, and
"lora" the layers of an adapter."""
NOT_OF_TRANSFORMERS = ("mixed", "latent")
"""Tests of their own say what these are compared with."""
REFUSED = {
    "llama": (
        "ct-w4a4",
        "layers.1.self_attn.k_proj.weight_global_scale",
        "qkv_proj",
        r"\[1\] of 3",
    ),
    "qwen3_moe": ("modelopt-w4a16", "layers.1.mlp.experts.2.up_proj.weight_scale_2", "w13_", "not"),
}
"""architecture -> format, the tensor that a reload lacks, and two words of what it raises."""


def without(folder, tensor, at):
    """A copy that lacks it."""
    shutil.copytree(folder, at, dirs_exist_ok=True)
    tensors = load_file(at / "model.safetensors")
    del tensors[f"model.{tensor}"]
    save_file(tensors, at / "model.safetensors")
    return str(at)


@pytest.fixture(scope="module")
def in_one_process(folder, tmp_path_factory):
    """name -> (run, result), all by one process."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    runs = {}
    for case, (name, form, options, more) in CASES.items():
        more = dict(more)
        if "reload" in more:
            more["reload"] = folder(name, form, **more["reload"])
        if "lora" in more:
            at = tmp_path_factory.mktemp("adapter")
            more["lora"] = checkpoints.make_adapter(at, name, more["lora"])
        runs[case] = run_of(folder(name, form, **options), form, **more)
    for name, (form, tensor, *_) in REFUSED.items():
        lacking = without(folder(name, form), tensor, tmp_path_factory.mktemp(f"lacking-{name}"))
        runs[f"refused {name}"] = run_of(folder(name, form), form, reload=lacking)
    plain = checkpoints.make_plain(tmp_path_factory.mktemp("plain"), runs["latent"]["model"])
    runs["latent, dequantised"] = runs["latent"] | {"model": plain}
    results = in_vllm(list(runs.values()), tmp_path_factory.mktemp("one-process"))
    return dict(zip(runs, zip(runs.values(), results, strict=True), strict=True))


@pytest.mark.filterwarnings("ignore:.*the maximum over the other experts:UserWarning")
@pytest.mark.parametrize("case", [case for case in CASES if case not in NOT_OF_TRANSFORMERS])
def test_log_probabilities_are_those_of_transformers(in_one_process, case):
    run, result = in_one_process[case]
    check(result, run)


@pytest.mark.parametrize("name", REFUSED)
def test_a_reload_without_a_global_scale_is_refused(in_one_process, name):
    """vLLM makes parameters anew, in memory of any content."""
    _, result = in_one_process[f"refused {name}"]
    for word in REFUSED[name][2:]:
        assert re.search(word, result["refused"]), result


def test_a_head_is_ours(in_one_process):
    _, result = in_one_process["head"]
    assert result["methods"][0]["lm_head"] == OURS["linear"]["modelopt"]


def test_mixed_precision_leaves_the_rest_to_vllm(in_one_process):
    """Its FP8 o_proj is vLLM's. In 16 bits the noise of W4A4 experts leaves nothing to compare."""
    run, result = in_one_process["mixed"]
    expected = expected_methods(run["model"])
    (found,) = result["methods"]
    own = ("ModelOptLinearMethod", "ModelOptFp8LinearMethod")  # of vLLM from 0.30 on, and before
    for name, ours in expected.items():
        assert found[name] in (own if name.endswith("o_proj") else [ours]), (name, found)


def test_latent_attention_is_that_of_the_dequantised_weights(in_one_process):
    """MLA, dense and shared experts, and a router with groups. vLLM's DeepSeek of a CPU is not
    transformers', with plain weights, too."""
    from reference import largest_difference

    (run, ours), (_, plain) = in_one_process["latent"], in_one_process["latent, dequantised"]
    assert ours["tokens"] == plain["tokens"]
    assert largest_difference(ours["logprobs"], plain["logprobs"]) < BOUNDS[run["dtype"]]
    found = {name for name, of in ours["methods"][0].items() if of.startswith("NVFP4Kern")}
    attention = ("fused_qkv_a_proj", "q_b_proj", "kv_b_proj", "o_proj")
    expected = {f"model.layers.{i}.self_attn.{name}" for i in (0, 1) for name in attention}
    mlp = ("0.mlp", "1.mlp.shared_experts")
    expected |= {
        f"model.layers.{at}.{name}" for at in mlp for name in ("gate_up_proj", "down_proj")
    }
    assert found == expected | {"model.layers.1.mlp.experts.routed_experts"}
    assert not any(of.startswith("NVFP4Kern") for of in plain["methods"][0].values())


def test_formats_have_the_same_bits(in_one_process):
    """W4A16: what a file of compressed-tensors says is what ModelOpt's says, up to an inverse."""
    for name in ("llama", "qwen3_moe"):
        (_, a), (_, b) = (in_one_process[f"{name}-{form}"] for form in W4A16)
        assert a["tokens"] == b["tokens"] and a["logprobs"] == b["logprobs"]


def test_an_engine_in_its_own_process(folder, tmp_path):
    run = run_of(folder("llama", "ct-w4a16"), "ct-w4a16")
    (result,) = in_vllm([run], tmp_path, VLLM_ENABLE_V1_MULTIPROCESSING="1")
    check(result, run)


def test_tensor_and_expert_parallelism(folder, tmp_path):
    """On two ranks."""
    two = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    runs = [
        run_of(folder("llama", "modelopt-nvfp4"), "modelopt-nvfp4", **two),
        run_of(
            folder("qwen3_moe", "modelopt-nvfp4"),
            "modelopt-nvfp4",
            enable_expert_parallel=True,
            **two,
        ),
    ]
    results = in_vllm(
        runs,
        tmp_path,
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
        VLLM_CPU_OMP_THREADS_BIND="0|1",
    )
    for run, result in zip(runs, results, strict=True):
        check(result, run, ranks=2)
