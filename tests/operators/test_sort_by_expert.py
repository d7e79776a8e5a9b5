"""sort_by_expert: the permutation of ids given, with and without a map."""

import numpy as np
import pytest
import torch
from generators import Guarded, floats, from_numpy, rng_of, unchanged

import nvfp4kern
from nvfp4kern.verify import routing

FAR = [-(2**31), -7, -1, 1024, 2**31 - 1]  # nobody's, whatever the number of experts


def sorted_by(device, ids, n, **options):
    """The four results, from guarded outputs."""
    local = options.get("num_local_experts", n)
    sizes = (local, local + 1, ids.numel(), ids.numel())
    outs = [Guarded((size,), torch.int32, device) for size in sizes]
    with unchanged([ids] * ids.is_contiguous()):
        result = nvfp4kern.sort_by_expert(ids, n, out=[out.tensor for out in outs], **options)
    assert all(got is out.tensor for got, out in zip(result, outs, strict=True))
    assert all(out.guards_intact() for out in outs)
    return [t.cpu().numpy() for t in result]


def check(result, ids, expert_map, experts):
    want = routing.local_permutation(ids, expert_map, experts)
    for got, right in zip(result, (*want, routing.row_of(want[2])), strict=True):
        np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize(
    "m, k, n",
    [(1, 1, 1), (1, 8, 128), (50, 4, 16), (0, 5, 5), (9, 0, 4), (300, 7, 3), (9, 32, 1024),
     (700, 6, 33), (5, 40, 2), (4, 3, 0), (18000, 8, 128)],
)  # fmt: skip
@pytest.mark.parametrize("how", ("all", "one", "some nobody's", "nobody's"))
def test_ids(device, how, m, k, n):
    rng = rng_of(m, k, n)
    ids = {
        "all": lambda: rng.integers(0, max(n, 1), (m, k)),
        "one": lambda: np.full((m, k), max(n - 1, 0)),
        "some nobody's": lambda: rng.choice([*range(n + 1), *FAR], (m, k)),
        "nobody's": lambda: rng.choice([n, *FAR], (m, k)),
    }[how]().astype(np.int32)
    result = sorted_by(device, from_numpy(ids, device), n)
    check(result, ids, np.arange(n), n)
    rows, row_of = result[2:]
    if how == "all" and n:
        np.testing.assert_array_equal(rows[row_of], np.arange(m * k))
        np.testing.assert_array_equal(row_of[rows], np.arange(m * k))


@pytest.mark.parametrize("experts", (0, 1, 5, 1024))
def test_a_map(device, experts):
    rng = rng_of(experts)
    ids = rng.integers(-1, 17, (130, 9), np.int32)
    expert_map = rng.integers(-2, experts + 2, 16, np.int32)
    options = {"expert_map": from_numpy(expert_map, device), "num_local_experts": experts}
    result = sorted_by(device, from_numpy(ids, device), 16, **options)
    check(result, ids, expert_map, experts)


def test_any_strides_and_ranks(device):
    rng = rng_of(2)
    wide = from_numpy(rng.integers(0, 6, (4, 6, 10), np.int32), device)
    for ids in (
        wide[0],
        wide[0, :, 2:7],
        wide[0].t(),
        wide[0, 0],
        wide,
        wide[:, :, ::3],
        wide[0, 0, 1::2],
    ):
        check(sorted_by(device, ids, 6), ids.cpu().numpy().copy(), np.arange(6), 6)


def test_the_ids_of_route(device):
    """Sorting them again gives the permutation that route itself has made."""
    logits = floats(rng_of(3).standard_normal((70, 32)), "float32", device)
    expert_map = from_numpy(np.int32([-1, 0, 1, 2] * 8), device)
    for options in ({}, {"expert_map": expert_map, "num_local_experts": 3}):
        _, ids, *want = nvfp4kern.route(
            k=5, logits=logits, permutation=True, return_row_of=True, **options
        )
        got = nvfp4kern.sort_by_expert(ids, 32, **options)
        assert all(map(torch.equal, got, want))


def test_numpy():
    ids = np.int32([[2, 0], [1, 7], [0, 2]])
    counts, offsets, rows, row_of = nvfp4kern.sort_by_expert(ids, 3)
    assert isinstance(counts, np.ndarray) and counts.tolist() == [2, 1, 2]
    assert offsets.tolist() == [0, 2, 3, 5]
    assert rows.tolist() == [1, 4, 2, 0, 5, -1] and row_of.tolist() == [3, 0, 2, -1, 1, 4]
