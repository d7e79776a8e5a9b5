"""nvfp4kern.nn's mixture of experts: a router, experts and shared experts."""

import copy

import pytest
import torch
from expert_by_expert import routed, want_experts
from layers import activations, filled
from torch import nn

from nvfp4kern import torch as nk
from nvfp4kern.nn import NVFP4Linear, NVFP4MoE, NVFP4SwiGLU


@pytest.mark.parametrize("input_quant", [None, "dynamic"])
def test_a_mixture_takes_inputs_of_any_strides(input_quant):
    moe = filled(NVFP4MoE(64, 48, 8, 3, input_quant=input_quant, dtype=torch.bfloat16), 7)
    for x in activations(64, 7).t(), activations(7, 128)[:, ::2]:
        assert torch.equal(moe(x), moe(x.contiguous()))


def test_shared_experts_are_added_before_rounding():
    """Of a residual: the layer without shared experts plus theirs, rounded once; gradients too."""
    shared = filled(NVFP4SwiGLU(64, 32), 9)
    moe = filled(NVFP4MoE(64, 48, 8, 3, shared_experts=shared, dtype=torch.bfloat16), 7)
    wide = copy.deepcopy(moe)
    x = activations(2, 5, 64)
    moe.shared_experts = None
    apart = moe(x).float() + shared(x).float()
    with_shared = wide(x)
    assert with_shared.dtype == x.dtype and bool((with_shared != moe(x) + shared(x)).any())
    assert bool(((with_shared.float() - apart).abs() <= 2.0**-7 * apart.abs() + 2.0**-7).all())
    grads = []
    for run in (wide, lambda x: moe(x) + shared(x)):
        given = x.clone().requires_grad_()
        run(given).sum().backward()
        grads.append(given.grad.float())
    assert (grads[0] - grads[1]).norm() <= 0.01 * grads[1].norm()


def test_a_mixture_hands_its_gate_to_its_experts():
    gating = {"activation": "swiglu_oai", "limit": 7.0, "activation_scale": 1.5}
    moe = NVFP4MoE(64, 48, 8, 3, dtype=torch.bfloat16, **gating)
    assert moe.experts.gating == gating
    with pytest.raises(ValueError, match="^activation: 'tanh'"):
        NVFP4MoE(64, 48, 8, 3, activation="tanh")


@pytest.mark.parametrize(
    "score, bias",
    [
        ("softmax_topk", False),
        ("softmax_topk", True),
        ("topk_softmax", False),
        ("sigmoid", True),
        ("sqrt_softplus", True),
        ("logits", False),
    ],
)
def test_moe(score, bias):
    shared = filled(NVFP4SwiGLU(64, 32), 9)
    moe = NVFP4MoE(
        64, 48, 8, 3, score=score, correction_bias=bias, per_expert_scale=bias, n_group=2,
        topk_group=2, scaling_factor=1.5, shared_experts=shared, dtype=torch.bfloat16,
    )  # fmt: skip
    filled(moe, 7)
    if bias:
        moe.gate.per_expert_scale.data.abs_()  # want_experts takes weights of one sign
    x = activations(2, 5, 64)
    logits = x.flatten(0, 1).double() @ moe.gate.weight.double().T
    scores = {
        "sigmoid": logits.sigmoid(),
        "sqrt_softplus": nn.functional.softplus(logits).sqrt(),
        "logits": logits,
    }.get(score, logits.softmax(-1))
    chosen = scores + (moe.gate.e_score_correction_bias.double() if bias else 0)
    ids = chosen.topk(3).indices
    weights = scores.gather(1, ids)
    if score not in ("softmax_topk", "logits"):
        weights = weights / weights.sum(-1, keepdim=True)
    if bias:
        weights = weights * moe.gate.per_expert_scale.double()[ids]
    out, size = want_experts(moe.experts, x.flatten(0, 1), ids, 1.5 * weights)
    out += shared(x).flatten(0, 1).double()
    error = (moe(x).flatten(0, 1).double() - out).abs()
    assert bool((error <= 2.0**-6 * size + 2.0**-7 * out.abs()).all())


