"""What recipes choose, by definitions of their own."""

import numpy
import pytest
import torch
from layers import decoded, weights

from nvfp4kern.nn import recipes
from nvfp4kern.nn.recipes import code_values, nearest_codes, nearest_magnitudes, quantize_weight

MAGNITUDES = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def errors(weight, q):
    """Squared, of blocks."""
    return (
        (decoded(*q[:2], q.global_scale.double()) - weight).unflatten(-1, (-1, 16)).square().sum(-1)
    )


def searched(weight, global_scale):
    """The smallest error of each block, and the scale factor that has it: all of E4M3, nearest
    values by comparing with each."""
    every = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()
    blocks = numpy.abs(weight.double().numpy()).reshape(-1, 16) / float(global_scale)
    found = []
    for scale in every:
        far = numpy.abs(blocks[..., None] - MAGNITUDES * scale).min(-1)
        found.append((far**2).sum(-1))
    found = numpy.array(found)
    return found.min(0) * float(global_scale) ** 2, every[found.argmin(0)]


@pytest.mark.parametrize("orders", [0, 3, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mse_finds_what_a_search_of_all_scale_factors_finds(dtype, orders):
    weight = weights(orders, 16, 512, orders).to(dtype)
    for global_scale in (None, torch.tensor(3.0) * weight.abs().amax().float() / 2688):
        q = quantize_weight(weight, "mse", global_scale)
        best, scales = searched(weight, q.global_scale)
        got = errors(weight.double(), q).numpy().reshape(-1)
        assert (got >= best * (1 - 1e-6)).all()
        near = numpy.isclose(got, best, rtol=1e-5, atol=0)
        assert near.mean() > 0.97  # the others' best is farther from amax's than it looks
        same = q.scales.double().numpy().reshape(-1) == scales
        assert same[near].mean() > 0.9
        assert got.sum() < 1.01 * best.sum()


@pytest.mark.parametrize("orders", [0, 3, 30])
def test_mse_is_never_worse_than_amax(orders):
    weight = weights(7 + orders, 64, 512, orders)
    amax, mse = (quantize_weight(weight, recipe) for recipe in ("amax", "mse"))
    in_blocks = quantize_weight(weight, "mse", amax.global_scale)
    exact = weight.double()
    theirs, ours = errors(exact, amax), errors(exact, in_blocks)
    assert bool((ours <= theirs * (1 + 1e-5)).all()) and bool((ours < 0.9 * theirs).any())
    assert errors(exact, mse).sum() <= ours.sum() * (1 + 1e-6)
    tried = [float(448 / most * amax.global_scale) for most in recipes.MSE_MOST]
    assert any(float(mse.global_scale) == pytest.approx(each, rel=1e-6) for each in tried)


def test_mse_takes_the_global_scale_that_fits():
    """By 448 / 320 times amax's, all blocks are exact: 6 * 320, and 6 * 13 / 8."""
    weight = torch.tensor([6.0 * 320, 6.0 * 1.625]).repeat_interleave(16).view(1, 32).repeat(2, 1)
    weight[1] *= -1
    q = quantize_weight(weight, "mse")
    assert q.global_scale == 1 and errors(weight.double(), q).sum() == 0
    assert errors(weight.double(), quantize_weight(weight, "amax")).sum() > 0


def test_mse_keeps_amax_s_of_equal_errors():
    """Blocks of zeros and of one magnitude, which several scale factors have exactly."""
    for weight in (torch.zeros(2, 32), torch.full((2, 32), 2688.0)):
        amax, mse = (quantize_weight(weight, recipe) for recipe in ("amax", "mse"))
        assert torch.equal(mse.data, amax.data) and mse.global_scale == amax.global_scale
        assert torch.equal(mse.scales.view(torch.uint8), amax.scales.view(torch.uint8))


def test_mse_does_not_depend_on_pieces_nor_on_strides(monkeypatch):
    weight = weights(3, 48, 160, 2)
    want = quantize_weight(weight, "mse")
    monkeypatch.setitem(recipes.MSE_PIECE, "cpu", 1000)
    for each in (weight, weight.T.contiguous().T, weight.clone().requires_grad_()):
        got = quantize_weight(each, "mse")
        assert torch.equal(got.data, want.data) and got.global_scale == want.global_scale
        assert torch.equal(got.scales.view(torch.uint8), want.scales.view(torch.uint8))
    meta = quantize_weight(weight.to("meta"), "mse")
    assert [each.shape for each in meta[:3]] == [each.shape for each in want[:3]]


def test_nearest_magnitudes_are_those_of_codes():
    x = torch.cat([torch.linspace(0, 7, 3001), torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])])
    around = torch.stack([x, torch.nextafter(x, torch.tensor(9.0)), x.nextafter(torch.tensor(0.0))])
    assert torch.equal(nearest_magnitudes(around), code_values(nearest_codes(around)))
