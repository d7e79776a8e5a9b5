"""Which gemms consumer Blackwell takes by a gemv, which of 16-bit tokens it leaves to sm80, and
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


def most_few():
    """A tile for every fourth SM is one more."""
    return (sms() - 1) // 4


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


@pytest.mark.parametrize("operator, features", [("gemm", 128), ("dual_gemm", 64)])
def test_few_long_tiles_are_sm80s(device, operator, features):
    """48 steps are K of 3072."""
    few = most_few() * features
    plan = plan_of(device, few, 3072, operator)
    assert plan["backend"] == "sm80" and plan["why"].startswith("stream-K: ")
    assert "its tiles are few for the GPU" in plan["declined"]
    for n, k in ((few + 1, 3072), (few, 3008)):
        served = plan_of(device, n, k, operator)
        assert served["kernel"] == f"sm120_kind_f16_{operator}_t16" and "declined" not in served
        assert served["grid"] == -(-n // features)
        # More or fewer tokens may be added in the other order.
        assert not served["batch_invariant"]


def test_few_long_tiles_that_may_not_be_split_stay(device, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
        for operator in ("gemm", "dual_gemm"):
            plan = plan_of(device, 128, 4096, operator)
            assert plan["kernel"].startswith(f"sm120_kind_f16_{operator}_")
            assert plan["batch_invariant"]
    monkeypatch.setenv("NVFP4KERN_TILE", "sm120/kind_f16:t64")
    assert plan_of(device, 128, 4096)["kernel"] == "sm120_kind_f16_gemm_t64"


def test_many_tokens_make_many_tiles(device):
    """Those of 16 tokens count, whichever is chosen."""
    m = 16 * (most_few() + 1)
    plan = plan_of(device, 128, 4096, m=m)
    assert plan["backend"] == "sm120" and plan["grid"] == -(-m // plan["tile_m"])


@pytest.mark.parametrize("m, tile", [(16, "t16"), (4096, "t64")])
def test_many_tokens_share_what_is_decoded(device, m, tile):
    assert plan_of(device, 14336, 4096, m=m)["tile"] == tile
