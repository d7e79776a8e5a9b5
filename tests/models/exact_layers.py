"""Layers and inputs whose sums are exact in fp32: any order of adding gives the same bits."""

import torch
from layers import filled

from nvfp4kern.nn import NVFP4Experts, NVFP4MoE, NVFP4SwiGLU


def exact(layer, seed):
    """Codes of all kinds under scale factors and a global scale of 1: sums are exact."""
    filled(layer, seed)
    layer.weight_scale.data.fill_(1.0)
    layer.weight_scale_2.data.fill_(1.0)
    return layer


def integers(*shape, most=3, dtype=torch.bfloat16, seed=1):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, shape, generator=draw).to(dtype)


def ones(tokens, hidden, seed, dtype=torch.bfloat16):
    """A few ones in each token, 4 in 64 elements and some more."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(tokens, hidden, generator=draw) < 0.05
    x[:, ::16] = True
    return x.to(dtype)


SIXES = 0x77
"""Two codes of 6. With them in gate, and ones in x, gate is at least 4 * 6, where silu(gate) is
gate in fp32. up, and all sums, are exact."""


def finished(layer):
    for each in layer.modules():
        if hasattr(each, "finish"):
            each.finish()
    return layer


def exact_swiglu(input_quant, hidden=64, inner=96):
    """For inputs of `ones`."""
    layer = NVFP4SwiGLU(hidden, inner, input_quant=input_quant)
    for i, each in enumerate((layer.gate_proj, layer.up_proj, layer.down_proj)):
        exact(each, i)
        if input_quant == "static":
            each.input_scale.data.fill_(1.0)
    layer.gate_proj.weight.data.fill_(SIXES)
    return finished(layer)


def exact_experts(input_quant, experts, hidden=64, inner=96):
    """For inputs of `ones` and weights that are powers of two."""
    layer = filled(NVFP4Experts(hidden, inner, experts, input_quant=input_quant), 5)
    for name, value in layer.named_parameters():
        if "scale" in name:
            value.data.fill_(1.0)
    layer.gate_up_proj.data[:, :inner] = SIXES
    return finished(layer)


def exact_mixture(experts=7, hidden=256):
    """Its products are exact. A router's weights are not, so sums over experts have an order."""
    moe = filled(NVFP4MoE(hidden, 96, experts, 3, dtype=torch.bfloat16), 7)
    moe.experts = exact_experts(None, experts, hidden)
    moe.shared_experts = exact_swiglu(None, hidden)
    return moe
