"""nvfp4kern.nn's experts, token by token in float64."""

import copy

import pytest
import torch
from layers import activations, decoded, filled, quantized, with_tangent
from torch import nn
from torch.autograd import forward_ad

from nvfp4kern import torch as nk
from nvfp4kern.nn import NVFP4Experts, NVFP4Linear, NVFP4MoE, NVFP4SwiGLU


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
    for t, j in torch.cartesian_prod(torch.arange(len(ids)), torch.arange(ids.shape[1])):
        e = ids[t, j]
        if not 0 <= e < experts.num_experts:
            continue
        a = x[t].double() if quant is None else quantized(x[t], scales[quant][0])
        biases = stack["_bias"], experts.down_proj_bias
        one, two = (0 if each is None else each[e].double() for each in biases)
        h = between(experts, gate_up[e] @ a + one).float()
        by_silu = experts.gating == NVFP4Experts(16, 16, 1).gating and experts.gated
        if quant is None or not by_silu:
            h = h.bfloat16()  # else the product quantises it as it is
        b = h.double() if quant is None else quantized(h, scales[quant][1])
        out[t] += weights[t, j].double() * (down[e] @ b + two)
        size[t] += weights[t, j].double() * (down[e].abs() @ b.abs() + abs(two))
    return out, size


GATINGS = [
    {},
    {"activation": "swiglu_oai", "limit": 2.0, "bias": True, "dtype": torch.bfloat16},
    {"activation": "swiglu_oai", "activation_scale": 0.5},
    {"limit": 0.5, "bias": True},
    {"bias": True},
    {"activation": "relu2"},
    {"gated": False, "activation": "relu2"},
    {"gated": False, "bias": True, "dtype": torch.bfloat16},
]


@pytest.mark.parametrize("gating", GATINGS, ids=str)
@pytest.mark.parametrize("input_quant", [None, "static", "dynamic"])
def test_experts(input_quant, gating):
    experts = experts_of(input_quant, **gating)
    x = activations(7, 64)
    ids, weights = routed(7, 5, 3)
    ids[2, 1], ids[4] = 5, -1  # elsewhere: one of three, and all of a token's
    out, size = want_experts(experts, x, ids, weights)
    got = experts(x, ids, weights)
    error = (got.double() - out).abs()
    bound = (2.0**-7 if input_quant is None else 0.02) * size + 2.0**-8 * out.abs()
    assert bool((error <= bound).all()), (error / bound).max()
    assert bool((got[4] == 0).all())
    assert torch.equal(experts(x.view(7, 1, 64), ids.view(7, 1, 3), weights)[:, 0], got)
    none = experts(x[:0], ids[:0], weights[:0])
    assert none.shape == (0, 64)


@pytest.mark.parametrize("input_quant", [None, "static", "dynamic"])
@pytest.mark.parametrize("apart", [1, 2])
def test_the_product_gathers_tokens(input_quant, apart, monkeypatch):
    """The first one takes x's tokens by index, with the bits of tokens gathered before."""
    moe = filled(NVFP4MoE(64, 48, 8, 3, input_quant=input_quant, dtype=torch.bfloat16), 7)
    taken = []

    def gathering(product):
        def gathered(a, b, sfa, sfb, *more, rows=None, rows_per_token=1, **options):
            taken.append((len(a), rows is None, rows_per_token))
            if rows is not None:
                token = rows.long() // rows_per_token
                a, sfa = a[token], None if sfa is None else sfa.view(torch.uint8)[token]
            return product(a, b, sfa, sfb, *more, **options)

        return gathered

    x = activations(9, 64 * apart)[:, ::apart]  # the operators want whole rows
    ids, weights = routed(9, 8, 3)
    ids[2, 1], ids[5] = 8, -1
    got = moe(x.contiguous()), moe.experts(x, ids, weights)
    for name in ("grouped_gemm", "grouped_dual_gemm"):
        monkeypatch.setattr(nk, name, gathering(getattr(nk, name)))
    want = moe(x.contiguous()), moe.experts(x, ids, weights)
    assert taken == 2 * [(9, False, 3), (27, True, 1)]
    assert all(map(torch.equal, got, want))


