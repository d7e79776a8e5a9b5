"""How Blackwell's row takes grouped GEMMs, what explain says of it, and hostile indices."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from conftest import GPUS
from expert_calls import Tokens, check_rows, int32, weights
from generators import assert_ok, codes, floats, raw, rng_of, run, scales, values

import nvfp4kern
from nvfp4kern.verify import data, reference


@pytest.fixture
def device(monkeypatch):
    found = next((gpu for gpu in GPUS if gpu.name == "sm100"), None)
    if found is None:
        pytest.skip("no GPU for sm100")
    found.force(monkeypatch)
    return found.device


class Values(NamedTuple):
    values: np.ndarray


class Groups:
    """Of (m, n, k) each, with linear scale factors. Tokens are NVFP4, or of a 16-bit dtype."""

    def __init__(self, device, sizes, make=data.exact_family, dtype=None):
        rng = rng_of(len(sizes))
        self.pairs = [(make(rng, m, k), make(rng, n, k)) for m, n, k in sizes]
        sides = list(zip(*self.pairs, strict=True))
        self.args = [[codes(o, device) for o in side] for side in sides]
        self.args += [[scales(o, "linear", rng, device) for o in side] for side in sides]
        if dtype:
            tokens = [data.small_integers(rng, m, k, most=3) for m, _, k in sizes]
            self.args[0], self.args[2] = [floats(x, dtype, device) for x in tokens], None
            self.pairs = [(Values(x), b) for x, (_, b) in zip(tokens, self.pairs, strict=True)]

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


# ---------------------------------------------------------------------------------------------
# Tokens by index
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ("strided", "blocked"))
def test_what_names_no_token_is_clamped(device, form):
    """Tokens lie between NaNs, so a row that is read outside them would be NaN."""
    rng = rng_of(9)
    a = Tokens(rng, device, 5, 64, form=form)
    b, sfb, w = weights(rng, device, 2, 9, 64)
    rows = np.array([-1, -(2**31), 2**31 - 1, 15, 14, 3, 16, 0, 100, -3], np.int32)
    layout = "blocked" if form == "blocked" else "linear"
    options = {
        "rows": int32(rows, device),
        "rows_per_token": 3,
        "offsets": int32([0, 4, 10], device),
    }
    args = a.tensor, b, a.sf, sfb
    plan = nvfp4kern.explain("grouped_gemm", *args, **options, scale_layout=(layout, "linear"))
    assert plan["backend"] == "sm100"
    got = run(
        nvfp4kern.grouped_gemm, *args, shape=(10, 9), device=device,
        scale_layout=(layout, "linear"), **options,
    )  # fmt: skip
    token = np.clip(rows, 0, 14) // 3
    expected = lambda g, r: reference.gemm(a.values[token[r]], w[g])  # noqa: E731
    check_rows(got, [0, 4, 10], expected, "float16", exact=True)


@pytest.mark.parametrize(
    "function, kind",
    [("grouped_gemm", "W4A16"), ("grouped_gemm", "16-bit"), ("grouped_dual_gemm", "W4A16")],
)
def test_16_bit_tokens_by_index_are_clamped(device, function, kind):
    rng, gated, layout = rng_of(12), function == "grouped_dual_gemm", ("linear", "linear")
    a = Tokens(rng, device, 5, 64, kind=kind)
    nan = a.tensor.new_full((1, 64), torch.nan)
    a.tensor = torch.cat([nan, a.tensor, nan])[1:-1]
    b, sfb, w = weights(rng, device, 2, 18 if gated else 9, 64, kind)
    rows = np.array([-1, -(2**31), 2**31 - 1, 15, 14, 3, 16, 0, 100, -3], np.int32)
    options = {"rows": int32(rows, device), "rows_per_token": 3, "scale_layout": layout}
    options |= {"activation": "relu"} if gated else {}
    args = [a.tensor, b, None, sfb, int32([0, 4, 10], device)]
    if not gated:
        options["offsets"] = args.pop()
    plan = nvfp4kern.explain(function, *args, **options)
    assert plan["backend"] == "sm100" and plan["kernel"].startswith("sm100_kind_f16_grouped_")
    call = getattr(nvfp4kern, function)
    got = run(call, *args, shape=(10, 9), device=device, dtype="float32", **options)
    x = a.values[np.clip(rows, 0, 14) // 3]
    for g, r in ((0, slice(0, 4)), (1, slice(4, 10))):
        sums = x[r] @ w[g].T
        want = np.maximum(sums[:, :9], 0) * sums[:, 9:] if gated else sums
        np.testing.assert_array_equal(got[r], want.astype(np.float32))


@pytest.mark.parametrize("offsets", ([5, 2, 9, 40], [-7, 3, 2**31 - 1, 4], [20, 0, 0, 0]))
def test_bad_offsets_touch_nothing_outside(device, offsets):
    """They are clamped to the rows of the result, of which there are more than tokens."""
    rng = rng_of(10)
    a = Tokens(rng, device, 3, 64, form="blocked")
    b, sfb, _ = weights(rng, device, 3, 9, 64)
    options = {"offsets": int32(offsets, device), "rows": int32(rng.integers(0, 3, 20), device)}
    got = run(
        nvfp4kern.grouped_gemm, a.tensor, b, a.sf, sfb, shape=(20, 9), device=device,
        scale_layout=("blocked", "linear"), **options,
    )  # fmt: skip
    assert np.isfinite(got).all()


def test_tokens_whose_rows_would_have_no_map_go_where_they_go_gathered(device):
    """One token's row may begin anywhere, but those of tokens gathered from it may not."""
    rng = rng_of(11)
    a = Tokens(rng, device, 1, 48)
    b = torch.zeros(1, 4, 32, dtype=torch.uint8, device=device)[..., :24]
    sfb = torch.zeros(1, 4, 3, dtype=torch.uint8, device=device)
    options = {"rows": int32([0, 0, 0], device), "offsets": int32([0, 3], device)}
    plan = nvfp4kern.explain("grouped_gemm", a.tensor, b, a.sf, sfb, **options)
    assert plan["declined"].startswith("sm100: no tensor map describes the tokens: ")
