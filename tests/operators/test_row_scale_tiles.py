"""row_scale by every tile of Hopper's and Blackwell's products, in all ways to store, and by
batches and slices."""

from functools import partial

import numpy as np
import pytest
import torch
from conftest import GPUS
from dense_calls import LINEAR, explain, gemv_operands, run_dual, run_gemm, run_gemv
from expert_calls import (
    Matrices,
    Stack,
    Tokens,
    drawn,
    expert_of,
    group_operands,
    list_of,
    run_list,
)
from generators import assert_ok, floats, from_numpy, halves, integers, raw, rng_of
from row_factors import factors, powers, strided

import nvfp4kern
from nvfp4kern.verify import data, reference

HOPPER, BLACKWELL, CONSUMER = (
    {
        name: tile
        for name, tile in nvfp4kern._C._tiles().items()
        if name.startswith(tuple(f"{row}/{family}:" for family in ("gemm", "gemv", "kind_f16")))
    }
    for row in ("sm90", "sm100", "sm120")
)
"""The tiles of products."""


@pytest.mark.parametrize("m", (1, 7, 70, 300))
@pytest.mark.parametrize("kind", ("NVFP4", "float16"))
def test_rows_with_kernels_that_take_them(gpu, m, kind):
    """Where the call without factors is planned, the call with them is, too."""
    rng = rng_of(12, m)
    scale = {"row_scale": torch.ones(m, device=gpu.device)}
    weights = [data.exact_family(rng, 384, 256) for _ in range(2)]
    a = data.exact_family(rng, m, 256) if kind == "NVFP4" else halves(rng, kind, m, 256)
    for operator, ops in (("gemm", [a, weights[0]]), ("dual_gemm", [a, *weights])):
        check_plan(gpu, partial(explain, operator, ops, gpu.device), scale)
    tokens = Tokens(rng, gpu.device, m, 256, kind="NVFP4" if kind == "NVFP4" else "W4A16")
    for experts, more in ((Matrices, {}), (Stack, {}), (Stack, {"quantized": True})):
        b = experts(rng, gpu.device, 3, 64, 256)
        given = tokens.tensor, tokens.sf, [0, m // 2, m, m]
        check_plan(gpu, partial(b.explain, *given, **more), scale)


def check_plan(gpu, explain, scale):
    """Codes are no output of sm100's and sm120's."""
    without = explain()
    assert explain(**scale) == without
    assert without["backend"] == gpu.name or without["declined"].endswith("that writes codes")


def forced(row, monkeypatch):
    """The device of a row that serves calls from here on."""
    found = next((gpu for gpu in GPUS if gpu.name == row), None)
    if found is None:
        pytest.skip(f"no GPU for {row}")
    found.force(monkeypatch)
    return found.device


@pytest.fixture
def hopper(monkeypatch):
    return forced("sm90", monkeypatch)


@pytest.fixture
def blackwell(monkeypatch):
    return forced("sm100", monkeypatch)


@pytest.fixture
def consumer(monkeypatch):
    return forced("sm120", monkeypatch)


def check_scaled(got, scale, sums, dtype):
    """fl(factor * sum), rounded once more to the output's type."""
    scaled = scale[..., None] * np.float32(sums)
    assert_ok(reference.check_bits(got, reference.round_to(scaled, dtype)))


def check_products(device, rng, a, ways, n, k, forms, dtype="float32"):
    """gemm and dual_gemm of tokens [.., m, k]; of the latter gates and ups, multiplied."""
    scale = factors(rng, *a.values.shape[:-1])
    lead = a.values.shape[:-2]
    b = [data.exact_family(rng, *lead, n, k) for _ in range(2)]
    sums = [reference.gemm(a.values, w.values).rounded("float32") for w in b]
    given = {"row_scale": strided(scale, device), "forms": forms, "dtype": dtype}
    if "gemm" in ways:
        check_scaled(run_gemm(a, b[0], device, **given), scale, sums[0], dtype)
    if "dual_gemm" in ways:
        got = run_dual((a, *b), device, activation="identity", **given)
        gates, ups = (scale[..., None] * np.float32(s) for s in sums)
        assert_ok(reference.check_bits(got, reference.round_to(gates * ups, dtype)))


def check_experts_of(device, rng, experts, m, n, k, form, by_rows, kind="NVFP4", **more):
    """Rows of two experts, of one without any, and of nobody."""
    offsets, count = [2, 2 + m, 2 + m, 2 * m + 5], 2 * m + 9
    a = Tokens(rng, device, 13 if by_rows else count, k, kind=kind)
    b = experts(rng, device, 3, n, k, kind=kind, form=form)
    scale = factors(rng, len(a.values))
    options, rows = more | {"row_scale": strided(scale, device)}, np.arange(count)
    if by_rows:
        index = drawn(rng, offsets, count, 13, 3)
        options |= {"rows": from_numpy(index, device), "rows_per_token": 3, "count": count}
        rows = np.clip(index // 3, 0, 12)
    got = b.run(a.tensor, a.sf, offsets, dtype="float32", **options)
    owner = expert_of(offsets, count)
    for g, w in enumerate(b.values):
        of = owner == g
        sums = reference.gemm(a.values[rows[of]], w).rounded("float32")
        want = scale[rows[of], None] * np.float32(sums)
        if experts is Stack:
            gates, ups = np.split(want, 2, axis=-1)
            want = gates * ups
        elif "activation" in more:
            want = np.maximum(want, 0) * np.maximum(want, 0)
        assert_ok(reference.check_bits(got[of], want))


def check_quantised(device, rng, m, n, k, activation="silu"):
    """Codes and scale factors, made of the products in fp32 by quantize."""
    offsets = [0, m, m, m + 5]
    a, stack = Tokens(rng, device, m + 5, k), Stack(rng, device, 3, n, k)
    scale = powers(rng, m + 5)
    given = {"row_scale": floats(scale, "float32", device), "activation": activation}
    args, options = stack.call(a.tensor, a.sf, offsets, quantized=True)
    got = nvfp4kern.grouped_dual_gemm(*args, global_scale=0.37, **given, **options)
    on_cpu = [part.cpu() if isinstance(part, torch.Tensor) else part for part in args]
    options["offsets"] = options["offsets"].cpu()
    given["row_scale"] = given["row_scale"].cpu()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NVFP4KERN_TILE")
        patch.setenv("NVFP4KERN_BACKEND", "cpu")
        want = nvfp4kern.grouped_dual_gemm(*on_cpu, global_scale=0.37, **given, **options)
    np.testing.assert_array_equal(raw(got.data), raw(want.data))
    np.testing.assert_array_equal(raw(got.scales), raw(want.scales))


@pytest.mark.parametrize("name", HOPPER)
def test_every_tile_of_hopper(hopper, name, monkeypatch):
    """Multiplies by the factors of tokens, in all its ways to store, and with batches apart."""
    tile, rng = HOPPER[name], rng_of(20, len(name))
    monkeypatch.setenv("NVFP4KERN_TILE", name)
    if name.startswith("sm90/gemv:"):
        return check_gemv_tile(hopper, rng, tile)
    m, few, ways = tile["tile_m"] + 3, min(tile["tile_m"], 40) + 3, tile["operators"]
    if name.startswith("sm90/kind_f16:"):
        for kind in ("16-bit", "16-bit transposed"):
            check_experts_of(hopper, rng, Matrices, few, 72, 64, "linear", False, kind)
        return None
    as_they_lie = name == "sm90/gemm:n256"
    a = data.exact_family(rng, 2, m, 192)
    x = integers(rng, "bfloat16", 2, few, 320)
    if not as_they_lie:
        check_products(hopper, rng, a, ways, 133, 192, ("blocked", "linear"))
        check_products(hopper, rng, a, ways, 40, 192, ("linear", "blocked"), "float16")
    check_products(hopper, rng, x, ways, 75, 320, ("linear", "blocked"))
    check_products(hopper, rng, x, ways, 76, 320, ("linear", "linear"), "bfloat16")
    for by_rows, form in ((False, "blocked"), (True, "linear")):
        if "grouped_gemm" in ways:
            check_experts_of(hopper, rng, Matrices, m, 70, 192, form, by_rows)
            check_experts_of(hopper, rng, Matrices, few, 140, 64, form, by_rows, "W4A16")
            check_experts_of(hopper, rng, Stack, m, 24, 192, form, by_rows, activation="identity")
        if "activated_grouped_gemm" in ways:
            check_experts_of(hopper, rng, Matrices, few, 72, 192, form, by_rows, activation="relu2")
    if "grouped_dual_gemm" in ways:
        check_quantised(hopper, rng, few, 48, 192)
    if "activated_grouped_gemm" in ways:
        check_quantised(hopper, rng, few, 48, 192, "relu2")
    return None


def check_gemv(device, rng):
    """Weights by tensor map or not, split among CTAs of a cluster or not."""
    for batch, n, k in ((2, 384, 1280), (None, 128, 4096)):
        a, b = gemv_operands(rng, data.exact_family, n, k, batch)
        scale = factors(rng, *(() if batch is None else (batch,)), 1)
        got = run_gemv(a, b, device, row_scale=strided(scale, device), dtype="float32")
        check_scaled(got, scale, reference.gemv(a.values, b.values).rounded("float32"), "float32")


def check_few_tokens(device, rng, ways):
    for m in (1, 5):
        for kind in ("NVFP4", "float16", "bfloat16"):
            a = (
                integers(rng, kind, 2, m, 576)
                if kind != "NVFP4"
                else data.exact_family(rng, 2, m, 576)
            )
            for form in ("linear", "blocked"):
                check_products(device, rng, a, ways, 72, 576, ("linear", form))


def check_gemv_tile(device, rng, tile):
    check_gemv(device, rng)
    if not tile["tile"].startswith("tall"):
        return
    check_few_tokens(device, rng, ("gemm", "dual_gemm"))
    for experts, more in ((Matrices, {}), (Stack, {"activation": "identity"})):
        for kind in ("NVFP4", "W4A16"):
            for by_rows in (False, True):
                check_experts_of(device, rng, experts, 3, 72, 576, "linear", by_rows, kind, **more)
    check_quantised(device, rng, 2, 48, 576)
    check_list(device, rng, [(m, 140, 320) for m in (1, 0, 8, 3)])


def check_list(device, rng, groups, tokens=None):
    """Of groups some have factors. `tokens` are of a 16-bit dtype, or NVFP4."""
    pairs = group_operands(rng, data.exact_family, groups, tokens)
    given = [None if g == 1 else factors(rng, m) for g, (m, _, _) in enumerate(groups)]
    tensors = [None if each is None else strided(each, device) for each in given]
    outs = run_list(pairs, device, row_scale=tensors, dtype="float32")
    for got, (a, b), scale in zip(outs, pairs, given, strict=True):
        ones = np.ones(len(a.values), np.float32)
        sums = reference.gemm(a.values, b.values).rounded("float32")
        check_scaled(got, ones if scale is None else scale, sums, "float32")


def check_blackwell_gemv(device, rng):
    check_gemv(device, rng)
    check_few_tokens(device, rng, ("gemm",))
    unaligned = data.exact_family(rng, 7, 80)
    check_products(device, rng, unaligned, ("gemm",), 37, 80, LINEAR)


@pytest.mark.parametrize("name", BLACKWELL)
def test_every_tile_of_blackwell(blackwell, name, monkeypatch):
    """Likewise with tokens as either of the MMA's operands, and with K split."""
    tile, rng = BLACKWELL[name], rng_of(24, len(name))
    monkeypatch.setenv("NVFP4KERN_TILE", name)
    if name.startswith("sm100/gemv:"):
        return check_blackwell_gemv(blackwell, rng)
    columns, lanes, ways = tile["tile_m"] + 3, tile["tile_n"] - 3, tile["operators"]
    k = tile["tile_k"] * (tile["split_k"] - 1) + 96
    if name.startswith("sm100/gemm:"):
        kind, tokens = "NVFP4", data.exact_family(rng, 2, columns, k)
        other = data.exact_family(rng, 2, lanes, k)
        # With few SMs their tokens are the MMA's M; see test_package.py.
        check_products(blackwell, rng, other, ("gemm",), 40, k, LINEAR, "float16")
    else:
        kind, tokens = "W4A16", integers(rng, "bfloat16", 2, columns, k)
    check_products(blackwell, rng, tokens, ways, 133, k, ("blocked", "linear"))
    if "list_gemm" in ways:
        groups = [(columns, 140, 96), (5, 40, 64), (0, 40, 64), (lanes, 40, 128), (1, 9, 32)]
        check_list(blackwell, rng, groups, None if kind == "NVFP4" else "bfloat16")
    for by_rows, form in ((False, "blocked"), (True, "linear")):
        given = form, by_rows, kind
        if "grouped_gemm" in ways:
            check_experts_of(blackwell, rng, Matrices, columns, 70, 96, *given)
        if "grouped_dual_gemm" in ways:
            check_experts_of(blackwell, rng, Stack, columns, 24, 96, *given, activation="identity")
        if "activated_grouped_gemm" in ways:
            check_experts_of(blackwell, rng, Matrices, columns, 72, 96, *given, activation="relu2")
    if "grouped_gemm" in ways and kind == "W4A16":
        check_experts_of(blackwell, rng, Matrices, columns, 72, 96, "linear", True, "16-bit")
    return None


@pytest.mark.parametrize("most", (8, 70, 300))
def test_one_launch_of_a_list(hopper, most):
    """Rows of all groups lie in one workspace, behind each other."""
    rng = rng_of(21, most)
    groups = [(20 % most, 8448, 64), (5, 4000, 64), (0, 64, 64), (most, 8448, 128), (7, 65, 128)]
    pairs = group_operands(rng, data.exact_family, groups)
    plan = nvfp4kern.explain("grouped_gemm", *list_of(pairs, hopper))
    assert plan["kernel"].startswith("sm90_list_gemm_w")
    check_list(hopper, rng, groups)


@pytest.mark.parametrize("m, batch", ((600, 1), (70, 5)))
@pytest.mark.parametrize("operator", ("gemm", "dual_gemm"))
def test_slices(hopper, operator, m, batch, monkeypatch):
    """Of rows and of batches, each of which has its own factors."""
    monkeypatch.setenv("NVFP4KERN_ROW_LIMIT", "256")
    monkeypatch.setenv("NVFP4KERN_TILE", "sm90/gemm:w64")
    rng = rng_of(22, m)
    a = data.exact_family(rng, batch, m, 64)
    check_products(hopper, rng, a, (operator,), 33, 64, ("linear", "linear"))


@pytest.mark.parametrize("by_rows", (False, True))
@pytest.mark.parametrize("experts", (Matrices, Stack), ids=("grouped_gemm", "grouped_dual_gemm"))
def test_slices_of_experts(hopper, experts, by_rows, monkeypatch):
    monkeypatch.setenv("NVFP4KERN_ROW_LIMIT", "3")
    monkeypatch.setenv("NVFP4KERN_TILE", "sm90/gemm:w8")
    more = {} if experts is Matrices else {"activation": "identity"}
    check_experts_of(hopper, rng_of(23), experts, 7, 24, 64, "linear", by_rows, **more)


@pytest.mark.parametrize("name", CONSUMER)
def test_every_tile_of_consumer_blackwell(consumer, name, monkeypatch):
    """The factor of a token goes with the lane that has its sums."""
    tile, rng = CONSUMER[name], rng_of(25, len(name))
    monkeypatch.setenv("NVFP4KERN_TILE", name)
    if name.startswith("sm120/gemv:"):
        return check_blackwell_gemv(consumer, rng)
    m, ways = tile["tile_m"] + 3, tile["operators"]
    if name.startswith("sm120/gemm:"):
        kind, dtype, tokens = "NVFP4", None, data.exact_family(rng, 2, m, 160)
    else:
        kind, dtype, tokens = "W4A16", "bfloat16", integers(rng, "bfloat16", 2, m, 160)
    check_products(consumer, rng, tokens, ways, 133, 160, ("blocked", "linear"))
    check_list(consumer, rng, [(m, 140, 96), (5, 40, 64), (0, 40, 64), (1, 9, 32)], dtype)
    for by_rows, form in ((False, "blocked"), (True, "linear")):
        given = form, by_rows, kind
        check_experts_of(consumer, rng, Matrices, m, 70, 96, *given)
        check_experts_of(consumer, rng, Stack, m, 24, 96, *given, activation="identity")
