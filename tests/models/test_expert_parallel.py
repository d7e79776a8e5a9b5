"""Experts across ranks against all experts in one process, which test_experts.py holds to
float64."""

import copy

import pytest
import torch
from layers import activations, filled, with_tangent
from rank_cases import OwnRouter, compiled_experts, disagreeing
from rank_cases import experts as run_experts
from rank_cases import mixture as run_mixture
from skeletons import Stack
from torch import nn
from torch.autograd import forward_ad

from nvfp4kern import torch as nk
from nvfp4kern.distributed import ExpertParallel
from nvfp4kern.distributed.cut import evenly
from nvfp4kern.nn import NVFP4Experts, NVFP4MoE, NVFP4SwiGLU

WORLDS = (2, 3)
QUANTS = (None, "static", "dynamic")
H, INNER, E, K = 64, 48, 7, 3
FP32 = {"reduce_dtype": torch.float32}
NAN = float("nan")


def experts_of(input_quant, e=E, **gating):
    return filled(NVFP4Experts(H, INNER, e, input_quant=input_quant, **gating), 6)


def routed(tokens, among, k=K, seed=3):
    """Experts of tokens. Weights are powers of two: their sums are exact in fp32, in any order."""
    draw = torch.Generator().manual_seed(seed)
    among = torch.as_tensor(among)
    ids = torch.stack(
        [among[torch.randperm(len(among), generator=draw)[:k]] for _ in range(tokens)]
    )
    return ids, 2.0 ** -torch.randint(0, 4, (tokens, k), generator=draw)


def tokens_of(n, among=range(E), k=K, seed=3, dtype=torch.bfloat16):
    """(x, ids, weights)"""
    if n == 0:
        return activations(0, H, dtype=dtype), torch.zeros(0, k).long(), torch.zeros(0, k)
    return activations(n, H, dtype=dtype, seed=seed), *routed(n, among, k, seed)


def of_each_rank(world, counts, **options):
    return [tokens_of(n, seed=3 + rank, **options) for rank, n in enumerate(counts[:world])]


# --- Each rank's own tokens ---


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("input_quant", QUANTS)
@pytest.mark.parametrize("e", [3, E])
def test_own_tokens_have_the_bits_of_one_process(team, world, input_quant, e):
    """One expert a rank, and experts that ranks cannot share evenly."""
    whole = experts_of(input_quant, e)
    inputs = of_each_rank(world, (5, 5, 5), among=range(e), k=min(K, e))
    inputs[1][1][2] = torch.tensor([-1, e, 10**9][: inputs[1][1].shape[1]])  # nobody's
    got = team(world).run(run_experts, whole, inputs, FP32)
    for y, given in zip(got, inputs, strict=True):
        assert y.dtype == torch.bfloat16 and torch.equal(y, whole(*given))
    assert bool((got[1][2] == 0).all()) and got[1].unique().numel() > 100


@pytest.mark.parametrize(
    "gating", [{"activation": "swiglu_oai", "limit": 2.0}, {"gated": False, "activation": "relu2"}]
)
@pytest.mark.parametrize("input_quant", QUANTS)
def test_ranks_have_the_gate_and_their_biases(team, input_quant, gating):
    gating = gating | {"bias": True, "dtype": torch.bfloat16}
    whole, inputs = experts_of(input_quant, **gating), of_each_rank(2, (5, 5))
    got = team(2).run(run_experts, whole, inputs, FP32)
    for y, given in zip(got, inputs, strict=True):
        assert torch.equal(y, whole(*given))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("input_quant", QUANTS)
@pytest.mark.parametrize("counts", [(4, 0, 6), (0, 1, 0), (0, 0, 0), (6, 6, 6)], ids=str)
def test_ranks_with_fewer_tokens_or_none(team, world, input_quant, counts):
    """What is filled up holds NaN, in all that nobody has written."""
    whole, inputs = experts_of(input_quant), of_each_rank(world, counts)
    got = team(world).run(run_experts, whole, inputs, {**FP32, "tokens_per_rank": 6})
    for y, given in zip(got, inputs, strict=True):
        assert torch.equal(y, whole(*given))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("input_quant", QUANTS)