@pytest.mark.parametrize("given", [torch.float32, torch.float16])
@pytest.mark.parametrize("input_quant", [None, "static", "dynamic"])
def test_autocast_casts_tokens_and_the_router(input_quant, given):
    """The results are those of operands that were cast before, to the bit."""
    shared = filled(NVFP4SwiGLU(64, 32, input_quant=input_quant), 9)
    options = {"input_quant": input_quant, "shared_experts": shared, "dtype": torch.float32}
    moe = filled(NVFP4MoE(64, 48, 8, 3, **options), 7)
    cast = copy.deepcopy(moe).to(torch.bfloat16)
    x = activations(2, 5, 64, dtype=given).requires_grad_()
    ids, weights = routed(10, 8, 3)
    ids, weights = ids.view(2, 5, 3), weights.view(2, 5, 3)
    want = [cast(x.detach().bfloat16()), cast.experts(x.detach().bfloat16(), ids, weights)]
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        got = [moe(x), moe.experts(x, ids, weights)]
    for ours, theirs in zip(got, want, strict=True):
        assert ours.dtype == torch.bfloat16 and torch.equal(ours, theirs)
    with torch.autocast("cpu", torch.bfloat16):
        moe(x).float().sum().backward()
    assert x.grad.dtype == given and bool((x.grad != 0).any())


@pytest.mark.parametrize("input_quant", [None, "static", "dynamic"])
def test_a_router_in_float32(input_quant):
    """Tokens need not have its dtype. Where they are quantised they may be float32, too."""
    moe = filled(NVFP4MoE(64, 48, 8, 3, input_quant=input_quant, dtype=torch.float32), 7)
    for dtype in (torch.bfloat16, torch.float32):
        x = activations(9, 64, dtype=dtype)
        if input_quant is None and dtype == torch.float32:
            with pytest.raises(TypeError, match="^a: dtype float32"):
                moe(x)
            continue
        weights, ids = nk.route(x, moe.gate.weight, 3, score="softmax_topk")
        got = moe(x)
        assert got.dtype == dtype and torch.equal(got, moe.experts(x, ids, weights))


class HashRouter(nn.Module):
    """Experts by token id, as the first layers of DeepSeek-V4 have them; weights by logits."""

    def __init__(self, experts, k, vocabulary=40):
        super().__init__()
        self.register_buffer("experts_of", torch.randint(experts, (vocabulary, k)))
        self.weight = nn.Parameter(torch.randn(experts, 64))

    def forward(self, x, token_ids):
        ids = self.experts_of[token_ids.flatten()]
        weights = nn.functional.softplus(x.float() @ self.weight.T).sqrt().gather(1, ids)
        return ids, weights / weights.sum(-1, keepdim=True)


def test_a_router_of_the_callers():
    shared = filled(NVFP4SwiGLU(64, 32), 9)
    router = HashRouter(8, 3)
    moe = NVFP4MoE(64, 48, 8, 3, router=router, shared_experts=shared, correction_bias=True)
    filled(moe.experts, 7)
    assert moe.gate is None and moe.correction_bias is None and moe.per_expert_scale is None
    x, token_ids = activations(2, 5, 64), torch.arange(10).view(2, 5)
    ids, weights = router(x.flatten(0, 1), token_ids)
    out, size = want_experts(moe.experts, x.flatten(0, 1), ids, weights.detach().double())
    out += shared(x).flatten(0, 1).double()
    got = moe(x, token_ids)
    error = (got.detach().flatten(0, 1).double() - out).abs()
    assert got.shape == x.shape and bool((error <= 2.0**-6 * size + 2.0**-7 * out.abs()).all())
    got.float().sum().backward()
    assert bool((router.weight.grad != 0).any())
    with pytest.raises(TypeError, match="^forward: 2 arguments, expected x alone"):
        filled(NVFP4MoE(64, 48, 8, 3, dtype=torch.bfloat16), 7)(x, token_ids)


def test_graphs_and_synchronisation_on_a_gpu(gpu):
    """A capture breaks where something synchronises; a replay takes new inputs."""
    moe = NVFP4MoE(64, 48, 8, 3, input_quant="static", dtype=torch.bfloat16)
    model = nn.Sequential(
        filled(NVFP4Linear(64, 64, input_quant="static", dtype=torch.bfloat16), 1),
        filled(NVFP4SwiGLU(64, 96, input_quant="dynamic"), 2),
        filled(moe, 3),
    ).to(gpu.device)
    x = activations(9, 64).to(gpu.device)
    with torch.no_grad():
        for _ in range(2):
            model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        x.copy_(activations(9, 64, seed=12))
        graph.replay()
        assert torch.equal(y, model(x))


def test_a_correction_bias_stays_float32():
    of_gate = {"score": "sigmoid", "correction_bias": True, "per_expert_scale": True}
    layer = NVFP4MoE(64, 32, 4, 2, **of_gate, dtype=torch.bfloat16)
    layer = nn.Sequential(filled(layer, 5)).half()
    bias, expected = layer[0].gate.e_score_correction_bias, torch.float32
    assert bias.dtype == expected and layer[0].gate.weight.dtype == torch.float16
    assert layer[0].gate.per_expert_scale.dtype == expected
    assert torch.isfinite(layer(activations(3, 64, dtype=torch.float16))).all()
