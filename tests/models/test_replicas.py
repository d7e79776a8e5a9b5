"""Experts that more than one rank has, against one process with one of each."""

import copy
from functools import partial

import pytest
import torch
from exact_layers import exact_experts, ones
from layers import activations, filled
from peer_cases import over_hosts
from rank_cases import compiled, disagreeing
from rank_cases import experts as run_experts
from rank_cases import mixture as run_mixture
from skeletons import skeleton

from nvfp4kern.checkpoint import load_checkpoint
from nvfp4kern.distributed import ExpertParallel, replicas, slice_
from nvfp4kern.nn import NVFP4Experts, NVFP4MoE

H, INNER, E, K = 256, 96, 5, 3
FP32 = {"reduce_dtype": torch.float32}
TWICE = [4, 0, 0, 2, 1, 3, 4, 4]
"""Of experts 0 and 4 there are more, also two on one rank, and nothing is in order."""


def given(tokens, seed):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.rand(tokens, E, generator=draw).topk(K).indices.int()
    ids[::4, 1] = torch.tensor([-1, E, 10**9, -(2**31)])[: len(ids[::4])]  # nobody's
    return ones(tokens, H, seed), ids, 2.0 ** -torch.randint(0, 4, (tokens, K), generator=draw)


def check(team, run, input_quant, world, tokens, options):
    whole = exact_experts(input_quant, E, hidden=H)
    inputs = [given(9, 3 + r) for r in range(world)]
    options = {"physical_to_logical": TWICE, "tokens": tokens, **FP32, **options}
    got = team(world).run(run, whole, inputs, options)
    for r, y in enumerate(got):
        want = whole(*inputs[r if tokens == "own" else 0])
        assert torch.equal(y[0] if isinstance(y, tuple) else y, want)
        assert want.unique().numel() > 50


@pytest.mark.parametrize("run", [run_experts, over_hosts], ids=["collectives", "peers"])
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("tokens", ["own", "same"])
@pytest.mark.parametrize("input_quant", [None, "static", "dynamic"])
def test_results_of_one_process(team, run, world, tokens, input_quant):
    check(team, run, input_quant, world, tokens, {})


def test_scales_of_tokens(team):
    check(team, run_experts, "token", 2, "same", {})


def test_ranks_with_fewer_tokens(team):
    check(team, run_experts, "static", 2, "own", {"tokens_per_rank": 12})


@pytest.mark.parametrize("run, rows", [(run_experts, 2), (over_hosts, 1)], ids=["sums", "products"])
def test_bits_depend_on_a_tokens_place_where_sums_travel(team, run, rows, monkeypatch):
    """Of a token that comes six times to a rank without its busy expert: how many results differ.
    Its experts are on two ranks in one turn, and on three in the other."""
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    ids, weights = torch.tensor([[0, 4, 2]]).int(), torch.tensor([[0.3, 0.37, 0.33]])
    same = [each.repeat(6, 1) for each in (activations(1, H), ids, weights)]
    whole, options = (
        filled(NVFP4Experts(H, INNER, E), 5),
        {"physical_to_logical": [4, 0, 0, 1, 2, 3]},
    )
    y = team(3).run(run, whole, [same] * 3, options)[2]
    y = y[0] if isinstance(y, tuple) else y
    assert len(y.unique(dim=0)) == rows and y.isfinite().all()


@pytest.mark.parametrize("tokens", ["own", "same"])
def test_a_mixture_leaves_the_routers_permutation(team, tokens):
    """It is one of logical experts."""
    moe = filled(NVFP4MoE(H, INNER, E, K, dtype=torch.bfloat16), 7)
    moe.experts = exact_experts(None, E, hidden=H)
    inputs = [activations(6, H, seed=20 + r) for r in range(2)]
    options = {"tokens": tokens, "physical_to_logical": TWICE, **FP32}
    got = team(2).run(run_mixture, copy.deepcopy(moe), inputs, options)
    for r, y in enumerate(got):
        want = moe(inputs[r if tokens == "own" else 0])
        assert bool(((y - want).abs() <= 2.0**-7 * want.abs().max()).all())
        assert (y == want).double().mean() > 0.98


def compiled_replicas(whole, given, options):
    return compiled(ExpertParallel.slice_of(whole, **options), given)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", ["own", "same"])
def test_compiled(team, tokens):
    whole = filled(NVFP4Experts(H, INNER, E), 5)
    options = {"tokens": tokens, "physical_to_logical": TWICE}
    assert team(2).run(compiled_replicas, whole, given(6, 1), options) == [True] * 2


def test_ranks_with_other_maps_are_refused(team):
    whole, inputs = filled(NVFP4Experts(H, INNER, E), 5), [given(4, 1)] * 2
    options = [{"physical_to_logical": TWICE}, {"physical_to_logical": [*TWICE, 1]}]
    for said, told in team(2).run(disagreeing, ExpertParallel.slice_of, whole, inputs, options):
        assert "of the group has physical_to_logical=" in said and told == 2
    options[1] = {}
    for said, told in team(2).run(disagreeing, ExpertParallel.slice_of, whole, inputs, options):
        assert "of the group has " in said and told == 2


