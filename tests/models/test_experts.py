"""nvfp4kern.nn's experts, token by token in float64."""

import pytest
import torch
from expert_by_expert import between, experts_of, routed, want_experts
from layers import activations, filled, with_tangent
from torch.autograd import forward_ad

from nvfp4kern import torch as nk
from nvfp4kern.nn import NVFP4Experts, NVFP4MoE

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
QUANTS = (None, "static", "dynamic", "token")


@pytest.mark.parametrize("gating", GATINGS, ids=str)
@pytest.mark.parametrize("input_quant", QUANTS)
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


@pytest.mark.parametrize("input_quant", QUANTS)
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
                if options.get("row_scale") is not None:
                    options["row_scale"] = options["row_scale"][token]
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


@pytest.mark.parametrize("gating", [{}, GATINGS[-2]], ids=str)
@pytest.mark.parametrize("input_quant", QUANTS)
def test_both_products_are_told_how_many_rows_to_expect(input_quant, gating, monkeypatch):
    told = []

    def telling(product):
        def tells(*args, expected_rows=None, **options):
            told.append(expected_rows)
            return product(*args, expected_rows=expected_rows, **options)

        return tells

    for name in ("grouped_gemm", "grouped_dual_gemm"):
        monkeypatch.setattr(nk, name, telling(getattr(nk, name)))
    experts, x = experts_of(input_quant, **gating), activations(7, 64)
    _, offsets, rows, _ = nk.sort_by_expert(routed(7, 5, 3)[0].int(), 5)
    args = experts._operand(x), x.dtype, rows, 3, offsets
    want, got = experts._products_of(*args), experts._products_of(*args, expected_rows=4)
    assert torch.equal(got, want) and told == [None, None, 4, 4]


def test_experts_without_any_of_their_own():
    experts = experts_of(None)
    ids, weights = routed(3, 5, 2)
    got = experts(activations(3, 64), torch.full_like(ids, 5), weights)
    assert bool((got == 0).all())
    got = experts(activations(3, 64), ids[:, :0], weights[:, :0])  # nor any selection
    assert got.shape == (3, 64) and bool((got == 0).all())


@pytest.mark.parametrize("gating", [{}, GATINGS[1] | {"limit": 7.0}, *GATINGS[-2:]], ids=str)
@pytest.mark.parametrize("input_quant", [None, "static", "token"])
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


@pytest.mark.parametrize("input_quant", QUANTS)
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


def test_weights_of_any_floating_point_dtype():
    experts, x = experts_of(None), activations(7, 64)
    ids, weights = routed(7, 5, 3)
    weights = weights.bfloat16()
    strided = torch.zeros(7, 6, dtype=torch.bfloat16)[:, ::2].copy_(weights)
    want = experts(x, ids, weights)
    for given in (weights.float(), weights.double(), strided):
        assert torch.equal(experts(x, ids, given), want)


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


def test_one_number_for_gate_and_up_becomes_two_that_share_no_memory():
    state = experts_of("static").state_dict()
    names = ("gate_up_proj_weight_scale_2", "gate_up_proj_input_scale")
    layer = NVFP4Experts(64, 48, 5, input_quant="static", device="meta")
    layer.load_state_dict(state | {name: state[name][:, 0] for name in names}, assign=True)
    for name in names:
        pair = getattr(layer, name)
        assert pair.is_contiguous() and torch.equal(pair, state[name][:, :1].repeat(1, 2))


@pytest.mark.parametrize("input_quant", QUANTS)
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
