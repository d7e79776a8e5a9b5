"""Stacks of experts as transformers has them: which become NVFP4Experts, with which gates."""

from functools import partial

import pytest
import torch
from torch import nn

from nvfp4kern.nn import NVFP4Experts, quantize_


class Stack(nn.Module):
    def __init__(self, gate_up, down):
        super().__init__()
        draw = torch.Generator().manual_seed(2)
        self.gate_up_proj = nn.Parameter(torch.randn(gate_up, generator=draw).bfloat16())
        self.down_proj = nn.Parameter(torch.randn(down, generator=draw).bfloat16())
        self.act_fn = nn.SiLU()


@pytest.mark.parametrize("recipe", ["amax", "four_six"])
def test_transposed_stacks_have_the_codes_of_others(recipe):
    plain = Stack((3, 96, 64), (3, 64, 48))
    turned = Stack((3, 64, 96), (3, 48, 64))
    for key, value in plain.named_parameters():
        turned.get_parameter(key).data.copy_(value.data.transpose(1, 2))
    want, got = (NVFP4Experts.from_experts(each, recipe=recipe) for each in (plain, turned))
    for key, value in want.named_parameters():
        assert torch.equal(got.get_parameter(key).view(torch.uint8), value.view(torch.uint8)), key


class OtherOrder(Stack):
    def forward(self, hidden_states, routing_weights, router_indices):
        raise NotImplementedError


class WithItsRouter(Stack):
    def forward(self, hidden_states):
        raise NotImplementedError


@pytest.mark.parametrize("kind, change, why", [
    (OtherOrder, {}, r"forward of \(hidden_states, routing_weights, router_indices\), expected"),
    (WithItsRouter, {}, r"has a forward of \(hidden_states\), expected tokens, ids and weights"),
    (Stack, {"is_transposed": True}, r"has gate_up_proj \[2, 64, 32\] and down_proj \[2, 32, 32\]"),
    (Stack, {"has_bias": True}, "has has_bias=True"),
    (Stack, {"is_concatenated": False}, "has is_concatenated=False"),
    (Stack, {"has_gate": False}, "has has_gate=False"),
])  # fmt: skip
def test_stacks_that_compute_something_else_are_refused_by_name(kind, change, why):
    stack = kind((2, 64, 32), (2, 32, 32))
    vars(stack).update(change)
    with pytest.raises(ValueError, match=f"^experts: {kind.__name__} has.*{why[3:]}"):
        NVFP4Experts.from_experts(stack)


class Ungated(nn.Module):
    """As transformers says that there is no gate."""

    has_gate = is_transposed = False

    def __init__(self, up=(2, 32, 64), down=(2, 64, 32), act=nn.ReLU):
        super().__init__()
        draw = torch.Generator().manual_seed(2)
        self.up_proj = nn.Parameter(torch.randn(up, generator=draw).bfloat16())
        self.down_proj = nn.Parameter(torch.randn(down, generator=draw).bfloat16())
        self.act_fn = act()


class Squared(nn.ReLU):
    def forward(self, h):
        return super().forward(h).square()


@pytest.mark.parametrize("act, name", [
    (nn.ReLU, "relu"), (Squared, "relu2"), (nn.SiLU, "silu"), (nn.GELU, "gelu"),
    (partial(nn.GELU, approximate="tanh"), "gelu_tanh"), (nn.Identity, "identity"),
])  # fmt: skip
def test_stacks_without_a_gate(act, name):
    """Each matrix has the codes that a stack of it has as its downs."""
    plain, turned = Ungated(act=act), Ungated((2, 64, 32), (2, 32, 64), act)
    for key in ("up_proj", "down_proj"):
        turned.get_parameter(key).data = plain.get_parameter(key).data.transpose(1, 2)
    turned.is_transposed = True
    other = Stack((2, 128, 32), (2, 32, 64))
    other.down_proj.data = plain.up_proj.data
    want = NVFP4Experts.from_experts(other).dequantize("down_proj")
    for stack in (plain, turned):
        model = nn.ModuleDict({"experts": stack})
        assert quantize_(model) == ["experts"]
        found = model["experts"]
        assert not found.gated and found.gating["activation"] == name
        assert (found.hidden_size, found.intermediate_size, found.num_experts) == (64, 32, 2)
        assert torch.equal(found.dequantize("up_proj"), want)
        again = NVFP4Experts.like(found)
        assert dict(again.named_parameters()).keys() == dict(found.named_parameters()).keys()
        again.load_state_dict(found.state_dict())
        assert torch.equal(again.dequantize("up_proj"), want)


