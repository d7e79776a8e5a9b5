"""What Blackwell's products move: whole shapes of the competition, and what choices save."""

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from ptxsim import build
from ptxsim.campaigns import choices, whole
from ptxsim.marks import COMPILES
from rows import TABLE, need, tiles_of

from nvfp4kern.verify import shapes

ALIGNED = 1.001
"""Operands begin anywhere in a sector."""
LISTED = 0.8
"""Of the plan's bytes: rows that a tile has room for, but its group has not, are not asked for."""


def check_row(row):
    """Memory is asked for everything once, L2 for what the plan says, no product is in vain."""
    counted, planned = row["counted"], row["planned"]
    assert row["findings"]["E"] == row["findings"]["W"] == 0
    tiles = tiles_of("sm100/gemm")
    assert not tiles or row["tile"] in tiles
    least = LISTED if row["problem"] == "group_gemm" else 1
    assert least <= counted["l2_read_bytes"] / planned["l2_read_bytes"] <= 1.15
    assert 1 <= counted["touched_bytes"] / planned["touched_bytes"] <= ALIGNED
    assert counted["mmas"] == planned["mmas"]


def test_what_is_kept_of_whole_shapes():
    kept = json.loads(whole.RESULTS.read_text())
    assert set(kept) == {"kernels", "sms", "rows"} and kept["sms"] == whole.SMS
    found = {whole.key(row["problem"], row["shape"]) for row in kept["rows"]}
    assert found == {whole.key(p, of) for p in whole.PROBLEMS for of in shapes.BENCHMARKS[p]}
    for row in kept["rows"]:
        check_row(row)


@pytest.mark.slow
@COMPILES
@pytest.mark.parametrize(
    "problem, shape",
    [
        ("gemm", (300, 140, 320, 1)),
        ("dual_gemm", (70, 200, 576, 1)),
        ("group_gemm", ((40, 200, 320, 1), (300, 140, 320, 1))),
    ],
)
def test_a_shape_moves_what_the_plan_says(problem, shape):
    """With rows and steps that are not whole: what is not there is not asked for."""
    need("sm100")
    build.environment(cc=TABLE["sm100"].cc)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        row = pool.submit(whole.run_shape, problem, shape, 3).result()
    counted, planned = row["counted"], row["planned"]
    assert row["findings"]["E"] == row["findings"]["W"] == 0
    assert counted["mmas"] == planned["mmas"]
    assert counted["l2_read_bytes"] <= planned["l2_read_bytes"] < 2 * counted["l2_read_bytes"]
    assert 1 <= counted["touched_bytes"] / planned["touched_bytes"] <= 1.01


@pytest.mark.slow
@COMPILES
def test_products_of_16_bit_tokens_move_what_the_plan_says():
    """Few tokens and many, and tokens by index, whose rows and offsets are read, too."""
    need("sm100")
    build.environment(cc=TABLE["sm100"].cc)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        run = lambda *args: pool.submit(whole.run_16bit, *args).result()  # noqa: E731
        few, many = run((20, 384, 1024), 3), run((260, 256, 512), 3)
        indexed = run((70, 256, 512), 3, True)
    kernels = {row["kernel"].rpartition("_")[0] for row in (few, many)}
    assert kernels == {"sm100_kind_f16_gemm"} and few["kernel"] != many["kernel"]
    assert indexed["kernel"].startswith("sm100_kind_f16_grouped_gemm")
    for row, most in ((few, ALIGNED), (many, ALIGNED), (indexed, 1.02)):
        counted, planned = row["counted"], row["planned"]
        assert row["findings"]["E"] == row["findings"]["W"] == 0
        assert counted["mmas"] == planned["mmas"]
        for name in ("l2_read_bytes", "touched_bytes"):
            assert 1 <= counted[name] / planned[name] <= most, name


def test_a_plan_of_16_bit_tokens_by_hand():
    """Two by two tiles of 256 x 128: 300 rows of weights for either 128 tokens, and so on."""
    need("sm100")
    found = whole.planned_of_16bit("p128", 192, 300, 128)
    weights, tokens = 300 * 64 + 3 * 2 * 512, 192 * 256
    assert found["l2_read_bytes"] == 2 * weights + 2 * tokens and found["mmas"] == 4 * 8
    assert found["touched_bytes"] == weights + tokens + 2 * 192 * 300


def test_a_plan_by_hand():
    """Two tiles of 256 x 192, K of two MMAs: 256 rows of operand M, 192 of operand N, and in either
    CTA the scale factors of its rows and of all of operand N."""
    need("sm100")
    found = whole.planned("p192", False, 1, 192, 300, 128)
    codes, factors = 2 * (256 + 192) * 64, 2 * 2 * 2 * (1 + 2) * 512
    assert found == {"l2_read_bytes": codes + factors, "mmas": 4}
    of_cta = (128 + 64) * 32 + (1 + 2 / 4) * 512  # multicast: a quarter of 256 rows and their atoms
    assert whole.planned("p256m2", False, 1, 256, 600, 64) == {
        "l2_read_bytes": 8 * of_cta,
        "mmas": 4,
    }
    assert whole.compulsory(1, 192, 300, 128) == 492 * 64 + (2 + 3) * 2 * 512 + 2 * 192 * 300


def test_every_choice_saves_something():
    kept = json.loads(choices.RESULTS.read_text())
    for choice, row in zip(choices.CHOICES, kept["rows"], strict=True):
        assert (row["tile"], tuple(row["shape"])) == (choice.tile, choice.shape)
        assert 0 < row["with"] < row["without"], choice.what


def test_what_a_choice_changes_is_there():
    """Once, in the sources: else the campaign would compare a kernel with itself."""
    for choice in choices.CHOICES:
        assert bool(choice.without) != bool(choice.source), choice.what
        if choice.source:
            text = (build.CSRC / choices.FAMILY / choice.source).read_text()
            assert text.count(choice.changed[0]) == 1, choice.what
