"""Quantisers of others: each takes a matrix and returns what it would write to a file.

A package that is missing skips the test that asks for it.
"""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import packing
import pytest
import torch


def imported(name, why):
    """The module, or a skipped test. Others warn at import what concerns them alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=why, exc_type=ImportError)


def compressed_tensors():
    """Packs [N, K] by compressed-tensors: `multiplier` is 1/divisor of its file, in float64."""
    why = "compressed-tensors is not installed"
    compressor = imported("compressed_tensors.compressors.nvfp4", why).NVFP4PackedCompressor
    scheme = imported("compressed_tensors.quantization", why).preset_name_to_scheme("NVFP4", [])
    utils = imported("compressed_tensors.quantization.utils", why)

    def quantize(x):
        divisor = utils.generate_gparam(x.min(), x.max())
        blocks = x.unflatten(1, (-1, 16))
        ends = blocks.amin(-1), blocks.amax(-1)
        scale, _ = utils.calculate_qparams(*ends, scheme.weights, divisor)
        given = dict(weight=x.clone(), weight_scale=scale, weight_global_scale=divisor)
        file = compressor.compress(given, scheme)
        multiplier = 1 / divisor.squeeze().double()
        return packing.Packed(file["weight_packed"], file["weight_scale"], multiplier)

    def dequantize(packed, dtype=None):
        divisor = (1 / packed.multiplier).float().reshape(1)
        file = dict(weight_packed=packed.codes, weight_scale=packed.scales)
        return compressor.decompress(file | dict(weight_global_scale=divisor), scheme)["weight"]

    return SimpleNamespace(quantize=quantize, dequantize=dequantize)


def modelopt():
    """Packs [N, K] by ModelOpt's NVFP4QTensor."""
    why = "nvidia-modelopt, or the requests that it imports, is not installed"
    qtensor = imported("modelopt.torch.quantization.qtensor", why).NVFP4QTensor

    def quantize(x):
        multiplier = qtensor.get_weights_scaling_factor_2(x)
        codes, scales, _ = qtensor.quantize(x.clone(), 16, None, multiplier)
        return packing.Packed(codes._quantized_data, scales, multiplier)

    def dequantize(packed, dtype=torch.float32):
        shape = (*packed.codes.shape[:-1], 2 * packed.codes.shape[-1])
        codes = qtensor(shape, dtype, packed.codes)
        scales = dict(scale=packed.scales, double_scale=packed.multiplier)
        return codes.dequantize(dtype, block_sizes={-1: 16}, **scales)

    return SimpleNamespace(quantize=quantize, dequantize=dequantize)


def torchao():
    """Packs [N, K] by torchao's NVFP4Tensor, scales linear."""
    name = "torchao.prototype.mx_formats.nvfp4_tensor"
    theirs = imported(name, "torchao is not installed")

    def quantize(x):
        multiplier = theirs.per_tensor_amax_to_scale(x.abs().max())
        tensor = theirs.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=multiplier)
        return packing.Packed(tensor.qdata, tensor.scale, multiplier)

    def dequantize(packed, dtype=torch.float32):
        parts = packed.codes, packed.scales, 16, dtype, packed.multiplier
        return theirs.NVFP4Tensor(*parts).dequantize(dtype)

    return SimpleNamespace(quantize=quantize, dequantize=dequantize)


PRODUCERS = {f.__name__: f for f in (compressed_tensors, modelopt, torchao)}


# --- Whole models ---


def random_model(architecture):
    """A tiny transformers model with weights of a sane scale."""
    imported("transformers", "transformers is not installed")
    from tiny_architectures import ARCHITECTURES
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(24)
    config = dict(ARCHITECTURES[architecture].config, initializer_range=0.15)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.bfloat16)
    model.config.architectures = [type(model).__name__]  # as in a model that was loaded
    return model


def modelopt_checkpoint(folder, architecture, recipe):
    """mtq.quantize and export_hf_checkpoint, calibrated with 64 tokens."""
    why = "nvidia-modelopt, or the requests that it imports, is not installed"
    mtq = imported("modelopt.torch.quantization", why)
    export = imported("modelopt.torch.export", why).export_hf_checkpoint
    imported("transformers", "transformers is not installed")
    tokens = torch.arange(64).reshape(4, 16)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        model = mtq.quantize(random_model(architecture), getattr(mtq, recipe), lambda m: m(tokens))
        export(model, export_dir=folder)
    return Path(folder)


def compressed_tensors_checkpoint(folder, architecture, preset):
    """What llm-compressor does after calibrating: scales of each weight, then ModelCompressor."""
    why = "compressed-tensors is not installed"
    quantization = imported("compressed_tensors.quantization", why)
    utils = imported("compressed_tensors.quantization.utils", why)
    compressors = imported("compressed_tensors.compressors", why)
    imported("transformers", "transformers is not installed")
    groups = {"group_0": quantization.preset_name_to_scheme(preset, ["Linear"])}
    config = quantization.QuantizationConfig(config_groups=groups, ignore=["lm_head", "re:.*gate$"])
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        model = random_model(architecture)
        quantization.apply_quantization_config(model, config)
        for module in model.modules():
            scheme = getattr(module, "quantization_scheme", None)
            if scheme is None:
                continue
            divisor = utils.generate_gparam(module.weight.min(), module.weight.max())
            blocks = module.weight.unflatten(1, (-1, 16))
            ends = blocks.amin(-1), blocks.amax(-1)
            module.weight_scale.data, _ = utils.calculate_qparams(*ends, scheme.weights, divisor)
            module.weight_global_scale.copy_(divisor)
            if hasattr(module, "input_global_scale"):
                module.input_global_scale.fill_(2688 / 5)
        compressor = compressors.ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        model.save_pretrained(folder)
        compressor.update_config(folder)
    return Path(folder)


def quantization_of(folder):
    return json.loads((Path(folder) / "config.json").read_text())["quantization_config"]