def test_experts_without_any_of_their_own():
    experts = experts_of(None)
    ids, weights = routed(3, 5, 2)
    got = experts(activations(3, 64), torch.full_like(ids, 5), weights)
    assert bool((got == 0).all())
    got = experts(activations(3, 64), ids[:, :0], weights[:, :0])  # nor any selection
    assert got.shape == (3, 64) and bool((got == 0).all())


@pytest.mark.parametrize("input_quant", [None, "dynamic"])
def test_a_mixture_takes_inputs_of_any_strides(input_quant):
    moe = filled(NVFP4MoE(64, 48, 8, 3, input_quant=input_quant, dtype=torch.bfloat16), 7)
    for x in activations(64, 7).t(), activations(7, 128)[:, ::2]:
        assert torch.equal(moe(x), moe(x.contiguous()))


@pytest.mark.parametrize("gating", [{}, GATINGS[1] | {"limit": 7.0}, *GATINGS[-2:]], ids=str)
@pytest.mark.parametrize("input_quant", [None, "static"])
def test_gradient_of_experts(input_quant, gating):
    experts = experts_of(input_quant, **gating)
    names = [name for name, _ in experts.named_parameters() if name.endswith("bias")]
    biases = [experts.get_parameter(name).requires_grad_() for name in names]
    in_float32 = [each.detach().float().requires_grad_() for each in biases]
    one, two = in_float32 or [torch.zeros(5, 1)] * 2
    x = activations(7, 64).requires_grad_()
    ids, weights = routed(7, 5, 3)
    ids[4, 2] = 5
    weights.requires_grad_()
    y = experts(x, ids, weights)
    apart = y.detach() - experts(x.detach(), ids, weights.detach())
    # What lies between the products is rounded to 16 bits here, which may move codes.
    assert apart.norm() <= (0.01 if input_quant is None else 0.05) * y.detach().norm()
    grad = activations(7, 64, seed=8)
    y.backward(grad)
    gate_up, down = map(experts.dequantize, experts.stacks)
    x2, w2 = x.detach().float().requires_grad_(), weights.detach().clone().requires_grad_()
    total = []
    for t in range(7):
        parts = []
        for j in range(3):
            if ids[t, j] < 5:
                e = ids[t, j]
                h = between(experts, gate_up[e] @ x2[t] + one[e])
                parts.append(w2[t, j] * (down[e] @ h + two[e]))
        total.append(sum(parts))
    torch.stack(total).backward(grad.float())
    loose = 0.03 if input_quant is None else 0.3  # quantised inputs: the identity is a model
    for got, want in zip(biases, in_float32, strict=True):
        assert (got.grad - want.grad).norm() <= loose * want.grad.norm()
    assert bool(((x.grad - x2.grad).norm() <= loose * x2.grad.norm()).all())
    assert bool(((weights.grad - w2.grad).norm() <= loose * w2.grad.norm()).all())


@pytest.mark.parametrize("input_quant", [None, "static", "dynamic"])
@pytest.mark.parametrize("dual", ["x", "weights"])
def test_forward_mode_derivatives_are_refused(input_quant, dual):
    given = dict(zip(("ids", "weights"), routed(4, 5, 2), strict=True), x=activations(4, 64))
    moe = filled(NVFP4MoE(64, 48, 5, 2, input_quant=input_quant, dtype=torch.bfloat16), 2)
    for wanted in (False, True):  # a gradient, too
        value = given[dual].clone().requires_grad_(wanted)
        with forward_ad.dual_level():
            args = given | {dual: with_tangent(value)}
            with pytest.raises(NotImplementedError, match="forward"):
                moe.experts(args["x"], args["ids"], args["weights"])
            if dual == "x":
                with pytest.raises(NotImplementedError, match="forward"):
                    moe(args["x"])


