"""The campaign of forced tiles: what is kept of it, and a drawn sample."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from drawn_calls import OPERATORS, TOKENS, drawn
from drawn_cases import FAMILIES, cases, families_of
from drawn_gated import draw_gated
from ptxsim import build
from ptxsim.campaigns import tiles
from ptxsim.marks import COMPILES
from rows import TABLE, need

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_kept_found_nothing(family):
    row = tiles.row_of(family)
    need(row)
    kept = json.loads(tiles.RESULTS[row].read_text())[family]
    assert set(kept) == {"kernels", "sms", "seeds", "cases", "found"}
    assert kept["found"] == [] and kept["sms"] == list(tiles.SMS[row])
    assert kept["seeds"] == sorted(set(kept["seeds"])) and kept["seeds"]
    known = {case.name: case for case in cases([family])}
    assert kept["cases"] and set(kept["cases"]) <= set(known)
    for name, counts in kept["cases"].items():
        assert set(counts) == set(tiles.COUNTS)
        assert counts["calls"] + counts["declined"] == len(kept["seeds"]), name
        assert counts["calls"] and (known[name].may_decline or not counts["declined"]), name
        assert counts["wrong"] == counts["E"] == counts["W"] == 0, name


@pytest.mark.slow
@COMPILES
@pytest.mark.parametrize("row", tiles.RESULTS)
def test_every_kernel_has_a_case(row):
    """But for what runs before or after it in the same call, the gemvs of one dense matrix, and the
    tiles that test_grouped_encoded.py forces."""
    need(row)
    kernels, compiled = set(), build.kernels(TABLE[row].cc)
    for source in (path for of in families_of(row) for path in (build.CSRC / of).glob("*.cu")):
        text = (compiled / f"{source.stem}.ptx").read_text()
        kernels |= set(re.findall(r"\.entry (\w+)\(", text))
    other = re.compile("sm90_prepare_a_|sm90_encoded_|sm90_gemv_(?!experts|list|.*dual)")
    others = {name for name in kernels if other.match(name)}
    of_cases = {case.kernel for case in cases(families_of(row))}
    assert kernels - others - {"sm90_route_sort"} == of_cases
    for family, kept in json.loads(tiles.RESULTS[row].read_text()).items():
        if kept["kernels"] == tiles.hash_of(family):  # else until the campaign has run again
            assert set(kept["cases"]) == {case.name for case in cases([family])}


@pytest.mark.parametrize("row", tiles.RESULTS)
def test_no_other_family_is_kept(row):
    assert set(json.loads(tiles.RESULTS[row].read_text())) == set(families_of(row))


PTX = """.version 9.0
.extern .shared .align 16 .b8 smem[];
.visible .entry first(
 .param .u64 first_param_0
)
{
 .shared .align 4 .u32 kept;
 .loc 1 2 3
 min.u32 %r1, %r2, kept;  bra $L__BB0_1;
$L__BB0_1: // a comment
 st.shared.u32 [smem], %r1;
}

.visible .entry second(
)
{
 ret;
}
"""


def test_results_are_of_what_kernels_execute(tmp_path, monkeypatch):
    """They stay where names, places, comments and the order of kernels change."""
    bodies = sorted(tiles.bodies_of(PTX))
    head, one, other = re.split(r"(?=\.visible)", PTX)
    for old, new in {"smem": "ring", "kept": "held", "first": "gemm", "1 2 3": "4 5 6"}.items():
        one, head = one.replace(old, new), head.replace(old, new)
    one, other = one.replace("BB0", "BB1"), other.replace("second", "_Z6second")
    assert sorted(tiles.bodies_of(head + other + one)) == bodies and len(bodies) == 2
    for old, new in {"min": "max", "smem], %r1": "kept], %r1", "%r2": "%r3"}.items():
        assert sorted(tiles.bodies_of(PTX.replace(old, new))) != bodies
    results, of = tmp_path / "results.json", {"sm90/one": "1", "sm90/two": "2"}
    monkeypatch.setattr(tiles, "hash_of", of.get)
    for family in ("sm90/two", "sm90/one"):
        tiles.keep(results, family, tiles.kept(results, family) | {"seeds": [5]})
    assert list(json.loads(results.read_text())) == ["sm90/one", "sm90/two"]
    of["sm90/one"] = "changed"
    assert [tiles.kept(results, family)["seeds"] for family in of] == [[], [5]]


@pytest.mark.parametrize(
    "operator, tokens",
    [(o, t) for o in OPERATORS for t in TOKENS if t != "NVFP4" or "halves" not in o],
)
def test_drawn_calls_are_the_oracles(operator, tokens, monkeypatch):
    """On the CPU: what is drawn is right, and a seed draws it again."""
    check_draws(monkeypatch, lambda *args: drawn(operator, tokens, *args))


@pytest.mark.parametrize("tokens", TOKENS)
def test_drawn_calls_of_gated_experts_are_the_oracles(tokens, monkeypatch):
    check_draws(monkeypatch, lambda tile, *args: draw_gated(tile, tokens, *args))


def check_draws(monkeypatch, draw):
    """draw(tokens of a tile, seed, work)"""
    monkeypatch.setenv("NVFP4KERN_BACKEND", "cpu")
    for seed in range(12):
        call = draw((8, 64, 256)[seed % 3], seed, 1 << 18)
        outs = call.run("cpu")
        call.check(outs, 1)
        again = draw((8, 64, 256)[seed % 3], seed, 1 << 18)
        assert again.said == call.said
        outs[0].buffer.view(dtype=outs[0].buffer.dtype)[0] = 1  # a guard
        with pytest.raises(AssertionError, match="guards"):
            call.check(outs, 1)


def test_a_wrong_element_is_noticed(monkeypatch):
    monkeypatch.setenv("NVFP4KERN_BACKEND", "cpu")
    for always_exact in (True, False):
        call = drawn("gemm", "NVFP4", 64, 3, work=1 << 18, always_exact=always_exact)
        (out,) = call.run("cpu")
        element = tuple(np.array(out.tensor.shape) - 1)
        out.tensor[element] = 3e4
        with pytest.raises(AssertionError, match="output 0"):
            call.check([out], 1)


def run_command(*command):
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path if p)
    return subprocess.run(
        [sys.executable, *command],
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@COMPILES
def test_a_drawn_sample_of_tiles(campaign, tmp_path):
    need("sm90", "sm100")
    file = tmp_path / "found.json"
    sample = ["--seed", str(campaign.seed), "--seeds", str(campaign.times(2)), "--sample", "8"]
    done = run_command("-m", "tests.ptxsim", "tiles", *sample, "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert set(found) == set(FAMILIES)
    for family in found.values():
        assert family["found"] == [] and len(family["seeds"]) == campaign.times(2)
        assert sum(counts["calls"] for counts in family["cases"].values()) > 7


@pytest.mark.parametrize("which", ([], ["--routers"]))
def test_the_script_of_random_problems_compares(which):
    """The CPU with itself, as on a machine without a GPU."""
    need("sm90")
    script = ["tests/random_problems.py", "--backend", "cpu", "--count", "120", "--jobs", "1"]
    done = run_command(*script, *which)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 1: 120 problems right, 0 wrong" in done.stdout
