"""Recipe "gptq", beside one written here column by column."""

import numpy
import pytest
import torch
from layers import decoded, weights
from torch import nn

from nvfp4kern.nn import NVFP4Config, NVFP4Experts, NVFP4Linear, quantize_
from nvfp4kern.nn.gptq import Compensation, Hessians
from nvfp4kern.nn.inputs import Inputs
from nvfp4kern.nn.recipes import quantize_weight

E2M1 = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6])
E4M3 = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()
GPTQ = NVFP4Config(recipe="gptq")


def correlated(rows, columns, rank, seed=0):
    g = torch.Generator().manual_seed(seed)
    common = torch.randn(rows, rank, generator=g) @ torch.randn(rank, columns, generator=g)
    return common + 0.3 * torch.randn(rows, columns, generator=g)


def dequantized(q):
    return decoded(*q[:2], q.global_scale.double())


def hessian_of(x):
    return x.double().T @ x.double()


def plain(weight, hessian, global_scale):
    """Each column in turn, with the inverse of what is left of the Hessian."""
    k = weight.shape[1]
    w = weight.double().numpy() / float(global_scale)
    h = hessian.numpy().copy()
    h += numpy.eye(k) * (0.01 * h.diagonal().mean() or 1.0)
    inverse, out = numpy.linalg.inv(h), numpy.empty_like(w)
    scales = numpy.empty((len(w), k // 16))
    for i in range(k):
        if i % 16 == 0:
            scales[:, i // 16] = [scale_of(block) for block in w[:, i : i + 16]]
        scale = scales[:, i // 16]
        values = E2M1 * scale[:, None]
        out[:, i] = values[range(len(w)), numpy.abs(w[:, i, None] - values).argmin(1)]
        w[:, i + 1 :] -= numpy.outer((w[:, i] - out[:, i]) / inverse[i, i], inverse[i, i + 1 :])
        inverse -= numpy.outer(inverse[:, i], inverse[i]) / inverse[i, i]
    return torch.from_numpy(out * float(global_scale))


def scale_of(block):
    """Of those around the one by which the largest becomes 6."""
    middle = numpy.abs(E4M3 - min(numpy.abs(block).max() / 6, 448)).argmin()
    near = E4M3[max(middle - 3, 0) : middle + 7]
    values = numpy.abs(block[None, :, None]) - E2M1[:8] * near[:, None, None]
    return near[(numpy.abs(values).min(-1) ** 2).sum(-1).argmin()]


@pytest.mark.parametrize("kind", ["full", "singular", "dead", "zeros"])
def test_codes_are_those_of_a_plain_one(kind):
    weight = weights(1, 24, 320, 1)
    x = correlated(30 if kind == "singular" else 800, 320, 8)
    if kind == "dead":
        x[:, 5:40] = 0
        x[:, 200] = 0
    hessian = hessian_of(x) * (kind != "zeros")
    q = quantize_weight(weight, "gptq", None, Compensation(hessian))
    assert q.global_scale == weight.abs().max() / (6 * 256)
    want = plain(weight, hessian, q.global_scale)
    torch.testing.assert_close(dequantized(q), want, rtol=1e-6, atol=0)
    if kind == "zeros":
        alone = quantize_weight(weight, "mse", q.global_scale)
        assert torch.equal(q.data, alone.data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [4, 64])
def test_results_are_nearer_than_amax_s_and_mse_s(rank, dtype):
    weight, x = weights(2, 64, 256).to(dtype), correlated(2000, 256, rank)
    seen, new = x[:1000].double(), x[1000:].double()
    hessian = hessian_of(seen).float()
    for inputs in (seen, new):
        norms = {}
        for recipe in ("amax", "mse", "gptq"):
            how = Compensation(hessian) if recipe == "gptq" else None
            q = quantize_weight(weight, recipe, None, how)
            norms[recipe] = float((inputs @ (dequantized(q) - weight.double()).T).norm())
        assert norms["gptq"] < 0.7 * norms["mse"] < 0.7 * norms["amax"]


class Toy(nn.Module):
    """`late` sees half of the inputs, `never` none, and `up` is called `again`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        names = ("up", "late", "never")
        self.up, self.late, self.never = (nn.Linear(64, 64, dtype=torch.bfloat16) for _ in names)
        self.again = self.up

    def forward(self, x):
        return self.late(input=self.up(x)[::2])


def batches():
    return [correlated(50, 64, 4, seed).bfloat16() for seed in range(4)]


def test_a_model_is_calibrated_by_what_it_runs_on():
    model, seen = Toy(), {"up": [], "late": []}
    original = {name: getattr(model, name).weight.detach() for name in ("up", "late", "never")}
    for name, given in seen.items():
        layer = getattr(model, name)
        layer.register_forward_pre_hook(
            lambda _, x, named, given=given: given.append(*x, *named.values()), with_kwargs=True
        )

    def run(given):
        assert given is model and not torch.is_grad_enabled()
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            model(batches()[0])
        for x in batches()[1:]:
            model(x)

    with pytest.warns(UserWarning, match="recipe 'amax' for 1 weights, .* reached them: never;"):
        report = quantize_(model, GPTQ, calibrate=run)
    assert report == ["up", "late", "never", "again"] and report.uncalibrated == ["never"]
    assert "  never: by 'amax', as no input of calibration reached it" in str(report)
    assert model.up is model.again and len(model.up._forward_pre_hooks) == 1
    for name, weight in original.items():
        recipe, how = "amax", None
        if name in seen:
            hessian = sum(x.float().T @ x.float() for x in seen[name])
            recipe, how = "gptq", Compensation(hessian)
        want = quantize_weight(weight, recipe, None, how)
        layer = getattr(model, name)
        assert type(layer) is NVFP4Linear and torch.equal(layer.weight, want.data)
        assert layer.weight_scale_2 == want.global_scale


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38])
def test_inputs_that_are_not_finite_are_refused_by_name(value):
    model = Toy()

    def run(model):
        x = batches()[0]
        x[0, 3] = value
        model(x)

    with pytest.raises(ValueError, match="^up: inputs of calibration: NaN, infinities, or too lar"):
        quantize_(model, GPTQ, calibrate=run)
    assert type(model.up) is nn.Linear and not model.up._forward_pre_hooks
    model.late.weight.data[0, 0] = value if value != 3e38 else torch.nan
    with pytest.raises(ValueError, match="^late: weight: has NaN or infinities"):
        quantize_(model, GPTQ, calibrate=lambda model: model(batches()[0]))


def test_calibration_belongs_to_gptq():
    model = Toy()
    with pytest.raises(ValueError, match="calibrate: expected with recipe='gptq', and only then"):
        quantize_(model, GPTQ)
    with pytest.raises(ValueError, match="calibrate: expected with recipe='gptq', and only then"):
        quantize_(model, calibrate=model)
    with pytest.raises(ValueError, match="recipe: 'gptq', of which 'gptq' alone needs inputs"):
        NVFP4Linear.from_linear(model.up, recipe="gptq")
    with pytest.raises(ValueError, match="recipe: 'mse', of which 'gptq' alone needs inputs"):
        NVFP4Linear.from_linear(model.up, recipe="mse", hessian=torch.eye(64))
    with pytest.raises(ValueError, match=r"hessian: \[32, 32\], expected \[64, 64\]"):
        NVFP4Linear.from_linear(model.up, recipe="gptq", hessian=torch.eye(32))
    with pytest.raises(ValueError, match="inputs of calibration: no Hessian, .*positive"):
        NVFP4Linear.from_linear(model.up, recipe="gptq", hessian=torch.ones(64, 64) - torch.eye(64))
    with pytest.raises(KeyError, match="calibration's own"):
        quantize_(model, GPTQ, calibrate=lambda model: {}["calibration's own"])
    assert type(model.up) is nn.Linear and not model.up._forward_pre_hooks


class Experts(nn.Module):
    """As transformers' eager ones."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gate_up_proj = nn.Parameter(torch.randn(3, 64, 32).bfloat16())
        self.down_proj = nn.Parameter(torch.randn(3, 32, 32).bfloat16())
        self.act_fn = nn.SiLU()
        self.results = {}

    def forward(self, hidden_states, top_k_index, top_k_weights):
        for e in top_k_index.unique():
            x = hidden_states[(top_k_index == e).any(-1)]
            gate, up = nn.functional.linear(x, self.gate_up_proj[e]).chunk(2, dim=-1)
            inner = self.act_fn(gate) * up
            self.results[int(e)] = x, inner
            nn.functional.linear(inner, self.down_proj[e])
        return hidden_states


def test_each_expert_is_calibrated_by_its_own_tokens():
    """Expert 1 has none."""
    model = nn.ModuleDict({"experts": Experts()})
    experts = model["experts"]
    x = correlated(60, 32, 3).bfloat16()
    ids = torch.tensor([[0], [2]]).repeat(30, 1)
    with pytest.warns(UserWarning, match="recipe 'amax' for 2 weights"):
        report = quantize_(
            model, GPTQ, calibrate=lambda model: experts(x, ids, torch.ones(60, 1).bfloat16())
        )
    assert report.uncalibrated == ["experts.down_proj.1", "experts.gate_up_proj.1"]
    made = model["experts"]
    assert type(made) is NVFP4Experts
    for e in range(3):
        for name, i in (("gate_up_proj", 0), ("down_proj", 1)):
            weight = getattr(experts, name).detach()[e]
            for j, half in enumerate(weight.split(32)):
                recipe, how = "amax", None
                if e in experts.results:
                    hessian = hessian_of(experts.results[e][i].float()).float()
                    recipe, how = "gptq", Compensation(hessian)
                want = quantize_weight(half, recipe, None, how)
                assert torch.equal(getattr(made, name)[e, 32 * j :][:32], want.data)


def test_hessians_count_all_experts_of_one_product():
    experts = Experts()
    seen = Hessians()
    x = torch.randn(3, 5, 32).bfloat16()
    with seen.watching({}, {"e": experts}), torch.no_grad():
        seen._running.append(("e", experts))
        torch.bmm(x, experts.down_proj.mT)  # square
    assert seen.values.keys() == {("e.down_proj", e) for e in range(3)}
    for (_, e), found in seen.values.items():
        torch.testing.assert_close(found, hessian_of(x[e].float()).float(), rtol=1e-5, atol=1e-4)


def test_an_expert_that_gets_zeros_alone_saw_no_token():
    """As Llama-4's do, which get all tokens."""
    experts, seen = Experts(), Hessians()
    x = torch.randn(3, 5, 32).bfloat16()
    x[1] = 0
    with seen.watching({}, {"e": experts}), torch.no_grad():
        seen._running.append(("e", experts))
        torch.bmm(x, experts.down_proj)
    assert seen.values.keys() == {("e.down_proj", e) for e in (0, 2)}


def test_experts_within_experts_get_their_own_inputs():
    """What runs behind the inner ones is the outer ones'."""

    class Outer(Experts):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x @ self.down_proj[0]) @ self.down_proj[1]

    class Inner(Experts):
        def forward(self, x):
            return x @ self.down_proj[2]

    class Told(Inputs):
        def see(self, name, expert, given):
            told.append((name, expert))

    outer, told = Outer(), []
    seen = Told()
    with seen.watching({}, {"e": outer, "e.inner": outer.inner}), torch.no_grad():
        outer(torch.randn(3, 32).bfloat16())
    assert told == [("e.down_proj", 0), ("e.inner.down_proj", 2), ("e.down_proj", 1)]


@pytest.mark.parametrize("column", [False, True])
def test_copies_of_experts_are_counted_for_none(column):
    """transformers' "batched_mm" has one for each token and expert, as many as experts here."""
    experts, told = Experts(), []

    class Told(Inputs):
        def see(self, name, expert, given):
            told.append((name, expert, given.flatten().tolist()))

    seen, x = Told(), torch.randn(3, 32).bfloat16()
    with seen.watching({}, {"e": experts}), torch.no_grad():
        copies = experts.down_proj[torch.tensor([2, 2, 0])]
        seen._running.append(("e", experts))
        torch.bmm(copies, x[..., None]) if column else torch.bmm(x[:, None], copies)
    assert told == [("e.down_proj", -1, x.flatten().tolist())]
