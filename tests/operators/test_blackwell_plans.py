"""How Blackwell's row takes grouped GEMMs, what explain says of it, and hostile indices."""

import numpy as np
import pytest
import torch
from conftest import GPUS
from expert_calls import Tokens, group_operands, int32, list_of
from generators import assert_ok, raw, rng_of, values

import nvfp4kern
from nvfp4kern.verify import data, reference


@pytest.fixture
def device(monkeypatch):
    found = next((gpu for gpu in GPUS if gpu.name == "sm100"), None)
    if found is None:
        pytest.skip("no GPU for sm100")
    found.force(monkeypatch)
    return found.device


class Groups:
    """Of (m, n, k) each, with linear scale factors. Tokens are NVFP4, or of a 16-bit dtype."""

    def __init__(self, device, sizes, make=data.exact_family, dtype=None):
        self.pairs = group_operands(rng_of(len(sizes)), make, sizes, dtype)
        self.args = list_of(self.pairs, device)

    def plan(self):
        return nvfp4kern.explain("grouped_gemm", *self.args)

    def check(self):
        outs = nvfp4kern.grouped_gemm(*self.args, out_dtype="float32")
        for got, (a, b) in zip(outs, self.pairs, strict=True):
            want = reference.gemm(a.values, b.values).rounded("float32")
            assert_ok(reference.check_bits(values(got), want))


def test_a_list_is_one_launch(device):
    """Its first group is that of the longest K, whose few weight rows are operand N."""
    groups = Groups(device, [(20, 300, 64), (0, 64, 32), (700, 60, 320), (1, 400, 192)])
    plan = groups.plan()
    assert plan["backend"] == "sm100" and plan["why"].startswith("one launch for all groups")
    assert plan["kernel"] == f"sm100_list_gemm_{plan['tile']}" and plan["workspace_bytes"] == 0
    assert plan["tile_m"] == 128 * plan["cluster"] and plan["tile_n"] == int(plan["tile"][1:])
    groups.check()


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_a_list_of_16_bit_tokens_is_one_launch(device, dtype):
    """Weights are operand M of every group."""
    sizes = [(20, 300, 64), (0, 64, 32), (90, 60, 1408), (1, 400, 192)]
    groups = Groups(device, sizes, dtype=dtype)
    plan = groups.plan()
    assert plan["backend"] == "sm100" and plan["why"].startswith("one launch for all groups")
    assert plan["kernel"] == f"sm100_kind_f16_list_gemm_{plan['tile']}"
    assert plan["tile_n"] == 128 * plan["cluster"] and plan["tile_m"] == int(plan["tile"][1:])
    groups.check()


@pytest.mark.parametrize("dtype", (None, "bfloat16"))
def test_more_groups_than_a_launch_has(device, dtype):
    sizes = [(1 + g % 5, 1 + g % 7, 32 * (1 + g % 3)) for g in range(70)]
    groups = Groups(device, sizes, dtype=dtype)
    plan = groups.plan()
    assert plan["backend"] == "sm100" and plan["why"].startswith("a launch for each 32 groups")
    groups.check()


def test_a_row_of_a_list_is_alone_where_that_is_asked(device, monkeypatch):
    """On data whose sums depend on their order."""
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    groups = Groups(device, [(130, 70, 1088), (9, 20, 544)], data.full_range)
    plan = groups.plan()
    assert (plan["backend"], plan["tile"], plan["batch_invariant"]) == ("sm100", "n64", True)
    whole = nvfp4kern.grouped_gemm(*groups.args, out_dtype="float32")
    a, b, sfa, sfb = groups.args
    few = [x[:3] for x in a], b, [x[:3] for x in sfa], sfb
    for got, all_rows in zip(nvfp4kern.grouped_gemm(*few, out_dtype="float32"), whole, strict=True):
        np.testing.assert_array_equal(raw(got), raw(all_rows[:3]))


def test_a_row_of_a_list_of_16_bit_tokens_is_alone_where_that_is_asked(device, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    groups = Groups(device, [(130, 70, 1088), (9, 20, 544)], dtype="float16")
    plan = groups.plan()
    assert (plan["backend"], plan["tile"], plan["batch_invariant"]) == ("sm100", "n64", True)
    groups.check()


@pytest.mark.parametrize(
    "sizes, dtype, why",
    [
        ([(5, 7, 64), (3, 9, 48)], None, "no tensor map describes the tokens"),
        ([(5, 7, 64), (3, 9, 48)], "float16", "no tensor map describes the weights"),
        ([(5, 7, 64), (3, 9, 0)], None, "K is 0"),
    ],
)
def test_a_list_with_a_group_that_it_does_not_take(device, sizes, dtype, why):
    groups = Groups(device, sizes, dtype=dtype)
    plan = groups.plan()
    assert plan["backend"] == "sm80" and plan["declined"].startswith(f"sm100: {why}")
    groups.check()


def test_lists_that_no_tile_takes(device, monkeypatch):
    groups = Groups(device, [(5, 7, 512)])
    with monkeypatch.context() as patch:
        patch.setenv("NVFP4KERN_TILE", "sm100/gemm:p128k2")
        with pytest.raises(nvfp4kern.BackendError, match="the operator has no kernel of it"):
            groups.plan()
    a, b = (torch.zeros(rows, 64, dtype=torch.float16, device=device) for rows in (20, 30))
    plan = nvfp4kern.explain("grouped_gemm", [a], [b])
    assert plan["declined"] == "sm100: the weights are not NVFP4"


# --- Tokens by index ---


def test_tokens_whose_rows_would_have_no_map_go_where_they_go_gathered(device):
    """One token's row may begin anywhere, but those of tokens gathered from it may not."""
    rng = rng_of(11)
    a = Tokens(rng, device, 1, 48)
    b = torch.zeros(1, 4, 32, dtype=torch.uint8, device=device)[..., :24]
    sfb = torch.zeros(1, 4, 3, dtype=torch.uint8, device=device)
    options = {"rows": int32([0, 0, 0], device), "offsets": int32([0, 3], device)}
    plan = nvfp4kern.explain("grouped_gemm", a.tensor, b, a.sf, sfb, **options)
    assert plan["declined"].startswith("sm100: no tensor map describes the tokens: ")
