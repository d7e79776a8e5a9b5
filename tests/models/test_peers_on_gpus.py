"""Sums and layers over peer memory, on two GPUs."""

import pytest
import torch
from exact_layers import exact_experts
from gpus_needed import why_not_two
from peer_cases import left_alone, mixed, reduced, replayed, row_bits
from ranks import Team, packed, unpacked

SIZES = (8, 40, 4096, 65536, 200_000, 1_000_000)
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def started(folder):
    reason = why_not_two()
    if reason:
        pytest.skip(reason)
    return Team(2, folder, "nccl")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    team = started(tmp_path_factory.mktemp("peers"))
    yield team
    team.close()


@pytest.fixture
def fresh(tmp_path):
    team = started(tmp_path)
    yield team
    team.close()


@pytest.mark.parametrize("shots", [0, 1, 2])
@pytest.mark.parametrize("dtypes", [(BF16, BF16), (F16, F16), (F32, BF16), (F32, F16), (F32, F32)])
def test_sums_in_the_order_of_ranks(two, dtypes, shots):
    for right in two.run(reduced, SIZES, *dtypes, shots, 3):
        assert right == 3 * len(SIZES)


def test_a_thousand_replays_with_ranks_that_are_late(two):
    for right in two.run(replayed, (4096, 5000, 300_000), 1000, 0.05):
        assert right == 1000


@pytest.mark.parametrize("tokens", [1, 3, 700])
@pytest.mark.parametrize("reduce_dtype", [None, F32])
def test_a_row_parallel_layer_adds_in_order(two, reduce_dtype, tokens):
    for same, said in two.run(row_bits, reduce_dtype, tokens, "auto"):
        assert same and said.endswith("transport='peer')")


def test_the_groups_own_collectives_can_be_asked_for(two):
    for same, said in two.run(row_bits, F32, 3, "collective"):
        assert same and "transport='collective' (asked for)" in said


@pytest.mark.parametrize("input_quant", [None, "static", "dynamic"])
@pytest.mark.parametrize(
    "tokens, replays, records",
    [(2, 1000, 0), (2, 1000, 1), (40, 200, 0), (40, 200, 1), (700, 20, 1), (3000, 5, 0)],
)
def test_experts_give_one_gpus_bits(two, tokens, replays, records, input_quant):
    """Routing changes with each replay; one rank has fewer tokens than the other, or none."""
    whole = exact_experts(input_quant, 7, hidden=256)
    for right in two.run(mixed, whole, tokens, 3, replays, records):
        assert right == replays


@pytest.mark.parametrize("how", ["absent", "killed before", "killed within"])
def test_a_rank_that_does_not_come(fresh, how):
    """The other one raises with its number, and never waits again."""
    for calls in fresh.calls:
        calls.put(packed((left_alone, (how, 2))))
    while True:
        number, fine, answer = unpacked(fresh.results.get(timeout=60))
        assert fine, answer
        if number == 0:
            break
    said, took, later, again = answer
    assert said == later and said.startswith("rank 1 of the group has not come within 2 s")
    assert took < 10 and again < 1
