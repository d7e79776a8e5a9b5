"""Layers across ranks whose routing changes from call to call: on two GPUs with NCCL in a CUDA
graph, and the same without a graph on two processes of gloo."""

import pytest
import torch
from exact_layers import exact_experts, exact_swiglu, ones
from gpus_needed import why_not
from rank_cases import asked, disagreeing, replayed_experts, replayed_feed_forward

from nvfp4kern.distributed import ExpertParallel

REPLAYS = {"gloo": 20, "nccl": 200}


@pytest.fixture(scope="module", params=["gloo", "nccl"])
def two(request, team, tmp_path_factory):
    """(two ranks, replays)"""
    if request.param == "gloo":
        if torch.cuda.is_available():
            pytest.skip("gloo is for CPUs, and NCCL runs here")
        yield team(2), REPLAYS["gloo"]
        return
    reason = why_not(2)
    if reason:
        pytest.skip(reason)
    from ranks import Team

    made = Team(2, tmp_path_factory.mktemp("nccl"), "nccl")
    yield made, REPLAYS["nccl"]
    made.close()


@pytest.mark.parametrize("input_quant", [None, "static", "dynamic"])
@pytest.mark.parametrize(
    "tokens, options",
    [(8, {}), (33, {"tokens_per_rank": 40}), (9, {"tokens": "same"})],
    ids=["own", "filled up", "same"],
)
def test_routing_that_changes(two, input_quant, tokens, options):
    ranks, replays = two
    whole = exact_experts(input_quant, 6)
    options = {"reduce_dtype": torch.float32, **options}
    for found in ranks.run(replayed_experts, whole, tokens, 2, options, replays):
        assert found == [replays, replays]


@pytest.mark.parametrize("input_quant", [None, "static", "dynamic"])
@pytest.mark.parametrize("tokens", [1, 40])
def test_a_feed_forward_layer_on_new_tokens(two, input_quant, tokens):
    ranks, replays = two
    layer = exact_swiglu(input_quant)
    for found in ranks.run(replayed_feed_forward, layer, tokens, replays):
        assert found == replays


def test_ranks_that_disagree(two):
    ranks, _ = two
    x, ids, weights = ones(5, 64, 0), torch.arange(5)[:, None], torch.ones(5, 1)
    whole, inputs = exact_experts(None, 6), [(x, ids, weights), (x.half(), ids, weights)]
    args = ExpertParallel.slice_of, whole, inputs, [{}, {}]
    for rank, (said, told) in enumerate(ranks.run(disagreeing, *args)):
        assert said.startswith(f"rank {1 - rank} of the group has dtype=torch.") and told == 2


def test_a_gpu_is_asked_once(two, request):
    ranks, _ = two
    given = ones(5, 64, 0), torch.arange(5)[:, None], torch.ones(5, 1)
    on_gpus = "nccl" in request.node.name
    for found in ranks.run(asked, exact_experts("static", 6), given):
        assert found == ([1, 2] if on_gpus else [0, 0])
