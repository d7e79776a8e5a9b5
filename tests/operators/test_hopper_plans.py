"""Which kernel a product gets on Hopper, by cost, and what explain says of it."""

import os

import pytest
import torch
from conftest import GPUS
from expert_calls import group_operands, list_of
from generators import rng_of
from rows import tiles_of

import nvfp4kern
from nvfp4kern.verify import data

MB = 1 << 20


@pytest.fixture
def device(monkeypatch):
    found = next((gpu for gpu in GPUS if gpu.name == "sm90"), None)
    if found is None:
        pytest.skip("no GPU for sm90")
    found.force(monkeypatch)
    return found.device


def plan_of(device, m, n, k, operator="gemm", batch=None, **stride):
    """Of zeros, with linear scale factors; weights' rows begin `row_bytes` apart."""

    def zeros(*shape):
        lead = () if batch is None else (batch,)
        return torch.zeros(*lead, *shape, dtype=torch.uint8, device=device)

    weights = zeros(n, stride.get("row_bytes", k // 2))[..., : k // 2]
    a, sfa, sfb = zeros(m, k // 2), zeros(m, k // 16), zeros(n, k // 16)
    if operator == "dual_gemm":
        return nvfp4kern.explain("dual_gemm", a, weights, weights, sfa, sfb, sfb)
    return nvfp4kern.explain("gemm", a, weights, sfa, sfb)


def rows_of(plan, m):
    """Of the workspace: whole tiles of tokens."""
    return m + -m % plan["tile_m"]


@pytest.mark.parametrize("operator", ("gemm", "dual_gemm"))
@pytest.mark.parametrize("m", (9, 64, 300))
def test_a_tile_is_chosen_by_cost(device, operator, m):
    plan = plan_of(device, m, 384, 1024, operator)
    assert plan["backend"] == "sm90" and plan["kernel"].startswith(
        f"sm90_{operator}_{plan['tile']}_"
    )
    assert plan["why"].startswith("the fastest by cost: ") and "declined" not in plan
    assert plan["tile_m"] == tiles_of("sm90/gemm")[plan["tile"]]["tile_m"]
    assert plan["workspace_bytes"] == rows_of(plan, m) * 1024 * 2
    assert ("K of a tile is split" in plan["why"]) == (plan["split"] > 1)
    assert plan_of(device, m, 384, 1024, operator) == plan


def test_16_bit_tokens_are_taken_as_they_lie(device):
    """If a tensor map can have their strides, which a plan of the same sizes depends on, too."""
    tokens = torch.zeros(2, 4096, 4096, dtype=torch.float16, device=device)
    b, sfb = (torch.zeros(2, 512, n, dtype=torch.uint8, device=device) for n in (2048, 256))
    for a, as_they_lie in ((tokens, True), (tokens[:1].expand(2, 4096, 4096), False)) * 2:
        plan = nvfp4kern.explain("gemm", a, b, None, sfb)
        assert (plan["tile"][0] == "n") == as_they_lie == (plan["workspace_bytes"] == 0)
        assert ("tokens as they lie" in plan["why"]) == as_they_lie
    plan = nvfp4kern.explain("gemm", tokens[..., :4064], b[..., :2032], None, sfb[..., :254])
    assert plan["tile"][0] != "n"  # a box would have the next row's elements


def plan_of_experts(device, m):
    """And the operands."""
    a, sfa = (torch.zeros(m, k, dtype=torch.uint8, device=device) for k in (512, 64))
    b, sfb = (torch.zeros(16, 384, k, dtype=torch.uint8, device=device) for k in (512, 64))
    offsets = torch.zeros(17, dtype=torch.int32, device=device)
    plan = nvfp4kern.explain("grouped_gemm", a, b, sfa, sfb, offsets=offsets)
    return plan, (a, b, sfa, sfb)


def test_experts_with_few_rows_take_a_gemv_for_each(device):
    plan, (a, b, sfa, sfb) = plan_of_experts(device, 8)
    assert plan["kernel"] == "sm90_gemv_experts_codes_linear" and plan["why"].startswith("few rows")
    assert plan["workspace_bytes"] == 0 and plan["cluster"] == 1 and plan["grid"] % 8 == 0
    options = {"offsets": torch.zeros(17, dtype=torch.int32, device=device)}
    gated = nvfp4kern.explain("grouped_dual_gemm", a, b, sfa, sfb, **options)
    assert gated["kernel"] == "sm90_gemv_experts_codes_dual_linear"
    assert not plan_of_experts(device, 1600)[0]["kernel"].startswith("sm90_gemv")


@pytest.mark.parametrize("m", (160, 1600))
def test_experts_take_undivided_tiles(device, m):
    plan, of_experts = plan_of_experts(device, m)[0], tiles_of("sm90/gemm", "grouped_gemm")
    assert plan["backend"] == "sm90" and plan["tile"] in of_experts and plan["split"] == 1
    assert plan["why"].startswith("the fastest by cost: ")
    assert plan["workspace_bytes"] == (m + plan["tile_m"]) * 1024 * 2
    assert plan["tile_m"] <= 64 if m == 160 else plan["tile_m"] > 32


@pytest.mark.skipif(
    int(os.environ.get("PTXSIM_SMS", "132")) < 78, reason="few SMs are soon half full"
)
def test_small_groups_go_all_at_once(device):
    _, (a, b, sfa, sfb) = plan_of_experts(device, 20)
    plan = nvfp4kern.explain("grouped_gemm", [a], [b[0]], [sfa], [sfb[0]])
    assert plan["backend"] == "sm80" and "too little work for half of the GPU" in plan["declined"]


def test_what_serves_no_experts(device, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    plan, _ = plan_of_experts(device, 8)
    assert plan["backend"] == "sm80" and "NVFP4KERN_BATCH_INVARIANT=1" in plan["declined"]
    monkeypatch.delenv("NVFP4KERN_BATCH_INVARIANT")
    monkeypatch.setenv("NVFP4KERN_TILE", "sm90/gemm:t16")
    with pytest.raises(nvfp4kern.BackendError, match="it splits K, which no tile of experts does"):
        plan_of_experts(device, 8)


def test_lists_of_16_bit_weights_are_left_alone(device, monkeypatch):
    a, b = (torch.zeros(rows, 64, dtype=torch.float16, device=device) for rows in (20, 8448))
    plan = nvfp4kern.explain("grouped_gemm", [a], [b])
    assert plan["backend"] == "sm80"
    assert plan["declined"] == "sm90: the weights are not NVFP4"
    monkeypatch.setenv("NVFP4KERN_TILE", "sm90/gemm:t32")
    with pytest.raises(nvfp4kern.BackendError, match="the weights are not NVFP4"):
        nvfp4kern.explain("grouped_gemm", [a], [b])


def groups_of(device, sizes):
    return list_of(group_operands(rng_of(0), data.full_range, sizes), device)


@pytest.mark.parametrize("layout", ("linear", "blocked"))
@pytest.mark.parametrize("most", (8, 70, 300))
def test_a_list_is_one_launch(device, most, layout, monkeypatch):
    """Groups differ in everything, and one is empty. Undivided tiles have the bits of any other."""
    sizes = [(20 % most, 8448, 64), (0, 64, 64), (1, 4000, 192), (most, 8448, 320), (7, 65, 128)]
    a, b, sfa, sfb = groups_of(device, sizes)
    alpha = [torch.full((n,), 0.5 + i, device=device) for i, (_, n, _) in enumerate(sizes)]
    options = {"alpha": alpha, "out_dtype": "float32", "scale_layout": layout}
    if layout == "blocked":
        sfa, sfb = ([nvfp4kern.to_blocked(one) for one in side] for side in (sfa, sfb))
    plan = nvfp4kern.explain("grouped_gemm", a, b, sfa, sfb, **options)
    assert plan["backend"] == "sm90" and plan["why"].startswith("one launch for all groups")
    tile = tiles_of("sm90/gemm", "list_gemm")[plan["tile"]]
    tokens, k = tile["tile_m"], -(-320 // tile["tile_k"]) * tile["tile_k"]
    assert plan["kernel"] == f"sm90_list_gemm_{plan['tile']}_fp16" and plan["tile_m"] <= tokens
    assert plan["workspace_bytes"] == (sum(m for m, *_ in sizes) + tokens) * k * 2
    got = nvfp4kern.grouped_gemm(a, b, sfa, sfb, **options)
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    for mine, factor, *one in zip(got, alpha, a, b, sfa, sfb, strict=True):
        assert torch.equal(
            mine, nvfp4kern.gemm(*one, alpha=factor, out_dtype="float32", scale_layout=layout)
        )


@pytest.mark.parametrize(
    "sizes, why",
    [
        ([(20, 8448, 64)] * 33, "there are more than 32"),
        ([(20, 8448, 64), (0, 8448, 64)], "there is one"),
        ([(1, 8448, 64), (0, 8448, 64)], "there is one"),
    ],
)
def test_groups_that_are_gemms(device, sizes, why):
    operands = groups_of(device, sizes)
    plan = nvfp4kern.explain("grouped_gemm", *operands)
    alone = [nvfp4kern.explain("gemm", *one) for one in zip(*operands, strict=True)]
    assert plan["backend"] == "sm90" and plan["tile"] == alone[0]["tile"]
    assert plan["why"].startswith("a gemm for each group") and why in plan["why"]
    assert plan["workspace_bytes"] == max(one.get("workspace_bytes", 0) for one in alone)
    got = nvfp4kern.grouped_gemm(*operands, out_dtype="float32")
    for mine, *one in zip(got, *operands, strict=True):
        assert torch.equal(mine, nvfp4kern.gemm(*one, out_dtype="float32"))


FEW = [(1, 4096, 1024), (8, 4096, 1024), (0, 64, 64), (3, 4096, 1024)]


@pytest.mark.parametrize("layout", ("linear", "blocked"))
def test_a_list_of_few_tokens_is_one_gemv(device, layout):
    a, b, sfa, sfb = groups_of(device, FEW)
    if layout == "blocked":
        sfa, sfb = ([nvfp4kern.to_blocked(one) for one in side] for side in (sfa, sfb))
    plan = nvfp4kern.explain("grouped_gemm", a, b, sfa, sfb, scale_layout=layout)
    assert plan["kernel"] == f"sm90_gemv_list_codes_{layout}" and plan["workspace_bytes"] == 0
    assert plan["why"].startswith("one launch for all groups, which have few tokens")


@pytest.mark.parametrize("other", [(9, 4096, 1024), (2, 4104, 1024), (2, 4096, 1088), None])
def test_what_is_no_gemv_of_a_list(device, other, monkeypatch):
    """More than eight tokens, other N or K, more than 32 groups."""
    operands = groups_of(device, FEW + [other] if other else FEW * 11)
    assert "gemv_list" not in nvfp4kern.explain("grouped_gemm", *operands)["kernel"]
    monkeypatch.setenv("NVFP4KERN_TILE", "sm90/gemv:tall8")
    assert "no tile of sm90/gemv serves all groups" in str(
        nvfp4kern.explain("grouped_gemm", *operands)["declined"]
    )


@pytest.mark.parametrize("m, together", [(7000, True), (9000, False)])
def test_tokens_of_a_list_take_at_most_256_mb(device, m, together):
    a, b = (torch.zeros(rows, 4096, dtype=torch.uint8, device=device) for rows in (m, 1056))
    sfa, sfb = (torch.zeros(rows, 512, dtype=torch.uint8, device=device) for rows in (m, 1056))
    plan = nvfp4kern.explain("grouped_gemm", [a] * 2, [b] * 2, [sfa] * 2, [sfb] * 2)
    assert plan["backend"] == "sm90" and plan["workspace_bytes"] <= 256 * MB
    assert ("take more than 256 MB" in plan["why"]) != together


def test_a_forced_tile_has_a_gemm_for_each_group(device, monkeypatch):
    operands = groups_of(device, [(20, 200, 64), (3, 72, 128)])
    monkeypatch.setenv("NVFP4KERN_TILE", "sm90/gemm:w96")
    plan = nvfp4kern.explain("grouped_gemm", *operands)
    assert plan["tile"] == "w96" and "a tile is forced" in plan["why"]


@pytest.mark.parametrize("operator", ("gemm", "dual_gemm"))
def test_batches_of_one_matrix(device, operator):
    """Blocked scale factors of 20 rows end in the middle of an atom, so batches do not join."""
    torch.manual_seed(0)
    batch, m, n, k = 3, 20, 72, 256
    a, *b = (
        torch.randint(0, 256, s, dtype=torch.uint8, device=device)
        for s in ((batch, m, k // 2), (n, k // 2), (n, k // 2))
    )
    sfa = torch.randint(0x30, 0x40, (batch, m, k // 16), dtype=torch.uint8, device=device)
    sfa = torch.stack([nvfp4kern.to_blocked(one) for one in sfa])
    sfb = [torch.randint(0x30, 0x40, (n, k // 16), dtype=torch.uint8, device=device)] * 2
    sfb = [nvfp4kern.to_blocked(one) for one in sfb]
    if operator == "gemm":
        b, sfb = b[:1], sfb[:1]
    call = getattr(nvfp4kern, operator)
    options = {"scale_layout": "blocked", "out_dtype": "float32"}
    plan = nvfp4kern.explain(operator, a, *b, sfa, *sfb, **options)
    assert plan["backend"] == "sm90" and plan["workspace_bytes"] > batch * m * k * 2
    whole = call(a, *b, sfa, *sfb, **options)
    for i in range(batch):
        assert torch.equal(whole[i], call(a[i], *b, sfa[i], *sfb, **options))


def test_experts_of_one_matrix(device):
    torch.manual_seed(0)
    n, k = 72, 256
    a, b = (torch.randint(0, 256, (r, k // 2), dtype=torch.uint8, device=device) for r in (20, n))
    sfa, sfb = (
        torch.randint(0x30, 0x40, (rows, k // 16), dtype=torch.uint8, device=device)
        for rows in (20, n)
    )
    offsets = torch.tensor([0, 7, 20], dtype=torch.int32, device=device)
    options = {"offsets": offsets, "out_dtype": "float32"}
    once, sfb_once = b.expand(2, n, k // 2), sfb.expand(2, n, k // 16)
    assert nvfp4kern.explain("grouped_gemm", a, once, sfa, sfb_once, **options)["backend"] == "sm90"
    got = nvfp4kern.grouped_gemm(a, once, sfa, sfb_once, **options)
    twice = torch.stack([b, b]), torch.stack([sfb, sfb])
    want = nvfp4kern.grouped_gemm(a, twice[0], sfa, twice[1], **options)
    assert torch.equal(got, want)
    alone = nvfp4kern.gemm(a, b, sfa, sfb, out_dtype="float32")
    assert torch.allclose(got, alone, rtol=1e-5)


@pytest.mark.parametrize("operator", ("gemm", "dual_gemm"))
@pytest.mark.parametrize("m", (1, 4, 8))
def test_few_tokens_keep_the_gemv(device, m, operator):
    plan = plan_of(device, m, 384, 1024, operator)
    assert plan["kernel"].startswith("sm90_gemv") and plan["why"].startswith("few tokens")
    assert plan["workspace_bytes"] == 0 and "declined" not in plan


@pytest.mark.parametrize("operator", ("gemm", "dual_gemm"))
def test_a_forced_gemv_is_not_compared(device, operator, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_TILE", "sm90/gemv:tall16")
    assert plan_of(device, 8, 384, 1024, operator)["tile"] == "tall16"
    assert plan_of(device, 9, 384, 1024, operator)["kernel"].startswith(f"sm90_{operator}")


@pytest.mark.parametrize("tile", ("short8", "map16"))
def test_what_is_for_one_matrix_serves_no_two(device, tile, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_TILE", f"sm90/gemv:{tile}")
    assert plan_of(device, 1, 384, 1024)["tile"] == tile
    with pytest.raises(nvfp4kern.BackendError, match="it is for one NVFP4 token and one matrix"):
        plan_of(device, 1, 384, 1024, "dual_gemm")


def test_sizes_that_a_gemv_of_two_matrices_leaves_to_tiles(device):
    for m, n, k in ((9, 384, 1024), (8, 388, 1024), (1, 384, 1040)):
        plan = plan_of(device, m, n, k, "dual_gemm")
        assert not plan["kernel"].startswith("sm90_gemv"), (m, n, k)


@pytest.mark.parametrize("operator", ("gemm", "dual_gemm"))
def test_batch_invariance_divides_no_k(device, operator, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    for m in (1, 16, 300):
        plan = plan_of(device, m, 384, 1024, operator)
        assert tiles_of("sm90/gemm")[plan["tile"]]["split_k"] == plan["split"] == 1
        assert plan["batch_invariant"]


@pytest.mark.parametrize("operator", ("gemm", "dual_gemm"))
@pytest.mark.parametrize(
    "sizes, stride, why",
    [
        ((16, 64, 80), {}, "no tensor map describes the weights: an address"),
        ((16, 64, 96), {}, "the weights' scale factors are not aligned"),
        ((16, 64, 128), {"row_bytes": 72}, "no tensor map describes the weights"),
        ((16, 1, (1 << 18) + 128), {}, "K is more than 2^18"),
    ],
)
def test_what_no_tile_can_serve(device, operator, sizes, stride, why):
    plan = plan_of(device, *sizes, operator, **stride)
    assert plan["backend"] == "sm80" and plan["declined"].startswith(f"sm90: {why}")


@pytest.mark.parametrize("operator", ("gemm", "dual_gemm"))
@pytest.mark.parametrize("batch, m", [(None, 17001), (3, 6000), (2, 17001)])
def test_workspace_is_at_most_256_mb(device, operator, batch, m):
    k = 8192
    assert (batch or 1) * m * k * 2 > 256 * MB
    plan = plan_of(device, m, 16, k, operator, batch)
    rows = 6000 + rows_of(plan, 6000) if batch == 3 else rows_of(plan, 34 * 256)
    assert plan["backend"] == "sm90" and plan["workspace_bytes"] == rows * k * 2 <= 256 * MB
    assert plan["slices"] == (4 if batch == 2 else 2)


@pytest.mark.parametrize("operator", ("grouped_gemm", "grouped_dual_gemm"))
@pytest.mark.parametrize("m, slices", [(16384, None), (18468, None), (18469, 2), (32768, 2)])
def test_experts_take_at_most_256_mb(device, operator, m, slices):
    k = 7168
    shapes = (1, k // 2), (64, 256, k // 2), (1, k // 16), (64, 256, k // 16)
    operands = (torch.zeros(shape, dtype=torch.uint8, device=device) for shape in shapes)
    rows, offsets = (torch.zeros(n, dtype=torch.int32, device=device) for n in (m, 65))
    of_rows = {"offsets": offsets, "rows": rows, "rows_per_token": 1}
    plan = nvfp4kern.explain(operator, *operands, **of_rows)
    assert plan["backend"] == "sm90" and plan.get("slices") == slices
    rows = -(-m // (slices or 1)) + plan["tile_m"]
    assert plan["workspace_bytes"] == rows * k * 2 <= 256 * MB


def test_all_rows_of_experts_choose_the_tile_of_slices(device, monkeypatch):
    whole = plan_of_experts(device, 1600)[0]
    monkeypatch.setenv("NVFP4KERN_ROW_LIMIT", "160")
    plan = plan_of_experts(device, 1600)[0]
    assert plan["tile"] == whole["tile"] and plan["slices"] == 10
    assert plan["workspace_bytes"] == (160 + plan["tile_m"]) * 1024 * 2


@pytest.mark.parametrize("m, limit, slices", [(99, 100, None), (99, 98, 2), (99, 1, 99)])
def test_a_limit_of_rows(device, m, limit, slices, monkeypatch):
    """Slices without experts are whole tiles and atoms, whatever the limit is."""
    monkeypatch.setenv("NVFP4KERN_TILE", "sm90/gemm:w8")
    monkeypatch.setenv("NVFP4KERN_ROW_LIMIT", str(limit))
    assert plan_of_experts(device, m)[0].get("slices") == slices
    assert plan_of(device, m, 384, 1024).get("slices") is None
    monkeypatch.setenv("NVFP4KERN_ROW_LIMIT", "none")
    with pytest.raises(nvfp4kern.BackendError, match="^NVFP4KERN_ROW_LIMIT: 'none', expected a nu"):
        plan_of(device, m, 384, 1024)


@pytest.mark.skipif("PTXSIM_CC" in os.environ, reason="hours in the simulator")
@pytest.mark.parametrize("batch, m", [(1, 17001), (3, 6000)])
def test_slices_are_the_whole(device, batch, m, monkeypatch):
    """By undivided tiles, whose bits do not depend on the other rows."""
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    n, k = 48, 8192
    torch.manual_seed(0)

    def codes(*shape):
        return torch.randint(0, 256, shape, dtype=torch.uint8, device=device)

    def factors(*shape):
        return torch.randint(0x30, 0x40, shape, dtype=torch.uint8, device=device)

    a, b = codes(batch, m, k // 2), codes(batch, n, k // 2)
    sfa, sfb = factors(batch, m, k // 16), factors(batch, n, k // 16)
    whole = nvfp4kern.gemm(a, b, sfa, sfb, out_dtype="float32")
    assert not whole.isnan().any()
    for i in range(batch):
        for rows in (slice(0, 300), slice(m - 700, m)):
            part = nvfp4kern.gemm(a[i, rows], b[i], sfa[i, rows], sfb[i], out_dtype="float32")
            assert torch.equal(part, whole[i, rows])


@pytest.mark.skipif("PTXSIM_CC" in os.environ, reason="minutes in the simulator: test_slices.py")
def test_a_smaller_slice_has_fewer_tiles(device, monkeypatch):
    """K of 2^18 leaves workspace for 256 rows. CTAs that split K of no tile would store zeros."""
    monkeypatch.setenv("NVFP4KERN_TILE", "sm90/gemm:t128")
    m, n, k, one = 257, 16, 1 << 18, 0x38
    torch.manual_seed(0)
    ones = torch.full((m, k // 2), 0x22, dtype=torch.uint8, device=device)
    b = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    sfa, sfb = (torch.full((rows, k // 16), one, dtype=torch.uint8) for rows in (m, n))
    operands = (ones, b.to(device), sfa.to(device), sfb.to(device))
    out = nvfp4kern.gemm(*operands, out_dtype="float32")
    sums = nvfp4kern.dequantize((b, sfb, None), out_dtype="float32").double().sum(1)
    assert torch.equal(out.cpu().double(), sums.expand(m, n))
