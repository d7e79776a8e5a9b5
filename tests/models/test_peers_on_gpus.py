"""Sums and layers over peer memory, of two, four and eight ranks: a GPU for each where there are so
many, otherwise several on one."""

import pytest
import torch
from conftest import GPUS, why_no_gpu
from exact_layers import exact_experts, exact_mixture
from gpus_needed import why_not
from layers import filled
from peer_cases import left_alone, mixed, mixture_replayed, reduced, replayed, rounded, row_bits
from rank_cases import replayed_experts
from ranks import Team, packed, unpacked

from nvfp4kern.distributed.rendezvous import SHARED_GPUS
from nvfp4kern.nn import NVFP4Experts

SIZES = (8, 40, 4096, 65536, 200_000, 1_000_000)
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


WORLDS = (2, 4, 8)


def started(world, folder):
    if not GPUS:
        pytest.skip(f"a GPU is needed: {why_no_gpu()}")
    return Team(world, folder, SHARED_GPUS if why_not(world) else "nccl")


def fewer(replays, ranks):
    """Where ranks take turns on a GPU, each wait for another takes milliseconds."""
    return -(-replays // ranks.turns)


@pytest.fixture(scope="module", params=WORLDS)
def ranks(request, tmp_path_factory):
    team = started(request.param, tmp_path_factory.mktemp("peers"))
    yield team
    team.close()


@pytest.fixture(params=WORLDS)
def short_lived(request, tmp_path):
    team = started(request.param, tmp_path)
    yield team
    team.close()


@pytest.mark.parametrize("shots", [0, 1, 2])
@pytest.mark.parametrize("dtypes", [(BF16, BF16), (F16, F16), (F32, BF16), (F32, F16), (F32, F32)])
def test_sums_in_the_order_of_ranks(ranks, dtypes, shots):
    for right in ranks.run(reduced, SIZES, *dtypes, shots, 3):
        assert right == 3 * len(SIZES)


def test_a_thousand_replays_with_ranks_that_are_late(ranks):
    replays = fewer(1000, ranks)
    for right in ranks.run(replayed, (4096, 5000, 300_000), replays, 0.05):
        assert right == replays


@pytest.mark.parametrize("tokens", [1, 3, 700])
@pytest.mark.parametrize("reduce_dtype", [None, F32])
def test_a_row_parallel_layer_adds_in_order(ranks, reduce_dtype, tokens):
    for same, said in ranks.run(row_bits, reduce_dtype, tokens, "auto"):
        assert same and said.endswith("transport='peer')")


def test_the_groups_own_collectives_can_be_asked_for(ranks):
    for same, said in ranks.run(row_bits, F32, 3, "collective"):
        assert same and "transport='collective' (asked for)" in said


@pytest.mark.parametrize("input_quant", [None, "static", "dynamic"])
@pytest.mark.parametrize("tokens, replays", [(2, 1000), (40, 200), (700, 20), (3000, 5)])
def test_experts_give_one_gpus_bits(ranks, tokens, replays, input_quant):
    """Routing changes with each replay; each rank has fewer tokens than the one before, or none."""
    whole, replays = exact_experts(input_quant, 9, hidden=256), fewer(replays, ranks)
    for right in ranks.run(mixed, whole, tokens, 3, replays):
        assert right == replays


@pytest.mark.parametrize("input_quant", [None, "static", "dynamic"])
@pytest.mark.parametrize("tokens", [1, 8, 100, 1000])
def test_sums_that_are_rounded_have_one_gpus_bits_where_asked(ranks, tokens, input_quant):
    """Any tile adds in the same order with NVFP4KERN_BATCH_INVARIANT=1."""
    whole = filled(NVFP4Experts(2048, 512, 16, input_quant=input_quant, dtype=BF16), 3)
    for same, numbers, elements in ranks.run(rounded, whole, tokens, 3):
        assert same and numbers >= 0.9 * elements


@pytest.mark.parametrize("tokens, replays", [(4, 1000), (300, 50)])
def test_shared_experts_run_while_tokens_travel(ranks, tokens, replays):
    replays = fewer(replays, ranks)
    for right in ranks.run(mixture_replayed, exact_mixture(9), tokens, replays):
        assert right == replays


@pytest.mark.parametrize("input_quant", [None, "dynamic"])
@pytest.mark.parametrize("tokens, replays", [(4, 200), (300, 20)])
def test_experts_that_several_ranks_have(ranks, tokens, replays, input_quant):
    whole, replays = exact_experts(input_quant, 9, hidden=256), fewer(replays, ranks)
    options = {"physical_to_logical": [8, 0, 0, *range(1, 8), 8], "reduce_dtype": F32}
    for found in ranks.run(replayed_experts, whole, tokens, 3, options, replays):
        assert found == [replays, replays]


@pytest.mark.parametrize("what", ["sum", "experts"])
@pytest.mark.parametrize("how", ["absent", "killed before", "killed after", "killed within"])
def test_a_rank_that_does_not_come(short_lived, how, what):
    """Others raise with its number, and never wait again. One that is killed within a call has
    perhaps been seen by some of them, who then miss those that have not seen it."""
    last = len(short_lived.calls) - 1
    missed = range(1, last + 1) if how == "killed within" else [last]
    for calls in short_lived.calls:
        calls.put(packed((left_alone, (how, 2, what))))
    while True:
        number, fine, answer = unpacked(short_lived.results.get(timeout=60))
        assert fine, answer
        if number == 0:
            break
    said, took, later, again = answer
    assert said == later
    assert said[: said.index(":")] in [
        f"rank {r} of the group has not come within 2 s" for r in missed
    ]
    assert took < 10 and again < 1
