"""What tests of nvfp4kern.sglang share: configs, servers, and what layers read of their inputs."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

import nvfp4kern.torch as nk

FORMS = ("modelopt-w4a4", "modelopt-w4a16", "mixed-w4a4", "mixed-w4a16", "ct-w4a4", "ct-w4a16")
PACKED = {"gate_up_proj": ["gate_proj", "up_proj"], "qkv_proj": ["q_proj", "k_proj", "v_proj"]}
PREFIX = "model.layers.0."


@pytest.fixture(scope="module", autouse=True)
def registered():
    import sglang_on_cpus  # noqa: F401
    from sglang.srt.layers import quantization

    import nvfp4kern.sglang

    tables = quantization.QUANTIZATION_METHODS, quantization.CPU_QUANTIZATION_METHODS
    before = [dict(table) for table in tables]
    nvfp4kern.sglang.register()
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)


@contextmanager
def server(ep=(0, 1), tp=(0, 1), **asked):
    """What SGLang knows in a process of a server with these arguments: (rank, size) among experts,
    and among their columns."""
    from sglang.srt.runtime_context import get_context, get_parallel

    sizes = {"ep_size": ep[1], "tp_size": ep[1] * tp[1]} | asked
    rank = ep[0] * tp[1] + tp[0]
    ranks = {"moe_ep_rank": ep[0], "moe_tp_rank": tp[0], "tp_rank": rank, "attn_tp_rank": rank}
    ranks |= dict.fromkeys(("pp_rank", "attn_dp_rank", "attn_cp_rank", "moe_dp_rank"), 0)
    alone = SimpleNamespace(rank_in_group=0, world_size=1, is_first_rank=True, is_last_rank=True)
    all_ranks = SimpleNamespace(rank_in_group=rank, world_size=sizes["tp_size"])
    groups = {"tp_group": all_ranks, "pp_group": alone}
    with get_context().override_server_args(**sizes), get_parallel().override(**groups, **ranks):
        yield


def config_of(form, **changed):
    """SGLang's config of a checkpoint, by the names that it has for methods."""
    from sglang.srt.layers import quantization

    producer, inputs = form.split("-")
    algorithm = "NVFP4" if inputs == "w4a4" else "W4A16_NVFP4"
    if producer == "ct":
        values = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
        values |= {"symmetric": True, "dynamic": False}
        group = {"weights": values, "targets": ["Linear"], "format": "nvfp4-pack-quantized"}
        if inputs == "w4a4":
            group["input_activations"] = values | {"dynamic": "local"}
        name = "compressed-tensors"
        given = {"format": "nvfp4-pack-quantized", "config_groups": {"group_0": group}}
        given["ignore"] = ["lm_head"]
    elif producer == "mixed":
        name, given = "modelopt_mixed", {"quant_algo": "MIXED_PRECISION"}
        parts = [part for parts in PACKED.values() for part in parts]
        layers = {f"{PREFIX}mlp.{part}" for part in [*parts, "down_proj"]}
        layers |= {f"{PREFIX}self_attn.{part}" for part in [*parts, "kv_b_proj"]}
        layers |= {f"{PREFIX}mlp.experts.0.{part}" for part in [*parts, "down_proj"]}
        given["quantized_layers"] = {
            layer: {"quant_algo": algorithm, "group_size": 16} for layer in layers
        }
    else:
        name, given = "modelopt_fp4", {"quant_algo": algorithm, "group_size": 16, "ignore": []}
    given |= {"packed_modules_mapping": PACKED} | changed
    return quantization.get_quantization_config(name).from_config(given)


def load(model, files):
    """As SGLang loads a model's weights, and others in their place."""
    from sglang.srt.model_loader.loader import DefaultModelLoader as Loader

    Loader.restore_weights_before_loading(model, torch.device("cpu"))
    Loader.load_weights_and_postprocess(model, iter(files.items()), torch.device("cpu"))


def made_by(layer):
    """The class of the layer's method; of its scheme, where it has one."""
    return type(getattr(layer, "scheme", None) or layer.quant_method).__name__


def inputs_of(form, x, scale=0.01):
    """What the product reads of x, in float64."""
    if form.endswith("w4a16"):
        return x.double()
    options = {"global_scale": scale, "data_dtype": torch.uint8}
    if form.startswith("ct"):
        options["global_scale_inverse"] = float(1 / torch.tensor(scale))
    codes, scales, _ = nk.quantize(x, **options)
    ones = nk.dequantize((codes, scales, None), out_dtype=torch.float32).double()
    return ones * torch.tensor(scale).double()
