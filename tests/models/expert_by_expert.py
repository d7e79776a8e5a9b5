"""float64 results of NVFP4Experts, token by token, by none of nvfp4kern.nn's products."""

import torch
from layers import decoded, filled, quantized, quantized_by_token
from torch import nn

from nvfp4kern.nn import NVFP4Experts


def experts_of(input_quant, seed=6, e=5, h=64, i=48, **gating):
    return filled(NVFP4Experts(h, i, e, input_quant=input_quant, **gating), seed)


def gated(gate, up, activation="silu", limit=None, activation_scale=1.702):
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if activation == "swiglu_oai":
        return gate * torch.sigmoid(activation_scale * gate) * (up + 1)
    return ACTIVATIONS[activation](gate) * up


ACTIVATIONS = {"silu": nn.functional.silu, "relu2": lambda h: h.relu() ** 2}


def between(experts, sums):
    """What the second product gets of the first one's sums."""
    if experts.gated:
        return gated(*sums.chunk(2), **experts.gating)
    return ACTIVATIONS[experts.gating["activation"]](sums)


def routed(tokens, e, k, seed=3):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(e, generator=draw)[:k] for _ in range(tokens)])
    return ids, torch.rand(tokens, k, generator=draw)


def want_experts(experts, x, ids, weights):
    """float64 results, and what their sums are made of."""
    name = "gate_up_proj" if experts.gated else "up_proj"
    stack = {key: getattr(experts, f"{name}{key}") for key in ("", "_weight_scale", "_bias")}
    up_globals = getattr(experts, f"{name}_weight_scale_2").double().view(len(stack[""]), -1)
    up_globals = up_globals.repeat_interleave(experts.intermediate_size, 1)
    gate_up = decoded(stack[""], stack["_weight_scale"], up_globals[..., None])
    down_globals = experts.down_proj_weight_scale_2.double()[:, None, None]
    down = decoded(experts.down_proj, experts.down_proj_weight_scale, down_globals)
    assert torch.equal(experts.dequantize(name), gate_up.float())
    assert torch.equal(experts.dequantize("down_proj"), down.float())
    quant = experts.input_quant
    out, size = torch.zeros(2, *x.shape, dtype=torch.float64)
    scales = {"static": (experts.gate_up_input, experts.down_input), "dynamic": (1.0, 1.0)}

    def seen(x, product):
        if quant is None:
            return x.double()
        return quantized_by_token(x) if quant == "token" else quantized(x, scales[quant][product])

    for t, j in torch.cartesian_prod(torch.arange(len(ids)), torch.arange(ids.shape[1])):
        e = ids[t, j]
        if not 0 <= e < experts.num_experts:
            continue
        a = seen(x[t], 0)
        biases = stack["_bias"], experts.down_proj_bias
        one, two = (0 if each is None else each[e].double() for each in biases)
        h = between(experts, gate_up[e] @ a + one).float()
        if quant in (None, "token") or not experts.gated:
            h = h.bfloat16()  # else the product quantises it as it is
        b = seen(h, 1)
        out[t] += weights[t, j].double() * (down[e] @ b + two)
        size[t] += weights[t, j].double() * (down[e].abs() @ b.abs() + abs(two))
    return out, size