@pytest.mark.parametrize("change, why", [
    ({"has_gate": True}, "has an up_proj, and no has_gate=False"),
    ({"has_post_expert_norm": True}, "has has_post_expert_norm=True"),
    ({"has_bias": True}, "has has_bias=True and other biases"),
    ({"act_fn": nn.Tanh()}, r"has the activation Tanh\(\), expected silu, gelu, gelu_tanh, relu, "),
    ({"act_fn": nn.ReLU6()}, r"has the activation ReLU6\(\), expected silu, "),
    ({"act_fn": None}, "has no act_fn"),
])  # fmt: skip
def test_stacks_without_a_gate_that_are_refused(change, why):
    stack = Ungated()
    for name, value in change.items():
        setattr(stack, name, value)
    with pytest.raises(ValueError, match=f"^experts: Ungated {why}"):
        NVFP4Experts.from_experts(stack)


def test_what_no_stack_without_a_gate_has():
    why = NVFP4Experts.why_not(Ungated((2, 32, 64), (2, 64, 48)))
    assert why == "has up_proj [2, 32, 64] and down_proj [2, 64, 48]"
    for more in ({"activation": "swiglu_oai"}, {"limit": 7.0}):
        with pytest.raises(ValueError, match="^gated: False, expected True with "):
            NVFP4Experts(64, 32, 2, gated=False, **more)


class Clamped(Stack):
    limit = 3.0

    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return self.act_fn(gate.clamp(max=self.limit)) * up.clamp(-self.limit, self.limit)


class InTurn(Stack):
    swiglu_limit, swiglu_alpha = 7.0, 1.5
    has_bias, is_concatenated = True, False

    def __init__(self, *shapes):
        super().__init__(*shapes)
        self.gate_up_proj_bias = nn.Parameter(torch.arange(64.0).repeat(2, 1))
        self.down_proj_bias = nn.Parameter(torch.ones(2, 64))

    def _apply_gate(self, gate_up):
        gate, up = gate_up[..., ::2].clamp(max=7), gate_up[..., 1::2].clamp(-7, 7)
        return (up + 1) * gate * torch.sigmoid(gate * self.swiglu_alpha)


class ClampedBehind(Clamped):
    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return self.act_fn(gate).clamp(max=self.limit) * up.clamp(-self.limit, self.limit)


class ClampedUnsaid(Clamped):
    limit, clamp = None, 10.0

    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return self.act_fn(gate.clamp(max=self.clamp)) * up.clamp(-self.clamp, self.clamp)


class Unlimited(Clamped):
    limit = float("inf")


class Rounded(Stack):
    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return (self.act_fn(gate) * up).bfloat16()


def test_gates_are_known_by_their_values():
    sizes = (2, 64, 64), (2, 64, 32)
    found = NVFP4Experts.from_experts(Clamped(*sizes))
    assert found.gating == {"activation": "silu", "limit": 3.0, "activation_scale": 1.702}
    assert found.gate_up_proj_bias is None and found.down_proj_bias is None
    stack = InTurn(*sizes)
    model = nn.ModuleDict({"experts": stack})
    assert quantize_(model) == ["experts"]
    found = model["experts"]
    assert found.gating == {"activation": "swiglu_oai", "limit": 7.0, "activation_scale": 1.5}
    halves = [*range(0, 64, 2), *range(1, 64, 2)]
    assert found.gate_up_proj_bias.tolist() == [halves] * 2
    moved = Stack(*sizes)
    moved.gate_up_proj.data = stack.gate_up_proj.data[:, halves]
    moved.down_proj.data = stack.down_proj.data
    want = NVFP4Experts.from_experts(moved)
    for name in ("gate_up_proj", "down_proj"):
        assert torch.equal(found.dequantize(name), want.dequantize(name))
    assert NVFP4Experts.from_experts(Unlimited(*sizes)).gating["limit"] is None
    for kind in (ClampedBehind, ClampedUnsaid):
        assert NVFP4Experts.why_not(kind(*sizes)) == "has a gate of its own, _apply_gate"
    assert "no value for a vector" in NVFP4Experts.why_not(Rounded(*sizes))
