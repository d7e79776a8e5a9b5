"""NVFP4KERN_TILE: every tile of every family is the oracle, and what none can do is refused."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from blackwell_kind_f16 import check_sm100_kind_f16
from blackwell_tiles import check_sm100_gemm
from conftest import GPUS
from consumer_tiles import check_sm120_gemm, check_sm120_kind_f16
from dense_calls import LINEAR, gemm_operands, gemv_operands, run_dual, run_gemm, run_gemv
from dense_tiles import check_dual, check_exact, check_full_range, check_list
from drawn_cases import NATURAL_K
from expert_tiles import (
    check_16_bit_experts,
    check_activated_experts,
    check_experts,
    check_experts_of_one_matrix,
    check_gated_experts,
    check_sm90_kind_f16,
)
from generators import assert_ok, codes, integers, rng_of, scales, values
from natural_k_tiles import check_sm90_natural_k
from refused_tiles import REFUSED, operator_call
from route_tiles import check_sm80_route, check_sm90_route, check_sm100_route

import nvfp4kern
from nvfp4kern.verify import data, reference

TILES = nvfp4kern._C._tiles()
OPERATORS = ("gemv", "gemm", "dual_gemm", "grouped_gemm", "grouped_dual_gemm", "route")
SMALL_GPU = "101376"  # bytes of shared memory
no_tiles = pytest.mark.skipif(not TILES, reason="a build without kernels")


# --- What the calls of a family compute ---


def check_gemm_of(device, dtype, m, n, k):
    """16-bit tokens."""
    rng = rng_of(m, n, k)
    a, b = integers(rng, dtype, m, k), data.exact_family(rng, n, k)
    got = run_gemm(a, b, device, dtype="float32")
    assert_ok(reference.check_bits(got, reference.gemm(a.values, b.values).rounded("float32")))


def check_dual_gemm_of(device, dtype, m, n, k, form="linear"):
    """16-bit tokens, and sums that are exact: the activation changes nothing."""
    rng = rng_of(m, n, k)
    a, *weights = integers(rng, dtype, m, k), *(data.exact_family(rng, n, k) for _ in range(2))
    options = {"forms": (form, form), "dtype": "float32", "activation": "identity"}
    got = run_dual((a, *weights), device, **options)
    sums = [reference.gemm(a.values, b.values).rounded("float32") for b in weights]
    assert_ok(reference.check_bits(got, np.float32(sums[0]) * np.float32(sums[1])))


def check_weights_just_written(device, c, m, n, k):
    """The bytes that a product writes are the next one's codes: it may not read them too early."""
    rng = rng_of(m, n, k)
    a, b = gemm_operands(rng, data.full_range, n, k // 4, 320)
    x, left = data.exact_family(rng, m, k), codes(a, device)
    first = left, codes(b, device), *(scales(o, "linear", rng, device) for o in (a, b))
    sfx = scales(x, "linear", rng, device)
    ones = torch.full((n, k // 16), 0x38, dtype=torch.uint8, device=device)
    written = torch.zeros(n, k // 4, dtype=torch.float16, device=device)
    nvfp4kern.gemm(*first, out=written)
    codes_of = written.view(torch.uint8)
    got = nvfp4kern.gemm(codes(x, device), codes_of, sfx, ones, out_dtype="float32")
    weights = values(nvfp4kern.dequantize((codes_of, ones, 1.0), out_dtype="float32"))
    want = reference.gemm(x.values, weights.astype(np.float64), c=c)
    assert_ok(reference.check(values(got), want, "float32"))


def check_gemv(device, n, k, batch=None, forms=("linear", "linear")):
    a, b = gemv_operands(rng_of(n, k), data.exact_family, n, k, batch)
    want = reference.gemv(a.values, b.values).rounded("float16")
    assert_ok(reference.check_bits(run_gemv(a, b, device, forms=forms), want))


def check_sm80_gemm(tile, device, c):
    tokens = tile["tile_m"]
    n = 260 if tokens == 128 else 140
    check_exact(device, tokens + 3, n, 304, forms=("blocked", "linear"))
    check_exact(device, 5, 40, 2048, batch=2)
    check_gemm_of(device, "float16", 9, n, 160)
    check_gemm_of(device, "bfloat16", 9, n, 160)
    check_dual(device, c, 11, n // 2 + 1, 272)
    check_list(device, c, [(tokens + 1, 33, 144), (0, 40, 64), (3, n, 512)], LINEAR)
    check_16_bit_experts(device, c, (tokens // 3 + 3, 0, tokens), 40, 96)
    if "grouped_dual_gemm" in tile["operators"]:
        check_gated_experts(device, c, (5, 0, 70), 75, 304, ("blocked", "blocked"))
        check_gated_experts(device, c, (1, 33), 64, 528, ("linear", "blocked"), "bfloat16")
    if "activated_grouped_gemm" in tile["operators"]:
        check_activated_experts(device, c, (5, 0, 70), 75, 304, ("blocked", "blocked"))
        check_activated_experts(device, c, (1, 33), 133, 528, dtype="float16", tokens=9)
        for kind in ("NVFP4", "16-bit"):
            check_activated_experts(device, c, (3, 9), 64, 48, dtype="bfloat16", kind=kind)


def check_sm80_gemv(tile, device, c):
    k = 1024 * tile["split_k"]
    check_gemv(device, 131, k, forms=("blocked", "linear"))
    check_gemv(device, 5, k - 16, batch=2)
    check_exact(device, 1, 40, k)
    check_gemm_of(device, "bfloat16", 1, 40, k)


def check_sm90_gemv(tile, device, c):
    for form in ("linear", "blocked"):
        check_gemv(device, 384, 1280, batch=2, forms=(form, "linear"))
    check_gemv(device, 128, 4096)
    check_exact(device, 1, 128, 512)
    if tile["tile"].startswith("short"):
        check_gemv(device, 37, 80)
    if tile["tile"].startswith("tall"):
        check_gemv(device, 37, 320)
        check_exact(device, 7, 300, 528)
        check_gemm_of(device, "float16", 1, 300, 512)
        check_gemm_of(device, "bfloat16", 3, 70, 528)
        for m, form in ((1, "linear"), (5, "blocked")):
            check_dual(device, c, m, 256, 1344, 2, forms=(form, form), byte=0x7F)
            check_dual_gemm_of(device, "float16", m, 72, 1088)
            check_dual_gemm_of(device, "bfloat16", m, 384, 320, form)
        for form in ("linear", "blocked"):
            check_list(device, c, [(m, 140, 1344) for m in (1, 0, 8, 3)], (form, form))
        check_list(device, c, [(2, 300, 576)] * 32, LINEAR, data.full_range)
        check_list(device, c, [(5, 40, 1088), (8, 40, 1088)], LINEAR, dtype="float16")
        check_list(device, c, [(4, 133, 320)] * 3, ("linear", "blocked"), dtype="bfloat16")
        check_experts(device, c, (1, 0, 5, 2, 0), 140, 1344)
        check_experts(device, c, (3, 1), 260, 1088, ("linear", "blocked"), full=True)
        check_experts(device, c, (0, 9), 133, 448, ("linear", "blocked"), "float16")
        check_experts(device, c, (3, 0, 1), 40, 1088, dtype="bfloat16")
        check_experts(device, c, (0, 0), 16, 64)
        check_gated_experts(device, c, (1, 0, 5, 2), 72, 1344)
        check_gated_experts(device, c, (3, 1), 384, 448, dtype="bfloat16")
        check_gated_experts(device, c, (0, 9), 200, 1088, dtype="float16", activation="gelu")


def check_blackwell_gemv(tile, device, c):
    for form in ("linear", "blocked"):
        check_gemv(device, 261, 1280, batch=2, forms=(form, "linear"))
        check_full_range(device, c, 7, 133, 448, ("linear", form))
    check_gemv(device, 37, 80)
    check_gemv(device, 24, 8192)  # by whole clusters
    check_exact(device, 1, 40, 512)
    check_exact(device, 5, 300, 528)
    check_gemm_of(device, "float16", 1, 300, 512)
    check_gemm_of(device, "bfloat16", 3, 70, 528)
    check_gemm_of(device, "bfloat16", 8, 140, 448)


def rows_of_experts(tokens):
    """Experts' rows: full tiles, tiles of every height, and rows that two and three tiles share."""
    step = 8 if tokens <= 32 else 16 if tokens <= 128 else 32
    return *range(step, tokens + 1, step), tokens + 1, 0, 2 * tokens + 3, 9


def check_sm90_experts(device, c, tokens, few):
    # Boxes of linear factors, of two stages or one.
    check_experts(device, c, rows_of_experts(tokens), 70, 512)
    check_experts(device, c, rows_of_experts(tokens), 70, 192, ("linear", "blocked"), "bfloat16")
    for k in (384, 416):  # boxes of an odd number of steps, and of a part of one
        check_experts(device, c, (3, few), 140, k, ("linear", "padded"))
    for form in ("linear", "blocked"):
        check_experts_of_one_matrix(device, c, (3, 0, few), 140, 512, ("linear", form))
    check_experts(device, c, (1, 0, few + 3, 2, 0), 140, 1344)
    check_experts(device, c, (0, 130, 5), 40, 96, ("blocked", "blocked"))
    check_experts(device, c, (2, 0, 7), 140, 1088, ("blocked", "linear"))
    check_experts(device, c, (3, few, 1), 40, 1088, ("linear", "blocked"), "bfloat16")
    check_experts(device, c, (0, 9), 133, 448, ("linear", "blocked"), "float16")
    for forms in (("linear", "blocked"), ("blocked", "linear")):
        check_experts(device, c, (4, 1, 6), 133, 448, forms, full=True)
    check_experts(device, c, (0, 0), 16, 64, ("blocked", "linear"))


def check_sm90_gated_experts(device, c, tokens, few):
    check_gated_experts(device, c, rows_of_experts(tokens), 24, 768)
    check_gated_experts(
        device, c, rows_of_experts(tokens), 128, 64, ("linear", "blocked"), "bfloat16"
    )
    check_gated_experts(device, c, (1, 0, few + 3, 2), 75, 1344)
    check_gated_experts(device, c, (0, 21, 5), 256, 96, ("blocked", "blocked"))
    check_gated_experts(device, c, (3, few, 1), 384, 448, ("linear", "blocked"), "bfloat16")
    check_gated_experts(device, c, (0, 9), 200, 1088, ("blocked", "linear"), "float16", "gelu")
    # Ups within an atom.
    check_gated_experts(device, c, (2, few, 0), 200, 448, ("linear", "blocked"))
    check_gated_experts(device, c, (1, 9), 72, 1344, ("linear", "blocked"), "bfloat16")


def check_sm90_one_gemm(tokens, few, device, c):
    check_exact(device, 9, 420, 192, forms=("linear", "blocked"))  # tiles that begin within an atom
    for form, k in (("linear", 1344), ("blocked", 1312)):
        check_exact(device, few + 3, 140, k, forms=("blocked", form))
        check_exact(device, 5, 260, k % 256, batch=2, forms=("linear", form))
    check_exact(device, tokens + 9, 40, 192)
    check_exact(device, 1, 1, 2048, forms=("linear", "blocked"))
    check_full_range(device, c, 19, 133, 448, ("linear", "blocked"))
    check_full_range(device, c, 9, 70, 1088, ("blocked", "linear"))
    check_gemm_of(device, "float16", 9, 133, 1088)
    check_gemm_of(device, "bfloat16", 9, 133, 1088)
    check_dual(device, c, few + 3, 75, 1344, forms=("blocked", "linear"))
    check_dual(device, c, few + 3, 200, 1312, forms=("linear", "blocked"))
    check_dual(device, c, 5, 130, 96, 2, forms=("linear", "blocked"), dtype="bfloat16")
    check_dual(device, c, tokens + 9, 40, 192, activation="gelu")
    check_dual(device, c, 1, 1, 2048, forms=("linear", "blocked"), dtype="float32")
    for form in ("linear", "blocked"):  # with NaN as the padding of blocked scale factors
        full = {"make": data.full_range, "forms": ("blocked", form), "byte": 0x7F}
        check_dual(device, c, 19, 133, 448, activation="identity", dtype="float32", **full)
    check_weights_just_written(device, c, few + 1, 140, 1088)
    check_list(device, c, [(few + 1, 33, 192), (0, 40, 64), (3, 140, 512)], LINEAR)
    check_dual_gemm_of(device, "float16", 9, 70, 1088)
    check_dual_gemm_of(device, "bfloat16", 9, 70, 1088)


def check_sm90_gemm(tile, device, c):
    if tile["tile"] in NATURAL_K:
        return check_sm90_natural_k(tile["tile_m"], device, c)
    few = min(tile["tile_m"], 64)
    if "gemm" in tile["operators"]:
        check_sm90_one_gemm(tile["tile_m"], few, device, c)
    if "grouped_gemm" in tile["operators"]:
        check_sm90_experts(device, c, tile["tile_m"], few)
        check_sm90_gated_experts(device, c, tile["tile_m"], few)
    if "activated_grouped_gemm" in tile["operators"]:
        check_activated_experts(device, c, rows_of_experts(tile["tile_m"]), 72, 192)
        check_activated_experts(device, c, (1, 0, few + 3), 130, 512, ("blocked", "blocked"))
        check_activated_experts(device, c, (2, 9), 133, 448, dtype="bfloat16", tokens=5)


CHECKS = {  # of a family: check(tile, device, c), where the tile is what _tiles() says of it
    "sm80/gemm": check_sm80_gemm,
    "sm80/gemv": check_sm80_gemv,
    "sm80/route": check_sm80_route,
    "sm90/gemv": check_sm90_gemv,
    "sm90/gemm": check_sm90_gemm,
    "sm90/kind_f16": check_sm90_kind_f16,
    "sm90/route": check_sm90_route,
    "sm100/gemm": check_sm100_gemm,
    "sm100/kind_f16": check_sm100_kind_f16,
    "sm100/route": check_sm100_route,
    "sm100/gemv": check_blackwell_gemv,
    "sm120/gemm": check_sm120_gemm,
    "sm120/kind_f16": check_sm120_kind_f16,
    "sm120/gemv": check_blackwell_gemv,
}


# --- Every tile ---


@pytest.fixture
def on_row(monkeypatch):
    """on_row(name): the backend of that row, which calls then begin with."""

    def begin(name):
        found = next((gpu for gpu in GPUS if gpu.name == name), None)
        if found is None:
            pytest.skip(f"no GPU for {name}")
        found.force(monkeypatch)
        return found

    return begin


def watch(monkeypatch, backend, tile):
    """Every call says that it takes this tile before it does; the operators that were called."""
    called = []

    def watched(name, call):
        def explained(*args, **options):
            plan = nvfp4kern.explain(name, *args, **options)
            assert (plan["backend"], plan["tile"]) == (backend.name, tile)
            called.append(name)
            return call(*args, **options)

        return explained

    for name in OPERATORS:
        monkeypatch.setattr(nvfp4kern, name, watched(name, getattr(nvfp4kern, name)))
    return called


def test_every_family_is_checked():
    assert {f"{tile['row']}/{tile['family']}" for tile in TILES.values()} <= set(CHECKS)


@pytest.mark.parametrize("name", TILES)
def test_every_tile_is_the_oracle(name, on_row, monkeypatch):
    tile = TILES[name]
    backend = on_row(tile["row"])
    monkeypatch.setenv("NVFP4KERN_TILE", name)
    called = watch(monkeypatch, backend, tile["tile"])
    CHECKS[f"{tile['row']}/{tile['family']}"](tile, backend.device, backend.c)
    assert len(called) > 1


@pytest.mark.parametrize("name", [n for n in ("sm90/gemm:v8", "sm90/gemm:v96") if n in TILES])
def test_experts_in_slices(name, on_row, monkeypatch):
    """They begin within experts and within atoms, and the last has rows of nobody alone."""
    backend = on_row("sm90")
    monkeypatch.setenv("NVFP4KERN_TILE", name)
    monkeypatch.setenv("NVFP4KERN_ROW_LIMIT", "3")
    called = watch(monkeypatch, backend, TILES[name]["tile"])
    of_backend = backend.device, backend.c
    check_sm90_experts(*of_backend, 7, 7)
    check_sm90_gated_experts(*of_backend, 7, 7)
    for form in ("linear", "blocked"):
        check_experts(*of_backend, (4, 0, 7, 1), 40, 192, (form, "linear"), tokens=6)
        check_gated_experts(*of_backend, (4, 0, 7, 1), 128, 96, (form, "blocked"), tokens=6)
    assert len(called) > 10


# --- What a tile cannot serve ---


@pytest.mark.parametrize("name, operator, sizes, environment, why", REFUSED)
def test_a_call_that_the_tile_cannot_serve(
    name, operator, sizes, environment, why, on_row, monkeypatch
):
    device = on_row(name.partition("/")[0]).device
    call = operator_call(operator, device, **sizes)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert nvfp4kern.explain(*call)["backend"]
    monkeypatch.setenv("NVFP4KERN_TILE", name)
    with pytest.raises(nvfp4kern.BackendError) as caught:
        nvfp4kern.explain(*call)
    assert str(caught.value).startswith(f"NVFP4KERN_TILE: {name} cannot serve this call: ")
    assert why in str(caught.value)


@pytest.mark.skipif(
    os.environ.get("NVFP4KERN_SMEM_LIMIT") != SMALL_GPU, reason=f"NVFP4KERN_SMEM_LIMIT={SMALL_GPU}"
)
@pytest.mark.parametrize("name", ("sm80/gemm:t128", "sm80/route:t128x256"))
def test_a_tile_without_room(name, on_row, monkeypatch):
    call = operator_call(name[5:9].replace("rout", "route"), on_row("sm80").device)
    monkeypatch.setenv("NVFP4KERN_TILE", name)
    with pytest.raises(nvfp4kern.BackendError, match=f"{name} cannot .* its CTAs? .*shared memory"):
        nvfp4kern.explain(*call)


@pytest.mark.parametrize(
    "name", [next((t for t in TILES if t.startswith(f)), f) for f in CHECKS] if TILES else []
)
def test_other_families_and_rows_are_left_alone(name, backend, monkeypatch):
    family = {"gemv": "gemv", "gemm": "gemm", "route": "route"}
    calls = [operator_call(op, backend.device) for op in family]
    before = [nvfp4kern.explain(*call) for call in calls]
    monkeypatch.setenv("NVFP4KERN_TILE", name)
    row, _, rest = name.partition("/")
    for call, then in zip(calls, before, strict=True):
        few = then["backend"] != "sm80"  # others' gemv serves gemm of few tokens, too
        touched = then["backend"] == row and (few or rest.startswith(call[0]))
        if not touched:
            assert nvfp4kern.explain(*call) == then


# --- What is written in the variable ---


def refusal(monkeypatch, text):
    """Of a call that has no tile at all, on the CPU."""
    monkeypatch.setenv("NVFP4KERN_TILE", text)
    with pytest.raises(nvfp4kern.BackendError) as caught:
        nvfp4kern.to_blocked(np.zeros((1, 1), np.uint8))
    return str(caught.value)


@pytest.mark.parametrize("text", ("t8", "sm80/gemm", "sm80:t8", ",", "sm80:gemm/t8"))
def test_what_is_no_list_of_tiles(text, monkeypatch):
    assert "expected <row>/<family>:<tile>" in refusal(monkeypatch, text)


@no_tiles
def test_unknown_names(monkeypatch):
    first, *_, last = TILES
    family, _, tile = last.partition(":")
    row = family.partition("/")[0]
    rows = {name.partition("/")[0] for name in TILES}
    families = {name.partition(":")[0] for name in TILES if name.startswith(f"{row}/")}
    tiles = {name.partition(":")[2] for name in TILES if name.startswith(f"{family}:")}
    for text, what, known in [
        (f"sm1/gemm:{tile}", "row with tiles", rows),
        (f"{row}/gem:{tile}", "family of this row", {f.partition("/")[2] for f in families}),
        (f"{family}:{tile[:-1]}", "tile of this family", tiles),
    ]:
        message = refusal(monkeypatch, text)
        head, _, listed = message.partition(", this build has: ")
        assert head == f"NVFP4KERN_TILE: '{text}': no such {what}"
        assert set(listed.split(", ")) == known
        assert refusal(monkeypatch, f"{first},{text}") == message


@no_tiles
def test_two_tiles_of_a_family(monkeypatch):
    one, other, *_ = TILES
    message = refusal(monkeypatch, f"{one},{other}")
    assert message == f"NVFP4KERN_TILE: two tiles of one family: '{one}' and '{other}'"


@pytest.mark.parametrize("row", ("sm90", "sm100"))
def test_families_keep_their_earlier_names(row, monkeypatch):
    tiles = [t for t in TILES if t.startswith(f"{row}/kind_f16:")]
    if not tiles:
        pytest.skip("not built")
    old, new = tiles[0].replace("kind_f16", "halves"), tiles[1]
    monkeypatch.setenv("NVFP4KERN_TILE", old)
    assert nvfp4kern.to_blocked(np.zeros((1, 1), np.uint8)).shape
    message = refusal(monkeypatch, f"{old},{new}")
    assert message == f"NVFP4KERN_TILE: two tiles of one family: '{old}' and '{new}'"
    assert "no such tile of this family" in refusal(monkeypatch, f"{row}/halves:h1")


def test_nothing_is_forced_where_nothing_is_written(monkeypatch):
    monkeypatch.setenv("NVFP4KERN_TILE", "")
    assert nvfp4kern.to_blocked(np.zeros((1, 1), np.uint8)).shape


@no_tiles
def test_the_cpu_has_no_tiles(monkeypatch):
    monkeypatch.setenv("NVFP4KERN_TILE", ",".join({t.partition(":")[0]: t for t in TILES}.values()))
    plan = nvfp4kern.explain(*operator_call("gemm", "cpu"))
    assert plan["backend"] == "cpu" and "tile" not in plan


@no_tiles
def test_the_documents_list_the_tiles():
    """docs/api.md has a row for each family."""
    lines = (Path(__file__).parents[2] / "docs" / "api.md").read_text().splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| `sm")]
    listed = {row[1].strip(" `"): row[3] for row in rows if "/" in row[1]}
    assert set(listed) == set(CHECKS)
    for name in TILES:
        family, _, tile = name.partition(":")
        assert f"`{tile}`" in listed[family]
