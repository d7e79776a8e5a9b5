"""Which gemms of 16-bit tokens consumer Blackwell leaves to sm80, and what explain says of it."""

import os

import pytest
import torch
from conftest import GPUS

import nvfp4kern

SMS = 78


@pytest.fixture
def device(monkeypatch):
    found = next((gpu for gpu in GPUS if gpu.name == "sm120"), None)
    if found is None or int(os.environ.get("PTXSIM_SMS", SMS)) < SMS:
        pytest.skip(f"no GPU of {SMS} SMs for sm120")
    found.force(monkeypatch)
    monkeypatch.setenv("NVFP4KERN_SM_LIMIT", str(SMS))
    return found.device


def plan_of(device, n, k, operator="gemm", m=16):
    a = torch.zeros(m, k, dtype=torch.bfloat16, device=device)
    b, sfb = (torch.zeros(n, k // x, dtype=torch.uint8, device=device) for x in (2, 16))
    matrices = 2 if operator == "dual_gemm" else 1
    return nvfp4kern.explain(operator, a, *[b] * matrices, None, *[sfb] * matrices)


@pytest.mark.parametrize("operator, features", [("gemm", 128), ("dual_gemm", 64)])
def test_few_long_tiles_are_sm80s(device, operator, features):
    """A tile for every fourth of 78 SMs is 20 of them, and 48 steps are K of 3072."""
    plan = plan_of(device, 19 * features, 3072, operator)
    assert plan["backend"] == "sm80" and plan["why"].startswith("stream-K: ")
    assert "its tiles are few for the GPU" in plan["declined"]
    for n, k in ((19 * features + 1, 3072), (19 * features, 3008)):
        served = plan_of(device, n, k, operator)
        assert served["kernel"] == f"sm120_kind_f16_{operator}_t16" and "declined" not in served
        assert served["grid"] == -(-n // features)


def test_few_long_tiles_that_may_not_be_split_stay(device, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("NVFP4KERN_BATCH_INVARIANT", "1")
        assert plan_of(device, 128, 4096)["kernel"].startswith("sm120_kind_f16_gemm_")
    monkeypatch.setenv("NVFP4KERN_TILE", "sm120/kind_f16:t64")
    assert plan_of(device, 128, 4096)["kernel"] == "sm120_kind_f16_gemm_t64"


def test_many_tokens_make_many_tiles(device):
    """Of 16 tokens there would be 20 tiles, whichever is chosen."""
    plan = plan_of(device, 128, 4096, m=20 * 16)
    assert plan["backend"] == "sm120" and plan["grid"] == -(-320 // plan["tile_m"])


@pytest.mark.parametrize("m, tile", [(16, "t16"), (4096, "t64")])
def test_many_tokens_share_what_is_decoded(device, m, tile):
    assert plan_of(device, 14336, 4096, m=m)["tile"] == tile
