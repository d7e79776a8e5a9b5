"""What save_checkpoint writes, beside files of nvidia-modelopt and read by its code."""

from pathlib import Path

import producers
import pytest
import torch
from packing import Packed, dequantized, read_directory, units
from quantised_model import load

from nvfp4kern.checkpoint import save_checkpoint
from nvfp4kern.nn import quantize_

ARCHITECTURES = ["llama", "qwen3", "qwen3_moe", "mixtral", "deepseek_v3"]
OTHERS = Path(__file__).parent / "others"


def same(a, b):
    """Equal to the bit."""
    a, b = (t.reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(a, b)


def check_saved(directory, to):
    """A file of ModelOpt, loaded and saved again, has the same tensors and says the same."""
    model = load(directory)
    save_checkpoint(model, to)
    (theirs, config), (ours, again) = read_directory(directory), read_directory(to)
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        if name.endswith("e_score_correction_bias"):  # the model holds it in fp32
            assert torch.equal(ours[name].double(), tensor.double())
        else:
            assert ours[name].dtype == tensor.dtype and ours[name].shape == tensor.shape, name
            assert same(ours[name], tensor), name
    config, again = config["quantization_config"], again["quantization_config"]
    assert again["config_groups"] == config["config_groups"]
    assert again["quant_algo"] == config["quant_algo"]
    assert set(again["ignore"]) | {"model.embed_tokens"} == set(config["ignore"])


@pytest.mark.parametrize("folder", ["modelopt-nvfp4", "modelopt-w4a16"])
def test_stored_files_come_back(tmp_path, folder):
    producers.imported("transformers", "transformers is not installed")
    check_saved(OTHERS / folder, tmp_path / "saved")


@pytest.mark.parametrize("recipe", ["NVFP4_DEFAULT_CFG", "W4A16_NVFP4_CFG"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_modelopts_files_come_back(tmp_path, architecture, recipe):
    directory = producers.modelopt_checkpoint(tmp_path / "theirs", architecture, recipe)
    check_saved(directory, tmp_path / "saved")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_our_files_are_laid_out_as_modelopts(tmp_path, architecture):
    """A model that quantize_ changed, beside the same model that ModelOpt quantised."""
    theirs = producers.modelopt_checkpoint(tmp_path / "theirs", architecture, "W4A16_NVFP4_CFG")
    model = producers.random_model(architecture)
    quantize_(model)
    save_checkpoint(model, tmp_path / "ours")
    (a, config), (b, other) = read_directory(theirs), read_directory(tmp_path / "ours")
    assert {n: t.shape for n, t in a.items()} == {n: t.shape for n, t in b.items()}
    own = ("e_score_correction_bias",)
    assert all(a[n].dtype == b[n].dtype for n in a if not n.endswith(own))
    keys = config["quantization_config"].keys()
    assert keys == other["quantization_config"].keys()
    assert config["model_type"] == other["model_type"]


@pytest.mark.parametrize("recipe", ["amax", "four_six"])
def test_modelopt_reads_our_files(tmp_path, recipe):
    """Its dequantiser, on every layer's tensors: within 2 units of fp32 of what they mean."""
    from nvfp4kern.nn import NVFP4Config

    modelopt = producers.modelopt()
    model = producers.random_model("mixtral")
    quantize_(model, NVFP4Config(recipe=recipe))
    save_checkpoint(model, tmp_path / "ours")
    tensors, exact = read_directory(tmp_path / "ours")[0], dequantized(tmp_path / "ours")
    names = [n.removesuffix(".weight") for n, t in tensors.items() if t.dtype == torch.uint8]
    assert len(names) == 2 * (4 + 3 * 4)
    for name in names:
        kinds = ("weight", "weight_scale", "weight_scale_2")
        theirs = modelopt.dequantize(Packed(*(tensors[f"{name}.{kind}"] for kind in kinds)))
        assert units(theirs, exact[f"{name}.weight"], torch.float32) <= 2.0
