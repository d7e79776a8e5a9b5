"""Which gemms consumer Blackwell takes by a gemv, of which 16-bit ones it divides K among CTAs, and
what explain says of it."""

import pytest
import torch
from conftest import GPUS

import nvfp4kern

FEWEST = 78  # SMs


@pytest.fixture
def device(monkeypatch):
    found = next((gpu for gpu in GPUS if gpu.name == "sm120"), None)
    if found is None or sms() < FEWEST:
        pytest.skip(f"no GPU of {FEWEST} SMs for sm120")
    found.force(monkeypatch)
    return found.device


def sms():
    return torch.cuda.get_device_properties(0).multi_processor_count


def plan_of(device, n, k, operator="gemm", m=16):
    a = torch.zeros(m, k, dtype=torch.bfloat16, device=device)
    b, sfb = (torch.zeros(n, k // x, dtype=torch.uint8, device=device) for x in (2, 16))
    matrices = 2 if operator == "dual_gemm" else 1
    return nvfp4kern.explain(operator, a, *[b] * matrices, None, *[sfb] * matrices)


@pytest.mark.parametrize("m, n, k", [(1, 14336, 4096), (1, 14336, 32768), (8, 1024, 4096)])
def test_few_tokens_are_a_gemv(device, m, n, k, monkeypatch):
    """The CTAs of a call are clusters of one: K is split among warps."""
    plan = plan_of(device, n, k, m=m)
    assert plan["kernel"] == "sm120_gemv_bf16_linear" and plan["cluster"] == 1
    monkeypatch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
    assert plan_of(device, n, k, m=m)["kernel"] == "sm120_kind_f16_gemm_t16"


def test_tokens_without_room_are_no_gemv(device):
    """Eight of K = 14336 take 258 KB, of which a CTA has 99."""
    assert plan_of(device, 14336, 14336, m=8)["kernel"] == "sm120_kind_f16_gemm_t16"


def parts_of(plan):
    return plan.get("split", 1)


@pytest.mark.parametrize("operator, features", [("gemm", 128), ("dual_gemm", 64)])
@pytest.mark.parametrize("k, most", [(256, 1), (512, 1), (1024, 4), (4096, 8), (16384, 16)])
def test_few_tiles_divide_k(device, operator, features, k, most):
    """A longer K among more CTAs, which save more than their sums cost."""
    plan = plan_of(device, 2 * features, k, operator, m=9)
    assert plan["kernel"] == f"sm120_kind_f16_{operator}_t16" and "declined" not in plan
    assert parts_of(plan) == most and plan["grid"] == 2 * most
    of_parts = 2 * (most * 16 * 128 * 4 + 8)  # sums, and a counter a tile
    assert plan["workspace_bytes"] == (of_parts if most > 1 else 0)
    assert plan["why"].startswith("tiles are few: K of each is divided") == (most > 1)
    # More or fewer tokens may be added in another order.
    assert not plan["batch_invariant"]


@pytest.mark.parametrize("operator, features", [("gemm", 128), ("dual_gemm", 64)])
def test_parts_run_at_once(device, operator, features):
    """Two CTAs fit on an SM."""
    counts = [plan_of(device, tiles * features, 8192, operator) for tiles in (1, 9, sms() // 2)]
    assert all(plan["grid"] <= 2 * sms() for plan in counts)
    assert [parts_of(plan) for plan in counts] == sorted(map(parts_of, counts), reverse=True)
    assert parts_of(plan_of(device, 2 * sms() * features, 8192, operator)) == 1


def test_batch_invariant_calls_divide_nothing(device, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
        for operator in ("gemm", "dual_gemm"):
            plan = plan_of(device, 128, 4096, operator)
            assert plan["kernel"].startswith(f"sm120_kind_f16_{operator}_")
            assert plan["batch_invariant"] and parts_of(plan) == 1
    monkeypatch.setenv("NVFP4KERN_TILE", "sm120/kind_f16:t64")
    forced = plan_of(device, 128, 4096)
    assert forced["kernel"] == "sm120_kind_f16_gemm_t64" and parts_of(forced) > 1


@pytest.mark.parametrize("m, tile", [(16, "t16"), (4096, "t64")])
def test_many_tokens_share_what_is_decoded(device, m, tile):
    assert plan_of(device, 14336, 4096, m=m)["tile"] == tile
