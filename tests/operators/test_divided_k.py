"""Products of 16-bit tokens whose tiles consumer Blackwell divides along K among CTAs."""

import blackwell_kind_f16 as of_halves
import numpy as np
import pytest
import torch
from conftest import GPUS
from dense_calls import run_gemm
from generators import assert_ok, floats, rng_of
from row_factors import factors

import nvfp4kern
from nvfp4kern.verify import reference

TILES = {n: t for n, t in nvfp4kern._C._tiles().items() if n.startswith("sm120/kind_f16:")}
K = 1712
"""26 steps and a part of one."""
FEWEST = 24
"""SMs: the tests' tiles leave some of them without a CTA."""
every_tile = pytest.mark.parametrize("name", TILES)
every_dtype = pytest.mark.parametrize("dtype", of_halves.DTYPES)


def watched(name, call, seen):
    """The call, whose plan must divide tiles."""

    def planned(*args, **options):
        plan = nvfp4kern.explain(name, *args, **options)
        assert plan["backend"] == "sm120" and plan["split"] > 1
        seen.append(plan["split"])
        return call(*args, **options)

    return planned


def poisoned(empty):
    """torch.empty(), by which the binding makes a workspace: of NaNs."""

    def filled(*args, dtype=None, **options):
        made = empty(*args, dtype=dtype, **options)
        return made.fill_(0xFF) if dtype is torch.uint8 else made

    return filled


@pytest.fixture
def gpu(monkeypatch):
    """A backend all of whose calls divide, with a workspace of NaNs."""
    found = next((gpu for gpu in GPUS if gpu.name == "sm120"), None)
    if found is None or torch.cuda.get_device_properties(0).multi_processor_count < FEWEST:
        pytest.skip(f"no GPU of {FEWEST} SMs for sm120")
    found.force(monkeypatch)
    seen = []
    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    for operator in ("gemm", "dual_gemm"):
        monkeypatch.setattr(
            nvfp4kern, operator, watched(operator, getattr(nvfp4kern, operator), seen)
        )
    yield found
    assert seen


@every_tile
@every_dtype
def test_sums(name, dtype, gpu, monkeypatch):
    """Also of tiles that are not full, of batches, and of rows that no wide load reaches."""
    monkeypatch.setenv("NVFP4KERN_TILE", name)
    device, c, tokens = gpu.device, gpu.c, TILES[name]["tile_m"]
    for form, m, n, lead in (("linear", tokens + 3, 133, ()), ("blocked", 5, 300, (2,))):
        of_halves.check_gemm(device, c, dtype, m, n, K, form, lead=lead, out=dtype)
        of_halves.check_gemm(device, c, dtype, m, n, K, form, lead=lead, full=True)
    of_halves.check_gemm(device, c, dtype, tokens, 129, 1040, "blocked", full=True)
    of_halves.check_gemm(device, c, dtype, 9, 70, 1680, "linear", row_bytes=1681 // 2 + 3)
    of_halves.check_dual(device, c, dtype, tokens, 75, K, "flat", activation="gelu", out=dtype)
    of_halves.check_dual(device, c, dtype, 7, 64, K, "blocked", lead=(2,), full=True)
    of_halves.check_poison(device, dtype, 9, 130, K)


@every_tile
def test_row_scale(name, gpu, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_TILE", name)
    rng = rng_of(K)
    a, b = of_halves.operands(rng, "bfloat16", True, (2,), 9, 133, K)
    scale = factors(rng, 2, 9)
    given = {"row_scale": floats(scale, "float32", gpu.device), "dtype": "float32"}
    expected = reference.gemm(a.values, b.values, row_scale=scale, c=gpu.c, nvfp4=False)
    assert_ok(reference.check(run_gemm(a, b, gpu.device, **given), expected, "float32"))


@every_tile
def test_every_run_has_the_same_bits(name, gpu, monkeypatch):
    """Sums round, and another CTA may be the last each time."""
    monkeypatch.setenv("NVFP4KERN_TILE", name)
    a, b = of_halves.operands(rng_of(K), "float16", True, (), 21, 260, K)
    runs = [run_gemm(a, b, gpu.device, dtype="float32") for _ in range(6)]
    for again in runs[1:]:
        np.testing.assert_array_equal(again, runs[0])