# --- One process ---


@pytest.mark.parametrize("r, logical", [(0, [4, 0, 0]), (1, [2, 1, 3]), (2, [4, 4])])
def test_what_a_rank_has(as_rank, r, logical):
    as_rank(r, 3)
    whole = filled(NVFP4Experts(H, INNER, E, input_quant="static"), 6)
    mine = ExpertParallel.slice_of(whole, physical_to_logical=TWICE)
    assert (mine.num_experts, mine.all_experts, mine.physical_experts) == (len(logical), E, 8)
    for name, value in mine.named_parameters():
        want = getattr(whole, name)
        rows = range(E) if name.endswith("input_scale") else logical
        want = want.reshape(E, -1).view(torch.uint8)[[*rows]]
        assert torch.equal(value.reshape(len(rows), -1).view(torch.uint8), want), name
    again = ExpertParallel(H, INNER, E, input_quant="static", physical_to_logical=tuple(TWICE))
    again.load_state_dict(mine.state_dict())
    assert torch.equal(again.gate_up_alpha, mine.gate_up_alpha)
    assert torch.equal(again.replicas, mine.replicas)
    assert copy.deepcopy(mine).bfloat16().replicas.dtype == torch.int32


@pytest.mark.parametrize("r", range(3))
def test_a_checkpoint(checkpoint, as_rank, r):
    directory = checkpoint("qwen3_moe", "modelopt-nvfp4", spread=True)
    whole = skeleton(directory)
    load_checkpoint(whole, directory, device="cpu")
    as_rank(r, 3)
    every = len(next(m for m in whole.modules() if isinstance(m, NVFP4Experts)).down_proj)
    twice = [*range(every - 1, -1, -1), 0, 0]
    plan = {"*.experts": partial(ExpertParallel.slice_of, physical_to_logical=twice)}
    model = skeleton(directory)
    slice_(model, plan)
    slice_(whole, plan)
    load_checkpoint(model, directory, device="cpu")
    wanted = dict(whole.named_buffers()) | dict(whole.named_parameters())
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        got, want = (each.reshape(-1).view(torch.uint8) for each in (value, wanted[name]))
        assert torch.equal(got, want), name
    assert any(name.endswith("replicas") for name in wanted)


def test_tokens_take_turns():
    """Of an expert with copies elsewhere alone; a rank that has some takes these."""
    table = torch.tensor(replicas.turns(TWICE, E, 1, 3))
    ids = torch.tensor([[0, 4, 3], [0, 4, 1], [0, 4, -1], [0, 4, E]]).int()
    assert replicas.physical(ids, table.int()).tolist() == [
        [1, 0, 5], [2, 6, 4], [1, 7, -1], [2, 0, -1],
    ]  # fmt: skip
    assert table[0].bincount().tolist() == [0, 32, 32]
    assert set(replicas.turns(TWICE, E, 0, 3)[4]) == {0}
    assert set(replicas.turns(TWICE, E, 2, 3)[4]) == {6, 7}
    alike = replicas.turns(TWICE, E, None, 3)
    assert alike[0][:3] == [1, 2, 1] and alike[5] == [-1] * replicas.TURNS
    many = torch.full((200, 1), 4, dtype=torch.int32)
    turns = replicas.physical(many, torch.tensor(alike).int()).flatten().bincount()
    assert turns[[0, 6, 7]].tolist() == [69, 66, 65] and turns.sum() == 200


def test_ranks_begin_with_different_copies():
    """Of one token a rank each copy gets its part, also where ranges begin at even numbers."""
    twice = [*range(28), *range(4)]
    tables = [replicas.turns(twice, 28, r, 8) for r in range(8)]
    chosen = [[table[expert][0] for table in tables] for expert in range(4)]
    for expert, copies in enumerate(chosen):
        assert copies[0] == expert and copies[7] == 28 + expert  # their own
        assert copies[1:7] == [expert, 28 + expert] * 3


@pytest.mark.parametrize(
    "logical, message",
    [
        ([0, 1, 2, 3, 5, 4], "physical_to_logical: 5, expected 0 to 4"),
        ([0, 1, 2, 3, -1, 4], "physical_to_logical: -1, expected 0 to 4"),
        ([0, 1, 2, 4, 4], "physical_to_logical: 0 copies of expert 3, expected 1 to 64"),
        ([*range(5), *[2] * 64], "physical_to_logical: 65 copies of expert 2, expected 1 to 64"),
    ],
)
def test_maps_that_are_refused(as_rank, logical, message):
    as_rank(0, 2)
    with pytest.raises(ValueError, match=f"^{message}$"):
        ExpertParallel(H, INNER, E, physical_to_logical=logical)


def test_fewer_copies_than_ranks(as_rank):
    as_rank(1, 7)
    with pytest.raises(ValueError, match="^physical_to_logical: 6, expected one for each of 7 ran"):
        ExpertParallel(H, INNER, E, physical_to_logical=[*range(5), 0])
    as_rank(5, 6)
    assert ExpertParallel(H, INNER, E, physical_to_logical=[*range(5), 0]).num_experts == 1
