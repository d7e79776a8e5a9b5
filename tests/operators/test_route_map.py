"""route: expert_map, which sorts the rows of the experts of one device."""

import numpy as np
import pytest
import torch
from generators import floats, rng_of, unchanged, values

import nvfp4kern
from nvfp4kern.verify import data, routing

MAPS = {
    "a range": lambda rng, n, e: np.where(
        (np.arange(n) >= n // 4) & (np.arange(n) < n // 4 + e), np.arange(n) - n // 4, -1
    ),
    "scattered": lambda rng, n, e: np.where(
        rng.permutation(n) < e, np.argsort(np.argsort(rng.random(n))) % max(e, 1), -1
    ),
    "shared": lambda rng, n, e: rng.integers(-1, max(e // 2, 1), n),
    "none": lambda rng, n, e: np.full(n, -1),
    "garbage": lambda rng, n, e: rng.choice(
        [-(2**31), -7, -1, 0, e - 1, e, e + 1, n, 1024, 2**31 - 1], n
    ),
    "all to the last": lambda rng, n, e: np.full(n, e - 1),
}


def int32(array, device):
    return torch.from_numpy(np.array(array, np.int32)).to(device)


def check(result, expert_map, experts):
    """With row_of, or without."""
    ids = result[1].cpu().numpy()
    want = routing.local_permutation(ids, np.asarray(expert_map, np.int64), experts)
    want += (routing.row_of(want[2]),)
    for got, right in zip(result[2:6], want, strict=False):
        assert got.dtype == torch.int32
        np.testing.assert_array_equal(got.cpu().numpy(), right)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize(
    "m, n, k, experts",
    [
        (1, 4, 2, 2),
        (1, 300, 9, 130),
        (1, 1024, 32, 1024),
        (50, 16, 4, 5),
        (0, 5, 2, 3),
        (300, 7, 7, 3),
        (9, 1024, 32, 1024),
        (40, 64, 6, 1),
    ],
)
def test_rows_of_local_experts(device, name, m, n, k, experts):
    rng = rng_of(m, n)
    expert_map = MAPS[name](rng, n, experts)
    x, w = data.small_integers(rng, m, 24), data.small_integers(rng, n, 24)
    given = floats(x, "bfloat16", device), floats(w, "bfloat16", device)
    options = {"expert_map": int32(expert_map, device), "num_local_experts": experts}
    with unchanged(given, [options["expert_map"]]):
        result = nvfp4kern.route(*given, k, permutation=True, return_row_of=True, **options)
    assert len(result) == 6
    check(result, expert_map, experts)
    for ours, whole in zip(result[:2], nvfp4kern.route(*given, k), strict=True):
        assert torch.equal(ours, whole)  # weights and ids know no map


def test_ranks_together_sort_every_selection_once(device):
    """Four devices of eight experts each."""
    logits = floats(rng_of(2).standard_normal((70, 32)), "float32", device)
    every = []
    for rank in range(4):
        expert_map = np.full(32, -1)
        expert_map[8 * rank : 8 * rank + 8] = range(8)
        options = {"expert_map": int32(expert_map, device), "num_local_experts": 8}
        _, _, counts, offsets, rows = nvfp4kern.route(
            k=5, logits=logits, permutation=True, **options
        )
        used = int(offsets[-1])
        assert used == counts.sum() and (rows[used:] == -1).all()
        every += rows[:used].tolist()
    whole = nvfp4kern.route(k=5, logits=logits, permutation=True)[4]
    assert every == whole.tolist()


def test_no_local_expert(device):
    logits = floats(rng_of(3).standard_normal((9, 6)), "float32", device)
    options = {"expert_map": int32([0, -1, 3, 5, 1, 0], device), "num_local_experts": 0}
    result = nvfp4kern.route(k=2, logits=logits, permutation=True, **options)
    assert result[2].shape == (0,) and result[3].tolist() == [0]
    assert result[4].tolist() == [-1] * 18


def test_more_local_experts_than_experts(device):
    """A device may have room for more."""
    logits = floats(rng_of(4).standard_normal((9, 6)), "float32", device)
    expert_map = [1000, 3, -1, 1023, 0, 7]
    options = {"expert_map": int32(expert_map, device), "num_local_experts": 1024}
    check(nvfp4kern.route(k=4, logits=logits, permutation=True, **options), expert_map, 1024)


@pytest.mark.parametrize("step", (1, 3, -1))
def test_a_map_with_a_stride(device, step):
    if step < 0:
        if device != "cpu":
            pytest.skip("NumPy arrays, which may run backwards, live on the CPU")
        expert_map = np.arange(-1, 7, dtype=np.int32)[::-1]
        given, logits = expert_map, rng_of(5).standard_normal((12, 8)).astype(np.float32)
    else:
        wide = int32(rng_of(6).integers(-1, 7, 8 * step), device)
        given, expert_map = wide[::step], wide[::step].cpu().numpy()
        logits = floats(rng_of(5).standard_normal((12, 8)), "float32", device)
    result = nvfp4kern.route(
        k=3, logits=logits, permutation=True, expert_map=given, num_local_experts=7
    )
    want = routing.local_permutation(np.asarray(values(result[1]), np.int64), expert_map, 7)
    for got, right in zip(result[2:], want, strict=True):
        np.testing.assert_array_equal(np.asarray(values(got)), right)


def test_local_rows_feed_grouped_gemm(device):
    """Rows of -1 are those of no expert, which grouped_gemm neither reads nor writes."""
    rng = rng_of(9)
    x, w = data.small_integers(rng, 20, 32), data.small_integers(rng, 6, 32)
    experts = data.small_integers(rng, 2, 8, 32)
    expert_map = np.array([-1, 1, -1, 0, -1, -1])
    x_given = floats(x, "bfloat16", device)
    _, ids, _, offsets, rows = nvfp4kern.route(
        x_given, floats(w, "bfloat16", device), 2, permutation=True,
        expert_map=int32(expert_map, device), num_local_experts=2,
    )  # fmt: skip
    got = values(
        nvfp4kern.grouped_gemm(
            x_given, floats(experts, "bfloat16", device), offsets=offsets, rows=rows,
            rows_per_token=2, out_dtype="float32",
        )
    )  # fmt: skip
    ids, rows = ids.cpu().numpy(), rows.cpu().numpy()
    for place in range(int(offsets[-1])):
        token, expert = rows[place] // 2, expert_map[ids.ravel()[rows[place]]]
        np.testing.assert_array_equal(got[place], experts[expert] @ x[token])
