"""The tiny checkpoints mean what they should: before anything of the package reads them."""

import json

import pytest
import tiny
import torch
from packing import E4M3, VALUES, decode, dequantized, encode, read_directory, round_e2m1
from tiny_architectures import ARCHITECTURES
from tiny_formats import FORMATS


def test_codes_are_rounded_to_nearest_even():
    everything = torch.arange(-7, 7, 1 / 64, dtype=torch.float64)
    nearest = VALUES[round_e2m1(everything).long()]
    distance = (everything.unsqueeze(-1) - VALUES).abs().amin(-1)
    assert torch.equal((nearest - everything).abs(), distance)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]).double()
    assert VALUES[round_e2m1(ties).long()].tolist() == [0, 1, 1, 2, 2, 4, 4]
    assert round_e2m1(-ties[:1]).item() == 8  # -0


def test_encoding_is_near_and_repeatable():
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    codes, scales = encode(x, x.abs().max() / 2688)
    assert (codes.dtype, scales.dtype) == (torch.uint8, E4M3)
    y = decode(codes, scales, float(x.abs().max() / 2688))
    largest = x.unflatten(1, (-1, 16)).abs().amax(-1).repeat_interleave(16, 1)
    assert ((y - x).abs() <= (1 / 6 + 1 / 16) * largest).all()  # half of 4 to 6, and the scale's


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_options_change_the_files_and_not_the_shapes(checkpoint, architecture, form):
    plain = {n: t.shape for n, t in dequantized(checkpoint(architecture, form)).items()}
    for options in (
        dict(spread=True, one_element=True, shards=3),
        dict(fused=True),
        dict(exclude=("*gate",)),
        dict(missing=("*",), leftover=True),
    ):
        other = dequantized(checkpoint(architecture, form, **options))
        assert {n: t.shape for n, t in other.items()} == plain


@pytest.mark.parametrize("stacked", ["E", "E11", "E2"])
def test_stacked_experts_hold_the_same_numbers(checkpoint, stacked):
    apart = dequantized(checkpoint("qwen3_moe", "modelopt-nvfp4"))
    together = dequantized(checkpoint("qwen3_moe", "modelopt-nvfp4", stacked=stacked))
    assert apart.keys() == together.keys()
    assert all(torch.equal(apart[n], together[n]) for n in apart)


def test_globals_of_shards_differ_by_two(checkpoint):
    tensors, _ = read_directory(checkpoint("llama", "modelopt-nvfp4", spread=True))
    at = "model.layers.0.self_attn.{}_proj.weight_scale_2"
    q, k, v = (tensors[at.format(n)] for n in "qkv")
    assert k / q > 1.5 and k / v > 2


def test_modelopts_own_conversion_gives_the_same_config(checkpoint):
    """hf_quant_config.json and config.json say the same."""
    convert = pytest.importorskip(
        "modelopt.torch.export.convert_hf_config", reason="nvidia-modelopt is not installed"
    ).convert_hf_quant_config_format
    for form in (f for f in FORMATS if f.startswith("modelopt")):
        directory = checkpoint("qwen3_moe", form)
        beside = json.loads((directory / "hf_quant_config.json").read_text())
        theirs = convert(beside)
        assert tiny.read_config(directory)["quantization_config"] == theirs


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_takes_every_name(checkpoint, architecture):
    """Logits are of a sane size, in files of every kind of name."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    from float64_model import plain_model

    ids = torch.arange(24).reshape(2, 12)
    for form in ("modelopt-awq", "ct-w4a16"):
        model = plain_model(checkpoint(architecture, form, spread=True))
        with torch.no_grad():
            spread = model(ids).logits.std()
        assert 1 < spread < 10