@pytest.mark.parametrize("to", [0, -1])
@pytest.mark.parametrize("reduce_dtype", [None, torch.float32])
def test_all_tokens_on_one_rank(team, world, input_quant, to, reduce_dtype):
    """The others add zeros, so 16 bits have the bits of one process, too."""
    whole = experts_of(input_quant)
    start, stop = evenly(E, to % world, world)
    inputs = of_each_rank(world, (5, 5, 5), among=range(start, stop), k=2)
    for y, given in zip(
        team(world).run(run_experts, whole, inputs, {"reduce_dtype": reduce_dtype}),
        inputs, strict=True,
    ):  # fmt: skip
        assert torch.equal(y, whole(*given))


@pytest.mark.parametrize("input_quant", QUANTS)
def test_tokens_of_no_meaning_may_be_nan(team, input_quant):
    whole, inputs = experts_of(input_quant), of_each_rank(2, (6, 6))
    clean = [whole(*given) for given in inputs]
    for (x, ids, _), y in zip(inputs, clean, strict=True):
        x[1::2], ids[1::2], y[1::2] = NAN, -1, 0
    for y, want in zip(team(2).run(run_experts, whole, inputs, FP32), clean, strict=True):
        assert torch.equal(y, want)


@pytest.mark.parametrize("input_quant", ["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_tokens_of_other_dtypes(team, input_quant, dtype):
    whole, inputs = experts_of(input_quant), of_each_rank(2, (4, 4), dtype=dtype)
    for y, given in zip(team(2).run(run_experts, whole, inputs, FP32), inputs, strict=True):
        want = whole(*given)
        assert y.dtype == dtype
        if dtype == torch.float32:  # products of 24 bits: their sums are not exact
            assert bool(((y - want).abs() <= 2.0**-22 * want.abs().max()).all())
        else:
            assert torch.equal(y, want)


@pytest.mark.parametrize("input_quant", QUANTS)
def test_16_bits_round_once_for_each_rank(team, input_quant):
    """With two ranks: each one's sum, and the sum of these. With three: their bound."""
    whole = experts_of(input_quant)
    inputs = of_each_rank(3, (5, 5, 5))
    for world in WORLDS:
        got = team(world).run(run_experts, whole, inputs[:world], {})
        for y, (x, ids, weights) in zip(got, inputs, strict=False):
            parts = []
            for rank in range(world):
                start, stop = evenly(E, rank, world)
                parts.append(whole(x, ids.where((ids >= start) & (ids < stop), -1), weights))
            if world == 2:
                assert torch.equal(y, parts[0] + parts[1])
            want, size = (sum(p.double() for p in each) for each in (parts, map(torch.abs, parts)))
            assert bool(((y.double() - want).abs() <= 1.01 * world * 2.0**-8 * size).all())


# --- The same tokens on all ranks, and whole mixtures ---


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("input_quant", [*QUANTS, "token"])
def test_the_same_tokens_on_all_ranks(team, world, input_quant):
    whole, given = experts_of(input_quant), tokens_of(6)
    given[1][2, 1], given[0][4], given[1][4] = E, NAN, -1
    want = whole(*given)
    for y in team(world).run(run_experts, whole, [given], {**FP32, "tokens": "same"}):
        assert torch.equal(y, want) and bool((y[4] == 0).all())


def mixture_of(input_quant, shared=False, router=None):
    shared_experts = filled(NVFP4SwiGLU(H, 32), 9) if shared else None
    moe = NVFP4MoE(
        H, INNER, E, K, score="sigmoid", correction_bias=True, scaling_factor=1.5, router=router,
        input_quant=input_quant, shared_experts=shared_experts, dtype=torch.bfloat16,
    )  # fmt: skip
    return filled(moe, 7)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("tokens", ["own", "same"])
@pytest.mark.parametrize("input_quant", [None, "static"])
@pytest.mark.parametrize("router", [None, OwnRouter(E, K)], ids=["gate", "router"])
def test_a_mixture_with_its_router(team, world, tokens, input_quant, router):
    """With "same" the router's permutation serves, cut. Weights are any: fp32 sums have orders."""
    moe = mixture_of(input_quant, shared=True, router=router)
    inputs = [activations(2, 4, H, seed=20 + rank) for rank in range(world)]
    options = {"tokens": tokens, "tokens_per_rank": 9 if tokens == "own" else None, **FP32}
    got = team(world).run(run_mixture, copy.deepcopy(moe), inputs, options)
    for rank, y in enumerate(got):
        want = moe(inputs[rank if tokens == "own" else 0]).double()
        # A sum in another order, which may round to another neighbour, beside the shared experts'.
        assert y.shape == (2, 4, H)
        assert bool(((y.double() - want).abs() <= 2.0**-7 * want.abs().max()).all())
        assert (y == want).double().mean() > 0.98


@pytest.mark.slow
@pytest.mark.parametrize("tokens", ["own", "same"])
def test_experts_compile_whole(team, tokens):
    run = team(2).run(compiled_experts, experts_of("static"), tokens_of(4), tokens)
    assert run == [True, True]


# --- Ranks that disagree ---


def changed(x, ids, weights, *, dtype=torch.bfloat16, k=K, tokens=5):
    return x[:tokens].to(dtype), ids[:tokens, :k], weights[:tokens, :k]


DIFFER = {  # of rank 1: its input, its options, what rank 0 says
    "dtype": ({"dtype": torch.float16}, {}, "dtype=torch.float16, here dtype=torch.bfloat16"),
    "k in the padding": ({"k": 2}, {}, "k=2, here k=3"),
    "tokens": ({"tokens": 4}, {}, "tokens=4, here tokens=5"),
    "reduce_dtype": (
        {}, {"reduce_dtype": torch.float32},
        "reduce_dtype=torch.float32, here reduce_dtype=None",
    ),
    "transport": (
        {}, {"transport": "collective"}, "transport=collective, here transport=auto",
    ),
    "several": ({"tokens": 4, "k": 1}, {}, "tokens=4, here tokens=5; k=1, here k=3"),
}  # fmt: skip


@pytest.mark.parametrize("tokens", ["own", "same"])
@pytest.mark.parametrize("what", DIFFER)
def test_ranks_that_disagree_are_refused_on_all_of_them(team, tokens, what):
    change, option, says = DIFFER[what]
    inputs = [tokens_of(5), changed(*tokens_of(5), **change)]
    options = [{"tokens": tokens}, {"tokens": tokens, **option}]
    make = ExpertParallel.slice_of
    got = team(2).run(disagreeing, make, experts_of(None), inputs, options)
    assert got[0] == (f"rank 1 of the group has {says}; expected the same on all", 2.0)
    assert got[1][0].startswith("rank 0 of the group has ") and got[1][1] == 2.0
    inputs = [changed(*tokens_of(5), **change)] * 2  # the same change on both
    got = team(2).run(disagreeing, make, experts_of(None), inputs, [options[1]] * 2)
    assert got == [("nothing", 2.0)] * 2


# --- One process ---


@pytest.mark.parametrize("size, world", [(7, 3), (8, 4), (3, 3), (256, 7)])
def test_ranges_are_side_by_side_and_even(size, world):
    ranges = [evenly(size, rank, world) for rank in range(world)]
    lengths = [stop - start for start, stop in ranges]
    assert [i for each in ranges for i in range(*each)] == list(range(size))
    assert lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 1


@pytest.mark.parametrize("input_quant", QUANTS)
def test_what_a_rank_has_of_the_experts(as_rank, input_quant):
    """Its own, but every expert's input scale: a token is quantised once, for all of them."""
    as_rank(2, 3)
    whole = experts_of(input_quant)
    mine = ExpertParallel.slice_of(whole.train())
    assert mine.training and mine.num_experts == 2 and mine.all_experts == E
    for name, value in mine.named_parameters():
        want = getattr(whole, name)
        want = want if name.endswith("input_scale") else want[5:]
        assert torch.equal(value.view(torch.uint8), want.view(torch.uint8)), name
        assert value.untyped_storage().nbytes() == value.nbytes  # not a view of the whole
        assert value.data_ptr() != want.data_ptr()
    if input_quant == "static":
        assert mine.gate_up_input == whole.gate_up_input and mine.down_input == whole.down_input
    again = ExpertParallel(H, INNER, E, input_quant=input_quant)
    again.load_state_dict(mine.state_dict())
    assert torch.equal(again.gate_up_alpha, mine.gate_up_alpha)
    assert "rank=2 of 3" in repr(mine)


def test_one_input_scale_of_an_expert_serves_gate_and_up(as_rank):
    as_rank(2, 3)
    state = ExpertParallel.slice_of(experts_of("static")).state_dict()
    name = "gate_up_proj_input_scale"
    mine = ExpertParallel(H, INNER, E, input_quant="static")
    mine.load_state_dict(state | {name: state[name][:, 0]})
    assert torch.equal(mine.gate_up_proj_input_scale, state[name][:, :1].repeat(1, 2))


@pytest.mark.parametrize(
    "input_quant, dtype, nbytes",
    [(None, torch.bfloat16, 2 * 2048 + 64), ("static", torch.bfloat16, 0.5625 * 2048 + 64)],
)
def test_codes_are_sent_where_there_are_codes(as_rank, input_quant, dtype, nbytes):
    """And with each token its 8 experts' numbers and weights, 4 bytes each."""
    as_rank(0, 2)
    mine = ExpertParallel(2048, 768, 128, input_quant=input_quant, device="meta")
    x = torch.empty(5, 2048, dtype=dtype, device="meta")
    ids, weights = (torch.empty(5, 8, dtype=d, device="meta") for d in (torch.int64, torch.float32))
    assert mine._sent(x, ids, weights).shape == (5, nbytes)


@pytest.mark.parametrize("input_quant", [None, "static"])
@pytest.mark.parametrize("k", [1, 3])
def test_rows_of_bytes_say_what_was_sent(as_rank, monkeypatch, input_quant, k):
    """Rows that fill up are nobody's, and memory that was there before has experts' numbers."""
    as_rank(0, 2)
    part = ExpertParallel.slice_of(experts_of(input_quant), tokens_per_rank=5)
    x, ids, weights = tokens_of(2, k=k)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", torch.zeros)
        rows = part._sent(x, ids, weights)
    a, scales, sent_ids, sent_weights = columns = part._columns(rows, k, x.dtype)
    for each in columns:  # kernels read all of them where they lie, 16 bytes at a time
        assert each is None or (each.data_ptr() - rows.data_ptr()) % 16 == 0
        assert each is None or each.stride(0) * each.element_size() % 16 == 0
    want_a, want_scales, _ = NVFP4Experts._operand(part, x)
    assert torch.equal(a[:2], want_a) and (scales is None) == (want_scales is None)
    if scales is not None:
        assert torch.equal(scales[:2].view(torch.uint8), want_scales.view(torch.uint8))
    assert torch.equal(sent_ids[:2], ids.int()) and bool((sent_ids[2:] == -1).all())
    assert torch.equal(sent_weights[:2], weights)


@pytest.mark.parametrize("copies, share", [(None, 7), ([*range(E), 0, 1], 8)])
def test_tiles_are_for_the_ranks_share_of_rows(as_rank, monkeypatch, copies, share):
    """Of 24 rows: 2 of 7 experts, or 3 of 9 copies."""
    as_rank(2, 3)
    mine = ExpertParallel.slice_of(experts_of(None), tokens="same", physical_to_logical=copies)
    asked = []

    def asking(function):
        return lambda *given, **more: (
            asked.append(more["expected_rows"]) or function(*given, **more)
        )

    for name in ("grouped_gemm", "grouped_dual_gemm"):
        monkeypatch.setattr(nk, name, asking(getattr(nk, name)))
    x, ids, weights = tokens_of(8)
    mine._partial(mine._operand(x), weights, mine._by_expert(ids.int()), x.dtype)
    assert asked == [share, share]


def test_parts_of_transformers_experts(as_rank):
    as_rank(1, 3)
    unset = ExpertParallel.slice_of(Stack(E, INNER, H), tokens="same")
    assert unset.down_proj.is_meta and unset.down_proj.shape == (2, H, INNER // 2)
    stack = Stack(E, INNER, H, "cpu")
    mine = ExpertParallel.from_experts(stack, input_quant="dynamic", tokens="same")
    whole = NVFP4Experts.from_experts(stack)
    assert torch.equal(mine.gate_up_proj, whole.gate_up_proj[3:5])
    assert (mine.input_quant, mine.tokens) == ("dynamic", "same")


REFUSED = {
    "too few": (lambda: ExpertParallel(H, INNER, 2), "num_experts: 2, expected one for each of 3"),
    "tokens": (
        lambda: ExpertParallel(H, INNER, E, tokens="all"),
        "tokens: 'all', expected one of 'own', 'same'",
    ),
    "reduce_dtype": (
        lambda: ExpertParallel(H, INNER, E, reduce_dtype=torch.float16),
        "reduce_dtype: torch.float16, expected one of None, torch.float32",
    ),
    "values": (
        lambda: ExpertParallel.slice_of(Stack(E, INNER, H, "cpu")),
        "layer: experts with values, expected them quantised or on 'meta'",
    ),
    "a slice": (
        lambda: ExpertParallel.slice_of(ExpertParallel(H, INNER, E)),
        "layer: ExpertParallel is a rank's slice",
    ),
    "no experts": (
        lambda: ExpertParallel.slice_of(nn.Linear(2, 2)),
        "layer: Linear has no gate_up_proj",
    ),
    "token": (
        lambda: ExpertParallel(H, INNER, E, input_quant="token", tokens="own"),
        "input_quant: 'token', expected tokens='same'",
    ),
    "too many tokens": (
        lambda: ExpertParallel(H, INNER, E, tokens_per_rank=4)(*tokens_of(5)),
        "x: 5 tokens, expected at most tokens_per_rank = 4",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_wrong_is_said_by_name(as_rank, kind):
    as_rank(1, 3)
    make, message = REFUSED[kind]
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


@pytest.mark.parametrize("tokens", ["own", "same"])
def test_inputs_that_want_a_gradient_are_refused(as_rank, tokens):
    as_rank(0, 2)
    x, ids, weights = tokens_of(3)
    mine = ExpertParallel.slice_of(experts_of(None), tokens=tokens)
    with pytest.raises(NotImplementedError, match="^top_k_weights: wants a gradient"):
        mine(x, ids, weights.requires_grad_())
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="^x: .* has a tangent"):
        mine(with_tangent(x), ids, weights.detach())
    with pytest.raises(NotImplementedError, match="^x: wants a gradient"):
        mine(x.requires_grad_(), ids, weights)
    for name in ("gate_up_proj_bias", "down_proj_bias"):
        mine = ExpertParallel.slice_of(experts_of(None, bias=True), tokens=tokens)
        getattr(mine, name).requires_grad_()
        with pytest.raises(NotImplementedError, match=f"^{name}: wants a gradient"):
            mine(x.detach(), ids, weights.detach())