def test_absent_experts_have_no_gradient():
    """Their weights may even be NaN; what others get is what it is without them."""
    experts = experts_of(None)
    ids, weights = routed(7, 5, 3)
    x, grad, given, found = activations(7, 64), activations(7, 64, seed=8), weights.clone(), []
    absent = torch.zeros_like(ids, dtype=torch.bool)
    absent[1], absent[4, 2] = True, True
    for weight in (0.0, torch.nan):
        x_given, w_given = x.clone().requires_grad_(), given.masked_fill(absent, weight)
        y = experts(x_given, ids.masked_fill(absent, -1), w_given.requires_grad_())
        y.backward(grad)
        assert bool((y[1] == 0).all() and (x_given.grad[1] == 0).all())
        assert bool((w_given.grad[absent] == 0).all() and (w_given.grad[~absent] != 0).all())
        found.append((y.detach(), x_given.grad, w_given.grad))
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("alone", ["weights", "residual"])
def test_gradients_of_what_is_combined_alone(alone):
    """x wants none, so the products have none."""
    experts = experts_of("static")
    x, grad = activations(7, 64), activations(7, 64, seed=8)
    weights, ids, _, offsets, rows, row_of = nk.route(
        x, activations(5, 64, seed=4), 3, permutation=True, return_row_of=True
    )
    residual = activations(7, 64, seed=5)
    wanted = {"weights": weights, "residual": residual}[alone].requires_grad_()
    experts.combine(x, ids, weights, rows, offsets, row_of, residual).backward(grad)
    if alone == "residual":
        assert torch.equal(wanted.grad, grad)
        return
    products = experts._products(x, rows, 3, offsets)[row_of.long()].view(7, 3, 64)
    want = (products.double() * grad.double()[:, None]).sum(-1)
    torch.testing.assert_close(wanted.grad.double(), want, rtol=1e-4, atol=1e-4)


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


def test_weights_of_any_floating_point_dtype():
    experts, x = experts_of(None), activations(7, 64)
    ids, weights = routed(7, 5, 3)
    weights = weights.bfloat16()
    strided = torch.zeros(7, 6, dtype=torch.bfloat16)[:, ::2].copy_(weights)
    want = experts(x, ids, weights)
    for given in (weights.float(), weights.double(), strided):
        assert torch.equal(experts(x, ids, given), want)


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


@pytest.mark.slow
@pytest.mark.parametrize("input_quant", [None, "static"])
def test_experts_compile_whole(input_quant):
    experts = experts_of(input_quant)
    ids, weights = routed(7, 5, 3)
    x = activations(7, 64)
    compiled = torch.compile(experts, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, ids, weights), experts(x, ids, weights))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(compiled(x.float(), ids, weights), experts(x, ids, weights))


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


def test_one_number_for_gate_and_up_becomes_two_that_share_no_memory():
    state = experts_of("static").state_dict()
    names = ("gate_up_proj_weight_scale_2", "gate_up_proj_input_scale")
    layer = NVFP4Experts(64, 48, 5, input_quant="static", device="meta")
    layer.load_state_dict(state | {name: state[name][:, 0] for name in names}, assign=True)
    for name in names:
        pair = getattr(layer, name)
        assert pair.is_contiguous() and torch.equal(pair, state[name][:, :1].repeat(1, 2))


@pytest.mark.parametrize("input_quant", [None, "static", "dynamic"])
def test_sorted_tokens_need_no_routing(input_quant):
    """As Llama-4 calls its experts: three tokens for each of five."""
    experts, x = experts_of(input_quant), activations(15, 64)
    ids = torch.arange(5).repeat_interleave(3)[:, None]
    want = experts(x, ids, torch.ones(15, 1))
    assert torch.equal(experts(x), want)
    assert torch.equal(experts(x.view(5, 3, 64)), want.view(5, 3, 64))
    with pytest.raises(ValueError, match="^x: 14 tokens, expected a multiple of 5"):
        experts(x[:14])


def test_scores_are_no_numbers_of_experts_and_none_goes_without_the_other():
    experts, x = experts_of(None), activations(5, 64)
    ids, weights = torch.zeros(5, 1, dtype=torch.int64), torch.ones(5, 1)
    with pytest.raises(TypeError, match=r"^top_k_index: torch.float32, expected numbers of expe"):
        experts(x, weights, ids)
    with pytest.raises(ValueError, match="^top_k_weights: None, expected a tensor beside"):
        experts(x, ids)
    with pytest.raises(ValueError, match="^top_k_index: None, expected a tensor beside"):
        experts(x, top_k_weights=weights)
